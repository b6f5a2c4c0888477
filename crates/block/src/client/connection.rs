//! Attaching to an export: the handshake, and the memory that goes with it.

use std::borrow::BorrowMut;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fipsee_ring::PeerFault;
use fipsee_ring::channel::{ClientQueue, FEATURE_CHOICES, FEATURE_WORKER_CPU};
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, Control, MAX_REGIONS, Wanted};
use fipsee_ring::handshake::{self, AttachedChannel, ask, unexpected};
use fipsee_ring::notify::Policy;
use fipsee_ring::port::{Port, ReconnectPolicy};
use fipsee_ring::region::{Access, Region};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::wait::{Backoff, DEFAULT_LOOK, WaitMode};

use super::memory::{Buffer, Memory, Pool, lock};
use super::queue::Queue;
use super::transfer::BOUNCE_BYTES;
use super::{DiskError, Error};
use crate::wire::{
    ATTACH_EXCLUSIVE, ATTACH_IGNORE_CLAIM, ATTACH_READ_ONLY, ATTACH_SOLE_WRITER, BlockInfo, PROFILE, SERVICE_BLOCK,
};

/// What an attachment that may write claims against other writers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claim {
    /// Nothing: refused while another client claims to be the sole writer.
    #[default]
    None,
    /// Sole writer: refused while another client may write, and other writers are refused.
    SoleWriter,
    /// Write although another client claims to be the sole writer. The caller is responsible for the data.
    Ignore,
}

/// Options of an attachment.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// Name of the export.
    pub name: String,
    /// Queues wanted; the daemon may grant fewer.
    pub queue_count: u16,
    /// Requests outstanding per queue; the daemon may grant fewer.
    pub depth: u32,
    /// Bytes of pool wanted; the daemon may grant fewer. Needed for [`Disk::allocate`] and for more than five segments.
    pub pool_bytes: u64,
    /// Refuse writes on the daemon's side.
    pub read_only: bool,
    /// Attach exclusively, or be refused.
    pub exclusive: bool,
    /// The claim against other writers; ignored by a read-only attachment. If the daemon is too old for
    /// [`Claim::SoleWriter`], attaching fails with [`Error::Unsupported`].
    pub claim: Claim,
    /// How [`Queue::wait`] waits; not every CPU supports every mode ([`WaitMode::available`]).
    pub wait: WaitMode,
    /// In adaptive mode, how long to poll before sleeping.
    pub look: Duration,
    /// Ask where the daemon's workers run, for [`Queue::worker_cpu`].
    pub ask_worker_cpu: bool,
    /// When a daemon that sleeps is woken for requests; none: at once. What is held back waits until its time comes in
    /// [`Queue::reap`] or [`Queue::wait`], and no longer than the latter or [`Queue::arm_and_work_remains`] allows: a thread that calls
    /// none of them leaves its requests there.
    pub notify: Option<Policy>,
}

impl AttachOptions {
    /// One queue of depth 64, 4 MiB of pool, adaptive waiting.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            queue_count: 1,
            depth: 64,
            pool_bytes: 4 << 20,
            read_only: false,
            exclusive: false,
            claim: Claim::None,
            wait: WaitMode::Adaptive,
            look: DEFAULT_LOOK,
            ask_worker_cpu: true,
            notify: None,
        }
    }
}

/// The default path of the daemon's socket: `FIPSEE_SOCKET`; else the user's own daemon under `XDG_RUNTIME_DIR`
/// if it is there; else the system's, `/run/fipsee/fipsee.sock`.
pub fn default_socket_path() -> PathBuf {
    if let Some(path) = std::env::var_os("FIPSEE_SOCKET") {
        return path.into();
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|base| Path::new(&base).join("fipsee/fipsee.sock"));
    let own = own.filter(|path| !rustix::process::geteuid().is_root() && path.exists());
    own.unwrap_or_else(|| PathBuf::from("/run/fipsee/fipsee.sock"))
}

/// A step of a reconnection.
pub type ReconnectEvent<'a> = fipsee_ring::port::ReconnectEvent<'a, Error>;

/// State shared by the queues and the disk handle.
#[derive(Debug)]
pub(super) struct Shared {
    control: Mutex<Seqpacket>,
    pub(super) pool: Arc<Pool>,
    pub(super) sector_count: AtomicU64,
    options: AttachOptions,
}

impl Shared {
    pub(super) fn port(&self, channel: ClientQueue) -> Port {
        let mut port = Port::new(channel, Backoff::new(self.options.wait, self.options.look));
        port.set_policy(self.options.notify);
        port
    }

    pub(super) fn is_hung_up(&self) -> bool {
        // Held by a registration in progress: that will detect it.
        self.control.try_lock().is_ok_and(|control| control.is_hung_up())
    }
}

/// An attached disk.
#[derive(Debug)]
pub struct Disk {
    socket_path: PathBuf,
    info: BlockInfo,
    shared: Arc<Shared>,
    memories: Mutex<Vec<Memory>>,
}

