//! What a client can do to a daemon. Each lie goes on until it is told to stop; none may harm anybody but the liar.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_block::wire::{Operation, Segment, Status, request_indirect, request_one_segment};
use fipsee_ring::Message;
use fipsee_ring::control::{Control, SERVICE_BLOCK};
use fipsee_ring::handshake::{self, Attached, Wanted};
use fipsee_ring::region::Region;
use fipsee_ring::seqpacket::Seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;

use crate::twins::{ATTACHMENTS, BELLS, BUSY, LOAD, LONG_ATTACHMENTS, MEMORY, REQUESTS as ASKING, TABLES, WRITER};

/// Requests outstanding of a liar.
pub(crate) const DEPTH: u32 = 16;
const POOL_BYTES: u64 = 1 << 20;
/// Looks for an answer before a liar sleeps on its doorbell.
const LOOKS: u32 = 64;
/// How long it sleeps at a time, in nanoseconds: whoever lied about its own doorbell is not woken.
const NAP_NS: i64 = 5_000_000;
/// Naps before it calls an answer lost. A bound against hanging.
const NAPS: u32 = 4000;
/// Requests that a liar makes at least while another of its threads rewrites what they say.
const REQUESTS: u64 = 2000;
/// And at most, until a race was won and another lost.
const MOST_REQUESTS: u64 = 1_000_000;

/// How long a lie goes on.
#[derive(Debug)]
pub struct Until<'a> {
    stop: &'a AtomicBool,
    left: u64,
    told: u64,
}

impl<'a> Until<'a> {
    /// At most so many times, or until `stop` is set.
    #[must_use]
    pub const fn times(most: u64, stop: &'a AtomicBool) -> Self {
        Self { stop, left: most, told: 0 }
    }

