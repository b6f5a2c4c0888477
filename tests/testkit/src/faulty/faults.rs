//! What a client can do to a daemon. Each fault goes on until it is stopped; none may harm any peer but the faulty one.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use fipsee_block::wire::{Operation, PROFILE, SERVICE_BLOCK, Segment, Status, request_indirect, request_one_segment};
use fipsee_ring::Message;
use fipsee_ring::control::{Control, Wanted};
use fipsee_ring::error::Error;
use fipsee_ring::handshake::{self, AttachedChannel};
use fipsee_ring::region::Region;
use fipsee_ring::seqpacket::Seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;

use super::baselines::{ATTACHMENTS, BUSY, DOORBELLS, LOAD, LONG_ATTACHMENTS, MEMORY, REQUESTS as ASKING, TABLES, WRITER};
use super::fault::{Inject, InjectedFault, Until, Way, while_rewriting};
use crate::Random;

/// Outstanding requests of a faulty client.
pub(crate) const DEPTH: u32 = 16;
const POOL_BYTES: u64 = 1 << 20;
/// Looks for an answer before a faulty client sleeps on its doorbell.
const LOOKS: u32 = 64;
/// How long it sleeps at a time, in nanoseconds: a client with a wrong flag for its own doorbell is not woken.
const NAP_NS: i64 = 5_000_000;
/// Naps before it calls an answer lost. A bound against hanging.
const NAPS: u32 = 4000;

const fn local(
    name: &'static str,
    gets: &'static str,
    times: u64,
    inject: Inject,
    baseline: &'static InjectedFault,
) -> InjectedFault {
    InjectedFault { name, way: Way::Local, gets, times, inject, baseline: Some(baseline) }
}

/// All faults of a client.
pub const FAULTS: &[InjectedFault] = &[
    local("stamps of other laps", "no request", 3_000, stamps, &BUSY),
    local("slots of random bytes", "a status for each", 3_000, noise, &ASKING),
    local("a slot rewritten while it is read", "the answer to what was copied", 3_000_000, rewritten_slot, &WRITER),
    local("an indirect table rewritten while it is read", "the answer to what was copied", 30_000_000, rewritten_table, &WRITER),
    local("a table that its own request overwrites", "the answer to what was copied", 1_000, table_over_itself, &TABLES),
    local("more requests than the depth, no answer taken", "its own answers, overwritten", 100_000, overrun, &LOAD),
    local("asleep flags that flicker", "its own wake-ups, late or for nothing", 2_000_000, flicker, &WRITER),
    local("touches that come late", "its own answers, unseen", 3_000, late_touches, &LOAD),
    local("doorbells", "nothing", 200_000, doorbells, &DOORBELLS),
    local("control messages, no answer taken", "the end of its connection", 20_000, control_flood, &MEMORY),
    local("connections that end at once", "nothing", 2_000, connections, &ATTACHMENTS),
    local("attachments that end at once", "its request is done, its memory released", 300, attachments, &LONG_ATTACHMENTS),
    local("memory of every wrong kind", "a refusal", 500, wrong_memory, &MEMORY),
];

pub(crate) fn attach(socket: &Path, disk: &str) -> io::Result<AttachedChannel> {
    let wanted =
        Wanted { service: SERVICE_BLOCK, queue_count: 1, depth: DEPTH, flags: 0, pool_bytes: POOL_BYTES, name: disk.to_owned() };
    handshake::attach::<Infallible>(socket, 0, &PROFILE, wanted).map_err(|error| io::Error::other(format!("{error:?}")))
}

pub(crate) fn write(attached: &AttachedChannel, offset_bytes: u64, bytes: &[u8]) {
    attached.region.write(offset_bytes, bytes).expect("within the region");
}

fn slot(attached: &AttachedChannel, index: u32) -> u64 {
    attached.layout.queues[0].request_offset_bytes + 64 * u64::from(index)
}

/// A read by way of the table at the beginning of the pool: 256 entries.
pub(crate) fn table_of_256() -> Message {
    request_indirect(Operation::Read, 0, 1, 0, segment(0, 4, 0), 256)
}

pub(crate) fn read_request() -> Message {
    request_one_segment(Operation::Read, 0, 1, 0, segment(0, 8, 0))
}

/// A write of 1 MiB.
pub(crate) fn long_write() -> Message {
    request_one_segment(Operation::Write, 0, 1, 0, segment(0, 2048, 0))
}

/// Publish and wake the worker, if that is thought to be necessary. False: more is outstanding than may be.
fn publish(attached: &mut AttachedChannel, message: &Message) -> bool {
    if attached.queues[0].requests.publish(message).is_err() {
        return false;
    }
    if attached.queues[0].requests.reader_needs_doorbell() {
        attached.queues[0].daemon_doorbell.ring();
    }
    true
}

/// Publish and wait for an answer, while `meanwhile` goes on.
pub(crate) fn ask(
    attached: &mut AttachedChannel,
    message: &Message,
    mut meanwhile: impl FnMut(&AttachedChannel),
) -> io::Result<Message> {
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
            let _ = rustix::event::poll(&mut [PollFd::new(&queue.our_doorbell, PollFlags::IN)], Some(&nap));
            let _ = queue.our_doorbell.drain();
            // With wrong asleep flags, of ours or of the daemon's, the doorbell must be rung without cause.
            queue.daemon_doorbell.ring();
        }
        queue.completions.disarm();
    }
    Err(io::Error::other(format!("{message:?} is not answered")))
}

/// The status in an answer to one request.
pub(crate) fn status(answer: &Message) -> Option<Status> {
    u16::try_from(answer.word(0) >> 48).ok().and_then(Status::from_wire)
}

pub(crate) const fn segment(offset_sectors: u32, length_sectors: u16, region: u16) -> Segment {
    Segment { offset_sectors, length_sectors, region }
}

