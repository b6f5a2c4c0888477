//! What a guest, or its hypervisor, can do to a daemon. Each has a baseline: it connects, asks, kicks and writes to its memory as
//! often, but where and what a correct driver does.

mod rings;

use std::io;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::MemfdFlags;

use super::fault::{InjectedFault, Until, Way, beside, while_rewriting};
use crate::guest::device::{Guest, IN, IO_ERROR, OK, Options, UNSUPPORTED, UNTOUCHED};
use crate::guest::frontend::{Frontend, Request, memory_table};
use crate::guest::machine;
use crate::guest::ram::{Ram, USER_OFFSET};
use crate::guest::virtqueue::doorbell as new_doorbell;
use crate::virtqueue::{INDIRECT, NEXT, WRITE};
use crate::{Random, TIMEOUT, packets};

macro_rules! faults {
    ($($name:literal, $gets:literal, $times:literal $inject:path,)+) => {
        /// All faults of a guest, or its hypervisor.
        pub const FAULTS: &[InjectedFault] = &[$(InjectedFault {
            name: concat!("guest: ", $name),
            way: Way::Guest,
            gets: $gets,
            times: $times,
            inject: |socket, _, until| $inject(socket, until, true),
            baseline: Some(&InjectedFault {
                name: concat!("correct guest: ", $name),
                way: Way::Guest,
                gets: "what it asks for",
                times: $times,
                inject: |socket, _, until| $inject(socket, until, false),
                baseline: None,
            }),
        }),+];
    };
}

faults! {
    "addresses rewritten while they are read", "data, or a failed request", 2_000_000 addresses,
    "links rewritten while they are followed", "an answer, or the end of its queue", 20 links,
    "an indirect table rewritten while it is read", "data, or a failed request", 2_000_000 tables,
    "malformed chains, connects again", "the end of its queue", 16 malformed,
    "kicks", "nothing", 200_000 kicks,
    "upgrade requests of random bytes", "a result that says no", 2_000 upgrade_requests,
    "memory of every wrong kind, connects again", "a refusal, and the end of its connection", 400 wrong_memory,
    "memory cut under its queue, connects again", "the end of its queue", 12 cut,
    "half a message, connects again", "nothing", 400 half_messages,
    "ring: slots rewritten while they are read", "the answer to what was copied", 2_000_000 rings::slots,
    "ring: stamps of other laps", "no request", 3_000 rings::stamps,
    "ring: touches that come late", "its own answers, unseen", 3_000 rings::late_touches,
    "ring: asleep flags that flicker", "its own wake-ups, late or for nothing", 2_000_000 rings::flags,
    "ring: kicks", "nothing", 200_000 rings::kicks,
    "ring: hangs up with a request on its way", "its request is done, its memory released", 100 rings::hang_ups,
}

const MEMORY_BYTES: u64 = 4 << 20;
const DATA_BYTES: u32 = 4096;
/// Where no guest has memory.
const NOWHERE: u64 = 0x7fff_ffff_f000;
/// Requests of a guest that changes links, if its queue does not break before.
const REQUESTS_OF_LINKS: u32 = 500;
/// Of its baseline: about as many as the queue of the faulty guest survives.
const REQUESTS_OF_BASELINE: u32 = 4;
/// Kicks between two requests that must be answered all the same.
const KICKS_PER_REQUEST: u64 = 1000;

fn start(socket: &Path, indirect: bool) -> io::Result<Guest> {
    Guest::start(socket, &Options { memory: vec![(0, MEMORY_BYTES)], indirect, ..Options::default() })
}

fn expect<T: PartialEq + std::fmt::Debug>(got: T, allowed: &[T]) -> io::Result<()> {
    if allowed.contains(&got) { Ok(()) } else { Err(io::Error::other(format!("answered with {got:?}, {allowed:?} are allowed"))) }
}

/// What a request may be answered with.
const fn allowed(is_fault: bool) -> &'static [u8] {
    if is_fault { &[OK, IO_ERROR] } else { &[OK] }
}

fn ring(doorbell: &OwnedFd) {
    let _ = rustix::io::write(doorbell, &1_u64.to_ne_bytes());
}

/// The device's doorbell, or for the baseline one that no process watches.
fn doorbell(guest: &Guest, is_fault: bool) -> io::Result<OwnedFd> {
    if is_fault { guest.queues[0].kick.try_clone() } else { Ok(new_doorbell()) }
}

/// Wait until the device says that a queue broke.
fn await_break(error: &OwnedFd) -> io::Result<()> {
    let has_broken = packets::is_readable(error, TIMEOUT);
    has_broken.then_some(()).ok_or_else(|| io::Error::other("a queue that cannot be served does not break"))
}

