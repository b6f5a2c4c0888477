//! A program's end of a port: one pair of queues, its buffers, and how it waits.

mod buffers;
mod changes;
mod event_loop;
mod held;
mod options;
mod receive;
mod reconnect;
mod staged;
mod transmit;
mod unpacked;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fipsee_ring::channel::{FEATURE_CHOICES, FEATURE_WORKER_CPU};
use fipsee_ring::control::{Control, Wanted};
use fipsee_ring::doorbell::DoorbellCounts;
use fipsee_ring::fault::expect;
use fipsee_ring::handshake::{self, AttachedChannel, ask, unexpected};
use fipsee_ring::port::Port as Waiter;
use fipsee_ring::region::Region;
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::wait::Backoff;

pub use self::buffers::Buffer;
use self::buffers::{Buffers, Places, SHORT_REST_BYTES, divide, received_bytes, stride_bytes};
use self::changes::Changes;
pub use self::held::Frame;
use self::held::Home;
pub use self::options::{AttachOptions, ListedPortInfo, list};
pub use self::reconnect::ReconnectEvent;
use self::staged::Staged;
use self::unpacked::Unpacked;
use crate::error::Error;
use crate::frame::Mac;
use crate::wire::{Addresses, MAX_MTU, Offload, PROFILE, PortInfo, QUEUES_PER_PAIR, SERVICE_NET, Status, max_offloaded_bytes};

/// The pool has this id.
const POOL: u16 = 0;

/// What the pairs of an attachment share.
#[derive(Debug)]
struct Attachment {
    control: Seqpacket,
    region: Arc<Region>,
    /// As it was granted.
    info: PortInfo,
    socket_path: PathBuf,
    options: AttachOptions,
}

impl Attachment {
    fn detach(&self) -> Result<(), Error> {
        match ask(&self.control, &Control::Detach, &[], "the request to detach")? {
            (Control::Detached, _) => Ok(()),
            (answer, _) => Err(unexpected(&answer)),
        }
    }
}

/// One pair of queues of a port, for one thread at a time. Dropping the last of an attachment ends it.
#[derive(Debug)]
pub struct Port {
    attachment: Arc<Attachment>,
    info: PortInfo,
    transmit: Waiter,
    receive: Waiter,
    /// For the rests of short frames, by the tags of transmit buffers.
    rests: Places,
    sending: Buffers,
    receiving: Buffers,
    /// Transmit buffers that are free.
    free: Vec<u16>,
    staged: Staged,
    /// Frames of a message that are still to be received; their buffers are the program's already.
    unpacked: Unpacked,
    /// Receive buffers to be posted.
    unposted: VecDeque<u16>,
    /// Where frames that the program holds give their buffers back, and how many buffers they have.
    home: Arc<Home>,
    held: usize,
    /// Readable when one of the doorbells is; made when it is first asked for.
    descriptor: Option<OwnedFd>,
    counters: Counters,
    /// Of the frame that was received last.
    received_offload: Offload,
    /// That frames without addresses have: of those that are sent, and of those that come.
    sent_addresses: Option<Addresses>,
    received_addresses: Option<Addresses>,
    changes: Changes,
}

/// What became of frames that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Given back by the daemon, with those that it refused.
    pub sent_back: u64,
    /// Not taken by the daemon, and why not, of the newest.
    pub refused: u64,
    pub newest_refusal: Option<Status>,
    /// In flight when the daemon was lost and the port [attached again](Port::reconnect). Whether they were delivered is not known.
    pub lost: u64,
}

impl Port {
    /// Attach to a port with one pair of queues.
    ///
    /// # Errors
    /// [`Error::Connect`] when nothing listens, [`Error::Refused`] with the daemon's words, and whatever else can go wrong with a peer
    /// or the system.
    pub fn attach(socket_path: &Path, options: &AttachOptions) -> Result<Self, Error> {
        let options = AttachOptions { pairs: 1, ..options.clone() };
        Self::attach_pairs(socket_path, &options)?.pop().ok_or(Error::Disconnected)
    }

