//! Guests that use rings in their own memory.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fipsee_block::wire::{Operation, Status, request_one_segment};
use fipsee_virtio::blk::upgrade::wire::{COLD_PAIR_BYTES, DONE};

use super::super::fault::{Until, while_rewriting};
use super::{DATA_BYTES, KICKS_PER_REQUEST, NOWHERE, doorbell, expect, ring, start};
use crate::guest::device::Guest;
use crate::guest::machine::attach_request;
use crate::guest::ram::Ram;
use crate::guest::ring::{GuestRing, Incoming, plan, segment};
use crate::{Random, TIMEOUT};

/// Looks for an answer between two kicks of a guest with wrong flags.
const LOOKS_PER_KICK: u32 = 64;

/// A guest on rings.
struct OnRings {
    guest: Guest,
    ring: GuestRing,
    attachment: u64,
    data: u64,
}

impl OnRings {
    fn start(socket: &Path) -> io::Result<Self> {
        let mut guest = start(socket, false)?;
        let data = guest.ram.allocate(1 << 20, 4096);
        let entry = plan(&guest.ram, 4, 0);
        let reply = guest.ask_bytes(0, &attach_request(&[entry]));
        expect(reply.result, &[DONE])?;
        let ring = GuestRing::open(&guest.ram, entry, 0);
        Ok(Self { guest, ring, attachment: reply.attachment, data })
    }

    /// Read, asleep until that is done.
    fn ask(&mut self, allowed: &[Status]) -> io::Result<Status> {
        let segment = segment(self.data, DATA_BYTES.into());
        self.ring.submit_one(Operation::Read, 1, 0, segment, &self.guest.queues[0]);
        match self.ring.wait(self.attachment, &mut self.guest).as_slice() {
            [Incoming::Answer(1, status)] => {
                let status = Status::from_wire(*status).ok_or_else(|| io::Error::other("no status of the protocol"))?;
                expect(status, allowed).map(|()| status)
            }
            other => Err(io::Error::other(format!("of all requests the one that was made is answered with {other:?}"))),
        }
    }
}

pub(super) fn slots(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    let mut on = OnRings::start(socket)?;
    let (entry, ram) = (on.ring.entry, Arc::clone(&on.guest.ram));
    let ring = if is_fault { entry.request_address } else { ram.allocate(64 * u64::from(entry.request_slots), 64) };
    let [good, bad] = [on.data, NOWHERE & !0xfff].map(|address| segment(address, DATA_BYTES.into()).to_word().to_le_bytes());
    // The segment of every slot, there and nowhere; tag, operation and stamp stay.
    let flip = |ram: &Ram| {
        for slot in 0..u64::from(entry.request_slots) {
            ram.write(ring + 64 * slot + 16, &bad);
            ram.write(ring + 64 * slot + 16, &good);
        }
    };
    let allowed: &[Status] = if is_fault { &[Status::Ok, Status::BadMemory] } else { &[Status::Ok] };
    let mut was_read = false;
    while_rewriting(&*ram, until, flip, || {
        was_read |= on.ask(allowed)? == Status::Ok;
        Ok(was_read)
    })
}

pub(super) fn stamps(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    let mut on = OnRings::start(socket)?;
    let (entry, ram, doorbell) = (on.ring.entry, Arc::clone(&on.guest.ram), doorbell(&on.guest, is_fault)?);
    let ring_place = if is_fault { entry.request_address } else { ram.allocate(64 * u64::from(entry.request_slots), 64) };
    let mut bytes = request_one_segment(Operation::Write, 0, 7, 0, segment(on.data, DATA_BYTES.into())).to_bytes();
    let (mut random, mut cursor, mut lap) = (Random(1), entry.request_start, 1_u32);
    while until.more() {
        for index in 0..entry.request_slots {
            // Laps to come, laps that were, none; the lap that is due would be a request.
            let due = lap + u32::from(index < cursor);
            let others = [due - 1, due + 1, due + 2, 0, u32::MAX, 0x8000_0000];
            let stamp = others[usize::try_from(random.number() % 6).unwrap_or(0)];
            bytes[60..].copy_from_slice(&stamp.to_le_bytes());
            ram.write(ring_place + 64 * u64::from(index), &bytes);
        }
        ring(&doorbell);
        if until.injected().is_multiple_of(50) {
            on.ask(&[Status::Ok])?;
            cursor = (cursor + 1) % entry.request_slots;
            lap += u32::from(cursor == 0);
        }
    }
    Ok(())
}

