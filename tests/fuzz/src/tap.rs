//! Frames of the host's stack behind the header that a TAP device puts in front, into a network with each kind of receiving side: another device, a client,
//! a machine, and one that nothing may be left to.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fipsee_net::server::tap::{TapEnd, TapQueue, TapReceiver};
use fipsee_net::server::{Networks, Switches};
use fipsee_net::switch::Rules;
use fipsee_net::wire::{OFFLOAD_CHECKSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6, OFFLOADS, Offload, SERVICE_NET};
use fipsee_net::{AttachOptions, Port};
use fipsee_ring::control::{Control, Wanted};
use fipsee_ring::doorbell::EventDoorbell;
use fipsee_ring::wait::{Backoff, WaitMode};
use fipsee_serve::session::{Client, ClientLimits, Credentials, Granted, Service};
use fipsee_serve::{Queue, Share, Turn, Worker, WorkerHandle, WorkerPlacement};
use fipsee_virtio::net::Role;
use fipsee_virtio::net::server::PortQueue;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::channel::TestChannel;
use crate::guest::{self, Guest, WRITE, descriptors};
use crate::lan::{self, Got, Side, To, Whole, mac};
use crate::take;

const HEADER_BYTES: usize = 10;
const MOST_FRAMES: usize = 8;
const DEPTH: u32 = 8;
const POOL_BYTES: u64 = 96 << 10;
/// Of a device.
const TAP_OFFLOADS: u32 = OFFLOAD_CHECKSUM | OFFLOAD_TSO4 | OFFLOAD_TSO6 | OFFLOAD_ECN;
/// That only says that a checksum was seen to be right.
const DATA_VALID: u8 = 2;
/// Buffers of the machine.
const BUFFERS: u8 = 12;
const BUFFER_BYTES: u32 = 2048;
/// The same of what a driver takes.
const MERGED: u64 = 1 << 15;
const VERSION_1: u64 = 1 << 32;
const TAKEN: [(u64, u32); 4] =
    [(1 << 1, OFFLOAD_CHECKSUM), (1 << 7, OFFLOAD_TSO4), (1 << 8, OFFLOAD_TSO6), (1 << 9, OFFLOAD_ECN)];

/// What a client asks for.
const ASKED: [u32; 8] = [
    0,
    OFFLOAD_CHECKSUM,
    OFFLOAD_CHECKSUM | OFFLOAD_TSO4,
    OFFLOAD_CHECKSUM | OFFLOAD_TSO6,
    OFFLOAD_CHECKSUM | OFFLOAD_TSO4 | OFFLOAD_TSO6,
    TAP_OFFLOADS,
    OFFLOADS & !TAP_OFFLOADS | OFFLOAD_CHECKSUM,
    OFFLOADS,
];

thread_local! {
    /// By what the client asks for: to make a network costs more than to use it, and nothing is left in it when all frames were taken.
    static LANS: RefCell<[Option<Lan>; ASKED.len()]> = RefCell::default();
    static WORKER: (Worker<()>, WorkerHandle<()>) =
        Worker::new(WorkerPlacement::default(), Backoff::new(WaitMode::Sleep, Duration::ZERO), ()).expect("a worker");
}

/// Two bytes say what client and machine take. Then frames: a byte for the length, two for the zeroes that follow, and header and first bytes.
pub(crate) fn one(mut bytes: &[u8]) {
    let [client, machine] = take(&mut bytes);
    LANS.with_borrow_mut(|lans| {
        let asked = usize::from(client) % ASKED.len();
        let lan = lans[asked].get_or_insert_with(|| Lan::new(ASKED[asked]));
        lan.start(machine);
        for _ in 0..MOST_FRAMES {
            if bytes.is_empty() {
                break;
            }
            let [length, low, high] = take(&mut bytes);
            let (front, rest) = bytes.split_at(bytes.len().min(length.into()));
            bytes = rest;
            let mut read = front.to_vec();
            read.resize(read.len() + usize::from(u16::from_le_bytes([low, high])), 0);
            lan.send(&read);
        }
    });
}

/// Port 0 is the device that sends, 1 another, 2 that of a client, 3 that of a machine.
struct Lan {
    guest: Guest,
    rules: Vec<Rules>,
    switches: Switches,
    queue: TapQueue,
    /// The stack's end of either device.
    stack: [OwnedFd; 2],
    client: (Port, u32),
    machine: Option<Machine>,
    got: Got,
    /// A place for the longest frame.
    bytes: Vec<u8>,
    _granted: (TestChannel, Granted<()>),
}

/// Of the machine: what its driver takes, and how many buffers are used.
struct Machine {
    offloads: u32,
    header_bytes: usize,
    used: usize,
    _served: PortQueue,
}

/// A device of the host, and the stack's end of it.
fn device() -> (Arc<TapEnd>, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("descriptors");
    let notified = EventDoorbell::new().expect("a descriptor");
    (Arc::new(TapEnd::new(pair.0, notified)), pair.1)
}

