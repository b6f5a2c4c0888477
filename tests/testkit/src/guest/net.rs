//! A virtual machine with one vhost-user-net device.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::device::{EVENT_INDEX, INDIRECT, set_addresses};
use super::frontend::{Frontend, InflightArea, LOG_ALL, PROTOCOL_FEATURES, Request};
use super::ram::{Piece, Ram};
use super::virtqueue::Virtqueue;
use crate::virtqueue::Part;

/// Virtio feature: a frame may fill several buffers.
pub const MERGEABLE: u64 = 1 << 15;
/// Virtio feature: the driver sends commands.
pub const CONTROL: u64 = 1 << 17;
/// Virtio features: the driver leaves checksums and TCP segments of IPv4 to others; it takes both.
pub const LEAVES_OFFLOADS: u64 = 1 << 0 | 1 << 11;
pub const TAKES_OFFLOADS: u64 = 1 << 1 | 1 << 7;
/// Virtio feature: several pairs of queues.
pub const PAIRS: u64 = 1 << 22;
/// Virtio feature: chains are used in order.
pub const IN_ORDER: u64 = 1 << 35;
const VERSION_1: u64 = 1 << 32;
/// Bytes before each frame.
pub const HEADER_BYTES: usize = 12;
/// A place for a frame to be sent, with its header.
const PLACE_BYTES: u64 = 68 << 10;

/// What the machine is made of.
#[derive(Clone, Debug)]
pub struct NetOptions {
    pub pairs: u16,
    /// Descriptors of each queue.
    pub size: u16,
    /// Virtio features besides those that it always takes.
    pub features: u64,
    /// Of each buffer for frames.
    pub buffer_bytes: u32,
}

impl Default for NetOptions {
    fn default() -> Self {
        Self { pairs: 1, size: 64, features: MERGEABLE | EVENT_INDEX | INDIRECT, buffer_bytes: 2048 }
    }
}

/// The machine.
#[derive(Debug)]
pub struct NetGuest {
    pub ram: Arc<Ram>,
    pub frontend: Frontend,
    /// Of each pair one that receives and one that transmits, and then one for commands, if the driver sends them.
    pub queues: Vec<Virtqueue>,
    path: PathBuf,
    options: NetOptions,
    inflight: Option<InflightArea>,
    /// By queue: memory for frames, a piece for each head.
    places: Vec<u64>,
    /// Of the frame that came last.
    pub header: [u8; HEADER_BYTES],
    /// Whole frames that came, by pair.
    received: Vec<VecDeque<Vec<u8>>>,
}

impl NetGuest {
    /// Start it with its device at `path`, all queues running and all buffers posted.
    pub fn start(path: &Path, options: &NetOptions) -> io::Result<Self> {
        let count = 2 * options.pairs + u16::from(options.features & CONTROL != 0);
        let ram = Ram::new(vec![Piece::new(0, 64 << 20)]);
        let event_index = options.features & EVENT_INDEX != 0;
        let mut queues: Vec<_> = (0..count).map(|_| Virtqueue::new(&ram, options.size, event_index)).collect();
        queues.iter_mut().for_each(|queue| queue.in_order = options.features & IN_ORDER != 0);
        let places = (0..count).map(|_| ram.allocate(PLACE_BYTES * u64::from(options.size), 4096)).collect();
        let received = (0..options.pairs).map(|_| VecDeque::new()).collect();
        let frontend = Frontend::connect(path)?;
        let mut guest = Self {
            ram,
            frontend,
            queues,
            path: path.to_owned(),
            options: options.clone(),
            inflight: None,
            places,
            header: [0; HEADER_BYTES],
            received,
        };
        guest.set_up()?;
        (0..usize::from(options.pairs)).for_each(|pair| guest.post_all(pair));
        Ok(guest)
    }

    /// Connect again after the back end went away, as a hypervisor does: same memory, same rings, which go on where they are used up to,
    /// same area for what is in flight.
    pub fn reconnect(&mut self) -> io::Result<()> {
        self.frontend = Frontend::connect(&self.path)?;
        self.set_up()
    }

    fn features(&self) -> u64 {
        self.options.features | VERSION_1 | PROTOCOL_FEATURES
    }

    fn set_up(&mut self) -> io::Result<()> {
        let offered = self.frontend.get(Request::GetFeatures)?;
        if self.features() & !offered != 0 {
            return Err(io::Error::other(format!("features {:#x} are not offered", self.features() & !offered)));
        }
        self.frontend.set(Request::SetFeatures, &self.features().to_le_bytes(), &[])?;
        let count = u16::try_from(self.queues.len()).unwrap_or(0);
        self.frontend.set_inflight(&mut self.inflight, count, self.options.size)?;
        self.frontend.set_memory(&self.ram.pieces)?;
        (0..self.queues.len()).try_for_each(|index| self.start_queue(index))
    }

    /// Have the back end serve a virtqueue: its next entry is that behind those that are used.
    pub fn start_queue(&mut self, index: usize) -> io::Result<()> {
        let (queue, frontend) = (&self.queues[index], &mut self.frontend);
        let number = u32::try_from(index).unwrap_or(0);
        frontend.set_vring(Request::SetVringNum, number, queue.size.into())?;
        frontend.set_vring(Request::SetVringBase, number, queue.used_index(&self.ram).into())?;
        set_addresses(frontend, index, queue, false)?;
        frontend.set_vring_file(Request::SetVringCall, number, queue.call.as_fd())?;
        frontend.set_vring_file(Request::SetVringErr, number, queue.error.as_fd())?;
        frontend.set_vring_file(Request::SetVringKick, number, queue.kick.as_fd())?;
        frontend.set_vring(Request::SetVringEnable, number, 1)
    }

