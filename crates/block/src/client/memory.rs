//! Memory shared by both sides: the channel's pool, and memory of the client's own.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fipsee_ring::region::Region;

use super::{DiskError, Error};
use crate::wire::{SECTOR_BYTES, SECTOR_SHIFT, Segment};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Data under the lock is consistent at every point where a panic is possible.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The channel's pool: region id 0. Its address changes when the client reconnects, so it is accessed by copies only.
#[derive(Debug)]
pub(super) struct Pool {
    state: Mutex<PoolState>,
}

#[derive(Debug)]
struct PoolState {
    region: Arc<Region>,
    offset_bytes: u64,
    length_bytes: u64,
    /// Free pieces: offset to length, in bytes from the pool's start, never adjacent.
    free: BTreeMap<u64, u64>,
}

/// Buffers start at pages, so that a disk with O_DIRECT can use them as they are.
const BUFFER_ALIGN_BYTES: u64 = 4096;

impl Pool {
    pub(super) fn new(region: Arc<Region>, offset_bytes: u64, length_bytes: u64) -> Self {
        let free = if length_bytes > 0 { BTreeMap::from([(0, length_bytes)]) } else { BTreeMap::new() };
        Self { state: Mutex::new(PoolState { region, offset_bytes, length_bytes, free }) }
    }

    pub(super) fn allocate(self: &Arc<Self>, wanted_bytes: u64) -> Result<Buffer, Error> {
        let mut state = lock(&self.state);
        let pool_bytes = state.length_bytes;
        let refused = Error::Service(DiskError::PoolExhausted { wanted_bytes, pool_bytes });
        if wanted_bytes == 0 || wanted_bytes > pool_bytes {
            return Err(refused);
        }
        let taken_bytes = wanted_bytes.next_multiple_of(BUFFER_ALIGN_BYTES);
        let found = state.free.iter().find(|(_, length)| **length >= taken_bytes).map(|(offset, length)| (*offset, *length));
        let Some((offset_bytes, free_bytes)) = found else {
            return Err(refused);
        };
        state.free.remove(&offset_bytes);
        if free_bytes > taken_bytes {
            state.free.insert(offset_bytes + taken_bytes, free_bytes - taken_bytes);
        }
        Ok(Buffer { place: BufferOwner::Pool(Arc::clone(self)), offset_bytes, length_bytes: wanted_bytes, taken_bytes })
    }

    fn give_back(&self, offset_bytes: u64, length_bytes: u64) {
        let mut state = lock(&self.state);
        let (mut offset_bytes, mut length_bytes) = (offset_bytes, length_bytes);
        if let Some((before, before_bytes)) = state.free.range(..offset_bytes).next_back().map(|(o, l)| (*o, *l))
            && before + before_bytes == offset_bytes
        {
            state.free.remove(&before);
            (offset_bytes, length_bytes) = (before, before_bytes + length_bytes);
        }
        if let Some(after_bytes) = state.free.remove(&(offset_bytes + length_bytes)) {
            length_bytes += after_bytes;
        }
        state.free.insert(offset_bytes, length_bytes);
    }

    /// Move to the pool of a new channel, with the contents, because unanswered requests still refer to them.
    pub(super) fn move_to(&self, region: Arc<Region>, offset_bytes: u64, length_bytes: u64) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if length_bytes < state.length_bytes {
            return Err(Error::Service(DiskError::Different("(smaller) pool size")));
        }
        let mut piece = vec![0; 1 << 20];
        let mut done_bytes = 0;
        while done_bytes < state.length_bytes {
            let left = usize::try_from(state.length_bytes - done_bytes).unwrap_or(usize::MAX);
            let count = piece.len().min(left);
            let bytes = &mut piece[..count];
            state.region.read(state.offset_bytes + done_bytes, bytes)?;
            if bytes.iter().any(|byte| *byte != 0) {
                region.write(offset_bytes + done_bytes, bytes)?;
            }
            done_bytes += count as u64;
        }
        (state.region, state.offset_bytes) = (region, offset_bytes);
        Ok(())
    }
}

/// Memory of the client's own that the daemon has mapped: data moves between it and the disk without a copy.
#[derive(Clone, Debug)]
pub struct Memory {
    pub(super) region: Arc<Region>,
    pub(super) id: u16,
}

impl Memory {
    /// Its id on the wire.
    pub const fn id(&self) -> u16 {
        self.id
    }

    /// Length in bytes.
    pub fn length_bytes(&self) -> u64 {
        self.region.length_bytes()
    }

    /// First byte. The daemon may write to this memory at any time, so do not make references into it while requests
    /// are in flight.
    pub fn base(&self) -> NonNull<u8> {
        self.region.base()
    }

    /// The memory file, for handing the same memory to another process.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&*self.region)
    }

    /// A piece of it to use in requests.
    ///
    /// # Errors
    /// [`Error::Fault`] when it is not within the memory.
    ///
    /// # Panics
    /// When offset or length is not a multiple of 512.
    pub fn buffer(&self, offset_bytes: u64, length_bytes: u64) -> Result<Buffer, Error> {
        assert!(
            offset_bytes.is_multiple_of(SECTOR_BYTES) && length_bytes.is_multiple_of(SECTOR_BYTES),
            "buffers consist of sectors"
        );
        self.region.pointer("buffer", offset_bytes, length_bytes)?;
        Ok(Buffer { place: BufferOwner::Own(self.clone()), offset_bytes, length_bytes, taken_bytes: length_bytes })
    }
}