/// A client, what it takes, and what serves it.
fn attach(switches: &Switches, offloads: u32) -> (Port, u32, (TestChannel, Granted<()>)) {
    let options = AttachOptions { depth: DEPTH, offloads, wait: WaitMode::Sleep, ..AttachOptions::new("lan/2") };
    let networks = WORKER.with(|(_, handle)| Networks::new(switches.clone(), vec![handle.clone()], Arc::new(|_, _| {})));
    let (credentials, share) = (Credentials::default(), Share::own("client"));
    let client = Client { id: 1, credentials: &credentials, limits: ClientLimits::default(), features: 0, share: &share };
    let (service, name) = (SERVICE_NET, options.name.clone());
    let wanted = Wanted { service, queue_count: 2, depth: DEPTH, flags: offloads, pool_bytes: POOL_BYTES, name };
    let Ok(granted) = networks.attach(&client, &wanted) else { panic!("the port is refused") };
    let Control::Attached { service_info, .. } = granted.reply else { panic!("{:?} is no attachment", granted.reply) };
    let channel = TestChannel::over(Arc::clone(&granted.grant.region), granted.grant.layout.clone());
    let ports = Port::over(channel.attached(service_info), Path::new("none"), &options);
    let port = ports.expect("a good channel").pop().expect("one pair");
    let in_force = port.info().offloads;
    (port, in_force, (channel, granted))
}

impl Lan {
    fn new(asked: u32) -> Self {
        let rules: Vec<Rules> = (0..5).map(|number| Rules { flood_limit: 1_000_000_000, ..Rules::new(mac(number)) }).collect();
        let switches = lan::network(&rules);
        let ((sends, to_send), (gets, to_get)) = (device(), device());
        lan::port(&switches, 1).add(0, Box::new(TapReceiver::new(gets)));
        let (port, in_force, granted) = attach(&switches, asked);
        Self {
            guest: Guest::new(),
            queue: TapQueue::new(sends, lan::port(&switches, 0)),
            stack: [to_send, to_get],
            client: (port, in_force),
            machine: None,
            got: Side::serve(&lan::port(&switches, 4), 0),
            bytes: vec![0; (1 << 16) + 128],
            _granted: granted,
            rules,
            switches,
        }
    }

    /// The machine, with a driver that takes this.
    fn start(&mut self, choice: u8) {
        let taken = TAKEN.iter().zip(0..).filter(|(_, bit)| choice >> bit & 1 != 0).map(|(taken, _)| taken);
        let (driver, offloads) =
            taken.fold((0, 0), |(features, offloads), (feature, offload)| (features | feature, offloads | offload));
        let features = driver | if choice & 16 != 0 { MERGED } else { 0 } | if choice & 32 != 0 { VERSION_1 } else { 0 };
        let header_bytes = if features & (MERGED | VERSION_1) == 0 { 10 } else { 12 };
        // The one before goes first.
        self.machine = None;
        post(&self.guest);
        let (port, setup) = (lan::port(&self.switches, 3), self.guest.setup(0, features));
        let served = PortQueue::new(port, Role::Receive(0), 1, setup, Box::new(|why| panic!("{why}")));
        self.machine = Some(Machine { offloads, header_bytes, used: 0, _served: served.expect("a good queue") });
    }

    /// The stack sends what the device reads.
    fn send(&mut self, read: &[u8]) {
        rustix::net::send(&self.stack[0], read, SendFlags::NOSIGNAL).expect("there is room");
        // It may be too early to look again: it is not.
        Queue::<()>::disarm(&mut self.queue);
        let taken = Queue::<()>::visit(&mut self.queue, &mut (), Turn::whole(false));
        assert_eq!(taken.requests, 1, "one was read");
        let got = [(1, TAP_OFFLOADS, self.stack_got()), (2, self.client.1, self.client_got())];
        let (machine_offloads, machine_got) = self.machine_got();
        let more = [(3, machine_offloads, machine_got), (4, 0, self.got.take())];
        for (port, offloads, got) in got.into_iter().chain(more) {
            let Some((header, frame)) = read.split_first_chunk::<HEADER_BYTES>() else {
                assert!(got.is_empty(), "a frame of a header that is not whole");
                continue;
            };
            let mut offload: Offload = zerocopy::transmute!(*header);
            offload.flags &= !DATA_VALID;
            let to = To { port, offloads, takes_all: matches!(port, 1 | 4) };
            lan::check(&self.rules, 0, (frame, offload), to, &got);
        }
    }

    fn stack_got(&mut self) -> Vec<Whole> {
        let mut got = Vec::new();
        while let Ok((length, _)) = rustix::net::recv(&self.stack[1], &mut self.bytes[..], RecvFlags::DONTWAIT) {
            let (header, frame) = self.bytes[..length].split_first_chunk::<HEADER_BYTES>().expect("a header");
            got.push((frame.to_vec(), zerocopy::transmute!(*header)));
        }
        got
    }