fn addresses(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    let mut guest = start(socket, false)?;
    let data = guest.ram.allocate(DATA_BYTES.into(), 4096);
    let ram = Arc::clone(&guest.ram);
    let table = if is_fault { guest.queues[0].descriptors } else { ram.allocate(16 * 8, 16) };
    (0..8).for_each(|index| ram.write(table + 16 * index, &data.to_le_bytes()));
    // The address of whichever descriptor names the data, there and nowhere, there and nowhere.
    let flip = |ram: &Ram| {
        for index in 0..8 {
            let place = table + 16 * index;
            let address = ram.read(place, 8);
            if address == data.to_le_bytes() || address == NOWHERE.to_le_bytes() {
                let other = if address == data.to_le_bytes() { NOWHERE } else { data };
                ram.write(place, &other.to_le_bytes());
            }
        }
    };
    while_rewriting(&*ram, until, flip, || expect(guest.transfer(0, IN, 0, (data, DATA_BYTES)), allowed(is_fault)).map(|()| true))
}

/// Chains that loop, end early, or lead from one into the other.
fn links(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    while until.more() {
        let mut guest = start(socket, false)?;
        let data = guest.ram.allocate(DATA_BYTES.into(), 4096);
        let ram = Arc::clone(&guest.ram);
        let table = if is_fault { guest.queues[0].descriptors } else { ram.allocate(16 * 8, 16) };
        // All onto themselves, and back: about half of the time either way.
        let flip = || {
            let places = (0..8_u16).map(|index| (index, table + 16 * u64::from(index) + 14));
            let nexts: Vec<Vec<u8>> = places.clone().map(|(_, place)| ram.read(place, 2)).collect();
            places.clone().for_each(|(index, place)| ram.write(place, &index.to_le_bytes()));
            places.zip(&nexts).for_each(|((_, place), next)| ram.write(place, next));
        };
        let most = if is_fault { REQUESTS_OF_LINKS } else { REQUESTS_OF_BASELINE };
        beside(flip, || {
            for _ in 0..most {
                let sent = guest.submit(0, IN, 0, &[(data, DATA_BYTES, true)]);
                let asked = Instant::now();
                while !guest.queues[0].is_done(sent.head) {
                    match guest.queues[0].is_broken() {
                        true if is_fault => return Ok(()),
                        true => return Err(io::Error::other("the queue of a correct guest broke")),
                        false if asked.elapsed() < TIMEOUT => std::thread::yield_now(),
                        false => return Err(io::Error::other("neither an answer nor the end of the queue")),
                    }
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Tables of many entries with addresses that change.
fn tables(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    const PIECES: u16 = 8;
    const PIECE_BYTES: u32 = DATA_BYTES / PIECES as u32;
    let mut guest = start(socket, true)?;
    let ram = Arc::clone(&guest.ram);
    let [table, spare, data] = [16 * 16, 16 * 16, u64::from(DATA_BYTES)].map(|bytes| ram.allocate(bytes, 4096));
    let [header, status] = [16, 1].map(|bytes| ram.allocate(bytes, 16));
    ram.write(header, &[0; 16]);
    let entry = |place: u64, index: u16, address: u64, length: u32, flags: u16| {
        let bytes =
            [&address.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &(index + 1).to_le_bytes()].concat();
        ram.write(place + 16 * u64::from(index), &bytes);
    };
    for place in [table, spare] {
        entry(place, 0, header, 16, NEXT);
        (1..=PIECES).for_each(|index| entry(place, index, data, PIECE_BYTES, NEXT | WRITE));
        entry(place, PIECES + 1, status, 1, WRITE);
    }
    let flipped = if is_fault { table } else { spare };
    let flip = |ram: &Ram| {
        for address in [NOWHERE, data] {
            for index in 1..=u64::from(PIECES) {
                ram.write(flipped + 16 * index, &address.to_le_bytes());
            }
        }
    };
    let table_bytes = 16 * u32::from(PIECES + 2);
    while_rewriting(&*ram, until, flip, || {
        ram.write(status, &[UNTOUCHED]);
        let queue = &mut guest.queues[0];
        let head = queue.stage(&[(table, table_bytes, false)]);
        queue.put_descriptor(head, table, table_bytes, INDIRECT, 0);
        queue.publish();
        queue.wait_for(head);
        expect(ram.read(status, 1)[0], allowed(is_fault)).map(|()| true)
    })
}

/// Chains that cannot be, one for each connection: they end with the queue.
fn malformed(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    while until.more() {
        let mut guest = start(socket, false)?;
        let data = guest.ram.allocate(DATA_BYTES.into(), 4096);
        if !is_fault {
            expect(guest.transfer(0, IN, 0, (data, DATA_BYTES)), &[OK])?;
            continue;
        }
        let queue = &mut guest.queues[0];
        let (size, status) = (queue.size, data + 64);
        let chains: [&[(u64, u32, u16, u16)]; 8] = [
            // A loop, a next one that the table does not have, memory to read after memory to write.
            &[(data, 16, NEXT, 0)],
            &[(data, 16, NEXT, size)],
            &[(data, 16, NEXT, 1), (status, 1, WRITE | NEXT, 2), (data, 8, 0, 0)],
            // A table that was not agreed on, no header, no status.
            &[(data, 32, INDIRECT, 0)],
            &[(NOWHERE, 16, NEXT, 1), (status, 1, WRITE, 0)],
            &[(data, 16, NEXT, 1), (data, 512, 0, 0)],
            // Nothing wrong, but the head that is offered, or how many are.
            &[(data, 16, NEXT, 1), (status, 1, WRITE, 0)],
            &[(data, 16, NEXT, 1), (status, 1, WRITE, 0)],
        ];
        let kind = usize::try_from(until.injected() % 8).unwrap_or(0);
        for (index, (address, length, flags, next)) in (0..).zip(chains[kind]) {
            queue.put_descriptor(index, *address, *length, *flags, *next);
        }
        match kind {
            6 => queue.make_available(size),
            7 => (0..=size).for_each(|_| queue.make_available(0)),
            _ => queue.make_available(0),
        }
        queue.publish();
        await_break(&queue.error)?;
    }
    Ok(())
}

fn kicks(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    let mut guest = start(socket, false)?;
    let (data, doorbell) = (guest.ram.allocate(DATA_BYTES.into(), 4096), doorbell(&guest, is_fault)?);
    while until.more() {
        ring(&doorbell);
        if until.injected().is_multiple_of(KICKS_PER_REQUEST) {
            expect(guest.transfer(0, IN, 0, (data, DATA_BYTES)), &[OK])?;
        }
    }
    Ok(())
}

fn upgrade_requests(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    let mut guest = start(socket, false)?;
    let mut random = Random(3);
    let query = machine::query(0).to_bytes();
    while until.more() {
        let mut upgrade_request = query.clone();
        if is_fault {
            // Whole ones with any values, and any bytes at all.
            let kept = if until.injected().is_multiple_of(2) { 8 } else { 0 };
            upgrade_request[kept..].iter_mut().for_each(|byte| *byte = random.number().to_le_bytes()[0]);
        }
        let sent = guest.send_upgrade_request(0, &upgrade_request);
        expect(guest.wait(sent), if is_fault { &[OK, IO_ERROR, UNSUPPORTED] } else { &[OK] })?;
    }
    Ok(())
}

fn unsealed_memory() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, MEMORY_BYTES)?;
    Ok(file)
}

/// Memory that overlaps, wraps, is longer than its file, is nothing: refused, and the hypervisor is disconnected.
fn wrong_memory(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    const WRONG: [&[(u64, u64)]; 4] = [
        &[(0, MEMORY_BYTES), (MEMORY_BYTES / 2, MEMORY_BYTES)],
        &[(u64::MAX - 4095, MEMORY_BYTES)],
        &[(0, 2 * MEMORY_BYTES)],
        &[(0, 0)],
    ];
    let file = unsealed_memory()?;
    while until.more() {
        let mut frontend = Frontend::connect(socket)?;
        let wrong = WRONG[usize::try_from(until.injected() % 4).unwrap_or(0)];
        let pieces = if is_fault { wrong } else { &[(0, MEMORY_BYTES)] };
        let files = [file.as_fd(), file.as_fd()];
        let outcome = frontend.set(Request::SetMemTable, &memory_table(pieces), &files[..pieces.len()]);
        if outcome.is_ok() == is_fault {
            return Err(io::Error::other(format!("memory at {pieces:x?}: {outcome:?}")));
        }
    }
    Ok(())
}

/// The file of its memory shrinks to nothing while a queue is in it.
fn cut(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    while until.more() {
        let mut frontend = Frontend::connect(socket)?;
        let (file, kick, error) = (unsealed_memory()?, new_doorbell(), new_doorbell());
        let features = frontend.get(Request::GetFeatures)? & (1 << 32 | 1 << 30);
        frontend.set(Request::SetFeatures, &features.to_le_bytes(), &[])?;
        frontend.set(Request::SetMemTable, &memory_table(&[(0, MEMORY_BYTES)]), &[file.as_fd()])?;
        frontend.set_vring(Request::SetVringNum, 0, 64)?;
        // As if there had been requests: zeroes, which the daemon finds afterwards, say something else.
        frontend.set_vring(Request::SetVringBase, 0, 5)?;
        rustix::io::pwrite(&file, &5_u16.to_le_bytes(), 0x2002)?;
        // Descriptors, used ring, available ring, no log.
        let places: Vec<u8> = [0x1000, 0x3000, 0x2000].iter().flat_map(|place| (USER_OFFSET + place).to_le_bytes()).collect();
        frontend.set(Request::SetVringAddr, &[&[0; 8], &places[..], &[0; 8]].concat(), &[])?;
        frontend.set_vring_file(Request::SetVringErr, 0, error.as_fd())?;
        frontend.set_vring_file(Request::SetVringKick, 0, kick.as_fd())?;
        frontend.set_vring(Request::SetVringEnable, 0, 1)?;
        if is_fault {
            rustix::fs::ftruncate(&file, 0)?;
        }
        ring(&kick);
        if is_fault {
            await_break(&error)?;
        } else {
            // The back end that answers has looked at the queue.
            frontend.stop_vring(0)?;
        }
    }
    Ok(())
}

fn half_messages(socket: &Path, until: &mut Until<'_>, is_fault: bool) -> io::Result<()> {
    while until.more() {
        if is_fault {
            UnixStream::connect(socket)?.write_all(&[1, 0, 0, 0, 1, 0, 0])?;
        } else {
            drop(Frontend::connect(socket)?);
        }
    }
    Ok(())
}
