//! The virtqueues of a machine's port through their servers and the network: chains, virtio-net headers and commands of any bytes. What others get is
//! what the chains have, the guest's memory changes where it may, and a queue that stops is the guest's own.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fipsee_net::server::{ServedPort, Switches};
use fipsee_net::switch::Rules;
use fipsee_net::wire::{OFFLOADS, Offload};
use fipsee_serve::{Queue, Turn};
use fipsee_virtio::net::Role;
use fipsee_virtio::net::server::PortQueue;

use crate::guest::{self, DATA, Guest, INDIRECT, NEXT, SIZE, WRITE, descriptors, rings};
use crate::lan::{self, Got, Side, To, mac};
use crate::take;

/// Of frames that others send to the guest.
const LENGTHS: [usize; 3] = [60, 200, 1514];
/// Two features a bit: indirect tables and events; merged buffers; the header of virtio 1.0; offloads that the driver takes.
const TABLES: u64 = 1 << 28;
const MERGED: u64 = 1 << 15;
const VERSION_1: u64 = 1 << 32;
const TAKES_CHECKSUMS: u64 = 1 << 1;
const TAKES_ALL: u64 = TAKES_CHECKSUMS | 1 << 7 | 1 << 8 | 1 << 9;
const FEATURES: [u64; 7] = [TABLES, 1 << 29, MERGED, VERSION_1, TAKES_CHECKSUMS, TAKES_ALL, 1 << 17 | 1 << 22];
const ROLES: [Role; 4] = [Role::Receive(0), Role::Transmit(0), Role::Control, Role::Receive(1)];
const PAIRS: u16 = 2;
const ONE: Turn = Turn { alone: false, requests: 1, units: u32::MAX };

thread_local! {
    static GUEST: RefCell<Guest> = RefCell::new(Guest::new());
}

/// A byte chooses features, three are the indices of the available rings, of which each has 16, a byte an entry; 256 are the descriptors, the rest
/// is data.
pub(crate) fn one(mut bytes: &[u8]) {
    let [choice] = take(&mut bytes);
    let indices: [u8; 3] = take(&mut bytes);
    let heads = [(); 3].map(|()| take::<{ SIZE as usize }>(&mut bytes));
    GUEST.with_borrow(|guest| {
        guest.clear();
        guest.write_descriptors(&take(&mut bytes));
        for (queue, of) in [(0, 0), (1, 1), (2, 2), (3, 0)] {
            let mut ring = [0; 2 * SIZE as usize];
            ring.iter_mut().step_by(2).zip(heads[of]).for_each(|(entry, head)| *entry = head);
            guest.offer(queue, indices[of], &ring);
        }
        guest.write(DATA, bytes);
        Play::new(guest, choice).play();
    });
}

struct Play<'a> {
    guest: &'a Guest,
    features: u64,
    header_bytes: usize,
    rules: Vec<Rules>,
    switches: Switches,
    /// What two others get, of which one takes all offloads, the other none.
    others: [Got; 2],
    /// With how often each has reported that it stops.
    queues: Vec<(PortQueue, Arc<AtomicUsize>)>,
}

impl<'a> Play<'a> {
    fn new(guest: &'a Guest, choice: u8) -> Self {
        let features = FEATURES.iter().enumerate().filter(|(bit, _)| choice >> bit & 1 != 0).fold(0, |all, (_, more)| all | more);
        let rules: Vec<Rules> = (0..3).map(|number| Rules { flood_limit: 1_000_000_000, ..Rules::new(mac(number)) }).collect();
        let switches = lan::network(&rules);
        let others = [(1, OFFLOADS), (2, 0)].map(|(number, offloads)| Side::serve(&lan::port(&switches, number), offloads));
        let header_bytes = if features & (VERSION_1 | MERGED) != 0 { 12 } else { 10 };
        let mut play = Self { guest, features, header_bytes, rules, switches, others, queues: Vec::new() };
        let count = if choice & 0x40 != 0 { 4 } else { 3 };
        play.queues = ROLES[..count].iter().zip(0..).map(|(role, queue)| play.serve(*role, queue)).collect();
        play
    }

