//! What a client that tells the truth does, as busy as a liar: what it takes from its neighbours is no fault of a lie.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use fipsee_block::wire::{Operation, request_one_segment};
use fipsee_ring::Message;
use fipsee_ring::control::Control;
use fipsee_ring::doorbell::EventDoorbell;
use fipsee_ring::handshake;
use fipsee_ring::region::Region;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::lies::{DEPTH, Lie, Until, ask, attach, long_write, segment, table_of_256, while_rewriting, write};

/// A CPU kept busy.
pub const BUSY: Lie = Lie { name: "busy", times: 0, tell: busy, twin: None };
/// System calls on a doorbell of its own.
pub const BELLS: Lie = Lie { name: "bells", times: 0, tell: bells, twin: None };
/// Requests, one after the other.
pub const REQUESTS: Lie = Lie { name: "requests", times: 0, tell: requests, twin: None };
/// The same, beside a thread that writes to its own memory.
pub const WRITER: Lie = Lie { name: "requests and writes", times: 0, tell: writer, twin: None };
/// As many requests as it may have outstanding, always.
pub const LOAD: Lie = Lie { name: "load", times: 0, tell: load, twin: None };
/// Memory that is registered and taken back.
pub const MEMORY: Lie = Lie { name: "memory", times: 0, tell: memory, twin: None };
/// Attachments of one short request each.
pub const ATTACHMENTS: Lie = Lie { name: "attachments", times: 0, tell: attachments, twin: None };
/// Attachments of one long request each.
pub const LONG_ATTACHMENTS: Lie = Lie { name: "attachments and long requests", times: 0, tell: long_attachments, twin: None };
/// Requests with a table of segments, one after the other.
pub const TABLES: Lie = Lie { name: "tables", times: 0, tell: tables, twin: None };

/// All of them.
pub const TWINS: [&Lie; 9] = [&BUSY, &BELLS, &REQUESTS, &WRITER, &LOAD, &MEMORY, &ATTACHMENTS, &LONG_ATTACHMENTS, &TABLES];

fn read_request() -> Message {
    request_one_segment(Operation::Read, 0, 1, 0, segment(0, 8, 0))
}

fn busy(_socket: &Path, _disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    while until.more() {
        std::hint::spin_loop();
    }
    Ok(())
}

fn bells(_socket: &Path, _disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let bell = EventDoorbell::new()?;
    while until.more() {
        bell.ring();
    }
    Ok(())
}

fn requests(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    while until.more() {
        ask(&mut attached, &read_request(), |_| {})?;
    }
    Ok(())
}

fn writer(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let place = attached.layout.pool_offset_bytes + attached.layout.pool_bytes - 64;
    let rewrite = move |region: &Region| region.write(place, &[1; 60]).expect("within the region");
    while_rewriting(&mut attached, until, rewrite, |attached| ask(attached, &read_request(), |_| {}).map(|_| true))
}

fn load(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let queue = &mut attached.queues[0];
    let mut answer = Message::ZERO;
    while until.more() {
        while queue.requests.outstanding() < DEPTH {
            let _ = queue.requests.publish(&read_request());
        }
        if queue.requests.reader_needs_doorbell() {
            queue.daemon_bell.ring();
        }
        while queue.completions.receive(&mut answer) {
            for _ in 0..answer.to_bytes()[0] {
                queue.requests.answered();
            }
        }
    }
    Ok(())
}

fn memory(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let attached = attach(socket, disk)?;
    let file = rustix::fs::memfd_create("honest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, 8192)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    let ask = |question: &Control, files: &[_]| {
        handshake::ask(&attached.control, question, files, "an honest question")
            .map_err(|error| io::Error::other(format!("{error:?}")))
    };
    while until.more() {
        ask(&Control::Register { region: 1, access: 3, length_bytes: 8192 }, &[file.as_fd()])?;
        ask(&Control::Unregister { region: 1 }, &[])?;
    }
    Ok(())
}

fn attachments(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    while until.more() {
        ask(&mut attach(socket, disk)?, &read_request(), |_| {})?;
    }
    Ok(())
}

fn long_attachments(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    while until.more() {
        ask(&mut attach(socket, disk)?, &long_write(), |_| {})?;
    }
    Ok(())
}

fn tables(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let pool = attached.layout.pool_offset_bytes;
    while until.more() {
        // Into the memory behind the table.
        write(&attached, pool, &segment(0, 4, 4).to_word().to_le_bytes().repeat(256));
        ask(&mut attached, &table_of_256(), |_| {})?;
    }
    Ok(())
}
