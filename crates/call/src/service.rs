//! What two programs agree on: a name and two types.

use fipsee_ring::Message;
use fipsee_ring::layout::PAYLOAD_BYTES;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// A value that can be a request or a reply: at most 60 bytes without padding, in which the peer's bytes can be checked.
/// Derive the four traits of the zerocopy crate; numbers are in the byte order of the machine, which is little-endian.
///
/// ```
/// #[derive(zerocopy::TryFromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
/// #[repr(u8)]
/// enum Operation { Get, Put }
/// ```
pub trait Value: TryFromBytes + IntoBytes + KnownLayout + Immutable {}

impl<T: TryFromBytes + IntoBytes + KnownLayout + Immutable> Value for T {}

/// A service: what a client and a server must agree on.
pub trait Service {
    /// Names the service and the version of its types, 1 to 64 bytes: `"org.example.counter/1"`. Increase the version when
    /// the types change; a client of another version is refused with a text that says so.
    const NAME: &str;
    /// What a client sends.
    type Request: Value;
    /// What it gets back.
    type Reply: Value;
}

/// The sizes that both sides compare.
pub(crate) const fn sizes_of<S: Service>() -> (u32, u32) {
    (value_bytes::<S::Request>(), value_bytes::<S::Reply>())
}

const fn value_bytes<T>() -> u32 {
    assert!(size_of::<T>() <= PAYLOAD_BYTES, "a request or reply has at most 60 bytes; send the rest as payload");
    #[expect(clippy::cast_possible_truncation, reason = "at most 60")]
    let bytes = size_of::<T>() as u32;
    bytes
}

/// The message that carries `value`; bytes beyond it are 0.
#[inline(always)]
pub(crate) fn to_message<T: Value>(value: &T) -> Message {
    let bytes = value.as_bytes();
    let mut payload = [0_u8; PAYLOAD_BYTES];
    payload[..bytes.len()].copy_from_slice(bytes);
    Message::from_payload(&payload)
}

/// The value in a message, if its bytes are one.
#[inline(always)]
pub(crate) fn from_message<T: Value>(message: &Message) -> Option<T> {
    let bytes = message.to_bytes();
    T::try_read_from_bytes(&bytes[..size_of::<T>()]).ok()
}
