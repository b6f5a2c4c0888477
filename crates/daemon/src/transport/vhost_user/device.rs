//! The state machine of a vhost-user connection, without I/O: messages, acknowledgements, upgrade requests and the hang-up go in,
//! [`Action`]s come out.
//!
//! A message is carried out in steps. A step starts when all actions of the one before it are acknowledged: a queue is stopped
//! before it is changed, and a message is acknowledged when it has taken effect. Nothing here waits or uses sockets or threads.

mod model;
mod requests;
mod setup;

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use fipsee_block::wire::BlockInfo;
use fipsee_net::wire::QUEUES_PER_PAIR;
use fipsee_ring::tuning::Choices;
use fipsee_virtio::blk::server::{VirtqueueServer, VirtqueueSetup};
use fipsee_virtio::blk::upgrade::controller::UpgradeController;
use fipsee_virtio::core::inflight::InflightArea;
use fipsee_virtio::core::memory::{DirtyLog, GuestMemory};
use fipsee_virtio::core::{DeviceQueueSetup, RingAddresses, ServedVirtqueue};
use fipsee_virtio::net::Role;
use virtio_bindings::virtio_blk::{VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_FLUSH};

pub(super) use self::model::Model;
pub use self::model::{DiskDescription, PortDescription};
pub(super) use self::setup::Asked;
use super::message::{self, Header, Message};
use super::vring::{UserRings, Vring};

/// vhost-user's own bit among those of virtio: there are protocol features.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Writes to memory are logged (VHOST_F_LOG_ALL).
pub(super) const LOG_ALL: u64 = 1 << 26;

/// A change of a queue between two of its visits.
pub type Change = Box<dyn FnOnce(&mut dyn ServedVirtqueue) -> Result<(), String> + Send>;

/// An action of the machine. Those that concern a queue are acknowledged, in any order.
pub enum Action {
    Reply(Vec<u8>, Option<OwnedFd>),
    /// Send this over the channel for our requests, without waiting.
    Announce(Vec<u8>),
    /// Become the disk's writer: [`Acknowledgement::Done`].
    Claim,
    /// Others may write.
    EndClaim,
    /// Log for this queue what happened and why.
    Warn(u16, &'static str, String),
    /// Let a worker serve a queue, in the run of this number: [`Acknowledgement::Served`].
    Serve(u16, u64, Box<VirtqueueSetup>),
    /// Likewise a queue of a port, which is for this.
    ServePort(u16, Role, Box<DeviceQueueSetup>),
    /// A queue of a port announces this address, if it is served.
    SendRarp(u16, [u8; 6]),
    /// Release a queue when nothing of it is in flight: [`Acknowledgement::Stopped`].
    Stop(u16),
    /// Change a queue's memory when nothing of it is in flight: [`Acknowledgement::Moved`].
    Move(u16, Arc<GuestMemory>, RingAddresses),
    /// Have the worker of this number serve a queue, once nothing of it is in flight: [`Acknowledgement::Transferred`].
    Transfer(u16, usize),
    /// Change a queue at once: [`Acknowledgement::Done`].
    Change(u16, Change),
    /// A queue does this with its ring: [`Acknowledgement::Done`] when nothing is in flight there.
    Ring(u16, fn(&mut VirtqueueServer, Sender<()>)),
}

/// The outcome of an [`Action`].
#[derive(Debug)]
pub enum Acknowledgement {
    /// The queue is served, by a worker with these choices for rings; or why not.
    Served(u16, Result<Choices, String>),
    /// The queue is no longer served; the next entry of its available ring.
    Stopped(u16, Option<u16>),
    /// The queue is in the new memory; or why not.
    Moved(u16, Result<(), String>),
    /// The queue is served, by a worker with these choices for rings; or by none.
    Transferred(u16, Result<Choices, NotServed>),
    /// Any other action.
    Done(Result<(), String>),
}

/// No worker can have a queue any more.
#[derive(Debug)]
pub struct NotServed {
    pub problem: String,
    /// It was stopped in order: the next entry of its available ring.
    pub next_available: Option<u16>,
}

type Step = Box<dyn FnOnce(&mut Device) -> Result<(), String> + Send>;

/// A device, for as long as one connection lasts.
pub struct Device {
    pub(super) model: Model,
    pub(super) vrings: Vec<Vring>,
    /// Virtio features in force.
    pub(super) features: u64,
    /// Did the hypervisor query the offered features, and what did it set last?
    pub(super) asked_features: bool,
    pub(super) acked_features: u64,
    pub(super) protocol_features: u64,
    pub(super) memory: Arc<GuestMemory>,
    /// Rings that the guest has moved to.
    pub(super) attachment: UpgradeController,
    /// The cache mode that the guest sees and sets.
    pub(super) writeback: Arc<AtomicBool>,
    pub(super) inflight: Option<InflightArea>,
    pub(super) log: Option<Arc<DirtyLog>>,
    pub(super) channel: Option<UnixStream>,
    /// The message under way, unless it is answered already.
    unconfirmed: Option<Header>,
    steps: VecDeque<Step>,
    actions: Vec<Action>,
    /// Actions not yet acknowledged.
    awaited: usize,
    /// Queues that no longer have memory.
    without_memory: Vec<u16>,
}

impl Device {
    /// A device that its hypervisor has not set up yet.
    pub fn new(disk: DiskDescription, queues: u16) -> Self {
        Self::of(Model::Disk(disk), queues)
    }