impl Disk {
    /// Attach to the export `options.name` of the daemon at `socket_path`; returns the disk and its queues.
    ///
    /// # Errors
    /// [`Error::Wait`] when this CPU does not support the wait mode, [`Error::Connect`] when no daemon listens,
    /// [`Error::Refused`] with the daemon's message, and other errors of the peer or the system.
    pub fn attach(socket_path: &Path, options: &AttachOptions) -> Result<(Self, Vec<Queue>), Error> {
        options.wait.available()?;
        Self::open(socket_path, options, handshake(socket_path, options)?)
    }

    /// A disk over a channel that was attached without a socket's path, for tests and the fuzzer; it cannot attach again.
    ///
    /// # Errors
    /// The service information does not describe a disk.
    pub fn over(attached: AttachedChannel, options: &AttachOptions) -> Result<(Self, Vec<Queue>), Error> {
        Self::open(Path::new(""), options, attached)
    }

    fn open(socket_path: &Path, options: &AttachOptions, attached: AttachedChannel) -> Result<(Self, Vec<Queue>), Error> {
        let AttachedChannel { control, region, layout, service_info, queues } = attached;
        let info = BlockInfo::from_bytes(&service_info)?;
        let shared = Arc::new(Shared {
            control: Mutex::new(control),
            pool: Arc::new(Pool::new(region, layout.pool_offset_bytes, layout.pool_bytes)),
            sector_count: AtomicU64::new(info.sector_count),
            options: options.clone(),
        });
        let queues = queues.into_iter().zip(&layout.queues);
        let queues = queues.map(|(queue, geometry)| Queue::new(queue, geometry.depth, Arc::clone(&shared), &info)).collect();
        Ok((Self { socket_path: socket_path.to_owned(), info, shared, memories: Mutex::default() }, queues))
    }

    /// The disk's description, with the newest known size.
    pub fn info(&self) -> BlockInfo {
        BlockInfo { sector_count: self.shared.sector_count.load(Ordering::Relaxed), ..self.info }
    }

    /// Take `length_bytes` of the pool, aligned to 4096 bytes; returned on drop.
    ///
    /// # Errors
    /// [`DiskError::PoolExhausted`].
    pub fn allocate(&self, length_bytes: u64) -> Result<Buffer, Error> {
        self.shared.pool.allocate(length_bytes)
    }

    /// Take [`BOUNCE_BYTES`] of the pool for transfers, or as much as there is.
    ///
    /// # Errors
    /// [`DiskError::PoolExhausted`]: there is not even a page.
    pub fn allocate_bounce(&self) -> Result<Buffer, Error> {
        let lengths = (0..10).map(|halvings| BOUNCE_BYTES >> halvings); // To 4096 bytes.
        let mut found = lengths.map(|length_bytes| self.allocate(length_bytes));
        found.find(Result::is_ok).unwrap_or_else(|| self.allocate(BOUNCE_BYTES))
    }

    /// Make `length_bytes` of new memory that the daemon maps whole ("memshare"): the disk's data moves straight between
    /// it and the disk.
    ///
    /// # Errors
    /// No memory or descriptor left, or the daemon's refusal.
    pub fn create_memory(&self, length_bytes: u64) -> Result<Memory, Error> {
        let region = Region::create("fipsee-memory", length_bytes);
        let region = region.map_err(|source| Error::Io { context: "create shared memory", source })?;
        self.register(Arc::new(region))
    }

    /// Hand over an existing memory file, sealed with F_SEAL_SHRINK.
    ///
    /// # Errors
    /// The file cannot be used safely, or the daemon's refusal.
    pub fn register_file(&self, file: OwnedFd, length_bytes: u64) -> Result<Memory, Error> {
        self.register(Arc::new(Region::from_peer(file, length_bytes, Access::ReadWrite)?))
    }

    fn register(&self, region: Arc<Region>) -> Result<Memory, Error> {
        let mut memories = lock(&self.memories);
        let id = (1..MAX_REGIONS).find(|id| memories.iter().all(|memory| memory.id != *id));
        let id = id.ok_or(Error::Fault(PeerFault::Count {
            what: "memory regions",
            value: MAX_REGIONS.into(),
            limit: (MAX_REGIONS - 1).into(),
        }))?;
        let memory = Memory { region, id };
        register_with(&lock(&self.shared.control), &memory)?;
        memories.push(memory.clone());
        Ok(memory)
    }

