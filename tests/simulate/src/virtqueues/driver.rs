//! A guest's driver of one split virtqueue, by the virtio 1.x specification, and the requests that it makes.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fipsee_ring::region::Region;
use rustix::event::EventfdFlags;

use super::oracle::{Expected, MAX_COUNT, Operation};
use crate::context::Context;
use crate::disk::{bytes_of, word_in, word_of};
use crate::rng::Rng;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Bytes of guest memory for a queue and the slots of its requests.
pub(super) const QUEUE_BYTES: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x800;
const USED: u64 = 0x1000;
const SLOTS: u64 = 0x2000;
const SLOT_BYTES: u64 = 0x1000;
/// Requests in flight of a queue.
const MAX_SLOTS: u16 = 8;
const TABLE: u64 = 0x40;
const STATUS: u64 = 0x100;
const DATA: u64 = 0x200;
/// What no device writes as a status.
const UNWRITTEN: u8 = 0xee;
const OK: u8 = 0;
const IO_ERROR: u8 = 1;

pub(super) const F_INDIRECT: u64 = 1 << 28;
pub(super) const F_EVENT_INDEX: u64 = 1 << 29;

/// A request in flight, by its head.
#[derive(Clone, Debug)]
struct Request {
    operation: Operation,
    slot: u16,
    chain: Vec<u16>,
}

/// One queue of the driver.
pub(super) struct Driver {
    ram: Arc<Region>,
    pub(super) index: u16,
    base: u64,
    pub(super) size: u16,
    features: u64,
    pub(super) kick: OwnedFd,
    pub(super) call: OwnedFd,
    /// The one before: the device may ring it until it has the new one, and the hypervisor hands that on.
    old_call: Option<OwnedFd>,
    pub(super) error: OwnedFd,
    free: Vec<u16>,
    slots: Vec<u16>,
    requests: Vec<Option<Request>>,
    next_available: u16,
    kicked: u16,
    next_used: u16,
    is_asleep: bool,
    /// A chain was made available that no correct driver makes.
    pub(super) has_misbehaved: bool,
}

/// An eventfd.
fn doorbell() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor")
}

/// Has it rung since that was asked last?
pub(super) fn has_rung(doorbell: &OwnedFd) -> bool {
    rustix::io::read(doorbell, &mut [0; 8]).is_ok()
}

impl Driver {
    pub(super) fn new(ram: &Arc<Region>, index: u16, size: u16, features: u64) -> Self {
        let (kick, call, error) = (doorbell(), doorbell(), doorbell());
        let mut driver = Self {
            ram: Arc::clone(ram),
            index,
            base: u64::from(index) * QUEUE_BYTES,
            size,
            features,
            kick,
            call,
            old_call: None,
            error,
            free: Vec::new(),
            slots: Vec::new(),
            requests: Vec::new(),
            next_available: 0,
            kicked: 0,
            next_used: 0,
            is_asleep: false,
            has_misbehaved: false,
        };
        driver.reset();
        driver
    }

    /// Empty rings, all descriptors free.
    pub(super) fn reset(&mut self) {
        (0..SLOTS / 8).for_each(|word| self.put(word * 8, &[0; 8]));
        (self.free, self.slots) = ((0..self.size).rev().collect(), (0..MAX_SLOTS).collect());
        self.requests = vec![None; usize::from(self.size)];
        (self.next_available, self.kicked, self.next_used) = (0, 0, 0);
        (self.is_asleep, self.has_misbehaved) = (false, false);
    }

    /// Addresses of descriptors, used and available ring, as the guest sees them.
    pub(super) const fn addresses(&self) -> [u64; 3] {
        [self.base, self.base + USED, self.base + AVAILABLE]
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        self.ram.write(self.base + offset, bytes).expect("guest memory");
    }

