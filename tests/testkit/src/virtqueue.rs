//! The driver's side of a split virtqueue, by the virtio specification and without the device's code. It is in guest memory of any
//! kind, which each call names.

use std::sync::atomic::{Ordering, fence};

/// A piece of a request: where, how long, does the device write it?
pub type Part = (u64, u32, bool);

/// Descriptor flag: the chain goes on.
pub const NEXT: u16 = 1;
/// Descriptor flag: the device writes it.
pub const WRITE: u16 = 2;
/// Descriptor flag: it names a table of descriptors.
pub const INDIRECT: u16 = 4;

/// Guest memory.
pub trait Memory {
    fn write(&self, address: u64, bytes: &[u8]);

    fn read(&self, address: u64, length_bytes: usize) -> Vec<u8>;

    /// An index, after which what it announces is read.
    fn load(&self, address: u64) -> u16 {
        u16::from_le_bytes(self.read(address, 2).try_into().expect("2 bytes"))
    }

    /// An index that announces what was written before.
    fn store(&self, address: u64, value: u16) {
        self.write(address, &value.to_le_bytes());
    }
}

/// The rings of a queue, and where the driver is in them.
#[derive(Debug)]
pub struct Rings {
    /// The descriptor table.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
    /// Descriptors in the table.
    pub size: u16,
    /// Interrupts and kicks as EVENT_IDX has them?
    pub event_index: bool,
    /// Does the device use chains in order, and may it name only the last one of several (VIRTIO_F_IN_ORDER)?
    pub in_order: bool,
    /// The entry of several of which some were not taken.
    batch: Option<(u16, u32)>,
    pub next_available: u16,
    pub next_used: u16,
    kicked: u16,
    /// Free descriptors; the last one is used next.
    pub free: Vec<u16>,
    /// By head.
    chains: Vec<Vec<u16>>,
}

impl Rings {
    /// Rings at these places - descriptors, available ring, used ring - whose indices begin at `start`.
    pub fn new([descriptors, available, used]: [u64; 3], size: u16, event_index: bool, start: u16) -> Self {
        Self {
            descriptors,
            available,
            used,
            size,
            event_index,
            in_order: false,
            batch: None,
            next_available: start,
            next_used: start,
            kicked: start,
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); usize::from(size)],
        }
    }

    /// The head of the next chain.
    pub fn next_head(&self) -> u16 {
        *self.free.last().expect("a free descriptor")
    }

    /// Write a descriptor of a table as it is, whatever it means.
    pub fn put_descriptor(&self, memory: &impl Memory, table: u64, index: u16, part: (u64, u32), flags: u16, next: u16) {
        let bytes = [&part.0.to_le_bytes()[..], &part.1.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        memory.write(table + 16 * u64::from(index), &bytes);
    }

    /// Put a chain into the table; the head names it.
    pub fn chain(&mut self, memory: &impl Memory, parts: &[Part]) -> u16 {
        assert!(parts.len() <= self.free.len(), "the table is full");
        let chain: Vec<u16> = parts.iter().map(|_| self.free.pop().expect("just counted")).collect();
        for (place, (address, length, writes)) in parts.iter().enumerate() {
            let next = chain.get(place + 1).copied();
            let flags = if next.is_some() { NEXT } else { 0 } | if *writes { WRITE } else { 0 };
            self.put_descriptor(memory, self.descriptors, chain[place], (*address, *length), flags, next.unwrap_or(0));
        }
        let head = chain[0];
        self.chains[usize::from(head)] = chain;
        head
    }

    /// The descriptors of a chain that the device has.
    pub fn descriptors_of(&self, head: u16) -> &[u16] {
        &self.chains[usize::from(head)]
    }

    /// Put a head, whatever it is, into the available ring.
    pub fn make_available(&mut self, memory: &impl Memory, head: u16) {
        memory.store(self.available + 4 + 2 * u64::from(self.next_available % self.size), head);
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// Let the device see what was made available.
    pub fn publish(&self, memory: &impl Memory) {
        memory.store(self.available + 2, self.next_available);
    }

    /// Does the device want a kick for what was published since this was asked last?
    pub fn must_kick(&mut self, memory: &impl Memory) -> bool {
        fence(Ordering::SeqCst);
        let since = self.next_available.wrapping_sub(std::mem::replace(&mut self.kicked, self.next_available));
        if self.event_index {
            let event = memory.load(self.used + 4 + 8 * u64::from(self.size));
            self.next_available.wrapping_sub(event).wrapping_sub(1) < since
        } else {
            memory.load(self.used) & 1 == 0
        }
    }

    /// The device's position in the used ring.
    pub fn used_index(&self, memory: &impl Memory) -> u16 {
        memory.load(self.used + 2)
    }

    /// The next chain that was used: head and written bytes.
    pub fn poll(&mut self, memory: &impl Memory) -> Option<(u16, u32)> {
        if self.used_index(memory) == self.next_used {
            assert_eq!(self.batch, None, "the entry of several chains names one that is not used");
            return None;
        }
        let place = u64::from(self.next_used % self.size);
        let (last, length) = self.batch.take().unwrap_or_else(|| {
            let entry = memory.read(self.used + 4 + 8 * place, 8);
            let half = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
            (u16::try_from(half(0)).expect("the device names a descriptor"), half(4))
        });
        let head = if self.in_order { memory.load(self.available + 4 + 2 * place) } else { last };
        self.next_used = self.next_used.wrapping_add(1);
        if head == last {
            return Some((head, length));
        }
        self.batch = Some((last, length));
        Some((head, 0))
    }

    /// As [`poll`](Self::poll), of chains of [`chain`](Self::chain); their descriptors are free again, and the head is not the first
    /// that is used.
    pub fn take(&mut self, memory: &impl Memory) -> Option<(u16, u32)> {
        let (head, length) = self.poll(memory)?;
        let chain = self.forget(head);
        self.free.extend(chain);
        Some((head, length))
    }

    /// The descriptors of a chain that has come back; the caller frees them.
    pub fn forget(&mut self, head: u16) -> Vec<u16> {
        let chain = std::mem::take(&mut self.chains[usize::from(head)]);
        assert!(!chain.is_empty(), "descriptor {head} comes back, but the device does not have it");
        chain
    }

    /// Ask for an interrupt at the next used entry; true: there is one already.
    pub fn ask_interrupt(&self, memory: &impl Memory) -> bool {
        if self.event_index {
            memory.store(self.available + 4 + 2 * u64::from(self.size), self.next_used);
        } else {
            memory.store(self.available, 0);
        }
        fence(Ordering::SeqCst);
        self.used_index(memory) != self.next_used
    }

    /// Chains that the device has.
    pub fn outstanding(&self) -> usize {
        self.chains.iter().filter(|chain| !chain.is_empty()).count()
    }
}