    /// Take memory back: the daemon unmaps it. No request that names it may be outstanding.
    ///
    /// # Errors
    /// The daemon's refusal, for example while requests are in flight.
    pub fn unregister(&self, memory: &Memory) -> Result<(), Error> {
        let mut memories = lock(&self.memories);
        let request = Control::Unregister { region: memory.id };
        match ask(&lock(&self.shared.control), &request, &[], "the request to unregister memory")?.0 {
            Control::Unregistered { region } if region == memory.id => {
                memories.retain(|known| known.id != memory.id);
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Detach in order: the daemon finishes what was published. Dropping the disk and its queues detaches at once.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when requests in flight do not finish; [`Error::Disconnected`] when the daemon detached by itself
    /// before it had answered all of them.
    pub fn detach(self, mut queues: Vec<Queue>) -> Result<(), Error> {
        let answer = ask(&lock(&self.shared.control), &Control::Detach, &[], "the request to detach")?.0;
        if answer != Control::Detached {
            return Err(unexpected(&answer));
        }
        queues.iter_mut().try_for_each(Queue::take_last)
    }

    /// After [`Error::Disconnected`]: attach again as `policy` says, register the same memory, and resubmit every request
    /// without an answer, on all `queues` of this disk. `hook` is called for each step.
    ///
    /// A write without an answer may have been done before; doing it again is harmless as long as the caller had no
    /// other request on the same blocks in flight, whose order was never promised.
    ///
    /// A flush without an answer covers what is on the disk below when it is executed. All acknowledged writes are there,
    /// unless the disk keeps them in the daemon's own memory (docs/reliability.md).
    ///
    /// # Errors
    /// The last attempt's error when the time is up; at once when the daemon came back with a different disk or refuses
    /// for good.
    pub fn reconnect<Q: BorrowMut<Queue>>(
        &self,
        queues: &mut [Q],
        policy: &ReconnectPolicy,
        hook: &mut dyn FnMut(ReconnectEvent<'_>),
    ) -> Result<(), Error> {
        policy.keep_trying(|| self.attach_again(queues), Error::is_transient, hook)
    }

    /// One attempt of [`reconnect`](Self::reconnect): attach to the same export and put the queues on the new channel.
    ///
    /// # Errors
    /// The attempt failed; another may succeed if the error [is transient](Error::is_transient).
    pub fn attach_again<Q: BorrowMut<Queue>>(&self, queues: &mut [Q]) -> Result<(), Error> {
        self.resume(handshake(&self.socket_path, &self.shared.options)?, queues)
    }

    /// As [`attach_again`](Self::attach_again), over a channel that the caller attached.
    ///
    /// # Errors
    /// It belongs to another disk, or offers less than the one before.
    pub fn resume<Q: BorrowMut<Queue>>(&self, attached: AttachedChannel, queues: &mut [Q]) -> Result<(), Error> {
        let AttachedChannel { control, region, layout, service_info, queues: channels } = attached;
        let (info, known) = (BlockInfo::from_bytes(&service_info)?, self.info());
        let checks = [
            ("identity", info.identity == known.identity),
            ("logical block size", info.block_bytes == known.block_bytes),
            ("(smaller) size", info.sector_count >= known.sector_count),
            ("(smaller) number of queues", channels.len() >= queues.len()),
            ("(smaller) depth", layout.queues.iter().zip(&*queues).all(|(new, old)| new.depth as usize >= old.borrow().depth())),
        ];
        if let Some((what, _)) = checks.iter().find(|(_, same)| !same) {
            return Err(Error::Service(DiskError::Different(what)));
        }
        for memory in &*lock(&self.memories) {
            register_with(&control, memory)?;
        }
        self.shared.pool.move_to(region, layout.pool_offset_bytes, layout.pool_bytes)?;
        *lock(&self.shared.control) = control;
        self.shared.sector_count.store(info.sector_count, Ordering::Relaxed);
        for (queue, channel) in queues.iter_mut().zip(channels) {
            queue.borrow_mut().resume(channel, &info);
        }
        Ok(())
    }
}

fn register_with(control: &Seqpacket, memory: &Memory) -> Result<(), Error> {
    let length_bytes = memory.region.length_bytes();
    let request = Control::Register { region: memory.id, access: ACCESS_READ | ACCESS_WRITE, length_bytes };
    match ask(control, &request, &[memory.region.as_fd()], "the request to register memory")?.0 {
        Control::Registered { region } if region == memory.id => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn handshake(socket_path: &Path, options: &AttachOptions) -> Result<AttachedChannel, Error> {
    let flag = |set, bit| if set { bit } else { 0 };
    let claim = match options.claim {
        Claim::SoleWriter if !options.read_only => ATTACH_SOLE_WRITER,
        Claim::Ignore if !options.read_only => ATTACH_IGNORE_CLAIM,
        _ => 0,
    };
    let wanted = Wanted {
        service: SERVICE_BLOCK,
        queue_count: options.queue_count,
        depth: options.depth,
        flags: flag(options.read_only, ATTACH_READ_ONLY) | flag(options.exclusive, ATTACH_EXCLUSIVE) | claim,
        pool_bytes: options.pool_bytes,
        name: options.name.clone(),
    };
    let about_cpus = if options.ask_worker_cpu { FEATURE_WORKER_CPU } else { 0 };
    handshake::attach(socket_path, FEATURE_CHOICES | about_cpus, &PROFILE, wanted)
}