fn stamps(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let geometry = attached.layout.queues[0];
    let mut bytes = request_one_segment(Operation::Write, 0, 7, 0, segment(0, 1, 0)).to_bytes();
    let (mut random, mut cursor, mut lap) = (Random(1), geometry.request_start, 1_u32);
    while until.more() {
        for index in 0..geometry.request_slots {
            // Laps to come, laps that were, none; the lap that is due would be a request.
            let due = lap + u32::from(index < cursor);
            let others = [due - 1, due + 1, due + 2, 0, u32::MAX, 0x8000_0000];
            let fault = others[usize::try_from(random.number() % 6).unwrap_or(0)];
            bytes[60..].copy_from_slice(&fault.to_le_bytes());
            write(&attached, slot(&attached, index), &bytes);
        }
        attached.queues[0].daemon_doorbell.ring();
        if until.injected().is_multiple_of(50) {
            let answer = ask(&mut attached, &read_request(), |_| {})?;
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
    let good = read_request();
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
    let region = Arc::clone(&attached.region);
    while_rewriting(&*region, until, rewrite, || {
        let place = slot(&attached, index);
        index = (index + 1) % geometry.request_slots;
        let answer = ask(&mut attached, &good, |attached| {
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
    // Of the last entry: those before it have been checked when it is looked at.
    let place = pool + 255 * 8;
    write(&attached, pool, &good.repeat(256));
    let rewrite = move |region: &Region| {
        for entry in [&bad, &good] {
            region.write(place, entry).expect("within the region");
        }
    };
    let mut seen = [0_u64; 2];
    let region = Arc::clone(&attached.region);
    while_rewriting(&*region, until, rewrite, || {
        // Bad for a while, so that the daemon can see it.
        let mut looks = 0_u32;
        let answer = ask(&mut attached, &table_of_256(), |attached| {
            write(attached, place, if looks.is_multiple_of(2) { &bad } else { &good });
            looks += 1;
        })?;
        write(&attached, place, &good);
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
        let mut bytes = read_request().to_bytes();
        bytes[60..].copy_from_slice(&lap.to_le_bytes());
        write(&attached, slot(&attached, index), &bytes);
        index += 1;
        if index == geometry.request_slots {
            (index, lap) = (0, lap + 1);
            attached.queues[0].daemon_doorbell.ring();
        }
    }
    Ok(())
}

fn flicker(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let cold = attached.layout.queues[0].cold_offset_bytes;
    let rewrite = move |region: &Region| {
        for value in [1, 0, u32::MAX, 0] {
            // Of the requests' ring, and of the completions'.
            for place in [cold + 4, cold + 128 + 4] {
                region.write(place, &u32::to_le_bytes(value)).expect("within the region");
            }
        }
    };
    let region = Arc::clone(&attached.region);
    while_rewriting(&*region, until, rewrite, || ask(&mut attached, &read_request(), |_| {}).map(|_| true))
}

/// Store the stamp of the last lap into the slot of the answer that is due, while the daemon writes it, and ask for random
/// choices. Of an answer that is overwritten so, the client stores the stamp itself, to go on.
fn late_touches(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let geometry = attached.layout.queues[0];
    let (mut random, mut answer) = (Random(1), Message::ZERO);
    while until.more() {
        let due = attached.queues[0].completions.cursor();
        let stamp = geometry.completion_offset_bytes + 64 * u64::from(due.index()) + 60;
        let choices = geometry.cold_offset_bytes + 128 + 12;
        write(&attached, choices, &random.number().to_le_bytes()[..4]);
        if !publish(&mut attached, &read_request()) {
            return Err(io::Error::other("more is outstanding than was asked"));
        }
        for _ in 0..random.number() % 100 {
            write(&attached, stamp, &(due.stamp() - 1).to_le_bytes());
        }
        // Enough for an answer; one that comes later has its stamp then.
        for _ in 0..LOOKS * 16 {
            if attached.queues[0].completions.has_message() {
                break;
            }
            std::thread::yield_now();
        }
        write(&attached, stamp, &due.stamp().to_le_bytes());
        if attached.queues[0].completions.receive(&mut answer) {
            attached.queues[0].requests.answered();
        }
    }
    Ok(())
}

fn doorbells(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let attached = attach(socket, disk)?;
    while until.more() {
        attached.queues[0].daemon_doorbell.ring();
    }
    Ok(())
}

fn control_flood(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let packet = Control::Unregister { region: 9 }.encode();
    while until.more() {
        // Full, or closed because we do not read: begin anew.
        if attached.control.send(&packet, &[]).is_err() && attached.control.is_hung_up() {
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
        attached.queues[0].daemon_doorbell.ring();
    }
    Ok(())
}

fn wrong_memory(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let attached = attach(socket, disk)?;
    let memory = |flags| -> io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create("faulty", flags)?;
        rustix::fs::ftruncate(&file, 8192)?;
        Ok(file)
    };
    let (pipe, _other_end) = rustix::pipe::pipe()?;
    let files = [memory(MemfdFlags::CLOEXEC)?, memory(MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?, pipe];
    while until.more() {
        for file in &files {
            let packet = Control::Register { region: 1, access: 3, length_bytes: 8192 };
            let answer = handshake::ask::<Infallible>(&attached.control, &packet, &[file.as_fd()], "a fault");
            if !matches!(answer, Err(Error::Refused { .. })) {
                return Err(io::Error::other(format!("memory that can shrink is taken: {answer:?}")));
            }
            // Now it shrinks: a process that mapped it gets SIGBUS.
            let _ = rustix::fs::ftruncate(file, 0);
            let _ = rustix::fs::ftruncate(file, 8192);
        }
    }
    Ok(())
}