#[derive(Debug)]
enum BufferOwner {
    Pool(Arc<Pool>),
    Own(Memory),
}

/// A piece of shared memory for the data of requests. Its bytes are accessed by copies: the daemon may change them at any moment.
#[derive(Debug)]
pub struct Buffer {
    place: BufferOwner,
    offset_bytes: u64,
    length_bytes: u64,
    taken_bytes: u64,
}

impl Buffer {
    /// Length in bytes.
    pub const fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// `length_bytes` at `offset_bytes` of this buffer, as requests name it.
    ///
    /// # Panics
    /// When it is outside the buffer, is not a whole number of sectors, or is longer than 65,535 sectors.
    #[track_caller]
    pub fn segment(&self, offset_bytes: u64, length_bytes: u64) -> Segment {
        assert!(offset_bytes + length_bytes <= self.length_bytes, "segment outside its buffer");
        let start_bytes = self.offset_bytes + offset_bytes;
        assert!(
            start_bytes.is_multiple_of(SECTOR_BYTES) && length_bytes.is_multiple_of(SECTOR_BYTES),
            "segments consist of sectors"
        );
        let region = match &self.place {
            BufferOwner::Pool(_) => 0,
            BufferOwner::Own(memory) => memory.id,
        };
        match (u32::try_from(start_bytes >> SECTOR_SHIFT), u16::try_from(length_bytes >> SECTOR_SHIFT)) {
            (Ok(offset_sectors), Ok(length_sectors)) => Segment { offset_sectors, length_sectors, region },
            _ => panic!("a segment is at most 65,535 sectors within 2 TiB"),
        }
    }

    /// Copy bytes into the buffer at `offset_bytes`.
    ///
    /// # Panics
    /// When they do not fit.
    #[track_caller]
    pub fn fill(&self, offset_bytes: u64, from: &[u8]) {
        let length_bytes = from.len() as u64;
        // SAFETY: a slice is readable memory, and it is not read into.
        self.copy(false, offset_bytes, unsafe { Bytes::from_raw(from.as_ptr().cast_mut(), length_bytes) }, 0, length_bytes);
    }

    /// Copy bytes out of the buffer from `offset_bytes`.
    ///
    /// # Panics
    /// When there are fewer.
    #[track_caller]
    pub fn copy_to(&self, offset_bytes: u64, into: &mut [u8]) {
        let length_bytes = into.len() as u64;
        self.copy(true, offset_bytes, Bytes::of_slice(into), 0, length_bytes);
    }

    /// Copy `length_bytes` of the buffer, from `offset_bytes` on, to `start_bytes` of `other`, or, unless `is_read`, from there.
    ///
    /// # Panics
    /// When either side has fewer.
    #[track_caller]
    pub fn copy(&self, is_read: bool, offset_bytes: u64, other: Bytes<'_>, start_bytes: u64, length_bytes: u64) {
        let fits = |start: u64, all_bytes| start.checked_add(length_bytes).is_some_and(|end| end <= all_bytes);
        assert!(fits(offset_bytes, self.length_bytes) && fits(start_bytes, other.length_bytes), "bytes outside the buffer");
        let index = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let (other, length) = (other.base.wrapping_add(index(start_bytes)), index(length_bytes));
        let own_bytes = self.offset_bytes + offset_bytes;
        // Copied without the lock: queues of other threads copy at the same time.
        let (region, own_bytes) = match &self.place {
            BufferOwner::Pool(pool) => {
                let state = lock(&pool.state);
                (Arc::clone(&state.region), state.offset_bytes + own_bytes)
            }
            BufferOwner::Own(memory) => (Arc::clone(&memory.region), own_bytes),
        };
        let copied = region.pointer("buffer", own_bytes, length_bytes).map(|own| {
            let (from, to) = if is_read { (own.as_ptr(), other) } else { (other, own.as_ptr()) };
            // SAFETY: our place is inside a mapping that is held meanwhile, the other inside bytes that stay mapped and may be
            // written if they are read into. `copy` allows overlap. What others change meanwhile arrives as some mixture: it is
            // not trusted.
            unsafe { std::ptr::copy(from, to, length) };
        });
        assert!(copied.is_ok(), "a buffer is within its memory");
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let BufferOwner::Pool(pool) = &self.place {
            pool.give_back(self.offset_bytes, self.taken_bytes);
        }
    }
}

/// Memory of the caller, at a fixed address for `'a`. Others may change it at any time, so it is accessed by copies only.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    base: *mut u8,
    length_bytes: u64,
    owner: PhantomData<&'a mut [u8]>,
}

// SAFETY: `'a` keeps the bytes mapped, in every thread, and no reference to them is made.
unsafe impl Send for Bytes<'_> {}
// SAFETY: as above; copies that race bring some mixture of what was written.
unsafe impl Sync for Bytes<'_> {}

impl<'a> Bytes<'a> {
    /// All of a slice.
    pub const fn of_slice(slice: &'a mut [u8]) -> Self {
        Self { base: slice.as_mut_ptr(), length_bytes: slice.len() as u64, owner: PhantomData }
    }

    /// Any memory.
    ///
    /// # Safety
    /// During `'a` it is valid for reads of `length_bytes`, and for writes if it is read into.
    pub const unsafe fn from_raw(base: *mut u8, length_bytes: u64) -> Self {
        Self { base, length_bytes, owner: PhantomData }
    }
}
