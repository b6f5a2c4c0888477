//! A virtual machine with one vhost-user-blk device.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fipsee_virtio::blk::upgrade::wire::{PART_BYTES, REQUEST_TYPE, Reply, UpgradeRequest};

use super::frontend::{Frontend, InflightArea, LOG_ALL, PROTOCOL_FEATURES, Request};
use super::ram::{Piece, Ram, USER_OFFSET};
use super::virtqueue::Virtqueue;
use crate::virtqueue::Part;

// Types of virtio-blk requests.
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;
/// Flag of a range of write-zeroes: its blocks may be deallocated.
pub const UNMAP: u32 = 1;
// Statuses of requests.
pub const OK: u8 = 0;
pub const IO_ERROR: u8 = 1;
pub const UNSUPPORTED: u8 = 2;
/// One that no device gives.
pub const UNTOUCHED: u8 = 0xff;

/// Virtio feature: device and driver say by index when to notify.
pub const EVENT_INDEX: u64 = 1 << 29;
/// Virtio feature: a descriptor may name a table of descriptors.
pub const INDIRECT: u64 = 1 << 28;
/// Virtio feature: the device has a write cache, which the driver flushes.
pub const WRITE_CACHE: u64 = 1 << 9;
/// Virtio features that a guest always takes.
const ALWAYS: u64 = 1 << 32;

/// What a guest is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address and length of each piece.
    pub memory: Vec<(u64, u64)>,
    pub queues: u16,
    /// Descriptors of each.
    pub size: u16,
    /// Take EVENT_IDX?
    pub event_index: bool,
    /// Take INDIRECT_DESC? Only a test that writes such descriptors itself needs it.
    pub indirect: bool,
    /// Take FLUSH? Without it the device makes every write durable before it answers.
    pub write_cache: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { memory: vec![(0, 64 << 20)], queues: 1, size: 128, event_index: false, indirect: false, write_cache: false }
    }
}

/// The guest.
#[derive(Debug)]
pub struct Guest {
    pub ram: Arc<Ram>,
    pub frontend: Frontend,
    pub queues: Vec<Virtqueue>,
    path: PathBuf,
    features: u64,
    /// Headers, replies and statuses: one place of 256 bytes for each descriptor of each queue, in which a chain may begin.
    places: u64,
    inflight: Option<InflightArea>,
}

/// A request or upgrade request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub queue: usize,
    /// Its first descriptor.
    pub head: u16,
    status: u64,
    reply: u64,
}

const PLACE_BYTES: u64 = 256;

/// The place of a queue. With `log`, the log has its used ring where guest memory has it (VHOST_VRING_F_LOG).
pub(super) fn set_addresses(frontend: &mut Frontend, index: usize, queue: &Virtqueue, log: bool) -> io::Result<()> {
    let mut body = [u32::try_from(index).unwrap_or(0).to_le_bytes(), u32::from(log).to_le_bytes()].concat();
    for address in [queue.descriptors, queue.used, queue.available] {
        body.extend((USER_OFFSET + address).to_le_bytes());
    }
    body.extend(if log { queue.used } else { 0 }.to_le_bytes());
    frontend.set(Request::SetVringAddr, &body, &[])
}

impl Guest {
    /// Start a guest with its device at `path`, all queues running.
    pub fn start(path: &Path, options: &Options) -> io::Result<Self> {
        let pieces = options.memory.iter().map(|(address, length)| Piece::new(*address, *length)).collect();
        let ram = Ram::new(pieces);
        let queues = (0..options.queues).map(|_| Virtqueue::new(&ram, options.size, options.event_index)).collect();
        let places = ram.allocate(PLACE_BYTES * u64::from(options.queues) * u64::from(options.size), 4096);
        let frontend = Frontend::connect(path)?;
        let choices = [(options.event_index, EVENT_INDEX), (options.indirect, INDIRECT), (options.write_cache, WRITE_CACHE)];
        let features = choices.iter().filter(|(is_taken, _)| *is_taken).fold(ALWAYS, |all, (_, feature)| all | feature);
        let mut guest = Self { ram, frontend, queues, path: path.to_owned(), features, places, inflight: None };
        guest.set_up()?;
        Ok(guest)
    }

