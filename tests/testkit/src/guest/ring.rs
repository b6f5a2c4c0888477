//! The guest's half of a ring in its own memory.

use std::sync::Arc;

use fipsee_block::wire::{KIND_COMPLETIONS, KIND_DETACH, KIND_RESIZE, Operation, Segment, request_one_segment};
use fipsee_ring::Message;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::ring::{CallWriter, Cursor, Reader};
use fipsee_ring::tuning::Tuning;
use fipsee_virtio::blk::upgrade::wire::{self, COLD_PAIR_BYTES, Entry, REGION_SHIFT};

use super::device::{Guest, Sent};
use super::machine::{query, upgrade_request};
use super::ram::Ram;
use super::virtqueue::Virtqueue;

/// What the daemon sends on the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// An answer: tag and status.
    Answer(u16, u16),
    /// The disk has a new size, in sectors.
    Resized(u64),
    /// The daemon asks the guest to return to virtqueues.
    Detach,
}

/// One queue of an attachment.
#[derive(Debug)]
pub struct GuestRing {
    pub entry: Entry,
    /// Number in the attachment.
    pub number: u16,
    requests: CallWriter<MappedRing>,
    completions: Reader<MappedRing>,
    doorbell: Option<Sent>,
}

/// The segment of guest memory at an address.
pub fn segment(address: u64, length_bytes: u64) -> Segment {
    assert!(address.is_multiple_of(512) && length_bytes.is_multiple_of(512), "segments are whole sectors");
    let offset = address & ((1 << REGION_SHIFT) - 1);
    Segment {
        offset_sectors: u32::try_from(offset >> 9).expect("32 bits of sectors"),
        length_sectors: u16::try_from(length_bytes >> 9).expect("16 bits of sectors"),
        region: u16::try_from(address >> REGION_SHIFT).expect("16 bits of ids"),
    }
}

/// A fresh place in memory for a queue with `virtqueue` as its doorbell.
pub fn plan(ram: &Ram, depth: u32, virtqueue: u32) -> Entry {
    let request_slots = depth.next_power_of_two().max(2);
    let completion_slots = (depth + 2).next_power_of_two();
    Entry {
        request_address: ram.allocate(u64::from(request_slots) * 64, 64),
        completion_address: ram.allocate(u64::from(completion_slots) * 64, 64),
        cold_address: ram.allocate(COLD_PAIR_BYTES, 64),
        request_slots,
        completion_slots,
        request_start: virtqueue % request_slots,
        completion_start: (3 + virtqueue) % completion_slots,
        depth,
        virtqueue,
    }
}

/// Was the doorbell rung, or has the attachment ended?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    Rung,
    Ended,
}

impl GuestRing {
    /// The guest's end of a ring that was planned, and attached as queue `number`.
    pub fn open(ram: &Arc<Ram>, entry: Entry, number: u16) -> Self {
        let ring = |address: u64, slots: u32, cold: u64| {
            let (piece, offset) = ram.find(address, u64::from(slots) * 64);
            let cold_offset = cold - piece.guest_address;
            MappedRing::new(&piece.region, offset, slots, cold_offset).expect("a ring that was planned")
        };
        let requests = ring(entry.request_address, entry.request_slots, entry.cold_address);
        let completions = ring(entry.completion_address, entry.completion_slots, entry.cold_address + 128);
        Self {
            entry,
            number,
            requests: CallWriter::new(requests, Cursor::at_start(entry.request_start), entry.depth, &Tuning::default()),
            completions: Reader::new(completions, Cursor::at_start(entry.completion_start), &Tuning::default()),
            doorbell: None,
        }
    }

    /// Requests that may be published now.
    pub const fn free(&self) -> u32 {
        self.requests.free()
    }

    /// Publish requests, and wake the daemon if it sleeps.
    pub fn submit(&mut self, requests: &[Message], virtqueue: &Virtqueue) {
        self.requests.publish_all(requests).expect("the caller keeps to the depth");
        if self.requests.reader_needs_doorbell() {
            virtqueue.kick();
        }
    }

    /// As [`submit`](Self::submit), one of one segment.
    pub fn submit_one(&mut self, operation: Operation, tag: u16, sector: u64, segment: Segment, virtqueue: &Virtqueue) {
        self.submit(&[request_one_segment(operation, 0, tag, sector, segment)], virtqueue);
    }

