//! A client without the client library: it can send what a correct one never would.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_block::wire::{BlockInfo, PROFILE, SECTOR_SHIFT, SERVICE_BLOCK, Segment, Status};
use fipsee_ring::Message;
use fipsee_ring::channel::{ClientQueue, RegionLayout};
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, Control, Refusal, RefusalCode, VERSION, Wanted};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::region::{Access, Region};
use fipsee_ring::seqpacket::{Packet, Seqpacket};
use rustix::fs::SealFlags;

pub use crate::bytes::memory_file as sealed_memory;
use crate::{Daemon, TIMEOUT};

pub const HELLO: Control = Control::Hello { version_min: VERSION, version_max: VERSION, features: 0 };

pub fn attach_message(name: &str, queue_count: u16, depth: u32, flags: u32) -> Control {
    Control::Attach(Wanted { service: SERVICE_BLOCK, queue_count, depth, flags, pool_bytes: 1 << 20, name: name.to_owned() })
}

/// A connection that has sent nothing.
pub fn connect(daemon: &Daemon) -> Seqpacket {
    Seqpacket::connect(&daemon.socket()).expect("the daemon listens")
}

pub fn say(control: &Seqpacket, message: &Control, descriptors: &[BorrowedFd<'_>]) {
    control.send(&message.encode(), descriptors).expect("sent");
}

#[track_caller]
pub fn receive(control: &Seqpacket) -> (Control, Vec<OwnedFd>) {
    let Packet { bytes, descriptors } = control.receive(TIMEOUT).expect("an answer");
    (Control::decode(&bytes).expect("a control message"), descriptors)
}

#[track_caller]
pub fn receive_refusal(control: &Seqpacket, expected: RefusalCode) -> String {
    match receive(control).0 {
        Control::Refused(Refusal { code, text }) => {
            assert_eq!(code, expected, "{text}");
            text
        }
        other => panic!("not refused, but {other:?}"),
    }
}

/// The daemon closed the connection.
#[track_caller]
pub fn assert_closed(control: &Seqpacket) {
    let error = control.receive(TIMEOUT).expect_err("nothing more is sent");
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
}

/// An attached client that handles its own rings.
pub struct RawClient {
    pub control: Seqpacket,
    pub region: Arc<Region>,
    pub layout: RegionLayout,
    pub queues: Vec<ClientQueue>,
    pub info: BlockInfo,
}

impl RawClient {
    pub fn attach(daemon: &Daemon, message: &Control) -> Self {
        let control = connect(daemon);
        say(&control, &HELLO, &[]);
        assert!(matches!(receive(&control).0, Control::Welcome { .. }));
        say(&control, message, &[]);
        let (answer, descriptors) = receive(&control);
        Self::attached(control, &answer, descriptors)
    }

    /// Build the client from ATTACHED and its descriptors.
    pub fn attached(control: Seqpacket, answer: &Control, descriptors: Vec<OwnedFd>) -> Self {
        let Control::Attached { region_bytes, service_info, .. } = answer else { panic!("not attached, but {answer:?}") };
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().expect("as many descriptors as announced");
        let region = Region::from_peer(next(), *region_bytes, Access::ReadWrite).expect("a sealed region");
        let region = Arc::new(region);
        let layout = RegionLayout::read_from(&PROFILE, &region).expect("a layout");
        let open = |geometry| {
            let (daemon_doorbell, our_doorbell) = (EventDoorbell::from_fd(next()), SocketDoorbell::from_fd(next()));
            ClientQueue::open(&region, geometry, daemon_doorbell, our_doorbell, &geometry.tuning())
                .expect("rings inside the region")
        };
        let queues = layout.queues.iter().map(open).collect();
        let info = BlockInfo::from_bytes(service_info).expect("a disk");
        Self { control, region, layout, queues, info }
    }

    /// A piece of the pool.
    pub fn pool(offset_bytes: u64, length_bytes: u64) -> Segment {
        let sectors = |bytes: u64| u32::try_from(bytes >> SECTOR_SHIFT).expect("a small pool");
        let length_sectors = u16::try_from(sectors(length_bytes)).expect("short");
        Segment { offset_sectors: sectors(offset_bytes), length_sectors, region: 0 }
    }

    pub fn fill_pool(&self, offset_bytes: u64, bytes: &[u8]) {
        self.region.write(self.layout.pool_offset_bytes + offset_bytes, bytes).expect("within the pool");
    }

    pub fn publish(&mut self, message: &Message) {
        let queue = &mut self.queues[0];
        queue.requests.publish(message).expect("the depth allows it");
        if queue.requests.reader_needs_doorbell() {
            queue.daemon_doorbell.ring();
        }
    }

    /// The next message of the completion ring.
    #[track_caller]
    pub fn next_completion(&mut self) -> Message {
        self.completion_within(TIMEOUT).expect("no completion")
    }

    pub fn completion_within(&mut self, limit: Duration) -> Option<Message> {
        let deadline = Instant::now() + limit;
        let mut message = Message::ZERO;
        while !self.queues[0].completions.receive(&mut message) {
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::yield_now();
        }
        Some(message)
    }

    /// Publish one request and take its answer, which must have its tag and be the only one.
    #[track_caller]
    pub fn ask(&mut self, message: &Message) -> Status {
        self.publish(message);
        let answer = self.next_completion();
        self.queues[0].requests.answered();
        assert_eq!(answer.word(0) & 0xffff_ffff, 1, "one completion: {answer:?}");
        let entry = answer.word(0) >> 32;
        assert_eq!(entry & 0xffff, message.word(0) >> 32 & 0xffff, "the tag");
        let status = u16::try_from(entry >> 16).expect("the upper half");
        Status::from_wire(status).expect("a known status")
    }

    /// Register memory and return the daemon's answer.
    pub fn register(&self, id: u16, access: u16, length_bytes: u64, file: &impl AsFd) -> Control {
        say(&self.control, &Control::Register { region: id, access, length_bytes }, &[file.as_fd()]);
        receive(&self.control).0
    }

    /// Register `length_bytes` of new sealed memory.
    pub fn register_new(&self, id: u16, access: u16, length_bytes: u64) -> OwnedFd {
        let file = sealed_memory(length_bytes, SealFlags::SHRINK);
        assert_eq!(self.register(id, access, length_bytes, &file), Control::Registered { region: id });
        file
    }
}

/// Tags and statuses in a message of the completion ring.
pub fn answers_of(message: &Message) -> Vec<(u16, Status)> {
    let bytes = message.to_bytes();
    let entries = bytes[4..].as_chunks::<4>().0.iter().take(usize::from(bytes[0]));
    let entry = |[tag_low, tag_high, low, high]: &[u8; 4]| {
        let status = Status::from_wire(u16::from_le_bytes([*low, *high])).expect("a known status");
        (u16::from_le_bytes([*tag_low, *tag_high]), status)
    };
    entries.map(entry).collect()
}

pub const BOTH: u16 = ACCESS_READ | ACCESS_WRITE;
