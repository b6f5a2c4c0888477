//! A driver of split virtqueues.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::TIMEOUT;
use super::ram::Ram;

/// A piece of a request: where, how long, does the device write it?
pub type Part = (u64, u32, bool);

const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// One virtqueue, for one thread.
#[derive(Debug)]
pub struct Virtqueue {
    ram: Arc<Ram>,
    /// Descriptors in the table.
    pub size: u16,
    /// The descriptor table.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
    /// Interrupts and kicks as EVENT_IDX has them?
    pub event_index: bool,
    /// Wakes the device.
    pub kick: OwnedFd,
    /// Wakes us.
    pub call: OwnedFd,
    /// Says that the device broke.
    pub error: OwnedFd,
    free: Vec<u16>,
    chains: Vec<Vec<u16>>,
    next_available: u16,
    kicked: u16,
    next_used: u16,
    finished: Vec<(u16, u32)>,
}

fn doorbell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor for an eventfd")
}

impl Virtqueue {
    /// A queue of `size` descriptors in fresh memory.
    #[must_use]
    pub fn new(ram: &Arc<Ram>, size: u16, event_index: bool) -> Self {
        let count = u64::from(size);
        Self {
            ram: Arc::clone(ram),
            size,
            descriptors: ram.allocate(16 * count, 4096),
            available: ram.allocate(6 + 2 * count, 64),
            used: ram.allocate(6 + 8 * count, 64),
            event_index,
            kick: doorbell(),
            call: doorbell(),
            error: doorbell(),
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); usize::from(size)],
            next_available: 0,
            kicked: 0,
            next_used: 0,
            finished: Vec::new(),
        }
    }

    fn word(&self, address: u64) -> &AtomicU16 {
        // SAFETY: even addresses of memory that is mapped as long as self; the device accesses them as words, too.
        unsafe { AtomicU16::from_ptr(self.ram.pointer(address, 2).cast()) }
    }

    /// The head of the next chain.
    ///
    /// # Panics
    /// When no descriptor is free.
    #[must_use]
    pub fn next_head(&self) -> u16 {
        *self.free.last().expect("a free descriptor")
    }

    /// Put a chain into the table; it is made available by [`publish`](Self::publish). The head names it.
    ///
    /// # Panics
    /// When there are not enough free descriptors.
    pub fn stage(&mut self, parts: &[Part]) -> u16 {
        assert!(parts.len() <= self.free.len(), "the table is full");
        let mut chain: Vec<u16> = self.free.split_off(self.free.len() - parts.len());
        chain.reverse();
        for (place, (address, length, writes)) in parts.iter().enumerate() {
            let next = chain.get(place + 1).copied();
            let flags = if next.is_some() { NEXT } else { 0 } | if *writes { WRITE } else { 0 };
            self.put_descriptor(chain[place], *address, *length, flags, next.unwrap_or(0));
        }
        let head = chain[0];
        self.chains[usize::from(head)] = chain;
        self.make_available(head);
        head
    }

    /// Write a descriptor as it is, whatever it means.
    pub fn put_descriptor(&self, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.ram.write(self.descriptors + 16 * u64::from(index), &bytes);
    }

    /// Put a head, whatever it is, into the available ring.
    pub fn make_available(&mut self, head: u16) {
        let place = u64::from(self.next_available % self.size);
        self.word(self.available + 4 + 2 * place).store(head, Ordering::Relaxed);
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// Make what was staged available, and kick if the device wants that.
    pub fn publish(&mut self) {
        self.word(self.available + 2).store(self.next_available, Ordering::Release);
        fence(Ordering::SeqCst);
        let wanted = if self.event_index {
            let event = self.word(self.used + 4 + 8 * u64::from(self.size)).load(Ordering::Relaxed);
            let since = self.next_available.wrapping_sub(self.kicked);
            self.next_available.wrapping_sub(event).wrapping_sub(1) < since
        } else {
            self.word(self.used).load(Ordering::Relaxed) & 1 == 0
        };
        self.kicked = self.next_available;
        if wanted {
            self.kick();
        }
    }

    /// Wake the device.
    pub fn kick(&self) {
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// A chain that the device is done with, and the bytes that it says it wrote.
    pub fn take(&mut self) -> Option<(u16, u32)> {
        self.finished.pop().or_else(|| self.poll())
    }

    fn poll(&mut self) -> Option<(u16, u32)> {
        if self.word(self.used + 2).load(Ordering::Acquire) == self.next_used {
            return None;
        }
        let place = u64::from(self.next_used % self.size);
        let entry = self.ram.read(self.used + 4 + 8 * place, 8);
        let half = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        self.next_used = self.next_used.wrapping_add(1);
        let head = u16::try_from(half(0)).expect("the device names a descriptor");
        let chain = std::mem::take(&mut self.chains[usize::from(head)]);
        assert!(!chain.is_empty(), "descriptor {head} comes back, but the device does not have it");
        self.free.extend(chain);
        Some((head, half(4)))
    }

    /// Wait, on the interrupt, until the device is done with a chain; others that come meanwhile are kept for
    /// [`take`](Self::take).
    ///
    /// # Panics
    /// When it does not come.
    pub fn wait_for(&mut self, head: u16) -> u32 {
        loop {
            if let Some(place) = self.finished.iter().position(|(finished, _)| *finished == head) {
                return self.finished.swap_remove(place).1;
            }
            while let Some(one) = self.poll() {
                self.finished.push(one);
            }
            if self.finished.iter().all(|(finished, _)| *finished != head) {
                assert!(self.sleep(), "chain {head} does not come back, or nothing says so");
            }
        }
    }

    /// Is the device done with this chain? Takes it if so.
    pub fn is_done(&mut self, head: u16) -> bool {
        while let Some(one) = self.poll() {
            self.finished.push(one);
        }
        let found = self.finished.iter().position(|(finished, _)| *finished == head);
        found.map(|place| self.finished.swap_remove(place)).is_some()
    }

    /// Sleep until the device interrupts, unless something has come; `false`: neither.
    #[must_use]
    pub fn sleep(&mut self) -> bool {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.call, &mut count);
        if self.event_index {
            self.word(self.available + 4 + 2 * u64::from(self.size)).store(self.next_used, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        if self.word(self.used + 2).load(Ordering::Acquire) != self.next_used {
            return true;
        }
        let timeout = Timespec::try_from(TIMEOUT).ok();
        loop {
            match poll(&mut [PollFd::new(&self.call, PollFlags::IN)], timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                woken => return woken == Ok(1),
            }
        }
    }

    /// Chains that the device has.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.chains.iter().filter(|chain| !chain.is_empty()).count()
    }

    /// Has the device said that it broke?
    #[must_use]
    pub fn is_broken(&self) -> bool {
        rustix::io::read(&self.error, &mut [0; 8]).is_ok()
    }

    /// Where the device is in the available ring, if it was stopped with nothing in flight.
    #[must_use]
    pub const fn base(&self) -> u16 {
        self.next_used
    }

    /// The interrupt.
    #[must_use]
    pub fn interrupt(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }
}
