//! The attachment to the daemon that all lanes share: made, kept across a restart of the daemon, made again.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use fipsee::claim;
use fipsee_block::client::{self, AttachOptions, Claim, Disk, Event, Queue, ReconnectEvent, ReconnectPolicy};
use fipsee_block::wire::{BlockInfo, SECTOR_BYTES};

use super::lane::{DEPTH, Lane, LaneQueue, LinkEvent, Slots, State};
use super::log::log;

/// Pause between attempts to attach to a lost disk.
const RETRY: Duration = Duration::from_secs(1);

/// The disk's properties that all threads need.
#[derive(Debug)]
pub(super) struct MountedDisk {
    /// From the first attachment; only the size may change.
    info: BlockInfo,
    size_bytes: AtomicU64,
}

impl MountedDisk {
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn block_bytes(&self) -> u64 {
        self.info.block_bytes.into()
    }

    pub(super) fn max_transfer_bytes(&self) -> u64 {
        u64::from(self.info.max_transfer_bytes) / self.block_bytes() * self.block_bytes()
    }

    /// Most bytes of one write-zeroes request.
    pub(super) fn max_range_bytes(&self) -> u64 {
        u64::from(self.info.max_range_sectors) * SECTOR_BYTES / self.block_bytes() * self.block_bytes()
    }

    pub(super) const fn can(&self, capabilities: u32) -> bool {
        self.info.can(capabilities)
    }
}

/// The disk to attach to, and the timeouts.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) socket: PathBuf,
    pub(super) disk: String,
    pub(super) read_only: bool,
    /// The claim, unless read-only.
    pub(super) claim: Claim,
    pub(super) lane_count: u16,
    /// How long to try to get a lost connection back before requests fail.
    pub(super) reconnect: Duration,
}

impl Target {
    fn attach(&self) -> Result<(Disk, Vec<LaneQueue>), client::Error> {
        let options = AttachOptions {
            queue_count: self.lane_count,
            depth: DEPTH,
            pool_bytes: 0,
            read_only: self.read_only,
            claim: self.claim,
            ..AttachOptions::new(&self.disk)
        };
        let (disk, queues) = claim::attach(&self.socket, &options, &log)?;
        let channel = |queue: Queue| Ok(LaneQueue { slots: Slots::new(&disk, queue.depth())?, queue });
        let channels = queues.into_iter().map(channel).collect::<Result<_, client::Error>>()?;
        Ok((disk, channels))
    }
}

/// Keeps the lanes connected. Runs on a thread of its own.
pub(super) struct Supervisor {
    target: Target,
    /// `None`: lost.
    disk: Option<Disk>,
    /// The daemon has another disk of this name now; nothing can be done.
    is_hopeless: bool,
    lanes: Vec<Arc<Lane>>,
    mounted: Arc<MountedDisk>,
    news: Receiver<LinkEvent>,
}

/// The lanes of a new attachment.
pub(super) struct MountAttachment {
    pub(super) supervisor: Supervisor,
    pub(super) lanes: Vec<Arc<Lane>>,
    pub(super) mounted: Arc<MountedDisk>,
    /// The events of the lanes.
    pub(super) worker_cpus: Vec<Option<usize>>,
    /// To stop the supervisor.
    pub(super) sender: Sender<LinkEvent>,
}

/// Attach to the disk.
pub(super) fn attach(target: Target) -> Result<MountAttachment, client::Error> {
    let (disk, channels) = target.attach()?;
    let info = disk.info();
    let mounted = Arc::new(MountedDisk { info, size_bytes: AtomicU64::new(info.size_bytes()) });
    let (sender, news) = mpsc::channel();
    let worker_cpus = channels.iter().map(|channel| channel.queue.worker_cpu()).collect();
    let lanes: Vec<_> = channels.into_iter().map(|channel| Arc::new(Lane::new(channel, sender.clone()))).collect();
    let supervisor =
        Supervisor { target, disk: Some(disk), is_hopeless: false, lanes: lanes.clone(), mounted: Arc::clone(&mounted), news };
    Ok(MountAttachment { supervisor, lanes, mounted, worker_cpus, sender })
}