    fn get<const BYTES: usize>(&self, offset: u64) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        self.ram.read(self.base + offset, &mut bytes).expect("guest memory");
        bytes
    }

    fn word(&self, offset: u64) -> u16 {
        u16::from_le_bytes(self.get(offset))
    }

    pub(super) fn used_index(&self) -> u16 {
        self.word(USED + 2)
    }

    pub(super) fn set_used_index(&self, index: u16) {
        self.put(USED + 2, &index.to_le_bytes());
    }

    /// An element of the used ring.
    pub(super) fn used_element(&self, index: u16) -> [u8; 8] {
        self.get(USED + 4 + 8 * u64::from(index % self.size))
    }

    pub(super) fn set_used_element(&self, index: u16, element: [u8; 8]) {
        self.put(USED + 4 + 8 * u64::from(index % self.size), &element);
    }

    pub(super) fn outstanding(&self) -> usize {
        self.requests.iter().flatten().count()
    }

    /// Have interrupts come another way.
    pub(super) fn replace_call(&mut self) {
        self.old_call = Some(std::mem::replace(&mut self.call, doorbell()));
    }

    /// Take interrupts. Were there any?
    pub(super) fn is_interrupted(&self) -> bool {
        let old = self.old_call.as_ref().is_some_and(has_rung);
        has_rung(&self.call) || old
    }

    /// Take an interrupt, if there was one. Is there anything that it can do?
    pub(super) fn may_run(&mut self) -> bool {
        // A faulty one waits for the error.
        self.is_asleep = self.is_asleep && !self.is_interrupted() && !self.has_misbehaved;
        !self.is_asleep
    }

    fn event_index(&self) -> bool {
        self.features & F_EVENT_INDEX != 0
    }

    /// Ask for an interrupt, and look once more.
    pub(super) fn sleep(&mut self, context: &Context) {
        if self.event_index() {
            self.put(AVAILABLE + 4 + 2 * u64::from(self.size), &self.next_used.to_le_bytes());
        } else {
            self.put(AVAILABLE, &0_u16.to_le_bytes());
        }
        self.is_asleep = self.used_index() == self.next_used;
        context.say(|| format!("driver {}: {}", self.index, if self.is_asleep { "sleeps" } else { "stays awake" }));
    }

    /// Take what was used. How many?
    pub(super) fn reap(&mut self, expected: &mut Expected, context: &Context) -> u32 {
        if !self.event_index() {
            self.put(AVAILABLE, &1_u16.to_le_bytes());
        }
        let mut count = 0;
        while self.next_used != self.used_index() && !context.has_failed() {
            let element = self.used_element(self.next_used);
            let [a, b, c, d, e, f, g, h] = element;
            let (head, written) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
            self.next_used = self.next_used.wrapping_add(1);
            let request = usize::try_from(head).ok().and_then(|head| self.requests.get_mut(head)).and_then(Option::take);
            match request {
                Some(request) => self.complete(request, written, expected, context),
                None => {
                    context.violated(|| format!("queue {}: chain {head} is used, and the device does not have it", self.index))
                }
            }
            count += 1;
        }
        count
    }

    fn complete(&mut self, request: Request, written: u32, expected: &mut Expected, context: &Context) {
        let Request { operation, slot, chain } = request;
        let at = SLOTS + u64::from(slot) * SLOT_BYTES;
        let [status] = self.get::<1>(at + STATUS);
        context.say(|| format!("driver {}: {operation:?} of chain {} is answered: {status}", self.index, chain[0]));
        self.free.extend(chain);
        self.slots.push(slot);
        match status {
            OK => {
                if written != operation.written_bytes() {
                    context.violated(|| format!("{operation:?} is said to have written {written} bytes"));
                }
                let found = |place: usize| word_in(&self.get(at + DATA + 512 * place as u64));
                expected.done(&operation, found, context);
            }
            IO_ERROR if expected.may_fail => expected.failed(&operation),
            status => context.violated(|| format!("{operation:?} has status {status:#x}, although nothing was wrong")),
        }
    }

    /// Make a request available; `false`: there is no room.
    pub(super) fn issue(&mut self, operation: Operation, rng: &mut Rng, context: &Context) -> bool {
        let Some(slot) = self.slots.pop() else { return false };
        let at = SLOTS + u64::from(slot) * SLOT_BYTES;
        let (kind, sector) = operation.header();
        self.put(at, &[u64::from(kind).to_le_bytes(), sector.to_le_bytes()].concat());
        self.put(at + STATUS, &[UNWRITTEN]);
        let (first, count, version) = operation.range();
        for place in 0..count {
            let word = if version == 0 { u64::MAX } else { word_of(version, first + place) };
            self.put(at + DATA + 512 * place as u64, &bytes_of(word));
        }
        let reads = if matches!(operation, Operation::Read { .. }) { WRITE } else { 0 };
        let mut parts = vec![(at, 16, 0)];
        let (mut done, all) = (0, count as u64 * 512);
        while done < all {
            let length =
                if rng.percent(50) { all - done } else { 1 + rng.below(usize::try_from(all - done).unwrap_or(0)) as u64 };
            parts.push((at + DATA + done, length, reads));
            done += length;
            if parts.len() == 4 && done < all {
                parts.push((at + DATA + done, all - done, reads));
                done = all;
            }
        }
        parts.push((at + STATUS, 1, WRITE));
        let is_indirect = self.features & F_INDIRECT != 0 && rng.percent(60);
        if self.free.len() < if is_indirect { 1 } else { parts.len() } {
            self.slots.push(slot);
            return false;
        }
        let chain = if is_indirect {
            let numbers: Vec<u16> = (0..6).collect();
            self.write_chain(at + TABLE, &parts, &numbers);
            let table = [(self.base + at + TABLE, 16 * parts.len() as u64, INDIRECT)];
            let head = self.free.split_off(self.free.len() - 1);
            self.write_descriptor(u64::from(head[0]) * 16, table[0], 0);
            head
        } else {
            let chain = self.free.split_off(self.free.len() - parts.len());
            self.write_chain(0, &parts, &chain);
            chain
        };
        context.say(|| format!("driver {}: {operation:?} as chain {}, indirect: {is_indirect}", self.index, chain[0]));
        self.make_available(chain[0]);
        let head = usize::from(chain[0]);
        self.requests[head] = Some(Request { operation, slot, chain });
        true
    }

    fn write_chain(&self, table: u64, parts: &[(u64, u64, u16)], numbers: &[u16]) {
        for (place, (offset, length, flags)) in parts.iter().enumerate() {
            let (flags, next) = if place + 1 < parts.len() { (flags | NEXT, numbers[place + 1]) } else { (*flags, 0) };
            self.write_descriptor(table + 16 * u64::from(numbers[place]), (self.base + offset, *length, flags), next);
        }
    }

    fn write_descriptor(&self, offset: u64, (address, length, flags): (u64, u64, u16), next: u16) {
        let length = u32::try_from(length).expect("short");
        let rest = [&length.to_le_bytes()[..], &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.put(offset, &[&address.to_le_bytes()[..], &rest].concat());
    }

    fn make_available(&mut self, head: u16) {
        self.put(AVAILABLE + 4 + 2 * u64::from(self.next_available % self.size), &head.to_le_bytes());
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// Publish what was made available, and kick if the device wants that.
    pub(super) fn publish(&mut self, context: &Context) {
        if self.kicked == self.next_available {
            return;
        }
        self.put(AVAILABLE + 2, &self.next_available.to_le_bytes());
        let wanted = if self.event_index() {
            let event = self.word(USED + 4 + 8 * u64::from(self.size));
            self.next_available.wrapping_sub(event).wrapping_sub(1) < self.next_available.wrapping_sub(self.kicked)
        } else {
            self.word(USED) & 1 == 0
        };
        self.kicked = self.next_available;
        if wanted {
            context.say(|| format!("driver {}: kicks", self.index));
            let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
        }
    }

    /// Make a chain available that no correct driver makes.
    pub(super) fn misbehave(&mut self, rng: &mut Rng, context: &Context) -> bool {
        let Some(head) = self.free.pop() else { return false };
        let (at, own) = (u64::from(head) * 16, self.base + SLOTS);
        let choice = rng.below(6);
        context.say(|| format!("driver {}: misbehaves in way {choice}", self.index));
        match choice {
            // A loop.
            0 => self.write_descriptor(at, (own, 16, NEXT), head),
            // A descriptor that is not there.
            1 => self.write_descriptor(at, (own, 16, NEXT), self.size),
            // No status.
            2 => self.write_descriptor(at, (own, 16, 0), 0),
            // No memory.
            3 => self.write_descriptor(at, (1 << 60, 16, NEXT), head),
            // A table of no whole descriptors.
            4 => self.write_descriptor(at, (own, 17, INDIRECT), 0),
            // A head that is not there.
            _ => {}
        }
        self.make_available(if choice == 5 { self.size } else { head });
        self.has_misbehaved = true;
        self.publish(context);
        true
    }

    /// What a device with unordered stores would show: the index before its elements from `from` on, which are returned.
    pub(super) fn hide_elements(&self, from: u16, old: &[[u8; 8]]) -> Vec<(u16, [u8; 8])> {
        let count = self.used_index().wrapping_sub(from);
        let hide = |index: u16| {
            let element = self.used_element(index);
            self.set_used_element(index, old[usize::from(index % self.size)]);
            (index, element)
        };
        (0..count).map(|place| hide(from.wrapping_add(place))).collect()
    }
}

/// Draw an operation on sectors that no request in flight touches.
pub(super) fn draw(expected: &mut Expected, rng: &mut Rng) -> Operation {
    let count = 1 + rng.below(MAX_COUNT);
    match expected.free_range(count, rng) {
        Some(first) if rng.percent(50) => Operation::Write { first, count, version: expected.new_version() },
        Some(first) if rng.percent(90) => Operation::Read { first, count },
        _ => Operation::Flush,
    }
}