    /// As [`new`](Self::new), with a queue for commands besides those of the pairs.
    pub fn of_port(port: PortDescription) -> Self {
        let queues = QUEUES_PER_PAIR * port.pairs + 1;
        Self::of(Model::Port(port), queues)
    }

    fn of(model: Model, queues: u16) -> Self {
        Self {
            model,
            vrings: (0..queues).map(|_| Vring::default()).collect(),
            features: 0,
            asked_features: false,
            acked_features: 0,
            protocol_features: 0,
            memory: Arc::default(),
            attachment: UpgradeController::default(),
            writeback: Arc::new(AtomicBool::new(true)),
            inflight: None,
            log: None,
            channel: None,
            unconfirmed: None,
            steps: VecDeque::new(),
            actions: Vec::new(),
            awaited: 0,
            without_memory: Vec::new(),
        }
    }

    pub(super) fn offered(&self) -> u64 {
        self.model.features() | PROTOCOL_FEATURES
    }

    pub(super) fn queue_count(&self) -> u16 {
        u16::try_from(self.vrings.len()).unwrap_or(u16::MAX)
    }

    /// The actions to carry out now, in this order.
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Have all inputs taken effect?
    pub fn is_settled(&self) -> bool {
        self.awaited == 0 && self.steps.is_empty()
    }

    /// A message of the hypervisor; the one before it has taken effect.
    ///
    /// # Errors
    /// The reason for a refusal: the connection must be closed, and [`hung_up`](Self::hung_up) called.
    pub fn message(&mut self, message: Message) -> Result<(), String> {
        let header = message.header;
        let begun = self.begin(message).map_err(|problem| self.refuse(problem));
        begun.and_then(|()| self.advance()).map_err(|problem| format!("{header}: {problem}"))
    }

    pub fn acknowledged(&mut self, acknowledgement: Acknowledgement) -> Result<(), String> {
        self.awaited = self.awaited.saturating_sub(1);
        let mut result = Ok(());
        match acknowledgement {
            Acknowledgement::Served(queue, Ok(choices)) | Acknowledgement::Transferred(queue, Ok(choices)) => {
                self.vring(queue).run.iter_mut().for_each(|run| run.choices = choices);
            }
            Acknowledgement::Served(queue, Err(problem)) => {
                self.vring(queue).run = None;
                self.actions.push(Action::Warn(queue, "a queue cannot be served", problem));
            }
            Acknowledgement::Transferred(queue, Err(NotServed { problem, next_available })) => {
                self.vring(queue).run = None;
                self.stopped(queue, next_available);
                self.actions.push(Action::Warn(queue, "a queue is not served any more", problem));
                // Its ring is released; the guest's others go back to their virtqueues.
                if self.attachment.virtqueues().any(|doorbell| doorbell == u32::from(queue)) {
                    self.end_attachment();
                }
            }
            Acknowledgement::Stopped(queue, next_available) => self.stopped(queue, next_available),
            Acknowledgement::Moved(_, Ok(())) => {}
            Acknowledgement::Moved(queue, Err(problem)) => self.lost_memory(queue, problem),
            Acknowledgement::Done(done) => result = done,
        }
        let header = self.unconfirmed;
        result.map_err(|problem| self.refuse(problem)).and_then(|()| self.advance()).map_err(|problem| match header {
            Some(header) => format!("{header}: {problem}"),
            None => problem,
        })
    }

