//! A virtqueue of a guest, with its doorbells.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use super::ram::Ram;
use crate::virtqueue::{Memory, Part, Rings};
use crate::{TIMEOUT, packets};

/// One virtqueue, for one thread.
#[derive(Debug)]
pub struct Virtqueue {
    ram: Arc<Ram>,
    rings: Rings,
    /// Wakes the device.
    pub kick: OwnedFd,
    /// Wakes us.
    pub call: OwnedFd,
    /// Says that the device broke.
    pub error: OwnedFd,
    finished: Vec<(u16, u32)>,
}

impl Deref for Virtqueue {
    type Target = Rings;

    fn deref(&self) -> &Rings {
        &self.rings
    }
}

impl DerefMut for Virtqueue {
    fn deref_mut(&mut self) -> &mut Rings {
        &mut self.rings
    }
}

impl Memory for Arc<Ram> {
    fn write(&self, address: u64, bytes: &[u8]) {
        Ram::write(self, address, bytes);
    }

    fn read(&self, address: u64, length_bytes: usize) -> Vec<u8> {
        Ram::read(self, address, length_bytes)
    }

    fn load(&self, address: u64) -> u16 {
        word(self, address).load(Ordering::Acquire)
    }

    fn store(&self, address: u64, value: u16) {
        word(self, address).store(value, Ordering::Release);
    }
}

fn word(ram: &Ram, address: u64) -> &AtomicU16 {
    // SAFETY: even addresses of memory that is mapped as long as it; the device accesses them as words, too.
    unsafe { AtomicU16::from_ptr(ram.pointer(address, 2).cast()) }
}

/// An eventfd.
pub fn doorbell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor for an eventfd")
}

/// Sleep until a doorbell rings; false: it does not.
pub fn is_rung(doorbell: &OwnedFd) -> bool {
    packets::is_readable(doorbell, TIMEOUT)
}

impl Virtqueue {
    /// A queue of `size` descriptors in fresh memory.
    pub fn new(ram: &Arc<Ram>, size: u16, event_index: bool) -> Self {
        let count = u64::from(size);
        let places = [ram.allocate(16 * count, 4096), ram.allocate(6 + 2 * count, 64), ram.allocate(6 + 8 * count, 64)];
        let rings = Rings::new(places, size, event_index, 0);
        Self { ram: Arc::clone(ram), rings, kick: doorbell(), call: doorbell(), error: doorbell(), finished: Vec::new() }
    }

    /// Put a chain into the table; it is made available by [`publish`](Self::publish). The head names it.
    pub fn stage(&mut self, parts: &[Part]) -> u16 {
        let head = self.rings.chain(&self.ram, parts);
        self.make_available(head);
        head
    }

    /// Write a descriptor as it is, whatever it means.
    pub fn put_descriptor(&self, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        self.rings.put_descriptor(&self.ram, self.rings.descriptors, index, (address, length), flags, next);
    }

    /// Put a head, whatever it is, into the available ring.
    pub fn make_available(&mut self, head: u16) {
        self.rings.make_available(&self.ram, head);
    }

    /// Make what was staged available, and kick if the device wants that.
    pub fn publish(&mut self) {
        self.rings.publish(&self.ram);
        if self.rings.must_kick(&self.ram) {
            self.kick();
        }
    }

    /// Wake the device.
    pub fn kick(&self) {
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// A chain that the device is done with, and the bytes that it says it wrote.
    pub fn take(&mut self) -> Option<(u16, u32)> {
        self.finished.pop().or_else(|| self.rings.take(&self.ram))
    }

    /// The bytes that the device says it wrote to this chain, if it is done with it; others are kept for [`take`](Self::take).
    fn finished(&mut self, head: u16) -> Option<u32> {
        while let Some(one) = self.rings.take(&self.ram) {
            self.finished.push(one);
        }
        let place = self.finished.iter().position(|(finished, _)| *finished == head)?;
        Some(self.finished.swap_remove(place).1)
    }

    /// Wait, on the interrupt, until the device is done with a chain.
    pub fn wait_for(&mut self, head: u16) -> u32 {
        loop {
            if let Some(bytes) = self.finished(head) {
                return bytes;
            }
            if !self.sleep() {
                let is_back = self.finished(head).is_some();
                panic!("chain {head} {}", if is_back { "is back, and no interrupt came" } else { "does not come back" });
            }
        }
    }

    /// Is the device done with this chain? Takes it if so.
    pub fn is_done(&mut self, head: u16) -> bool {
        self.finished(head).is_some()
    }

    /// Sleep until the device interrupts, unless something has come; `false`: neither.
    #[must_use]
    pub fn sleep(&mut self) -> bool {
        let _ = rustix::io::read(&self.call, &mut [0; 8]);
        self.rings.ask_interrupt(&self.ram) || is_rung(&self.call)
    }

    /// Has the device said that it broke?
    pub fn is_broken(&self) -> bool {
        rustix::io::read(&self.error, &mut [0; 8]).is_ok()
    }

    /// Where the device is in the available ring, if it was stopped with nothing in flight.
    pub const fn base(&self) -> u16 {
        self.rings.next_used
    }

    /// The interrupt.
    pub fn interrupt(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }
}