    fn serve(&self, role: Role, queue: u64) -> (PortQueue, Arc<AtomicUsize>) {
        let reports = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&reports);
        let broke = Box::new(move |why: &str| {
            assert!(!why.is_empty());
            count.fetch_add(1, Ordering::Relaxed);
        });
        let setup = self.guest.setup(queue, self.features);
        (PortQueue::new(self.port(0), role, PAIRS, setup, broke).expect("a good queue"), reports)
    }

    fn port(&self, number: usize) -> ServedPort {
        lan::port(&self.switches, number)
    }

    fn visit(&mut self, queue: usize) -> bool {
        let taken = Queue::<()>::visit(&mut self.queues[queue].0, &mut (), ONE);
        Queue::<()>::flush(&mut self.queues[queue].0);
        taken.requests > 0
    }

    fn play(mut self) {
        let at_first = self.guest.copy();
        while self.visit(2) {}
        let came: Vec<Vec<u8>> = LENGTHS.iter().filter_map(|length| self.give(*length)).collect();
        let before = self.guest.copy();
        if !self.guest.has_written_rings() {
            self.check_written(&at_first, &before);
            self.check_came(&at_first, &before, &came);
        }
        self.transmit(&before);
        if !self.guest.has_written_rings() {
            self.check_answered();
            assert!(self.without_used(&before) == self.without_used(&self.guest.copy()), "frames of the guest are only read");
        }
        // Whatever the guest does, the others have a network.
        let frame = frame(1, 2, 300);
        let outcome = lan::send(&self.port(1), &frame, Offload::NONE);
        assert_eq!((outcome.bytes, self.others[1].take()), (300, vec![(frame, Offload::NONE)]));
        assert!(self.queues.iter().all(|(_, reports)| reports.load(Ordering::Relaxed) <= 1), "a fault is reported twice");
        self.queues.drain(..).for_each(|(queue, _)| _ = queue.stop());
        assert_eq!(lan::send(&self.port(1), &frame_to_guest(100), Offload::NONE).bytes, 0, "it has left");
    }

    /// Send a frame to the guest: what it gets, if it has room.
    fn give(&self, length: usize) -> Option<Vec<u8>> {
        let frame = frame_to_guest(length);
        let outcome = lan::send(&self.port(1), &frame, offload_to_guest(length));
        assert!(outcome.bytes == 0 || outcome.bytes == length as u64, "{} of {length} bytes", outcome.bytes);
        (outcome.bytes > 0).then_some(frame)
    }

    fn has_tables(&self) -> bool {
        self.features & TABLES != 0
    }

    /// Of the queues of these numbers.
    fn chains(&self, memory: &[u8], queues: &[u64]) -> Vec<guest::Chain> {
        let heads = queues.iter().flat_map(|queue| self.guest.offered(*queue));
        heads.filter_map(|head| guest::chain(memory, head, self.has_tables())).collect()
    }

    /// All memory but the used rings.
    fn without_used(&self, memory: &[u8]) -> Vec<u8> {
        let mut memory = memory.to_vec();
        for queue in 0..self.queues.len() as u64 {
            let from = usize::try_from(rings(queue).used).expect("small");
            memory[from..from + 256].fill(0);
        }
        memory
    }

    /// Commands and frames change what their chains let the device write, and nothing else. A driver that has a table written over has no chains to compare with.
    fn check_written(&self, at_first: &[u8], now: &[u8]) {
        let chains = self.chains(at_first, &[0, 2]);
        if chains != self.chains(now, &[0, 2]) {
            return;
        }
        let (mut expected, now) = (self.without_used(at_first), self.without_used(now));
        for (address, length) in chains.iter().flat_map(|chain| &chain.writable) {
            let end = address.saturating_add(*length).min(now.len() as u64);
            let written = usize::try_from((*address).min(end)).expect("small")..usize::try_from(end).expect("small");
            expected[written.clone()].copy_from_slice(&now[written]);
        }
        assert!(expected == now, "memory was written that no chain has");
    }

    /// Each frame that went to the guest is in its buffers. The driver of several pairs, or of overlapping buffers, is left out.
    fn check_came(&self, at_first: &[u8], now: &[u8], came: &[Vec<u8>]) {
        let mut places: Vec<(u64, u64)> = self.chains(at_first, &[0, 2]).into_iter().flat_map(|chain| chain.writable).collect();
        places.sort_unstable();
        let overlaps = places.windows(2).any(|pair| pair[0].0.saturating_add(pair[0].1) > pair[1].0);
        let is_same = self.chains(at_first, &[0]) == self.chains(now, &[0]);
        if self.queues.len() > 3 || overlaps || !is_same {
            return;
        }
        let frames = guest::frames(now, &self.guest.used(0), self.header_bytes, self.has_tables());
        assert_eq!(frames.len(), came.len(), "frames in buffers");
        for ((header, bytes), sent) in frames.iter().zip(came) {
            let (is_left, mut expected) = (header[0] != 0, sent.clone());
            assert!(!is_left || self.features & TAKES_CHECKSUMS != 0, "a checksum is left to a driver that does none");
            if !is_left {
                lan::complete(&mut expected, &offload_to_guest(sent.len()), 0);
            }
            assert!(*bytes == expected, "{} bytes came as others", sent.len());
        }
    }

    /// Frames of the guest, one after the other.
    fn transmit(&mut self, before: &[u8]) {
        let heads = self.guest.offered(1);
        let mut number = 0;
        while self.visit(1) {
            let chain = heads.get(number).and_then(|head| guest::chain(before, *head, self.has_tables()));
            let bytes = chain.and_then(|chain| guest::bytes_of(before, &chain.readable));
            let (got, rules) = (self.others.each_ref().map(Got::take), &self.rules);
            let is_known = !self.guest.has_written_rings();
            for (got, (number, offloads)) in
                got.iter().zip([(1, OFFLOADS), (2, 0)]).filter(|(got, _)| is_known && !got.is_empty())
            {
                let bytes = bytes.as_ref().expect("a frame came of a chain that is none");
                let (header, frame) = bytes.split_at_checked(self.header_bytes).expect("a frame came without a header");
                let to = To { port: number, offloads, takes_all: true };
                lan::check(rules, 0, (frame, offload_of(header)), to, got);
            }
            number += 1;
        }
        assert!(self.others.iter().all(|got| got.take().is_empty()), "of a chain that was not taken");
    }

    /// Each chain is used once, or its queue has stopped.
    fn check_answered(&self) {
        let used = [0, 1, 2].map(|queue| usize::from(self.guest.check_used(queue)));
        for queue in [1, 2] {
            let offered = self.guest.offered(queue as u64).len();
            let has_stopped = self.queues[queue].1.load(Ordering::Relaxed) == 1;
            assert!(has_stopped || used[queue] == offered, "{} of {offered} chains used, and no fault", used[queue]);
        }
    }
}

