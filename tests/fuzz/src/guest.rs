//! A guest: its memory, of which an input has any bytes, and virtqueues in it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fipsee_ring::region::Region;
use fipsee_virtio::core::memory::{DirtyLog, GuestMemory, GuestRegion, RegionDescription};
use fipsee_virtio::core::{DeviceQueueSetup, RingAddresses};
use rustix::event::EventfdFlags;

use crate::channel::copy;

/// Three regions without a gap, each of another file; behind them there is nothing.
pub(crate) const FIRST_BYTES: u64 = 16 << 10;
const SECOND_BYTES: u64 = 8 << 10;
const RINGS_BYTES: u64 = 4 << 10;
/// The queues' own memory: a page that nothing else is on. All queues have one table of descriptors.
const RINGS: u64 = FIRST_BYTES + SECOND_BYTES;
const DESCRIPTOR_BYTES: usize = 16;
pub(crate) const TABLE_BYTES: usize = SIZE as usize * DESCRIPTOR_BYTES;
const QUEUE_BYTES: u64 = 512;
pub(crate) const SIZE: u16 = 16;
/// What the rest of an input fills: headers, tables, data, across the end of the first region.
pub(crate) const DATA: u64 = 1024;

/// Flags of a descriptor.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// Where a queue is.
pub(crate) const fn rings(queue: u64) -> RingAddresses {
    let available = RINGS + TABLE_BYTES as u64 + queue * QUEUE_BYTES;
    RingAddresses { descriptor: RINGS, available, used: available + QUEUE_BYTES / 2 }
}

pub(crate) struct Guest {
    files: [Region; 3],
    /// A bit for each page that a request wrote to.
    written: Region,
    log: Arc<DirtyLog>,
    memory: Arc<GuestMemory>,
    doorbell: OwnedFd,
}

impl Guest {
    pub(crate) fn new() -> Self {
        let files = [FIRST_BYTES, SECOND_BYTES, RINGS_BYTES].map(|bytes| Region::create("fuzz-guest", bytes).expect("memory"));
        let map = |file: &Region, guest_address| {
            let length_bytes = file.length_bytes();
            let description =
                RegionDescription { guest_address, length_bytes, user_address: guest_address, file_offset_bytes: 0 };
            GuestRegion::map(description, file.as_fd().try_clone_to_owned().expect("a descriptor")).expect("good memory")
        };
        let regions = vec![map(&files[0], 0), map(&files[1], FIRST_BYTES), map(&files[2], RINGS)];
        let memory = GuestMemory::new(regions).expect("no overlap");
        let written = Region::create("fuzz-log", 4096).expect("memory");
        let log = DirtyLog::map(written.as_fd().try_clone_to_owned().expect("a descriptor"), 4096, 0).expect("a log");
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor");
        Self { files, written, log: Arc::new(log), memory: Arc::new(memory), doorbell }
    }

    pub(crate) fn clear(&self) {
        for file in self.files.iter().chain([&self.written]) {
            file.write(0, &vec![0; usize::try_from(file.length_bytes()).expect("small")]).expect("all of it");
        }
    }

    /// Data, across the end of the first region. What does not fit is left out.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        let split = usize::try_from(FIRST_BYTES - address).expect("in the first region").min(bytes.len());
        self.files[0].write(address, &bytes[..split]).expect("within");
        let rest = bytes.len().min(split + usize::try_from(SECOND_BYTES).expect("small"));
        self.files[1].write(0, &bytes[split..rest]).expect("within");
    }

    pub(crate) fn write_descriptors(&self, table: &[u8; TABLE_BYTES]) {
        self.files[2].write(0, table).expect("within");
    }

    /// What the driver offers: the index of the available ring, and the ring.
    pub(crate) fn offer(&self, queue: u64, index: u8, ring: &[u8; 2 * SIZE as usize]) {
        let at = rings(queue).available - RINGS;
        self.files[2].write(at, &[0, 0, index, 0]).expect("within");
        self.files[2].write(at + 4, ring).expect("within");
    }

    /// Of the rings.
    fn word(&self, address: u64) -> u16 {
        let mut bytes = [0; 2];
        self.files[2].read(address - RINGS, &mut bytes).expect("within");
        u16::from_le_bytes(bytes)
    }

    /// Did a request write over its own queue? What that offers and answers then is the guest's own affair.
    pub(crate) fn has_written_rings(&self) -> bool {
        let mut bits = [0];
        self.written.read(0, &mut bits).expect("within");
        bits[0] >> (RINGS >> 12) & 1 != 0
    }

    /// All memory, at its addresses.
    pub(crate) fn copy(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(RINGS + RINGS_BYTES).expect("small")];
        let mut rest = &mut bytes[..];
        for file in &self.files {
            let (now, later) = rest.split_at_mut(usize::try_from(file.length_bytes()).expect("small"));
            file.read(0, now).expect("all of it");
            rest = later;
        }
        bytes
    }

    /// The chains that a queue offers, by their heads, in their order.
    pub(crate) fn offered(&self, queue: u64) -> Vec<u16> {
        let available = rings(queue).available;
        let index = self.word(available + 2).min(SIZE);
        (0..u64::from(index)).map(|place| self.word(available + 4 + 2 * place)).collect()
    }

    /// The chains that are used, with their lengths.
    pub(crate) fn used(&self, queue: u64) -> Vec<(u16, usize)> {
        let used = rings(queue).used;
        let count = self.word(used + 2);
        assert!(count <= SIZE, "{count} chains used");
        let entry = |at: u64| {
            let length = u32::from(self.word(at + 6)) << 16 | u32::from(self.word(at + 4));
            (self.word(at), length as usize)
        };
        (0..u64::from(count)).map(|place| entry(used + 4 + 8 * place)).collect()
    }

    /// Each chain that is used was offered, and is used once. Returns how many there are.
    pub(crate) fn check_used(&self, queue: u64) -> u16 {
        let mut offered: HashMap<u16, u32> = HashMap::new();
        self.offered(queue).into_iter().for_each(|head| *offered.entry(head).or_default() += 1);
        let used = self.used(queue);
        for (head, _) in &used {
            let left = offered.get_mut(head).filter(|count| **count > 0);
            *left.unwrap_or_else(|| panic!("chain {head} was not offered, or is used twice")) -= 1;
        }
        u16::try_from(used.len()).expect("few")
    }

    pub(crate) fn setup(&self, queue: u64, features: u64) -> DeviceQueueSetup {
        DeviceQueueSetup {
            memory: Arc::clone(&self.memory),
            size: SIZE,
            rings: rings(queue),
            next_available: 0,
            features,
            kick: copy(&self.doorbell),
            call: Some(copy(&self.doorbell)),
            error: Some(copy(&self.doorbell)),
            inflight: None,
            log: Some(Arc::clone(&self.log)),
            used_log_address: None,
        }
    }
}