    /// Attach with several pairs. Frames of one flow come by one of them.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_pairs(socket_path: &Path, options: &AttachOptions) -> Result<Vec<Self>, Error> {
        options.wait.available()?;
        let (pairs, depth) = (options.pairs.max(1), options.depth.max(1));
        let bytes = |stride_bytes: u32| u64::from(depth) * u64::from(stride_bytes);
        let longest = stride_bytes(max_offloaded_bytes(MAX_MTU, options.offloads));
        let received = received_bytes(options, longest, options.offloads);
        let wanted = Wanted {
            service: SERVICE_NET,
            queue_count: pairs.saturating_mul(QUEUES_PER_PAIR),
            depth,
            flags: options.flags(),
            pool_bytes: u64::from(pairs) * (bytes(SHORT_REST_BYTES) + bytes(longest) + bytes(received)),
            name: options.name.clone(),
        };
        let attached = handshake::attach(socket_path, FEATURE_CHOICES | FEATURE_WORKER_CPU, &PROFILE, wanted)?;
        Self::over(attached, socket_path, options)
    }

    /// Over a channel that is attached already; `socket_path` is where it is attached to again.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn over(attached: AttachedChannel, socket_path: &Path, options: &AttachOptions) -> Result<Vec<Self>, Error> {
        let AttachedChannel { control, region, layout, service_info, queues } = attached;
        let info = PortInfo::from_bytes(&service_info, options.offloads)?;
        let count = queues.len();
        expect("the queues of a port", count as u64, count == usize::from(info.pairs * QUEUES_PER_PAIR))?;
        let (socket_path, options) = (socket_path.to_owned(), options.clone());
        let attachment = Arc::new(Attachment { control, region, info, socket_path, options });
        // Whole cache lines.
        let share_bytes = layout.pool_bytes / u64::from(info.pairs) / 64 * 64;
        let (mut ports, mut queues) = (Vec::new(), queues.into_iter().zip(&layout.queues));
        for pair in 0..u64::from(info.pairs) {
            let (Some(transmit), Some(receive)) = (queues.next(), queues.next()) else { break };
            let place = (layout.pool_offset_bytes, pair * share_bytes, share_bytes);
            let (rests, sending, receiving) = divide(&info, (transmit.1, receive.1), place, &attachment.options)?;
            let waiter = |queue| Waiter::new(queue, Backoff::new(attachment.options.wait, attachment.options.look));
            let tags = |buffers: &Buffers| 0..u16::try_from(buffers.given.len()).unwrap_or(u16::MAX);
            let (free, unposted) = (tags(&sending).rev().collect(), tags(&receiving).collect());
            let mut port = Self {
                home: Arc::new(Home::new(&attachment.region, &receiving)),
                attachment: Arc::clone(&attachment),
                info,
                transmit: waiter(transmit.0),
                receive: waiter(receive.0),
                staged: Staged::default(),
                unpacked: Unpacked::default(),
                rests,
                sending,
                receiving,
                free,
                unposted,
                held: 0,
                descriptor: None,
                counters: Counters::default(),
                received_offload: Offload::NONE,
                sent_addresses: None,
                received_addresses: None,
                changes: Changes::default(),
            };
            port.post(true);
            ports.push(port);
        }
        Ok(ports)
    }

    pub const fn info(&self) -> PortInfo {
        self.info
    }

    pub const fn mac(&self) -> Mac {
        Mac(self.info.mac)
    }

    /// Frames that may be on their way: transmit buffers, and receive buffers.
    pub const fn depths(&self) -> (usize, usize) {
        (self.sending.given.len(), self.receiving.given.len())
    }

    /// As of the newest [`reap`](Self::reap).
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// How often daemon and client woke each other since the port was attached first, by both queues together. In the transmit queue,
    /// frames that are given back are its completions.
    pub fn doorbell_counts(&self) -> DoorbellCounts {
        let mut counts = self.transmit.counts;
        counts += self.receive.counts;
        counts
    }

    /// A daemon that breaks the protocol is talked to no more.
    fn ended_by<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if matches!(outcome, Err(Error::Fault(_))) {
            self.hang_up();
        }
        outcome
    }

    fn hang_up(&self) {
        // Either end may have closed it already.
        let _ = rustix::net::shutdown(&self.attachment.control, rustix::net::Shutdown::Both);
    }

    /// Detach in order: what was submitted is sent first. Other pairs of the attachment end with it.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn detach(mut self) -> Result<(), Error> {
        self.submit();
        self.attachment.detach()
    }

    /// This pair is used no more, and what was submitted is sent. The last pair of an attachment detaches, also if each is closed by a
    /// thread of its own.
    ///
    /// # Errors
    /// As [`detach`](Self::detach).
    pub fn close(mut self) -> Result<(), Error> {
        self.submit();
        // Of several threads exactly one gets it. A count could be looked at by two before either is gone.
        Arc::into_inner(self.attachment).map_or(Ok(()), |attachment| attachment.detach())
    }
}
