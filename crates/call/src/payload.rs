//! Memory that goes with a call: what does not fit 60 bytes.

use std::ptr::NonNull;

use fipsee_ring::region::Region;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::{CallError, Error};

/// The payload of one request or one reply: shared memory at a place that both sides know, so nothing about it travels.
///
/// How much of it is used, and what for, the request or reply says, in a field of its type. The peer can write to it
/// at any moment: copy first what must be checked ([`read`](Self::read)), then check the copy. Bulk data that needs no check may
/// be used in place ([`pointer`](Self::pointer)); the peer may change it at any time, also between two looks.
///
/// Access outside the payload is [`CallError::OutsidePayload`]: a length that the peer gave may be false.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    region: &'a Region,
    offset_bytes: u64,
    length_bytes: u32,
}

impl<'a> Payload<'a> {
    pub(crate) const fn new(region: &'a Region, offset_bytes: u64, length_bytes: u32) -> Self {
        Self { region, offset_bytes, length_bytes }
    }

    /// Bytes there are; 0 when the service has none in this direction.
    pub const fn length_bytes(&self) -> u32 {
        self.length_bytes
    }

    fn check(&self, offset_bytes: usize, length_bytes: usize) -> Result<u64, Error> {
        let fits = offset_bytes.checked_add(length_bytes).is_some_and(|end| end as u64 <= u64::from(self.length_bytes));
        let error = Error::Service(CallError::OutsidePayload { offset_bytes, length_bytes, payload_bytes: self.length_bytes });
        if fits { Ok(self.offset_bytes + offset_bytes as u64) } else { Err(error) }
    }

    /// Copy bytes out, once.
    pub fn read(&self, offset_bytes: usize, into: &mut [u8]) -> Result<(), Error> {
        let from_bytes = self.check(offset_bytes, into.len())?;
        Ok(self.region.read(from_bytes, into)?)
    }

    /// Copy bytes in.
    pub fn write(&self, offset_bytes: usize, from: &[u8]) -> Result<(), Error> {
        let to_bytes = self.check(offset_bytes, from.len())?;
        Ok(self.region.write(to_bytes, from)?)
    }

    /// Copy a value out: a type larger than a message, for which any bytes are a value.
    pub fn read_value<T: FromBytes + IntoBytes>(&self, offset_bytes: usize) -> Result<T, Error> {
        let mut value = T::new_zeroed();
        self.read(offset_bytes, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Copy a value in.
    pub fn write_value<T: IntoBytes + Immutable>(&self, offset_bytes: usize, value: &T) -> Result<(), Error> {
        self.write(offset_bytes, value.as_bytes())
    }

    /// The first byte, for filling or reading in place. Valid for [`length_bytes`](Self::length_bytes) as long as what lent
    /// this payload; the peer may write there at any moment, so no Rust reference may lead into it.
    pub fn pointer(&self) -> Result<NonNull<u8>, Error> {
        let start_bytes = self.check(0, usize::from(self.length_bytes == 0))?;
        Ok(self.region.pointer("payload", start_bytes, self.length_bytes.into())?)
    }
}