/// Descriptors, of which each but the last has the next one as its next.
pub(crate) fn descriptors(parts: &[(u64, u32, u16)]) -> Vec<u8> {
    let bytes = (1_u16..).zip(parts).map(|(next, (address, length, flags))| {
        [&address.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
    });
    bytes.flatten().collect()
}

/// A chain, by the specification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Addresses and lengths of what the device reads, and of what it writes.
    pub(crate) readable: Vec<(u64, u64)>,
    pub(crate) writable: Vec<(u64, u64)>,
    /// An indirect table.
    pub(crate) table: Option<(u64, u64)>,
}

/// Follow the chain at `head` in a copy of all memory. `None`: it is none.
pub(crate) fn chain(memory: &[u8], head: u16, has_tables: bool) -> Option<Chain> {
    let (mut chain, mut table, mut index) = (Chain::default(), (RINGS, u64::from(SIZE)), u64::from(head));
    let mut left = table.1;
    while left > 0 && index < table.1 {
        left -= 1;
        let at = table.0 + DESCRIPTOR_BYTES as u64 * index;
        let descriptor = part(memory, (at, DESCRIPTOR_BYTES as u64))?;
        let number = |from: usize, to: usize| descriptor[from..to].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let (address, length, flags, next) = (number(0, 8), number(8, 12), number(12, 14), number(14, 16));
        let has = |flag: u16| flags & u64::from(flag) != 0;
        if has(INDIRECT) {
            let entries = length / DESCRIPTOR_BYTES as u64;
            let is_table = has_tables && chain.table.is_none() && !has(NEXT) && (1..=1024).contains(&entries);
            if !is_table || length % DESCRIPTOR_BYTES as u64 != 0 {
                return None;
            }
            part(memory, (address, length))?;
            chain.table = Some((address, length));
            (table, index, left) = ((address, entries), 0, entries);
            continue;
        }
        if has(WRITE) {
            chain.writable.push((address, length));
        } else if chain.writable.is_empty() {
            chain.readable.push((address, length));
        } else {
            return None;
        }
        if !has(NEXT) {
            return Some(chain);
        }
        index = next;
    }
    None
}

/// A part of a copy of all memory, if it is there. A part of no bytes is anywhere.
fn part(memory: &[u8], (address, length): (u64, u64)) -> Option<&[u8]> {
    let (from, length) = (usize::try_from(address).ok()?, usize::try_from(length).ok()?);
    if length == 0 { Some(&[]) } else { memory.get(from..from.checked_add(length)?) }
}

/// The bytes of these parts of a copy of all memory.
pub(crate) fn bytes_of(memory: &[u8], parts: &[(u64, u64)]) -> Option<Vec<u8>> {
    parts.iter().map(|place| part(memory, *place)).collect::<Option<Vec<_>>>().map(|parts| parts.concat())
}

/// Frames that a device has put into these chains of a receive queue, behind their headers.
pub(crate) fn frames(memory: &[u8], used: &[(u16, usize)], header_bytes: usize, has_tables: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let filled = |(head, length): &(u16, usize)| {
        let chain = chain(memory, *head, has_tables).expect("it was filled");
        let mut bytes = bytes_of(memory, &chain.writable).expect("it was filled");
        assert!(*length <= bytes.len(), "{length} bytes in a buffer of {}", bytes.len());
        bytes.truncate(*length);
        bytes
    };
    let (mut frames, mut rest) = (Vec::new(), used);
    while !rest.is_empty() {
        // It may be in several short buffers.
        let header: Vec<u8> = rest.iter().flat_map(filled).take(header_bytes).collect();
        let count = if header_bytes == 12 { usize::from(u16::from_le_bytes([header[10], header[11]])) } else { 1 };
        assert!(count > 0 && count <= rest.len(), "a frame in {count} buffers of {}", rest.len());
        let (now, later) = rest.split_at(count);
        let bytes: Vec<u8> = now.iter().flat_map(filled).collect();
        frames.push((bytes[..header_bytes].to_vec(), bytes[header_bytes..].to_vec()));
        rest = later;
    }
    frames
}
