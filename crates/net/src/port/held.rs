//! Frames that a program holds where the daemon put them.

use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use fipsee_ring::PeerFault;
use fipsee_ring::region::Region;

use super::buffers::{Buffers, Places};
use crate::wire::{MAX_FRAME_BUFFERS, Offload};

/// Where the receive buffers of a pair are, and those that frames have given back.
#[derive(Debug)]
pub(super) struct Home {
    region: Arc<Region>,
    places: Places,
    /// Frames may be dropped by other threads. It never has more than the buffers that there are.
    returned: Mutex<Vec<u16>>,
}

impl Home {
    pub(super) fn new(region: &Arc<Region>, buffers: &Buffers) -> Self {
        let Buffers { places, ref given } = *buffers;
        Self { region: Arc::clone(region), places, returned: Mutex::new(Vec::with_capacity(given.len())) }
    }

    /// Move what was given back to `unposted`: how many.
    pub(super) fn take_returned(&self, unposted: &mut VecDeque<u16>) -> usize {
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        let count = returned.len();
        unposted.extend(returned.drain(..));
        count
    }
}

/// A frame in receive buffers. The daemon can write to them at any time, so what must be checked is to be copied first. Dropped, it gives
/// them back; it may outlive the port.
pub struct Frame {
    home: Arc<Home>,
    length_bytes: u32,
    offload: Offload,
    count: u8,
    tags: [u16; MAX_FRAME_BUFFERS],
}

impl Frame {
    pub(super) fn new(home: &Arc<Home>, length_bytes: u32, offload: Offload, tags: &[u16]) -> Self {
        let count = u8::try_from(tags.len()).unwrap_or(0);
        let tags = std::array::from_fn(|index| tags.get(index).copied().unwrap_or(0));
        Self { home: Arc::clone(home), length_bytes, offload, count, tags }
    }

    pub const fn length_bytes(&self) -> u32 {
        self.length_bytes
    }

    /// What it leaves to be done. Nothing, unless the attachment has offloads in force.
    pub const fn offload(&self) -> Offload {
        self.offload
    }

    pub(super) fn buffer_count(&self) -> usize {
        self.count.into()
    }

    /// Where its bytes are: one piece, unless the frame is longer than a receive buffer. The memory is valid for loads and stores as long as
    /// this exists.
    pub fn pieces(&self) -> impl Iterator<Item = (NonNull<u8>, u32)> {
        self.places().filter_map(|(offset_bytes, length_bytes)| {
            let place = self.home.region.pointer("receive buffer", offset_bytes, length_bytes.into());
            place.ok().map(|place| (place, length_bytes))
        })
    }

    /// Offset in the region and length of each piece.
    fn places(&self) -> impl Iterator<Item = (u64, u32)> {
        let places = self.home.places;
        let mut left_bytes = self.length_bytes;
        self.tags[..self.buffer_count()].iter().map(move |tag| {
            let length_bytes = left_bytes.min(places.stride_bytes);
            left_bytes -= length_bytes;
            (places.region_offset_bytes(*tag), length_bytes)
        })
    }

    /// Copy what begins so far into it, as much as there is and fits: how many bytes.
    ///
    /// # Errors
    /// None that a program can cause.
    pub fn read(&self, offset_bytes: u32, into: &mut [u8]) -> Result<usize, PeerFault> {
        let (mut skip, mut done) = (offset_bytes, 0);
        for (place, length_bytes) in self.places() {
            let skipped = skip.min(length_bytes);
            skip -= skipped;
            let count = (into.len() - done).min((length_bytes - skipped) as usize);
            self.home.region.read(place + u64::from(skipped), &mut into[done..done + count])?;
            done += count;
        }
        Ok(done)
    }

    /// A copy of it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn to_vec(&self) -> Result<Vec<u8>, PeerFault> {
        let mut bytes = vec![0; self.length_bytes as usize];
        self.read(0, &mut bytes).map(|_| bytes)
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame of {} bytes in buffers {:?}", self.length_bytes, &self.tags[..self.buffer_count()])
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let mut returned = self.home.returned.lock().unwrap_or_else(PoisonError::into_inner);
        returned.extend_from_slice(&self.tags[..usize::from(self.count)]);
    }
}