    /// Connect again after the back end went away, as a hypervisor does: same memory, same rings, same inflight area. Descriptors
    /// that the old one had are the new one's.
    pub fn reconnect(&mut self) -> io::Result<()> {
        self.frontend = Frontend::connect(&self.path)?;
        self.set_up()
    }

    fn set_up(&mut self) -> io::Result<()> {
        let offered = self.frontend.get(Request::GetFeatures)?;
        let features = (self.features | PROTOCOL_FEATURES) & offered;
        if self.features & !offered != 0 {
            return Err(io::Error::other(format!("features {:#x} are not offered", self.features & !offered)));
        }
        self.frontend.set(Request::SetFeatures, &features.to_le_bytes(), &[])?;
        let (count, size) = (u16::try_from(self.queues.len()).unwrap_or(0), self.queues[0].size);
        self.frontend.set_inflight(&mut self.inflight, count, size)?;
        self.frontend.set_memory(&self.ram.pieces)?;
        for index in 0..self.queues.len() {
            self.start_queue(index)?;
        }
        Ok(())
    }

    /// Have the back end serve a virtqueue from where it is.
    pub fn start_queue(&mut self, index: usize) -> io::Result<()> {
        let (queue, frontend) = (&self.queues[index], &mut self.frontend);
        let number = u32::try_from(index).unwrap_or(0);
        frontend.set_vring(Request::SetVringNum, number, queue.size.into())?;
        frontend.set_vring(Request::SetVringBase, number, queue.base().into())?;
        set_addresses(frontend, index, queue, false)?;
        frontend.set_vring_file(Request::SetVringCall, number, queue.call.as_fd())?;
        frontend.set_vring_file(Request::SetVringErr, number, queue.error.as_fd())?;
        frontend.set_vring_file(Request::SetVringKick, number, queue.kick.as_fd())?;
        frontend.set_vring(Request::SetVringEnable, number, 1)
    }

    /// Begin to log writes to memory, used rings among it, or end it.
    pub fn set_logging(&mut self, log: Option<(&OwnedFd, u64)>) -> io::Result<()> {
        if let Some((file, bytes)) = log {
            let body = [bytes.to_le_bytes(), [0; 8]].concat();
            // Its answer is a message without a value.
            self.frontend.call(Request::SetLogBase, &body, &[file.as_fd()])?;
        }
        let features = self.features | PROTOCOL_FEATURES | if log.is_some() { LOG_ALL } else { 0 };
        self.frontend.set(Request::SetFeatures, &features.to_le_bytes(), &[])?;
        let mut queues = self.queues.iter().enumerate();
        queues.try_for_each(|(index, queue)| set_addresses(&mut self.frontend, index, queue, log.is_some()))
    }

    /// The address of the header of a chain that begins with `head`; its status is in the same page.
    pub fn place(&self, queue: usize, head: u16) -> u64 {
        let number = u64::try_from(queue).unwrap_or(0) * u64::from(self.queues[queue].size);
        self.places + PLACE_BYTES * (number + u64::from(head))
    }