    fn stopped(&mut self, queue: u16, next_available: Option<u16>) {
        let vring = self.vring(queue);
        vring.next_available = next_available.unwrap_or(vring.next_available);
    }

    /// The disk's size changed: the guest must read the configuration space again.
    pub(super) fn resized(&mut self, info: BlockInfo) {
        self.then(move |device| {
            if let Model::Disk(disk) = &mut device.model {
                disk.info = info;
            }
            // First the workers: the guest may use the new size as soon as it is notified.
            for queue in device.served() {
                device.change_disk(queue, move |server| server.set_info(&info));
            }
        });
        self.then(Self::announce_change);
        let _ = self.advance();
    }

    /// An administrator has taken the port down, or up again.
    pub(super) fn set_link(&mut self, is_up: bool) {
        self.then(move |device| {
            if let Model::Port(port) = &mut device.model
                && std::mem::replace(&mut port.is_up, is_up) != is_up
            {
                device.announce_change();
            }
        });
        let _ = self.advance();
    }

    /// The guest must read the configuration space again, if its hypervisor can have it do so.
    fn announce_change(&mut self) {
        if self.channel.is_some() {
            self.actions.push(Action::Announce(message::config_changed()));
        }
    }

    /// A queue, if it is served, is to be served by another worker. The queue itself goes, with the ring beside it: its run goes on.
    pub fn transfer(&mut self, queue: u16, worker: usize) {
        self.then(move |device| {
            if device.vrings.get(usize::from(queue)).is_some_and(Vring::is_served) {
                device.act(Action::Transfer(queue, worker));
            }
        });
        let _ = self.advance();
    }

    /// The hypervisor is gone, or refused. `calls_back`: a guest on rings is moved back to virtqueues, which wait for the next
    /// back end.
    pub fn hung_up(&mut self, calls_back: bool) {
        self.steps.clear();
        self.unconfirmed = None;
        if calls_back {
            self.on_rings(VirtqueueServer::leave);
        }
        self.stop_all();
        let _ = self.advance();
    }

    fn refuse(&mut self, problem: String) -> String {
        self.steps.clear();
        self.confirm(1);
        problem
    }

    /// Run this step when all before it have taken effect; if called in a step, before the steps after that.
    fn then(&mut self, step: impl FnOnce(&mut Self) + Send + 'static) {
        self.then_try(move |device| {
            step(device);
            Ok(())
        });
    }

    /// As [`then`](Self::then); an error refuses the message.
    fn then_try(&mut self, step: impl FnOnce(&mut Self) -> Result<(), String> + Send + 'static) {
        self.steps.push_back(Box::new(step));
    }

    fn advance(&mut self) -> Result<(), String> {
        while self.awaited == 0
            && let Some(step) = self.steps.pop_front()
        {
            let mut later = std::mem::take(&mut self.steps);
            step(self).map_err(|problem| self.refuse(problem))?;
            self.steps.append(&mut later);
        }
        Ok(())
    }

    /// Emit this action, and continue when it is acknowledged.
    fn act(&mut self, action: Action) {
        self.awaited += 1;
        self.actions.push(action);
    }

    /// Change a queue of a disk.
    fn change_disk(&mut self, queue: u16, change: impl FnOnce(&mut VirtqueueServer) + Send + 'static) {
        let change = move |server: &mut dyn ServedVirtqueue| {
            let server: &mut dyn Any = server;
            let _ = server.downcast_mut().map(change);
            Ok(())
        };
        self.act(Action::Change(queue, Box::new(change)));
    }

    fn confirm(&mut self, status: u64) {
        if let Some(header) = self.unconfirmed.take()
            && header.needs_reply()
            && self.replies_are_wanted()
        {
            self.actions.push(Action::Reply(header.reply(&status.to_le_bytes()), None));
        }
    }

    fn served(&self) -> Vec<u16> {
        (0..).zip(&self.vrings).filter(|(_, vring)| vring.is_served()).map(|(queue, _)| queue).collect()
    }

    fn find(&self, index: u32) -> Result<u16, String> {
        let count = self.queue_count();
        let queue = u16::try_from(index).ok().filter(|queue| *queue < count);
        queue.ok_or_else(|| format!("there is no queue {index}: the device has {count} (max_queues)"))
    }

    fn vring(&mut self, queue: u16) -> &mut Vring {
        &mut self.vrings[usize::from(queue)]
    }

