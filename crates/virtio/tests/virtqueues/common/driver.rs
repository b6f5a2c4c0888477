//! The driver's side of a split virtqueue, written from the specification and without the server's code.

use std::collections::HashMap;

use fipsee_virtio::core::RingAddresses;

use super::ram::{BASE, Ram};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A piece of memory in a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) length_bytes: u32,
    pub(crate) is_writable: bool,
}

pub(crate) fn readable(address: u64, length_bytes: u32) -> Segment {
    Segment { address, length_bytes, is_writable: false }
}

pub(crate) fn writable(address: u64, length_bytes: u32) -> Segment {
    Segment { address, length_bytes, is_writable: true }
}

/// Memory that the driver itself uses, separate for each head.
const AREAS: u64 = BASE + 0x1_0000;
const AREA_BYTES: u64 = 0x1_0000 / 4;
/// From here on, memory is the test's.
pub(crate) const DATA: u64 = BASE + (4 << 20);

/// A driver.
pub(crate) struct Driver {
    pub(crate) ram: Ram,
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
    pub(crate) size: u16,
    pub(crate) event_index: bool,
    pub(crate) next_available: u16,
    pub(crate) next_used: u16,
    free: Vec<u16>,
    /// Descriptors of the chain at a head, and where its status goes.
    chains: HashMap<u16, (Vec<u16>, u64)>,
    old_available: u16,
}

impl Driver {
    /// Their addresses.
    pub(crate) const fn rings(&self) -> RingAddresses {
        RingAddresses { descriptor: self.descriptors, available: self.available, used: self.used }
    }

    /// Rings whose indices begin at `start`.
    pub(crate) fn new(ram: Ram, size: u16, event_index: bool, start: u16) -> Self {
        let (descriptors, available, used) = (BASE, BASE + 0x8000, BASE + 0xa000);
        assert!(size <= 1024, "the areas are laid out for that");
        ram.write_u16(available + 2, start);
        ram.write_u16(used + 2, start);
        let driver = Self {
            ram,
            descriptors,
            available,
            used,
            size,
            event_index,
            next_available: start,
            next_used: start,
            free: (0..size).rev().collect(),
            chains: HashMap::new(),
            old_available: start,
        };
        driver.ask_interrupt();
        driver
    }

