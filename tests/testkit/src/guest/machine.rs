//! Guests of a daemon, and their attachments.

use std::path::PathBuf;

use fipsee_block::wire::{Operation, Status};
use fipsee_virtio::blk::upgrade::wire::{self, DONE, Entry, UpgradeRequest};

use super::device::{Guest, Options};
use super::ring::{GuestRing, Incoming, plan, segment};
use crate::{Daemon, process, wait_for};

/// A daemon in which each disk has a vhost-user socket, `v-NAME` in its directory.
pub fn start_with(arguments: &[&str]) -> Daemon {
    let sockets: Vec<String> = arguments
        .windows(2)
        .filter(|pair| pair[0] == "--disk")
        .filter_map(|pair| pair[1].split_once('='))
        .flat_map(|(name, _)| ["--vhost-user".to_owned(), format!("{name}={{dir}}/v-{name}")])
        .collect();
    let all: Vec<&str> = arguments.iter().copied().chain(sockets.iter().map(String::as_str)).collect();
    Daemon::start(&all)
}

pub fn socket_of(daemon: &Daemon, disk: &str) -> PathBuf {
    daemon.dir.path(&format!("v-{disk}"))
}

/// A guest with `disk`. The previous guest may be about to leave.
pub fn start_guest(daemon: &Daemon, disk: &str, options: &Options) -> Guest {
    wait_for("the device takes a guest", || Guest::start(&socket_of(daemon, disk), options).ok())
}

pub fn upgrade_request(operation: wire::Operation, attachment: u64, queue: u16) -> UpgradeRequest {
    UpgradeRequest { operation, attachment, features: 0, queue, entries: Vec::new() }
}

pub fn query(attachment: u64) -> UpgradeRequest {
    upgrade_request(wire::Operation::Query, attachment, 0)
}

pub fn detach_request(attachment: u64) -> UpgradeRequest {
    upgrade_request(wire::Operation::Detach, attachment, 0)
}

pub fn attach_request(entries: &[Entry]) -> Vec<u8> {
    UpgradeRequest { entries: entries.to_vec(), ..upgrade_request(wire::Operation::Attach, 0, 0) }.to_bytes()
}

/// A guest's side of an attachment.
pub struct Upgraded {
    pub attachment: u64,
    pub rings: Vec<GuestRing>,
}

impl Upgraded {
    /// Attach one queue for each of these doorbells.
    #[track_caller]
    pub fn attach(guest: &mut Guest, doorbells: &[u32], depth: u32) -> Self {
        let entries: Vec<Entry> = doorbells.iter().map(|virtqueue| plan(&guest.ram, depth, *virtqueue)).collect();
        let reply = guest.ask_bytes(0, &attach_request(&entries));
        assert_eq!(reply.result, DONE, "attach: {reply:?}");
        assert_ne!(reply.attachment, 0);
        let rings = entries.into_iter().zip(0..).map(|(entry, number)| GuestRing::open(&guest.ram, entry, number)).collect();
        Self { attachment: reply.attachment, rings }
    }
}

/// One request of one segment over a ring, and its status.
#[track_caller]
pub fn transfer(
    guest: &mut Guest,
    up: &mut Upgraded,
    queue: usize,
    operation: Operation,
    sector: u64,
    (address, bytes): (u64, u32),
) -> Status {
    let virtqueue = usize::try_from(up.rings[queue].entry.virtqueue).expect("small");
    up.rings[queue].submit_one(operation, 3, sector, segment(address, bytes.into()), &guest.queues[virtqueue]);
    match up.rings[queue].wait(up.attachment, guest).as_slice() {
        [Incoming::Answer(3, status)] => Status::from_wire(*status).expect("a status of the protocol"),
        other => panic!("not one answer: {other:?}"),
    }
}

/// Does every worker sleep, according to the kernel?
pub fn workers_sleep(daemon: &Daemon) -> bool {
    process::threads_are(daemon.pid(), "fip-worker", 'S')
}