impl Supervisor {
    /// Work until [`LinkEvent::Stop`], then detach. `resized` gets each new size.
    pub(super) fn run(mut self, resized: &dyn Fn()) {
        loop {
            let news = if self.disk.is_some() || self.is_hopeless {
                self.news.recv().unwrap_or(LinkEvent::Stop)
            } else {
                match self.news.recv_timeout(RETRY) {
                    Ok(news) => news,
                    Err(mpsc::RecvTimeoutError::Disconnected) => LinkEvent::Stop,
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        self.attach_again();
                        self.take_size(resized);
                        continue;
                    }
                }
            };
            match news {
                LinkEvent::Stop => return self.detach(),
                LinkEvent::Lost { connection } => self.recover(connection),
                LinkEvent::Event(Event::Resized { .. }) => {}
                LinkEvent::Event(Event::Detached) => {
                    log(&format!("disk '{}' was taken away by the daemon; its requests fail with ENODEV", self.target.disk));
                }
            }
            self.take_size(resized);
        }
    }

    fn take_size(&self, resized: &dyn Fn()) {
        let Some(disk) = &self.disk else { return };
        let size_bytes = disk.info().size_bytes();
        if self.mounted.size_bytes.swap(size_bytes, Ordering::Relaxed) != size_bytes {
            resized();
        }
    }

    fn lock_lanes(lanes: &[Arc<Lane>]) -> Vec<MutexGuard<'_, State>> {
        lanes.iter().map(|lane| lane.lock()).collect()
    }

    /// Put every lane on a new connection, with its requests in flight; or fail them, and be lost.
    fn recover(&mut self, connection: u64) {
        let mut states = Self::lock_lanes(&self.lanes);
        let is_news = states.first().is_some_and(|state| state.connection == connection);
        let Some(disk) = self.disk.as_ref().filter(|_| is_news) else { return };
        let channels = states.iter_mut().filter_map(|state| state.channel.take());
        let (mut queues, slots): (Vec<_>, Vec<_>) = channels.map(|channel| (channel.queue, channel.slots)).unzip();
        let (name, timeout) = (&self.target.disk, self.target.reconnect);
        let policy = ReconnectPolicy { give_up_after: timeout, ..ReconnectPolicy::default() };
        let mut hook = |event: ReconnectEvent<'_>| match event {
            ReconnectEvent::Lost => {
                log(&format!("disk '{name}': connection to the daemon lost; trying again for {} s", timeout.as_secs()));
            }
            ReconnectEvent::AttemptFailed { .. } => {}
            ReconnectEvent::Resumed { attempts } => {
                log(&format!("disk '{name}': connected again after {attempts} attempts; nothing was lost"));
            }
        };
        let outcome = disk.reconnect(&mut queues, &policy, &mut hook);
        for state in &mut states {
            state.connection += 1;
            state.is_broken = false;
        }
        match outcome {
            Ok(()) => {
                for ((state, queue), slots) in states.iter_mut().zip(queues).zip(slots) {
                    state.channel = Some(LaneQueue { queue, slots });
                }
            }
            Err(error) => {
                log(&format!("disk '{name}' did not come back ({error}); its requests fail with EIO until it does"));
                // Unanswered requests must not be done after their programs got an error: their
                // queues are closed.
                drop(queues);
                self.disk = None;
                slots.into_iter().for_each(Slots::fail);
            }
        }
        drop(states);
        self.lanes.iter().for_each(|lane| lane.announce());
    }

    /// One attempt to get a lost disk back.
    fn attach_again(&mut self) {
        let Ok((disk, channels)) = self.target.attach() else { return };
        let (info, known) = (disk.info(), self.mounted.info);
        let name = &self.target.disk;
        let is_same = BlockInfo { sector_count: known.sector_count, optimal_bytes: known.optimal_bytes, ..info } == known;
        if !is_same || channels.len() < self.lanes.len() {
            self.is_hopeless = true;
            log(&format!("the daemon has another disk '{name}' now; its requests fail with EIO; unmount and mount again"));
            return;
        }
        let mut states = Self::lock_lanes(&self.lanes);
        for (state, channel) in states.iter_mut().zip(channels) {
            state.channel = Some(channel);
            state.attachment += 1;
            state.connection += 1;
            state.is_broken = false;
        }
        drop(states);
        self.disk = Some(disk);
        self.lanes.iter().for_each(|lane| lane.announce());
        log(&format!("disk '{name}' is back; what failed meanwhile was not written"));
    }

    fn detach(self) {
        let mut states = Self::lock_lanes(&self.lanes);
        let channels = states.iter_mut().filter_map(|state| state.channel.take());
        let (queues, slots): (Vec<_>, Vec<_>) = channels.map(|channel| (channel.queue, channel.slots)).unzip();
        // Nothing is in flight any more: every request has been answered.
        drop(slots);
        if let Some(Err(error)) = self.disk.map(|disk| disk.detach(queues)) {
            log(&format!("disk '{}': {error}", self.target.disk));
        }
    }
}