    pub(crate) fn put_descriptor(&self, table: u64, index: u16, segment: Segment, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&segment.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&segment.length_bytes.to_le_bytes());
        let flags = flags | if segment.is_writable { WRITE } else { 0 };
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.ram.write(table + u64::from(index) * 16, &bytes);
    }

    /// A chain of direct descriptors, in the order of the free list.
    pub(crate) fn chain(&mut self, segments: &[Segment]) -> u16 {
        let indices: Vec<u16> = segments.iter().map(|_| self.free.pop().expect("a free descriptor")).collect();
        for (place, segment) in segments.iter().enumerate() {
            let next = indices.get(place + 1).copied();
            let flags = if next.is_some() { NEXT } else { 0 };
            self.put_descriptor(self.descriptors, indices[place], *segment, flags, next.unwrap_or(0));
        }
        let head = indices[0];
        let status = segments.iter().rev().find(|segment| segment.is_writable && segment.length_bytes > 0);
        let status = status.map_or(0, |segment| segment.address + u64::from(segment.length_bytes) - 1);
        self.chains.insert(head, (indices, status));
        head
    }

    /// Direct descriptors, the last of which is a table for the rest.
    pub(crate) fn chain_with_table(&mut self, direct: &[Segment], table: u64, segments: &[Segment]) -> u16 {
        for (index, segment) in (0..).zip(segments) {
            let is_last = usize::from(index) + 1 == segments.len();
            self.put_descriptor(table, index, *segment, if is_last { 0 } else { NEXT }, if is_last { 0 } else { index + 1 });
        }
        let mut all = direct.to_vec();
        all.push(readable(table, u32::try_from(segments.len() * 16).expect("small")));
        let head = self.chain(&all);
        let (indices, _) = &self.chains[&head];
        let last = *indices.last().expect("not empty");
        let address = self.descriptors + u64::from(last) * 16 + 12;
        self.ram.write_u16(address, INDIRECT);
        let status = segments.iter().rev().find(|segment| segment.is_writable && segment.length_bytes > 0);
        let status = status.map_or(0, |segment| segment.address + u64::from(segment.length_bytes) - 1);
        self.chains.get_mut(&head).expect("known").1 = status;
        head
    }

    /// Memory of the driver's own for a chain that begins at the next free descriptor.
    pub(crate) fn own_area(&self) -> u64 {
        AREAS + u64::from(*self.free.last().expect("a free descriptor")) % 128 * AREA_BYTES
    }

    pub(crate) fn header_bytes(kind: u32, sector: u64) -> [u8; 16] {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        header
    }

    /// Header, data, status, each in descriptors of its own.
    pub(crate) fn request(&mut self, kind: u32, sector: u64, data: &[Segment]) -> u16 {
        let area = self.own_area();
        self.ram.write(area, &Self::header_bytes(kind, sector));
        self.ram.write(area + 16, &[0xee]);
        let mut segments = vec![readable(area, 16)];
        segments.extend(data);
        segments.push(writable(area + 16, 1));
        self.chain(&segments)
    }

    /// The same in an indirect table.
    pub(crate) fn indirect_request(&mut self, kind: u32, sector: u64, data: &[Segment]) -> u16 {
        let area = self.own_area();
        self.ram.write(area, &Self::header_bytes(kind, sector));
        self.ram.write(area + 16, &[0xee]);
        let mut segments = vec![readable(area, 16)];
        segments.extend(data);
        segments.push(writable(area + 16, 1));
        self.chain_with_table(&[], area + 64, &segments)
    }

    /// Put a chain into the available ring, and let the device see it.
    pub(crate) fn offer(&mut self, head: u16) {
        self.stage(head);
        self.ram.write_u16(self.available + 2, self.next_available);
    }

    /// Put a chain into the available ring.
    pub(crate) fn stage(&mut self, head: u16) {
        let place = u64::from(self.next_available % self.size);
        self.ram.write_u16(self.available + 4 + 2 * place, head);
        self.next_available = self.next_available.wrapping_add(1);
    }

    pub(crate) fn publish(&self) {
        self.ram.write_u16(self.available + 2, self.next_available);
    }

    /// Would the driver kick for what it published since it last asked?
    pub(crate) fn must_kick(&mut self) -> bool {
        let old = std::mem::replace(&mut self.old_available, self.next_available);
        if self.event_index {
            let event = self.ram.read_u16(self.used + 4 + 8 * u64::from(self.size));
            self.next_available.wrapping_sub(event).wrapping_sub(1) < self.next_available.wrapping_sub(old)
        } else {
            self.ram.read_u16(self.used) & 1 == 0
        }
    }

    /// The next used entry, whose descriptors are free again.
    pub(crate) fn take_used(&mut self) -> Option<(u16, u32)> {
        if self.ram.read_u16(self.used + 2) == self.next_used {
            return None;
        }
        let entry = self.used + 4 + 8 * u64::from(self.next_used % self.size);
        let (head, length) = (self.ram.read_u32(entry), self.ram.read_u32(entry + 4));
        self.next_used = self.next_used.wrapping_add(1);
        let head = u16::try_from(head).expect("a head is a descriptor's number");
        let (indices, _) = self.chains.get(&head).unwrap_or_else(|| panic!("{head} was not in flight"));
        self.free.extend(indices.iter().rev());
        Some((head, length))
    }

    /// Ask for an interrupt at the next used entry.
    pub(crate) fn ask_interrupt(&self) {
        if self.event_index {
            self.ram.write_u16(self.available + 4 + 2 * u64::from(self.size), self.next_used);
        } else {
            self.ram.write_u16(self.available, 0);
        }
    }

    /// Ask for none (for the time being).
    pub(crate) fn refuse_interrupt(&self) {
        if self.event_index {
            let never = self.next_used.wrapping_sub(1);
            self.ram.write_u16(self.available + 4 + 2 * u64::from(self.size), never);
        } else {
            self.ram.write_u16(self.available, 1);
        }
    }

    pub(crate) fn status_address(&self, head: u16) -> u64 {
        self.chains[&head].1
    }

    pub(crate) fn status(&self, head: u16) -> u8 {
        self.ram.read(self.status_address(head), 1)[0]
    }

    pub(crate) fn used_index(&self) -> u16 {
        self.ram.read_u16(self.used + 2)
    }
}