    fn stage(&mut self, queue: usize, (kind, sector): (u32, u64), parts: &[Part], reply: bool) -> Sent {
        let head_next = self.queues[queue].next_head();
        let place = self.place(queue, head_next);
        self.ram.write(place, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
        self.ram.write(place + 128, &[UNTOUCHED]);
        self.ram.write(place + 64, &[0; PART_BYTES]);
        let mut chain = vec![(place, 16, false)];
        chain.extend_from_slice(parts);
        if reply {
            chain.push((place + 64, 64, true));
        }
        chain.push((place + 128, 1, true));
        let virtqueue = &mut self.queues[queue];
        let head = virtqueue.stage(&chain);
        assert_eq!(head, head_next, "the place belongs to the head");
        Sent { queue, head, status: place + 128, reply: place + 64 }
    }

    fn send(&mut self, queue: usize, what: (u32, u64), parts: &[Part], reply: bool) -> Sent {
        let sent = self.stage(queue, what, parts, reply);
        self.queues[queue].publish();
        sent
    }

    /// Prepare a request of a type, to a sector, with data; the queue's `publish` makes it available.
    pub fn prepare(&mut self, queue: usize, kind: u32, sector: u64, parts: &[Part]) -> Sent {
        self.stage(queue, (kind, sector), parts, false)
    }

    /// As [`prepare`](Self::prepare), a discard or write-zeroes, with its range beside its header.
    pub fn prepare_range(&mut self, queue: usize, kind: u32, sector: u64, length_sectors: u32, flags: u32) -> Sent {
        let place = self.place(queue, self.queues[queue].next_head()) + 192;
        self.ram.write(place, &[&sector.to_le_bytes()[..], &length_sectors.to_le_bytes(), &flags.to_le_bytes()].concat());
        self.stage(queue, (kind, 0), &[(place, 16, false)], false)
    }

    /// Send a request of a type, to a sector, with data.
    pub fn submit(&mut self, queue: usize, kind: u32, sector: u64, parts: &[Part]) -> Sent {
        self.send(queue, (kind, sector), parts, false)
    }

    /// Wait for a request, asleep; its status.
    pub fn wait(&mut self, sent: Sent) -> u8 {
        self.queues[sent.queue].wait_for(sent.head);
        self.status(sent)
    }

    /// The status byte as it is now.
    pub fn status(&self, sent: Sent) -> u8 {
        self.ram.read(sent.status, 1)[0]
    }

    /// Read or write, and wait.
    pub fn transfer(&mut self, queue: usize, kind: u32, sector: u64, (address, bytes): (u64, u32)) -> u8 {
        let sent = self.submit(queue, kind, sector, &[(address, bytes, kind == IN)]);
        self.wait(sent)
    }

    /// Send an upgrade request of any bytes.
    pub fn send_upgrade_request(&mut self, queue: usize, upgrade_request: &[u8]) -> Sent {
        // Doorbell requests are sent again and again: their place is beside header and reply.
        let address = if upgrade_request.len() <= PART_BYTES {
            self.place(queue, self.queues[queue].next_head()) + 192
        } else {
            self.ram.allocate(upgrade_request.len() as u64, 64)
        };
        self.ram.write(address, upgrade_request);
        let bytes = u32::try_from(upgrade_request.len()).unwrap_or(u32::MAX);
        self.send(queue, (REQUEST_TYPE, 0), &[(address, bytes, false)], true)
    }

    /// The reply to an upgrade request that has been answered.
    pub fn reply(&self, sent: Sent) -> Reply {
        assert_eq!(self.status(sent), OK, "no reply was written");
        let bytes = self.ram.read(sent.reply, PART_BYTES);
        let reply = bytes.first_chunk().and_then(Reply::from_bytes);
        reply.unwrap_or_else(|| panic!("no reply: {bytes:x?}"))
    }

    /// Ask, and wait for the reply.
    pub fn ask(&mut self, queue: usize, upgrade_request: &UpgradeRequest) -> Reply {
        self.ask_bytes(queue, &upgrade_request.to_bytes())
    }

    /// As [`ask`](Self::ask), with bytes that need not make sense.
    pub fn ask_bytes(&mut self, queue: usize, upgrade_request: &[u8]) -> Reply {
        let sent = self.send_upgrade_request(queue, upgrade_request);
        self.wait(sent);
        self.reply(sent)
    }
}