    /// Once more?
    pub fn more(&mut self) -> bool {
        if self.left == 0 || self.stop.load(Ordering::Relaxed) {
            return false;
        }
        self.left -= 1;
        self.told += 1;
        true
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// How often the lie was told.
    #[must_use]
    pub const fn told(&self) -> u64 {
        self.told
    }
}

/// A lie.
#[derive(Debug)]
pub struct Lie {
    /// What it is called.
    pub name: &'static str,
    /// How often a test tells it.
    pub times: u64,
    pub(crate) tell: fn(&Path, &str, &mut Until<'_>) -> io::Result<()>,
    /// Who does as much, and tells the truth; a twin has none.
    pub twin: Option<&'static Lie>,
}

impl Lie {
    /// Tell it to the daemon at `socket`, on `disk`.
    ///
    /// # Errors
    /// The daemon does not let the liar in, or the machine has no memory or descriptors.
    pub fn tell(&self, socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
        (self.tell)(socket, disk, until)
    }
}

/// All of them.
pub const LIES: &[Lie] = &[
    Lie { name: "stamps of other laps", times: 3_000, tell: stamps, twin: Some(&BUSY) },
    Lie { name: "slots of random bytes", times: 3_000, tell: noise, twin: Some(&ASKING) },
    Lie { name: "a slot rewritten while it is read", times: 3_000_000, tell: rewritten_slot, twin: Some(&WRITER) },
    Lie { name: "an indirect table rewritten while it is read", times: 30_000_000, tell: rewritten_table, twin: Some(&WRITER) },
    Lie { name: "a table that its own request overwrites", times: 1_000, tell: table_over_itself, twin: Some(&TABLES) },
    Lie { name: "more requests than the depth, no answer taken", times: 100_000, tell: overrun, twin: Some(&LOAD) },
    Lie { name: "asleep flags that flicker", times: 2_000_000, tell: flicker, twin: Some(&WRITER) },
    Lie { name: "doorbells", times: 200_000, tell: doorbells, twin: Some(&BELLS) },
    Lie { name: "control messages, no answer taken", times: 20_000, tell: control_flood, twin: Some(&MEMORY) },
    Lie { name: "connections that end at once", times: 2_000, tell: connections, twin: Some(&ATTACHMENTS) },
    Lie { name: "attachments that end at once", times: 300, tell: attachments, twin: Some(&LONG_ATTACHMENTS) },
    Lie { name: "memory of every wrong kind", times: 500, tell: wrong_memory, twin: Some(&MEMORY) },
];

/// splitmix64.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }
}

pub(crate) fn attach(socket: &Path, disk: &str) -> io::Result<Attached> {
    let wanted = Wanted { service: SERVICE_BLOCK, queue_count: 1, depth: DEPTH, flags: 0, pool_bytes: POOL_BYTES, name: disk };
    handshake::attach(socket, 0, &wanted).map_err(|error| io::Error::other(format!("{error:?}")))
}

pub(crate) fn write(attached: &Attached, offset_bytes: u64, bytes: &[u8]) {
    attached.region.write(offset_bytes, bytes).expect("within the region");
}

fn slot(attached: &Attached, index: u32) -> u64 {
    attached.layout.queues[0].request_offset_bytes + 64 * u64::from(index)
}

/// A read by way of the table at the beginning of the pool: 256 entries.
pub(crate) fn table_of_256() -> Message {
    request_indirect(Operation::Read, 0, 1, 0, segment(0, 4, 0), 256)
}

/// A write of 1 MiB.
pub(crate) fn long_write() -> Message {
    request_one_segment(Operation::Write, 0, 1, 0, segment(0, 2048, 0))
}

/// Publish and wake the worker, if that is thought to be necessary. False: more is outstanding than may be.
fn publish(attached: &mut Attached, message: &Message) -> bool {
    if attached.queues[0].requests.publish(message).is_err() {
        return false;
    }
    if attached.queues[0].requests.reader_needs_doorbell() {
        attached.queues[0].daemon_bell.ring();
    }
    true
}

/// Publish and wait for an answer, while `meanwhile` goes on.
pub(crate) fn ask(attached: &mut Attached, message: &Message, mut meanwhile: impl FnMut(&Attached)) -> io::Result<Message> {
    if !publish(attached, message) {
        return Err(io::Error::other("more is outstanding than was asked"));
    }
    let mut answer = Message::ZERO;
    for look in 0..LOOKS + NAPS {
        meanwhile(attached);
        let queue = &mut attached.queues[0];
        if queue.completions.receive(&mut answer) {
            queue.requests.answered();
            return Ok(answer);
        }
        if look < LOOKS {
            std::hint::spin_loop();
            continue;
        }
        if !queue.completions.arm_and_work_remains() {
            let nap = Timespec { tv_sec: 0, tv_nsec: NAP_NS };
            let _ = rustix::event::poll(&mut [PollFd::new(&queue.our_bell, PollFlags::IN)], Some(&nap));
            let _ = queue.our_bell.drain();
            // Whoever made the daemon believe that nobody sleeps, or us that it does not, has to ring without cause.
            queue.daemon_bell.ring();
        }
        queue.completions.disarm();
    }
    Err(io::Error::other(format!("{message:?} is not answered")))
}

/// The status in an answer to one request.
fn status(answer: &Message) -> Option<Status> {
    u16::try_from(answer.word(0) >> 48).ok().and_then(Status::from_wire)
}

/// Rewrite memory of the channel in a thread of its own, as often as is wanted, while `request` goes on in this one, and until that
/// has seen what it wants to see.
pub(crate) fn while_rewriting(
    attached: &mut Attached,
    until: &mut Until<'_>,
    mut rewrite: impl FnMut(&Region) + Send,
    mut request: impl FnMut(&mut Attached) -> io::Result<bool>,
) -> io::Result<()> {
    let (region, over, enough) = (Arc::clone(&attached.region), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let goes_on = || !over.load(Ordering::Relaxed);
            while goes_on() && (until.more() || !enough.load(Ordering::Relaxed) && !until.is_stopped()) {
                rewrite(&region);
            }
            over.store(true, Ordering::Relaxed);
        });
        let (mut outcome, mut asked) = (Ok(true), 0);
        while let Ok(is_seen) = outcome
            && !over.load(Ordering::Relaxed)
        {
            enough.store(asked >= MOST_REQUESTS || is_seen && asked >= REQUESTS, Ordering::Relaxed);
            outcome = request(attached);
            asked += 1;
        }
        over.store(true, Ordering::Relaxed);
        outcome.map(drop)
    })
}

pub(crate) const fn segment(offset_sectors: u32, length_sectors: u16, region: u16) -> Segment {
    Segment { offset_sectors, length_sectors, region }
}