    /// Begin to log writes to memory, used rings among it.
    pub fn log(&mut self, file: &OwnedFd, bytes: u64) -> io::Result<()> {
        self.frontend.call(Request::SetLogBase, &[bytes.to_le_bytes(), [0; 8]].concat(), &[file.as_fd()])?;
        self.frontend.set(Request::SetFeatures, &(self.features() | LOG_ALL).to_le_bytes(), &[])?;
        let mut queues = self.queues.iter().enumerate();
        queues.try_for_each(|(index, queue)| set_addresses(&mut self.frontend, index, queue, true))
    }

    /// Memory of the chain of a queue that begins with `head`.
    pub fn place(&self, queue: usize, head: u16) -> u64 {
        self.places[queue] + PLACE_BYTES * u64::from(head)
    }

    fn post_all(&mut self, pair: usize) {
        while !self.queues[2 * pair].free.is_empty() {
            let place = self.place(2 * pair, self.queues[2 * pair].next_head());
            self.queues[2 * pair].stage(&[(place, self.options.buffer_bytes, true)]);
        }
        self.queues[2 * pair].publish();
    }

    /// Send a chain of any pieces.
    pub fn send_parts(&mut self, pair: usize, parts: &[Part]) -> u16 {
        let head = self.queues[2 * pair + 1].stage(parts);
        self.queues[2 * pair + 1].publish();
        head
    }

    /// Send a frame: its header without anything, and then pieces of at most so many bytes.
    pub fn send_in_pieces(&mut self, pair: usize, frame: &[u8], piece_bytes: usize) {
        self.send_with(pair, &[0; HEADER_BYTES], frame, piece_bytes);
    }

    /// Likewise, with this header. Chains that came back are taken.
    pub fn send_with(&mut self, pair: usize, header: &[u8; HEADER_BYTES], frame: &[u8], piece_bytes: usize) {
        let index = 2 * pair + 1;
        let pieces = 1 + frame.len().div_ceil(piece_bytes);
        while self.queues[index].free.len() < pieces {
            if self.queues[index].take().is_none() {
                assert!(self.queues[index].sleep(), "no frame is taken");
            }
        }
        let place = self.place(index, self.queues[index].next_head());
        self.ram.write(place, &[&header[..], frame].concat());
        let mut parts = vec![(place, u32::try_from(HEADER_BYTES).expect("small"), false)];
        let first = place + u64::try_from(HEADER_BYTES).expect("small");
        for (number, piece) in (0..).zip(frame.chunks(piece_bytes)) {
            let at = first + number * u64::try_from(piece_bytes).expect("small");
            parts.push((at, u32::try_from(piece.len()).expect("small"), false));
        }
        self.send_parts(pair, &parts);
    }

    /// Likewise, the frame in one piece.
    pub fn send(&mut self, pair: usize, frame: &[u8]) {
        self.send_in_pieces(pair, frame, frame.len());
    }

    /// Wait until all that was sent has come back.
    pub fn wait_sent(&mut self, pair: usize) {
        let queue = &mut self.queues[2 * pair + 1];
        while queue.outstanding() > 0 {
            if queue.take().is_none() {
                assert!(queue.sleep(), "a frame is not taken");
            }
        }
    }

    /// Take what came of a pair, and post its buffers again.
    fn take(&mut self, pair: usize) {
        let index = 2 * pair;
        while let Some((head, bytes)) = self.queues[index].take() {
            let buffer = |place: u64, bytes: u32| self.ram.read(place, usize::try_from(bytes).expect("small"));
            let first = buffer(self.place(index, head), bytes);
            let buffers = u16::from_le_bytes([first[10], first[11]]);
            self.header.copy_from_slice(&first[..HEADER_BYTES]);
            let mut frame = first[HEADER_BYTES..].to_vec();
            for _ in 1..buffers {
                let (head, bytes) = self.queues[index].take().expect("all buffers of a frame come at once");
                frame.extend(self.ram.read(self.place(index, head), usize::try_from(bytes).expect("small")));
            }
            self.received[pair].push_back(frame);
        }
        self.post_all(pair);
    }

    /// A frame that came.
    pub fn receive(&mut self, pair: usize) -> Option<Vec<u8>> {
        if self.received[pair].is_empty() {
            self.take(pair);
        }
        self.received[pair].pop_front()
    }

    /// The next frame, asleep until the interrupt.
    #[track_caller]
    pub fn next(&mut self, pair: usize) -> Vec<u8> {
        loop {
            if let Some(frame) = self.receive(pair) {
                return frame;
            }
            assert!(self.queues[2 * pair].sleep(), "no frame comes");
        }
    }

    /// Send a command, and wait; the answer.
    pub fn command(&mut self, command: &[u8]) -> u8 {
        let index = self.queues.len() - 1;
        let place = self.place(index, self.queues[index].next_head());
        self.ram.write(place, command);
        self.ram.write(place + 4096, &[0xff]);
        let queue = &mut self.queues[index];
        let head = queue.stage(&[(place, u32::try_from(command.len()).expect("small"), false), (place + 4096, 1, true)]);
        queue.publish();
        queue.wait_for(head);
        self.ram.read(place + 4096, 1)[0]
    }
}
