//! A driver of virtio-blk on one virtqueue in the test's own memory.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use fipsee_testkit::virtqueue::{INDIRECT, Memory as _, NEXT, Part, Rings, WRITE};
use fipsee_virtio::core::RingAddresses;

use super::ram::{BASE, Ram};

pub(crate) fn readable(address: u64, length_bytes: u32) -> Part {
    (address, length_bytes, false)
}

pub(crate) fn writable(address: u64, length_bytes: u32) -> Part {
    (address, length_bytes, true)
}

/// Memory that the driver itself uses, separate for each head.
const AREAS: u64 = BASE + 0x1_0000;
const AREA_BYTES: u64 = 0x1_0000 / 4;
/// From here on, memory is the test's.
pub(crate) const DATA: u64 = BASE + (4 << 20);

/// A driver.
pub(crate) struct Driver {
    pub(crate) ram: Ram,
    rings: Rings,
    /// Where the status of the last chain at a head goes.
    statuses: HashMap<u16, u64>,
}

impl Deref for Driver {
    type Target = Rings;

    fn deref(&self) -> &Rings {
        &self.rings
    }
}

impl DerefMut for Driver {
    fn deref_mut(&mut self) -> &mut Rings {
        &mut self.rings
    }
}

/// The last byte that the device writes.
fn status_of(parts: &[Part]) -> u64 {
    let status = parts.iter().rev().find(|(_, length, is_writable)| *is_writable && *length > 0);
    status.map_or(0, |(address, length, _)| address + u64::from(*length) - 1)
}

impl Driver {
    /// Rings whose indices begin at `start`.
    pub(crate) fn new(ram: Ram, size: u16, event_index: bool, start: u16) -> Self {
        assert!(size <= 1024, "the areas are laid out for that");
        let rings = Rings::new([BASE, BASE + 0x8000, BASE + 0xa000], size, event_index, start);
        ram.store(rings.available + 2, start);
        ram.store(rings.used + 2, start);
        let driver = Self { ram, rings, statuses: HashMap::new() };
        driver.ask_interrupt();
        driver
    }

    /// Their addresses.
    pub(crate) const fn addresses(&self) -> RingAddresses {
        RingAddresses { descriptor: self.rings.descriptors, available: self.rings.available, used: self.rings.used }
    }

    pub(crate) fn put_descriptor(&self, table: u64, index: u16, (address, length, writes): Part, flags: u16, next: u16) {
        let flags = flags | if writes { WRITE } else { 0 };
        self.rings.put_descriptor(&self.ram, table, index, (address, length), flags, next);
    }

    /// A chain of direct descriptors, in the order of the free list.
    pub(crate) fn chain(&mut self, parts: &[Part]) -> u16 {
        let head = self.rings.chain(&self.ram, parts);
        self.statuses.insert(head, status_of(parts));
        head
    }

    /// Direct descriptors, the last of which is a table for the rest.
    pub(crate) fn chain_with_table(&mut self, direct: &[Part], table: u64, parts: &[Part]) -> u16 {
        for (index, part) in (0..).zip(parts) {
            let is_last = usize::from(index) + 1 == parts.len();
            self.put_descriptor(table, index, *part, if is_last { 0 } else { NEXT }, if is_last { 0 } else { index + 1 });
        }
        let table = readable(table, u32::try_from(parts.len() * 16).expect("small"));
        let head = self.chain(&[direct, &[table]].concat());
        let last = *self.descriptors_of(head).last().expect("not empty");
        self.ram.store(self.descriptors + u64::from(last) * 16 + 12, INDIRECT);
        self.statuses.insert(head, status_of(parts));
        head
    }

    pub(crate) fn header_bytes(kind: u32, sector: u64) -> [u8; 16] {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        header
    }

    /// Memory of the driver's own for a chain that begins at the next free descriptor.
    pub(crate) fn own_area(&self) -> u64 {
        AREAS + u64::from(self.next_head()) % 128 * AREA_BYTES
    }

    /// Header, data, status, each in descriptors of its own.
    fn parts(&self, kind: u32, sector: u64, data: &[Part]) -> (u64, Vec<Part>) {
        let area = self.own_area();
        self.ram.write(area, &Self::header_bytes(kind, sector));
        self.ram.write(area + 16, &[0xee]);
        (area, [&[readable(area, 16)], data, &[writable(area + 16, 1)]].concat())
    }

    pub(crate) fn request(&mut self, kind: u32, sector: u64, data: &[Part]) -> u16 {
        let (_, parts) = self.parts(kind, sector, data);
        self.chain(&parts)
    }

    /// The same in an indirect table.
    pub(crate) fn indirect_request(&mut self, kind: u32, sector: u64, data: &[Part]) -> u16 {
        let (area, parts) = self.parts(kind, sector, data);
        self.chain_with_table(&[], area + 64, &parts)
    }

    /// A request in the available ring.
    pub(crate) fn stage_request(&mut self, kind: u32, sector: u64, data: &[Part]) -> u16 {
        let head = self.request(kind, sector, data);
        self.stage(head);
        head
    }

    /// Put a chain into the available ring, and let the device see it.
    pub(crate) fn offer(&mut self, head: u16) {
        self.stage(head);
        self.publish();
    }

    /// Put a chain into the available ring.
    pub(crate) fn stage(&mut self, head: u16) {
        self.rings.make_available(&self.ram, head);
    }

    pub(crate) fn publish(&self) {
        self.rings.publish(&self.ram);
    }

    /// Would the driver kick for what it published since it last asked?
    pub(crate) fn must_kick(&mut self) -> bool {
        self.rings.must_kick(&self.ram)
    }

    /// The next used entry, whose descriptors are free again, its head first.
    pub(crate) fn take_used(&mut self) -> Option<(u16, u32)> {
        let (head, length) = self.rings.poll(&self.ram)?;
        let chain = self.rings.forget(head);
        self.rings.free.extend(chain.iter().rev());
        Some((head, length))
    }

    /// Ask for an interrupt at the next used entry.
    pub(crate) fn ask_interrupt(&self) -> bool {
        self.rings.ask_interrupt(&self.ram)
    }

    pub(crate) fn status_address(&self, head: u16) -> u64 {
        self.statuses[&head]
    }

    pub(crate) fn status(&self, head: u16) -> u8 {
        self.ram.read(self.status_address(head), 1)[0]
    }

    pub(crate) fn used_index(&self) -> u16 {
        self.rings.used_index(&self.ram)
    }
}
