//! A daemon that breaks the protocol, in one place at a time.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use fipsee_block::wire::PROFILE;
use fipsee_ring::Message;
use fipsee_ring::channel::{QueueGeometry, RegionLayout, ServerQueue};
use fipsee_ring::control::{Control, Refusal, VERSION, Wanted};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, Reader, RingMemory as _};
use fipsee_ring::seqpacket::{Seqpacket, socket_address};
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Changes the bytes of an answer.
pub type Bytes = fn(&mut Vec<u8>);
/// Messages instead of the completion of a request with that tag.
pub type Answers = fn(u16) -> Vec<Message>;

/// A control message.
pub type Others = fn() -> Control;

/// The place where the daemon breaks the protocol.
#[derive(Clone, Copy, Debug)]
pub enum DaemonFault {
    /// Nowhere.
    None,
    /// Bytes of the answer to HELLO.
    Welcome(Bytes),
    /// Bytes of the answer to ATTACH.
    Attached(Bytes),
    /// Bytes of the answer to REGISTER.
    Registered(Bytes),
    /// The descriptors of ATTACHED.
    Descriptors(fn(&mut Vec<OwnedFd>)),
    /// Bytes of the region.
    Region(u64, &'static [u8]),
    /// Messages instead of the completion of a request with that tag.
    Answer(Answers),
    /// Another control message instead of the answer to a packet of that kind.
    Instead(u8, Others),
    /// Correct answers, while another thread rings the client's doorbell without end and every asleep flag flickers.
    Ringing,
    /// Correct answers, while another thread rewrites how many completions a message has.
    Rewriting,
    /// Correct answers, in slots that first held faults with the stamps of other laps.
    Stamps,
    /// Correct answers; after each, the stamp of the request is stored again and again, while the client may write the next lap's there.
    /// The daemon then stores the stamp that it overwrote, to go on.
    Touching,
}

/// A completion message of one entry, as words: whatever `head` and `status` say.
pub fn completion(head: u64, tag: u16, status: u64) -> Message {
    Message::from_words([head | u64::from(tag) << 32 | status << 48, 0, 0, 0, 0, 0, 0, 0])
}

fn twice(tag: u16) -> Message {
    Message::from_words([2 | u64::from(tag) << 32, tag.into(), 0, 0, 0, 0, 0, 0])
}

fn event(kind: u64, sector_count: u64) -> Message {
    Message::from_words([1 | kind << 8, sector_count, 0, 0, 0, 0, 0, 0])
}

fn memory_file(flags: MemfdFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("faulty", flags).expect("a memory file");
    rustix::fs::ftruncate(&file, 1 << 20).expect("it grows");
    file
}

const HEADER: u64 = 0;
const ENTRY: u64 = 64;

/// What a client must say of each fault.
pub const DAEMON_FAULTS: [(&str, DaemonFault); 41] = [
    ("6 as the protocol version", DaemonFault::Welcome(|bytes| bytes[12] = 6)),
    ("1 as features we did not offer", DaemonFault::Welcome(|bytes| bytes[24] = 1)),
    ("a reserved field of WELCOME", DaemonFault::Welcome(|bytes| bytes[20] = 1)),
    ("not a control message", DaemonFault::Welcome(|bytes| bytes[0] = 0)),
    ("not a control message", DaemonFault::Welcome(|bytes| bytes.truncate(11))),
    ("not a control message", DaemonFault::Welcome(|bytes| bytes.resize(600, 0))),
    ("not a control message", DaemonFault::Welcome(|bytes| bytes[8] = 41)),
    ("9 as the version of a message", DaemonFault::Welcome(|bytes| bytes[6] = 9)),
    ("4 as the kind of an answer", DaemonFault::Welcome(|bytes| bytes[4] = 4)),
    ("a malformed refusal", DaemonFault::Welcome(|bytes| *bytes = refusal(&[0xff], 1))),
    ("a malformed refusal", DaemonFault::Welcome(|bytes| *bytes = refusal(b"no", 401))),
    ("a malformed refusal", DaemonFault::Welcome(|bytes| *bytes = refusal(b"no", 1))),
    ("2 as the number of queues granted", DaemonFault::Attached(|bytes| bytes[12] = 2)),
    ("as the length of the region", DaemonFault::Attached(|bytes| bytes[23] = 1)),
    ("0 as the length of the region", DaemonFault::Attached(|bytes| bytes[16..24].fill(0))),
    ("513 as the logical block size", DaemonFault::Attached(|bytes| bytes[40] = 1)),
    ("0 as the size of the disk", DaemonFault::Attached(|bytes| bytes[32..40].fill(0))),
    ("as the size of the disk", DaemonFault::Attached(|bytes| bytes[24..32].fill(0xff))),
    ("0 as the longest transfer", DaemonFault::Attached(|bytes| bytes[48..52].fill(0))),
    ("0 as the most segments", DaemonFault::Attached(|bytes| bytes[56..60].fill(0))),
    ("2 as the number of descriptors", DaemonFault::Descriptors(|files| drop(files.pop()))),
    ("not a memory file", DaemonFault::Descriptors(|files| files.swap(0, 1))),
    ("with the wrong seals", DaemonFault::Descriptors(|files| files[0] = memory_file(MemfdFlags::CLOEXEC))),
    ("with the wrong seals", DaemonFault::Descriptors(|files| files[0] = memory_file(MemfdFlags::ALLOW_SEALING))),
    ("as the magic number of the region", DaemonFault::Region(HEADER, b"x")),
    ("64 as the queue count of the region", DaemonFault::Region(HEADER + 12, &[64])),
    ("as the length in the region header", DaemonFault::Region(HEADER + 16, &[1])),
    ("as the place of the pool", DaemonFault::Region(HEADER + 36, &[1])),
    ("as the place of a ring", DaemonFault::Region(ENTRY + 6, &[1])),
    ("as the place of a ring", DaemonFault::Region(ENTRY + 8, &[1])),
    ("as the place of a ring", DaemonFault::Region(ENTRY + 14, &[1])),
    ("as the place of a ring", DaemonFault::Region(ENTRY + 16, &[0xc0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])),
    ("as the slots of a ring", DaemonFault::Region(ENTRY + 24, &[3])),
    ("as the start of a ring", DaemonFault::Region(ENTRY + 34, &[1])),
    ("as the depth of the queue", DaemonFault::Region(ENTRY + 42, &[1])),
    ("as the id of registered memory", DaemonFault::Registered(|bytes| bytes[12] = 9)),
    ("the head of a completion message", DaemonFault::Answer(|tag| vec![completion(0, tag, 0)])),
    ("the head of a completion message", DaemonFault::Answer(|tag| vec![completion(15, tag, 0)])),
    ("the status of a completion", DaemonFault::Answer(|tag| vec![completion(1, tag, 12)])),
    ("has no request outstanding", DaemonFault::Answer(|_| vec![completion(1, 0xffff, 0)])),
    // Twice in one message: in two, the tag could be in use again.
    ("has no request outstanding", DaemonFault::Answer(|tag| vec![twice(tag)])),
];

/// What a client must say of each fault.
pub const EVENT_FAULTS: [(&str, DaemonFault); 5] = [
    ("the kind of an event", DaemonFault::Answer(|_| vec![event(3, 0)])),
    ("the new size of the disk", DaemonFault::Answer(|_| vec![event(1, 0)])),
    ("the new size of the disk", DaemonFault::Answer(|_| vec![event(1, 1 << 55)])),
    ("the head of an event", DaemonFault::Answer(|_| vec![event(2, 1)])),
    ("the head of an event", DaemonFault::Answer(|_| vec![Message::from_words([0x101, 9, 1, 0, 0, 0, 0, 0])])),
];

/// A refusal that says it has `text_bytes`.
fn refusal(text: &[u8], text_bytes: u32) -> Vec<u8> {
    let code = fipsee_ring::control::RefusalCode::Limit;
    let mut bytes = Control::Refused(Refusal { code, text: String::new() }).encode();
    bytes[16..20].copy_from_slice(&text_bytes.to_le_bytes());
    bytes[20..20 + text.len()].copy_from_slice(text);
    bytes
}

/// A daemon with one null disk and one fault.
#[derive(Debug)]
pub struct FaultyDaemon {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// Operation and flags of each request it took.
    pub requests: Arc<Mutex<Vec<(u8, u16)>>>,
}

impl FaultyDaemon {
    /// Listen at `socket`.
    pub fn start(socket: &Path, fault: DaemonFault) -> Self {
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None);
        let listener = listener.expect("a socket");
        let _ = std::fs::remove_file(socket);
        rustix::net::bind(&listener, &socket_address(socket).expect("a path")).expect("the path is free");
        rustix::net::listen(&listener, 8).expect("it listens");
        let (stop, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (stopped, seen) = (Arc::clone(&stop), Arc::clone(&requests));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match rustix::net::accept(&listener) {
                    Ok(connection) => serve(&Seqpacket::from_fd(connection), fault, &stopped, &seen),
                    Err(_) => std::thread::yield_now(),
                }
            }
        });
        Self { stop, thread: Some(thread), requests }
    }
}