fn stamps(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let geometry = attached.layout.queues[0];
    let honest = request_one_segment(Operation::Read, 0, 1, 0, segment(0, 8, 0));
    let mut bytes = request_one_segment(Operation::Write, 0, 7, 0, segment(0, 1, 0)).to_bytes();
    let (mut random, mut cursor, mut lap) = (Random(1), geometry.request_start, 1_u32);
    while until.more() {
        for index in 0..geometry.request_slots {
            // Laps to come, laps that were, none; the lap that is due would be a request.
            let due = lap + u32::from(index < cursor);
            let others = [due - 1, due + 1, due + 2, 0, u32::MAX, 0x8000_0000];
            let lie = others[usize::try_from(random.number() % 6).unwrap_or(0)];
            bytes[60..].copy_from_slice(&lie.to_le_bytes());
            write(&attached, slot(&attached, index), &bytes);
        }
        attached.queues[0].daemon_bell.ring();
        if until.told().is_multiple_of(50) {
            let answer = ask(&mut attached, &honest, |_| {})?;
            if answer.word(0) != 1 | 1 << 32 {
                return Err(io::Error::other(format!("of all requests the one that was made is answered with {answer:?}")));
            }
            cursor = (cursor + 1) % geometry.request_slots;
            lap += u32::from(cursor == 0);
        }
    }
    Ok(())
}

fn noise(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let mut random = Random(2);
    while until.more() {
        let mut words = [0; 8].map(|_: u64| random.number());
        // Operations that exist, more often than not.
        words[0] = words[0] & !0xff | (random.number() % 10);
        // A packed message has three answers, of which only the first is waited for.
        ask(&mut attached, &Message::from_words(words), |_| {})?;
    }
    Ok(())
}

fn rewritten_slot(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let geometry = attached.layout.queues[0];
    // What is checked must be what is used: the second would reach far behind the pool, the third has a table there.
    let far = segment(0xffff_0000, 0xffff, 0);
    let good = request_one_segment(Operation::Read, 0, 1, 0, segment(0, 8, 0));
    let bad = request_one_segment(Operation::Read, 0, 1, 0, far);
    let worse = request_indirect(Operation::Read, 0, 1, 0, far, 256);
    let bodies = [bad, worse, good].map(|message| message.to_bytes());
    let mut next = 0;
    let rewrite = move |region: &Region| {
        next = (next + 1) % geometry.request_slots;
        let place = geometry.request_offset_bytes + 64 * u64::from(next);
        for body in &bodies {
            region.write(place, &body[..60]).expect("within the region");
        }
    };
    let (mut seen, mut index) = ([0_u64; 2], geometry.request_start);
    while_rewriting(&mut attached, until, rewrite, |attached| {
        let place = slot(attached, index);
        index = (index + 1) % geometry.request_slots;
        let answer = ask(attached, &good, |attached| {
            for body in &bodies {
                write(attached, place, &body[..60]);
            }
        })?;
        match status(&answer) {
            Some(Status::Ok) => seen[0] += 1,
            Some(Status::BadMemory | Status::Invalid | Status::TooLong | Status::NoSegments) => seen[1] += 1,
            other => return Err(io::Error::other(format!("a slot that was rewritten is answered with {other:?}"))),
        }
        Ok(!seen.contains(&0))
    })?;
    seen_both(seen, until)
}

/// Unless both were seen, nothing was rewritten in time.
fn seen_both(seen: [u64; 2], until: &Until<'_>) -> io::Result<()> {
    let missed = seen.contains(&0) && !until.is_stopped();
    if missed { Err(io::Error::other(format!("no race was won and lost: {seen:?}"))) } else { Ok(()) }
}

fn rewritten_table(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let pool = attached.layout.pool_offset_bytes;
    let (good, bad) = (segment(64, 1, 0).to_word().to_le_bytes(), segment(0xffff_0000, 1, 0).to_word().to_le_bytes());
    let request = request_indirect(Operation::Read, 0, 1, 0, segment(0, 4, 0), 256);
    // Of the last entry: those before it have been checked when it is looked at.
    let place = pool + 255 * 8;
    write(&attached, pool, &good.repeat(256));
    let rewrite = move |region: &Region| {
        for entry in [&bad, &good] {
            region.write(place, entry).expect("within the region");
        }
    };
    let mut seen = [0_u64; 2];
    while_rewriting(&mut attached, until, rewrite, |attached| {
        // Bad for a while, so that somebody can see it.
        let mut looks = 0_u32;
        let answer = ask(attached, &request, |attached| {
            write(attached, place, if looks.is_multiple_of(2) { &bad } else { &good });
            looks += 1;
        })?;
        write(attached, place, &good);
        match status(&answer) {
            Some(Status::Ok) => seen[0] += 1,
            Some(Status::BadMemory) => seen[1] += 1,
            other => return Err(io::Error::other(format!("a table that was rewritten is answered with {other:?}"))),
        }
        Ok(!seen.contains(&0))
    })?;
    seen_both(seen, until)
}