    /// Everything that has arrived.
    pub fn reap(&mut self) -> Vec<Incoming> {
        let mut all = Vec::new();
        self.reap_each(&mut |one| all.push(one));
        all
    }

    /// As [`reap`](Self::reap), one after the other.
    pub fn reap_each(&mut self, take: &mut impl FnMut(Incoming)) {
        let mut message = Message::ZERO;
        while self.completions.receive(&mut message) {
            let bytes = message.to_bytes();
            let (count, kind) = (usize::from(bytes[0]), bytes[1]);
            assert_eq!(bytes[2..4], [0, 0], "reserved");
            match kind {
                KIND_COMPLETIONS => {
                    assert!((1..=14).contains(&count), "{count} completions in a message");
                    for entry in bytes[4..4 + 4 * count].as_chunks::<4>().0 {
                        self.requests.answered();
                        let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
                        take(Incoming::Answer(half(0), half(2)));
                    }
                }
                KIND_RESIZE => take(Incoming::Resized(message.word(1))),
                KIND_DETACH => take(Incoming::Detach),
                other => panic!("a message of kind {other}"),
            }
        }
    }

    /// Make a doorbell request available unless one is.
    pub fn hold_pending(&mut self, attachment: u64, guest: &mut Guest) {
        if self.doorbell.is_none() {
            let upgrade_request = upgrade_request(wire::Operation::Doorbell, attachment, self.number);
            let queue = usize::try_from(self.entry.virtqueue).expect("small");
            self.doorbell = Some(guest.send_upgrade_request(queue, &upgrade_request.to_bytes()));
        }
    }

    /// As [`hold_pending`](Self::hold_pending), until the daemon has taken it: requests of a virtqueue are taken in order, and those that
    /// are not taken when it stops are left for its next run.
    pub fn hold_taken(&mut self, attachment: u64, guest: &mut Guest) {
        self.hold_pending(attachment, guest);
        let queue = usize::try_from(self.entry.virtqueue).expect("small");
        guest.ask(queue, &query(attachment));
    }

    /// Sleep until the daemon rings, unless there is something on the ring.
    pub fn sleep(&mut self, attachment: u64, guest: &mut Guest) -> Woken {
        if !self.arm(attachment, guest) {
            return Woken::Rung;
        }
        let woken = self.wait_for_doorbell(guest);
        self.completions.disarm();
        woken
    }

    /// Ask to be woken, by an interrupt of the virtqueue; `false`: something is on the ring already.
    pub fn arm(&mut self, attachment: u64, guest: &mut Guest) -> bool {
        self.hold_pending(attachment, guest);
        let is_empty = !self.completions.arm_and_work_remains();
        if !is_empty {
            self.completions.disarm();
        }
        is_empty
    }

    /// After [`arm`](Self::arm), awake again: has the attachment ended?
    pub fn disarm(&mut self, guest: &mut Guest) -> bool {
        self.completions.disarm();
        self.doorbell_is_done(guest)
            && self.doorbell.take().is_some_and(|doorbell| guest.reply(doorbell).result == wire::NO_ATTACHMENT)
    }

    /// Wait until the pending doorbell request comes back.
    pub fn wait_for_doorbell(&mut self, guest: &mut Guest) -> Woken {
        let doorbell = self.doorbell.take().expect("a pending doorbell request");
        guest.wait(doorbell);
        match guest.reply(doorbell).result {
            wire::RUNG => Woken::Rung,
            wire::NO_ATTACHMENT => Woken::Ended,
            other => panic!("a doorbell request is answered with {other}"),
        }
    }

    /// Wait for the next, asleep while there is none.
    pub fn wait(&mut self, attachment: u64, guest: &mut Guest) -> Vec<Incoming> {
        loop {
            let all = self.reap();
            if !all.is_empty() {
                return all;
            }
            assert_eq!(self.sleep(attachment, guest), Woken::Rung, "the attachment ended");
        }
    }

    /// Has the pending doorbell request come back?
    pub fn doorbell_is_done(&mut self, guest: &mut Guest) -> bool {
        let Some(doorbell) = self.doorbell else { return false };
        guest.queues[doorbell.queue].is_done(doorbell.head)
    }
}