impl Drop for FaultyDaemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// The daemon's side of an attachment.
struct FaultyChannel {
    queue: ServerQueue,
    region: Arc<Region>,
    geometry: QueueGeometry,
}

/// One connection, to its end.
fn serve(control: &Seqpacket, fault: DaemonFault, stop: &AtomicBool, seen: &Mutex<Vec<(u8, u16)>>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut channel = None;
        while !stop.load(Ordering::Relaxed) {
            if let Some(channel) = &mut channel {
                answer(channel, fault, seen);
            }
            let packet = match control.try_receive() {
                Ok(Some(packet)) => packet,
                Ok(None) => {
                    std::thread::yield_now();
                    continue;
                }
                Err(_) => break,
            };
            let kind = packet.bytes[4];
            if let DaemonFault::Instead(of, other) = fault
                && of == kind
            {
                let _ = control.send(&other().encode(), &[]);
                continue;
            }
            let mut reply = match Control::decode(&packet.bytes).expect("the client is correct") {
                Control::Hello { .. } => {
                    let limits = (VERSION, 16, 256, 0, 1 << 20);
                    let (version, max_queues, max_depth, features, max_pool_bytes) = limits;
                    Control::Welcome { version, max_queues, max_depth, features, max_pool_bytes }.encode()
                }
                Control::Attach(Wanted { depth, .. }) => {
                    let attached = channel.insert(attach(control, depth, fault));
                    let (region, geometry, doorbell) = (&attached.region, attached.geometry, &attached.queue.client_doorbell);
                    let (region, doorbell, over) = (Arc::clone(region), doorbell.clone(), &over);
                    scope.spawn(move || disturb(fault, &region, &geometry, &doorbell, over));
                    continue;
                }
                Control::Register { region, .. } => Control::Registered { region }.encode(),
                Control::Unregister { region } => Control::Unregistered { region }.encode(),
                Control::Detach => Control::Detached.encode(),
                other => panic!("a client does not send {other:?}"),
            };
            match (fault, kind) {
                (DaemonFault::Welcome(change), 1) | (DaemonFault::Registered(change), 6) => change(&mut reply),
                _ => {}
            }
            let _ = control.send(&reply, &[]);
            if kind == 10 {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// What some faults do beside answering, until the connection is over.
fn disturb(fault: DaemonFault, region: &Region, geometry: &QueueGeometry, doorbell: &SocketDoorbell, over: &AtomicBool) {
    let write = |offset_bytes: u64, bytes: &[u8]| region.write(offset_bytes, bytes).expect("within the region");
    while !over.load(Ordering::Relaxed) {
        match fault {
            DaemonFault::Ringing => {
                for value in [1, 0, u32::MAX, 0] {
                    write(geometry.cold_offset_bytes + 4, &u32::to_le_bytes(value));
                    write(geometry.cold_offset_bytes + 128 + 4, &u32::to_le_bytes(value));
                    doorbell.ring();
                }
            }
            DaemonFault::Rewriting => {
                for slot in 0..geometry.completion_slots {
                    let place = geometry.completion_offset_bytes + 64 * u64::from(slot);
                    write(place, &[15]);
                    write(place, &[1]);
                }
            }
            _ => return,
        }
    }
}

fn attach(control: &Seqpacket, depth: u32, fault: DaemonFault) -> FaultyChannel {
    let layout = RegionLayout::plan(&PROFILE, 1, depth, 0, 1);
    let region = Arc::new(Region::create("faulty", layout.region_bytes).expect("a region"));
    layout.write_to(&region).expect("it fits");
    if let DaemonFault::Region(offset_bytes, bytes) = fault {
        region.write(offset_bytes, bytes).expect("it fits");
    }
    if let DaemonFault::Stamps = fault {
        fill_with_faults(&region, &layout.queues[0]);
    }
    let mut info = [0_u8; 64];
    for (offset, value) in [(8, 2 << 20), (16, 512), (24, 16 << 20), (28, 8 << 20), (32, 256), (36, 31_u32)] {
        info[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }
    let mut bytes = Control::Attached { queue_count: 1, region_bytes: region.length_bytes(), service_info: info }.encode();
    let doorbell = EventDoorbell::new().expect("a doorbell");
    let (our_end, their_end) = SocketDoorbell::pair().expect("a doorbell");
    let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a copy");
    let mut files = vec![copy(region.as_fd()), copy(doorbell.as_fd()), copy(their_end.as_fd())];
    match fault {
        DaemonFault::Attached(change) => change(&mut bytes),
        DaemonFault::Descriptors(change) => change(&mut files),
        _ => {}
    }
    let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    control.send(&bytes, &borrowed).expect("the client reads");
    let geometry = layout.queues[0];
    let queue =
        ServerQueue::open(&region, &geometry, doorbell, our_end, &geometry.tuning()).expect("a correct queue on our side");
    FaultyChannel { queue, region, geometry }
}

/// Faults in every slot, with stamps of laps that were or are to come.
fn fill_with_faults(region: &Region, geometry: &QueueGeometry) {
    let mut fault = completion(14, 0xffff, 11).to_bytes();
    for slot in 0..geometry.completion_slots {
        let due = 1 + u32::from(slot < geometry.completion_start);
        let stamp = [due + 1, due.wrapping_sub(1), due + 2, u32::MAX][usize::try_from(slot % 4).expect("small")];
        fault[60..].copy_from_slice(&stamp.to_le_bytes());
        region.write(geometry.completion_offset_bytes + 64 * u64::from(slot), &fault).expect("within the region");
    }
}

/// Touches that come late, of the message at `at`.
fn touch(requests: &Reader<MappedRing>, at: Cursor) {
    const TIMES: u32 = 200;
    let stamp = requests.memory().stamp(at.index());
    for _ in 0..TIMES {
        let found = stamp.swap(at.stamp(), Ordering::Relaxed);
        if found != at.stamp() {
            stamp.store(found, Ordering::Release);
        }
    }
}

fn answer(channel: &mut FaultyChannel, fault: DaemonFault, seen: &Mutex<Vec<(u8, u16)>>) {
    let mut request = Message::ZERO;
    loop {
        let taken = channel.queue.requests.cursor();
        if !channel.queue.requests.receive(&mut request) {
            return;
        }
        let [operation, _, flags_low, flags_high, tag_low, tag_high, ..] = request.word(0).to_le_bytes();
        seen.lock().expect("no panic").push((operation, u16::from_le_bytes([flags_low, flags_high])));
        let tag = u16::from_le_bytes([tag_low, tag_high]);
        let messages = if let DaemonFault::Answer(faults) = fault { faults(tag) } else { vec![completion(1, tag, 0)] };
        let queue = &mut channel.queue;
        messages.iter().for_each(|message| queue.completions.publish(message));
        if queue.completions.reader_needs_doorbell() {
            queue.client_doorbell.ring();
        }
        if let DaemonFault::Touching = fault {
            touch(&queue.requests, taken);
        }
    }
}