    /// Change a parameter with which a queue is started.
    fn change_vring(
        &mut self,
        index: u32,
        change: impl FnOnce(&mut Vring) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let queue = self.find(index)?;
        self.stop(queue);
        self.then_try(move |device| change(device.vring(queue)));
        self.start(queue);
        Ok(())
    }

    fn stop(&mut self, queue: u16) {
        self.then(move |device| {
            if device.attachment.virtqueues().any(|doorbell| doorbell == u32::from(queue)) {
                device.end_attachment();
            }
        });
        self.then(move |device| {
            if device.vring(queue).run.take().is_some() {
                device.act(Action::Stop(queue));
            }
        });
    }

    fn stop_all(&mut self) {
        self.end_attachment();
        self.then(|device| {
            for queue in device.served() {
                device.vring(queue).run = None;
                device.act(Action::Stop(queue));
            }
        });
    }

    /// The device is reset: settings of queues and features are dropped; memory is kept.
    fn reset(&mut self) {
        self.stop_all();
        self.then(|device| {
            device.features = 0;
            device.attachment.migrating = false;
            device.vrings.iter_mut().for_each(Vring::forget);
            device.actions.push(Action::EndClaim);
        });
    }

    /// SET_FEATURES. While queues run, only logging can start and end without stopping them for a moment.
    fn set_features(&mut self, features: u64) -> Result<(), String> {
        let unknown = features & !self.offered();
        if unknown != 0 {
            return Err(format!("virtio features {unknown:#x} are not offered"));
        }
        let (changed, logs) = (self.features ^ features, features & LOG_ALL != 0);
        if changed & LOG_ALL != 0 {
            // While writes are logged no guest attaches, and an attached one is called back before the first write.
            if logs {
                self.on_rings(VirtqueueServer::leave);
            }
            self.then(move |device| {
                device.attachment.migrating = logs;
            });
        }
        self.then(move |device| {
            device.features = features;
            if changed & !LOG_ALL != 0 {
                // A disk: for a guest that cannot flush, every write must be durable.
                let can_flush = features & (1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_CONFIG_WCE) != 0;
                device.writeback.store(can_flush, Ordering::Relaxed);
                device.stop_all();
            } else if changed != 0 {
                device.set_logs();
            }
        });
        self.start_all();
        Ok(())
    }

    fn log_in_force(&self) -> Option<Arc<DirtyLog>> {
        self.log.clone().filter(|_| self.features & LOG_ALL != 0)
    }

    fn set_logs(&mut self) {
        self.served().into_iter().for_each(|queue| self.set_log(queue));
    }

    fn set_log(&mut self, queue: u16) {
        let log = self.log_in_force();
        let address = self.vring(queue).log_address(log.as_ref());
        let change = move |server: &mut dyn ServedVirtqueue| {
            server.set_log(log, address);
            Ok(())
        };
        self.act(Action::Change(queue, Box::new(change)));
    }

    /// SET_VRING_ADDR. When migration begins it comes again for running queues, with the address of their log.
    fn set_rings(&mut self, queue: u16, rings: UserRings) {
        let vring = self.vring(queue);
        let (old, is_served) = (vring.rings.replace(rings), vring.is_served());
        if old.is_none_or(|old| UserRings { log: None, ..old } != UserRings { log: None, ..rings }) {
            self.stop(queue);
        } else if is_served {
            self.set_log(queue);
        }
        self.start(queue);
    }

    /// Serve in other memory. When this has taken effect, nothing is in flight in the old memory, and none of it is mapped.
    fn change_memory(&mut self, memory: GuestMemory) {
        let memory = Arc::new(memory);
        // An attachment continues if its rings are in it, too.
        if !self.attachment.fits(&memory) {
            self.end_attachment();
        }
        let new = Arc::clone(&memory);
        self.then(move |device| {
            for queue in device.served() {
                let rings = device.vring(queue).rings;
                match rings.and_then(|rings| rings.translate(&new)) {
                    Some(rings) => device.act(Action::Move(queue, Arc::clone(&new), rings)),
                    None => device.lost_memory(queue, "its rings are not in the guest's new memory".to_owned()),
                }
            }
        });
        self.then(|device| std::mem::take(&mut device.without_memory).into_iter().for_each(|queue| device.stop(queue)));
        self.then(move |device| device.memory = memory);
        self.start_all();
    }

    fn lost_memory(&mut self, queue: u16, problem: String) {
        self.actions.push(Action::Warn(queue, "a queue stops with its memory", problem));
        self.without_memory.push(queue);
    }
}
