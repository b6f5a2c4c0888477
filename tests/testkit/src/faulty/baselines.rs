//! A correct client that is as busy as a faulty one: what its neighbours lose to it is not due to a fault.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use fipsee_block::wire::Status;
use fipsee_ring::Message;
use fipsee_ring::control::Control;
use fipsee_ring::doorbell::EventDoorbell;
use fipsee_ring::handshake::{self, AttachedChannel};
use fipsee_ring::region::Region;
use rustix::fs::SealFlags;

use super::fault::{Inject, InjectedFault, Until, Way, while_rewriting};
use super::faults::{DEPTH, ask, attach, long_write, read_request, segment, status, table_of_256, write};
use crate::raw::sealed_memory;

/// A CPU kept busy.
pub const BUSY: InjectedFault = baseline("busy", busy);
/// System calls on a doorbell of its own.
pub const DOORBELLS: InjectedFault = baseline("own doorbells", doorbells);
/// Requests, one after the other.
pub const REQUESTS: InjectedFault = baseline("requests", requests);
/// The same, beside a thread that writes to its own memory.
pub const WRITER: InjectedFault = baseline("requests and writes", writer);
/// As many requests as it may have outstanding, always.
pub const LOAD: InjectedFault = baseline("load", load);
/// Memory that is registered and taken back.
pub const MEMORY: InjectedFault = baseline("memory", memory);
/// Attachments of one short request each.
pub const ATTACHMENTS: InjectedFault = baseline("attachments", attachments);
/// Attachments of one long request each.
pub const LONG_ATTACHMENTS: InjectedFault = baseline("attachments and long requests", long_attachments);
/// Requests with a table of segments, one after the other.
pub const TABLES: InjectedFault = baseline("tables", tables);

const fn baseline(name: &'static str, inject: Inject) -> InjectedFault {
    InjectedFault { name, way: Way::Local, gets: "what it asks for", times: 0, inject, baseline: None }
}

/// A correct client is served: a baseline that is refused does less work than its faulty counterpart.
fn succeed(attached: &mut AttachedChannel, request: &Message) -> io::Result<()> {
    let answer = ask(attached, request, |_| {})?;
    if status(&answer) == Some(Status::Ok) {
        Ok(())
    } else {
        Err(io::Error::other(format!("{request:?} is answered with {answer:?}")))
    }
}

fn busy(_socket: &Path, _disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    while until.more() {
        std::hint::spin_loop();
    }
    Ok(())
}

fn doorbells(_socket: &Path, _disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let doorbell = EventDoorbell::new()?;
    while until.more() {
        doorbell.ring();
    }
    Ok(())
}

fn requests(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    while until.more() {
        succeed(&mut attached, &read_request())?;
    }
    Ok(())
}

fn writer(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let place = attached.layout.pool_offset_bytes + attached.layout.pool_bytes - 64;
    let rewrite = move |region: &Region| region.write(place, &[1; 60]).expect("within the region");
    let region = Arc::clone(&attached.region);
    while_rewriting(&*region, until, rewrite, || succeed(&mut attached, &read_request()).map(|()| true))
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
            queue.daemon_doorbell.ring();
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
    let file = sealed_memory(8192, SealFlags::SHRINK);
    let ask = |packet: &Control, files: &[_]| {
        handshake::ask::<Infallible>(&attached.control, packet, files, "a correct request")
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
        succeed(&mut attach(socket, disk)?, &read_request())?;
    }
    Ok(())
}

fn long_attachments(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    while until.more() {
        succeed(&mut attach(socket, disk)?, &long_write())?;
    }
    Ok(())
}

fn tables(socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
    let mut attached = attach(socket, disk)?;
    let pool = attached.layout.pool_offset_bytes;
    while until.more() {
        // Into the memory behind the table.
        write(&attached, pool, &segment(4, 4, 0).to_word().to_le_bytes().repeat(256));
        succeed(&mut attached, &table_of_256())?;
    }
    Ok(())
}