/// Store the stamp of the last lap into the slot of the answer that is due, while the daemon writes it and after that, and request
/// random choices. The guest then stores the stamp that it overwrote itself, to go on.
pub(super) fn late_touches(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    let mut on = OnRings::start(socket)?;
    let (entry, ram) = (on.ring.entry, Arc::clone(&on.guest.ram));
    let segment = segment(on.data, DATA_BYTES.into());
    let (mut random, mut index, mut lap) = (Random(1), entry.completion_start, 1_u32);
    while until.more() {
        let slot = entry.completion_address + 64 * u64::from(index);
        let touch = |stamp: u32| ram.write(slot + 60, &stamp.to_le_bytes());
        if is_fault {
            ram.write(entry.cold_address + 128 + 12, &random.number().to_le_bytes()[..4]);
            ram.write(slot, &[0]); // How many completions it has: not 0 once the daemon has written it.
        }
        on.ring.submit_one(Operation::Read, 3, 0, segment, &on.guest.queues[0]);
        let asked = Instant::now();
        while is_fault && ram.read(slot, 1) == [0] {
            touch(lap - 1);
            if asked.elapsed() > TIMEOUT {
                return Err(io::Error::other("no answer is written"));
            }
            std::thread::yield_now();
        }
        if is_fault {
            touch(lap - 1);
            touch(lap);
        }
        let answers = loop {
            match on.ring.reap() {
                none if none.is_empty() && asked.elapsed() <= TIMEOUT => std::thread::yield_now(),
                some => break some,
            }
        };
        expect(answers.as_slice(), &[&[Incoming::Answer(3, Status::Ok.to_wire())]])?;
        index = (index + 1) % entry.completion_slots;
        lap += u32::from(index == 0);
    }
    Ok(())
}

pub(super) fn flags(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    let mut on = OnRings::start(socket)?;
    let (ram, doorbell) = (Arc::clone(&on.guest.ram), doorbell(&on.guest, is_fault)?);
    let cold = if is_fault { on.ring.entry.cold_address } else { ram.allocate(COLD_PAIR_BYTES, 64) };
    let flip = |ram: &Ram| {
        for value in [1, 0, u32::MAX, 0] {
            ram.write(cold + 4, &u32::to_le_bytes(value));
            ram.write(cold + 128 + 4, &u32::to_le_bytes(value));
        }
    };
    let segment = segment(on.data, DATA_BYTES.into());
    while_rewriting(&*ram, until, flip, || {
        on.ring.submit_one(Operation::Read, 3, 0, segment, &on.guest.queues[0]);
        let (asked, mut looks) = (Instant::now(), 0_u32);
        loop {
            match on.ring.reap().as_slice() {
                [] => {}
                [Incoming::Answer(3, status)] => return expect(*status, &[Status::Ok.to_wire()]).map(|()| true),
                other => return Err(io::Error::other(format!("answered with {other:?}"))),
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS_PER_KICK) {
                // With a wrong asleep flag the guest must kick without being asked.
                ring(&doorbell);
                if asked.elapsed() > TIMEOUT {
                    return Err(io::Error::other("no answer"));
                }
            }
            std::hint::spin_loop();
        }
    })
}

pub(super) fn kicks(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    let mut on = OnRings::start(socket)?;
    let doorbell = doorbell(&on.guest, is_fault)?;
    while until.more() {
        ring(&doorbell);
        if until.injected().is_multiple_of(KICKS_PER_REQUEST) {
            on.ask(&[Status::Ok])?;
        }
    }
    Ok(())
}

pub(super) fn hang_ups(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    while until.more() {
        let mut on = OnRings::start(socket)?;
        on.ring.submit_one(Operation::Write, 1, 0, segment(on.data, 1 << 20), &on.guest.queues[0]);
        if !is_fault {
            let answers = on.ring.wait(on.attachment, &mut on.guest);
            expect(answers.as_slice(), &[&[Incoming::Answer(1, Status::Ok.to_wire())]])?;
        }
    }
    Ok(())
}