/// What a virtio-net header leaves to be done, by the specification: fields that no flag and no type gives a meaning have none.
fn offload_of(header: &[u8]) -> Offload {
    let number = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let mut offload = Offload { flags: header[0], segmentation: header[1], ..Offload::NONE };
    if header[0] & 1 != 0 {
        (offload.checksum_start, offload.checksum_offset) = (number(6), number(8));
    } else {
        offload.flags = 0;
    }
    if header[1] != 0 {
        (offload.header_bytes, offload.segment_bytes) = (number(2), number(4));
    }
    offload
}

fn frame(from: u8, to: u8, length: usize) -> Vec<u8> {
    let mut frame = [&mac(to).0[..], &mac(from).0, &[0x88, 0xb5]].concat();
    frame.extend((14..length).map(|at| u8::try_from(at % 251).expect("small")));
    frame
}

fn frame_to_guest(length: usize) -> Vec<u8> {
    frame(1, 0, length)
}

/// Some leave a checksum to be done.
fn offload_to_guest(length: usize) -> Offload {
    match length {
        200 => Offload { flags: 1, checksum_start: 100, checksum_offset: 6, ..Offload::NONE },
        _ => Offload::NONE,
    }
}

/// An input: the descriptors, what each queue offers, and data.
fn input(choice: u8, parts: &[(u64, u32, u16)], offered: [&[u8]; 3], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![choice];
    bytes.extend(offered.map(|heads| u8::try_from(heads.len()).expect("few")));
    for heads in offered {
        let mut ring = [0; SIZE as usize];
        ring.iter_mut().zip(heads).for_each(|(entry, head)| *entry = *head);
        bytes.extend(ring);
    }
    let mut table = descriptors(parts);
    table.resize(guest::TABLE_BYTES, 0);
    [bytes, table, data.to_vec()].concat()
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let header = [0; 12];
    let segments = lan::tcp4(0, 2, 2000);
    let frame = [&header[..], &frame(0, 1, 120)].concat();
    let divided = [&[1, 1, 54, 0, 0, 2, 34, 0, 16, 0, 0, 0][..], &segments].concat();
    let command = [4, 0, 2, 0];
    let frame_bytes = u32::try_from(frame.len()).expect("short");
    let divided_bytes = u32::try_from(divided.len()).expect("short");
    let buffers = [(8 << 10, 2048, WRITE), (10 << 10, 2048, WRITE), (12 << 10, 2048, WRITE), (14 << 10, 2048, WRITE)];
    let send = |length: u32| [(DATA, 12, NEXT), (DATA + 12, length - 12, 0)];
    let commands = [(DATA, 2, NEXT), (DATA + 2, 2, NEXT), (6 << 10, 1, WRITE)];
    let table = descriptors(&[(DATA + 512, 12, NEXT), (DATA + 524, frame_bytes - 12, 0)]);
    let indirect = [&table[..], &vec![0; 512 - table.len()], &frame].concat();
    let receives = [&buffers[..], &send(frame_bytes)].concat();
    vec![
        input(0x0c, &receives, [&[0, 1, 2, 3], &[4], &[]], &frame),
        input(0x00, &send(frame_bytes), [&[], &[0], &[]], &frame),
        input(0x3c, &[&buffers[..], &send(divided_bytes)].concat(), [&[0, 1, 2, 3], &[4, 4], &[]], &divided),
        input(0x48, &commands, [&[], &[], &[0, 0]], &command),
        input(0x09, &[(DATA, 32, INDIRECT)], [&[], &[0], &[]], &indirect),
        input(0x0c, &[(8 << 10, 40, WRITE), (9 << 10, 100, NEXT | WRITE), (10 << 10, 64, WRITE)], [&[0, 1], &[], &[]], &[]),
        input(0x0c, &[(rings(1).available, 512, WRITE)], [&[0, 0, 0], &[0], &[0]], &[]),
        input(0x00, &[(DATA, 9, 0), (1 << 40, 10, 0)], [&[1], &[0, 1], &[1]], &[]),
        // Another's address, and more chains than the queue has.
        input(
            0x08,
            &send(frame_bytes),
            [&[0; 17], &[0, 0], &[9; 16]],
            &[&header[..], &mac(1).0, &mac(2).0, &[8, 0], &[0; 106]].concat(),
        ),
        input(0x08, &[(DATA, 12, NEXT), (DATA + 12, 60, NEXT), (DATA, 0, NEXT), (DATA + 12, 9, 0)], [&[], &[0], &[]], &frame),
    ]
}