fn table_over_itself(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let pool = attached.layout.pool_offset_bytes;
    while until.more() {
        // Each entry is the table: what is read goes over what says where it goes.
        write(&attached, pool, &segment(0, 4, 0).to_word().to_le_bytes().repeat(256));
        let answer = ask(&mut attached, &table_of_256(), |_| {})?;
        if status(&answer) != Some(Status::Ok) {
            return Err(io::Error::other(format!("a table over itself is answered with {answer:?}")));
        }
    }
    Ok(())
}

fn overrun(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let attached = attach(socket, disk)?;
    let geometry = attached.layout.queues[0];
    let (mut index, mut lap) = (geometry.request_start, 1_u32);
    while until.more() {
        let mut bytes = request_one_segment(Operation::Read, 0, 1, 0, segment(0, 8, 0)).to_bytes();
        bytes[60..].copy_from_slice(&lap.to_le_bytes());
        write(&attached, slot(&attached, index), &bytes);
        index += 1;
        if index == geometry.request_slots {
            (index, lap) = (0, lap + 1);
            attached.queues[0].daemon_bell.ring();
        }
    }
    Ok(())
}

fn flicker(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let cold = attached.layout.queues[0].cold_offset_bytes;
    let request = request_one_segment(Operation::Read, 0, 1, 0, segment(0, 8, 0));
    let rewrite = move |region: &Region| {
        for value in [1, 0, u32::MAX, 0] {
            // Of the requests' ring, and of the completions'.
            for place in [cold + 4, cold + 128 + 4] {
                region.write(place, &u32::to_le_bytes(value)).expect("within the region");
            }
        }
    };
    while_rewriting(&mut attached, until, rewrite, |attached| ask(attached, &request, |_| {}).map(|_| true))
}

fn doorbells(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let attached = attach(socket, disk)?;
    while until.more() {
        attached.queues[0].daemon_bell.ring();
    }
    Ok(())
}

fn control_flood(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let question = Control::Unregister { region: 9 }.encode();
    while until.more() {
        // Full, or closed because we do not read: begin anew.
        if attached.control.send(&question, &[]).is_err() && attached.control.is_hung_up() {
            attached = attach(socket, disk)?;
        }
    }
    Ok(())
}

fn connections(socket: &Path, _disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    while until.more() {
        // A daemon that is busy with the ones before may let us wait, but not for ever.
        drop(Seqpacket::connect(socket)?);
    }
    Ok(())
}

fn attachments(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    while until.more() {
        let mut attached = attach(socket, disk)?;
        // With a request on its way.
        let _ = attached.queues[0].requests.publish(&long_write());
        attached.queues[0].daemon_bell.ring();
    }
    Ok(())
}

fn wrong_memory(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let attached = attach(socket, disk)?;
    let memory = |flags| -> io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create("liar", flags)?;
        rustix::fs::ftruncate(&file, 8192)?;
        Ok(file)
    };
    let (pipe, _other_end) = rustix::pipe::pipe()?;
    let files = [memory(MemfdFlags::CLOEXEC)?, memory(MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?, pipe];
    while until.more() {
        for file in &files {
            let question = Control::Register { region: 1, access: 3, length_bytes: 8192 };
            let answer = handshake::ask(&attached.control, &question, &[file.as_fd()], "a lie");
            if !matches!(answer, Err(handshake::HandshakeError::Refused { .. })) {
                return Err(io::Error::other(format!("memory that can shrink is taken: {answer:?}")));
            }
            // Now it shrinks: whoever mapped it has SIGBUS.
            let _ = rustix::fs::ftruncate(file, 0);
            let _ = rustix::fs::ftruncate(file, 8192);
        }
    }
    Ok(())
}