    fn client_got(&mut self) -> Vec<Whole> {
        let (mut frame, mut got) = (Vec::new(), Vec::new());
        while self.client.0.receive(&mut frame).expect("the daemon is correct") {
            got.push((frame.clone(), self.client.0.received_offload()));
        }
        got
    }

    /// What its driver takes, and has got.
    fn machine_got(&mut self) -> (u32, Vec<Whole>) {
        let machine = self.machine.as_mut().expect("it has started");
        let all = self.guest.used(0);
        let used = &all[std::mem::replace(&mut machine.used, all.len())..];
        let memory = if used.is_empty() { Vec::new() } else { self.guest.copy() };
        let whole = |(header, frame): (Vec<u8>, Vec<u8>)| {
            let header: [u8; HEADER_BYTES] = *header.first_chunk().expect("a header");
            (frame, zerocopy::transmute!(header))
        };
        (machine.offloads, guest::frames(&memory, used, machine.header_bytes, false).into_iter().map(whole).collect())
    }
}

/// A correct driver's buffers.
fn post(guest: &Guest) {
    guest.clear();
    let parts: Vec<(u64, u32, u16)> =
        (0..u64::from(BUFFERS)).map(|number| (number * u64::from(BUFFER_BYTES), BUFFER_BYTES, WRITE)).collect();
    let mut table = descriptors(&parts);
    table.resize(guest::TABLE_BYTES, 0);
    guest.write_descriptors(table.first_chunk().expect("as long"));
    let mut ring = [0; 2 * guest::SIZE as usize];
    ring.iter_mut().step_by(2).zip(0..BUFFERS).for_each(|(entry, head)| *entry = head);
    guest.offer(0, BUFFERS, &ring);
}

fn input(taken: [u8; 2], frames: &[([u8; HEADER_BYTES], Vec<u8>)]) -> Vec<u8> {
    let frame = |(header, bytes): &([u8; HEADER_BYTES], Vec<u8>)| {
        let front = bytes.len().min(255 - HEADER_BYTES);
        let zeroes = u16::try_from(bytes.len() - front).expect("short").to_le_bytes();
        let length = u8::try_from(HEADER_BYTES + front).expect("short");
        [&[length][..], &zeroes, header, &bytes[..front]].concat()
    };
    [taken.to_vec(), frames.iter().flat_map(frame).collect()].concat()
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let plain = |to: [u8; 6], length: usize| {
        let mut frame = [&to[..], &mac(0).0, &[0x88, 0xb5]].concat();
        frame.resize(length, 1);
        ([0; HEADER_BYTES], frame)
    };
    let (all, checksum) = ([0xff; 6], [1, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
    let divided = [1, 1, 54, 0, 0, 2, 34, 0, 16, 0];
    let to_all = |payload_bytes: u16| [&all[..], &lan::tcp4(0, 1, payload_bytes)[6..]].concat();
    let mut all_seeds = vec![
        vec![0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        input([0, 0], &[plain(all, 60), plain(all, 1514), plain(all, 13), plain(all, 1515)]),
        input([7, 0x3f], &[plain(mac(1).0, 68), plain(mac(2).0, 57), plain(mac(3).0, 56), plain(mac(4).0, 14)]),
        input([0, 0x20], &[(DATA_VALID_HEADER, plain(all, 100).1), ([2, 1, 0, 0, 0, 0, 0, 0, 0, 0], plain(all, 100).1)]),
    ];
    for taken in [[0, 0], [7, 0x3f], [1, 0x21], [2, 0x33]] {
        all_seeds.push(input(taken, &[(checksum, to_all(40)), (checksum, to_all(300)), (checksum, to_all(1460))]));
        all_seeds
            .push(input(taken, &[(divided, to_all(3000)), (divided, lan::tcp4(0, 3, 5000)), (divided, lan::tcp4(0, 2, 900))]));
    }
    all_seeds
}

const DATA_VALID_HEADER: [u8; HEADER_BYTES] = [DATA_VALID, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_side_gets_frames_of_a_device() {
        for (asked, machine) in [(0, 0), (OFFLOADS, 0x3f)] {
            let mut lan = Lan::new(asked);
            lan.start(machine);
            let frame = [&[0xff; 6][..], &mac(0).0, &[7; 80]].concat();
            rustix::net::send(&lan.stack[0], &[&[0; HEADER_BYTES][..], &frame].concat(), SendFlags::NOSIGNAL).expect("sent");
            Queue::<()>::visit(&mut lan.queue, &mut (), Turn::whole(false));
            for got in [lan.stack_got(), lan.client_got(), lan.machine_got().1, lan.got.take()] {
                assert_eq!(got, [(frame.clone(), Offload::NONE)]);
            }
        }
    }
}
