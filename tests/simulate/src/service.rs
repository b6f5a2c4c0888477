//! Disks as a service of the simulated daemon: what ATTACH grants, and which clients exclude others, by the daemon's own rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fipsee_block::disk::AnyDisk;
use fipsee_block::server::{QueueServer, QueueSetup, QueueState};
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{ATTACH_READ_ONLY, BlockInfo, FEATURES, PROFILE, SERVICE_BLOCK};
use fipsee_daemon::export::{AttachRequest, Denied, Export, Kind, Role};
use fipsee_net::server::Networks;
use fipsee_net::wire::SERVICE_NET;
use fipsee_ring::channel::{RegionLayout, ServerQueue};
use fipsee_ring::control::{Refusal, RefusalCode, Wanted};
use fipsee_ring::handshake::{Grant, refuse};
use fipsee_ring::memory::RegionTable;
use fipsee_ring::region::Region;
use fipsee_serve::session::{Ack, Attachment, Channel, Client, ClientLimits, Denial, Event, Granted, Host, Service, TakesMemory};
use fipsee_serve::{Added, Assignment, Command, Make, Queue, QueueName, Removed, Share, When, Which, WorkerHandle};
use fipsee_service::{SERVICE_SUMS, Sums};

use crate::context::Context;
use crate::disk::QueueDisk;
use crate::disks::claims::{Holder, Terms};
use crate::governed::Scaling;
use crate::lan::broken;
use crate::moves::Step;
use crate::queue::{Lane, SimEngine, SimQueue};
use crate::variant::Variant;

/// Bytes of the pool that a client gets.
pub(crate) const POOL_BYTES: u64 = 32 << 10;

/// As [`SimHost::max_clients`], unless there are to be more.
pub(crate) const MAX_CLIENTS: (usize, Option<usize>) = (16, Some(3));

/// The daemon around the sessions.
pub(crate) struct SimHost {
    pub(crate) context: Arc<Context>,
    pub(crate) export: Arc<Export>,
    /// May several write at a time, whatever they claim?
    pub(crate) shared: bool,
    /// Another service.
    pub(crate) sums: Sums<SimEngine>,
    pub(crate) networks: Networks<SimEngine>,
    pub(crate) workers: Vec<WorkerHandle<SimEngine>>,
    pub(crate) lanes: Vec<Arc<Lane>>,
    pub(crate) next_client: u64,
    pub(crate) departures: Arc<AtomicU64>,
    /// Clients at a time: in all, and of one user.
    pub(crate) max_clients: (usize, Option<usize>),
    /// What decides how many workers serve; without it all do.
    pub(crate) scaling: Option<Scaling>,
}

/// What is held for an attached client.
pub(crate) struct SimAttachment {
    pub(crate) context: Arc<Context>,
    pub(crate) export: Arc<Export>,
    pub(crate) channel: Channel,
    pub(crate) reads_only: bool,
    departures: Arc<AtomicU64>,
}

/// The daemon's end of a queue, and where it goes on.
pub(crate) type End = (ServerQueue, Option<QueueState>);

impl Host<SimEngine> for SimHost {
    fn next_client(&mut self) -> u64 {
        self.next_client += 1;
        self.next_client
    }

    fn limits(&self) -> ClientLimits {
        ClientLimits { max_queues: 4, max_depth: 8, max_pool_bytes: POOL_BYTES, max_memory_bytes: 1 << 20 }
    }

    fn max_clients(&self) -> (usize, Option<usize>) {
        self.max_clients
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn attach(&mut self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<SimEngine>, Denial> {
        if wanted.service == SERVICE_SUMS {
            return self.sums.attach(client, wanted);
        }
        if wanted.service == SERVICE_NET {
            let granted = self.networks.attach(client, wanted)?;
            self.context.mapped(&granted.grant.region);
            return Ok(broken::granted(&self.context, granted));
        }
        let terms = Terms::of(wanted.flags);
        let role = match terms {
            Terms { reads_only: true, .. } => Role::Reader,
            Terms { claims: true, .. } => Role::SoleWriter,
            _ => Role::Writer,
        };
        let ignores_claims = terms.forces || self.context.is_broken(Variant::ClaimsIgnored);
        let request = AttachRequest { kind: Kind::Ring, exclusive: terms.exclusive, role, ignores_claims };
        let admitted = self.export.admit(client.id, client.credentials, request);
        self.check_admission(client.id, terms, admitted.as_ref().err());
        admitted.map_err(|denied| match denied {
            Denied::BusyForNow(text) => Denial::Later(refuse(RefusalCode::Busy, text)),
            other => refuse(RefusalCode::Busy, other.into_text()).into(),
        })?;
        let granted = self.lay_out(client, wanted).inspect_err(|_| self.export.leave(client.id))?;
        let uid = client.credentials.uid;
        self.context.holders().push(Holder { client: client.id, uid, terms, is_leaving: false });
        Ok(granted)
    }

    fn command(&mut self, worker: usize, command: Command<SimEngine>) {
        let command = match command {
            Command::Remove { which: Which::Queue(name), finish, .. } if self.context.is_broken(Variant::MoveLosesQueue) => {
                Command::Remove { which: Which::Queue(name), finish, removed: Box::new(|_, _| {}) }
            }
            Command::Remove { which: Which::Queue(name), finish, removed } => self.watch_lift(worker, name, finish, removed),
            Command::Add { name, share, make, added } => self.watch_addition(name, share, make, added),
            command => command,
        };
        self.workers[worker].mailbox.send(command);
    }

    fn wanted_move(&mut self) -> Option<(QueueName, Assignment)> {
        self.scaling.as_mut().and_then(Scaling::wanted_move)
    }

    fn uneven(&self, nth: usize) -> Option<(usize, Assignment)> {
        match &self.scaling {
            Some(scaling) => scaling.uneven(nth),
            None => Assignment::uneven(&self.workers).filter(|_| nth == 0),
        }
    }

    fn stays_uneven(&mut self) {
        self.scaling.iter_mut().for_each(Scaling::stays_uneven);
    }

    fn may_balance(&self, queue: QueueName, from: usize, to: usize) -> bool {
        self.scaling.as_ref().is_none_or(|scaling| scaling.may_balance(queue, from, to))
    }

    fn departures(&self) -> u64 {
        if self.context.is_broken(Variant::PendingAttachForgotten) { 0 } else { self.departures.load(Ordering::Relaxed) }
    }

    fn event(&mut self, event: Event<'_>) {
        self.context.say(|| match event {
            Event::Attached { client, queues, .. } => format!("daemon: client {} is attached, {queues} queues", client.id),
            Event::Gone { client, .. } => format!("daemon: client {client} is gone"),
            Event::Refused { client, reason, .. } => format!("daemon: client {client} is refused: {reason}"),
        });
    }
}

impl SimHost {
    /// A worker is asked for a queue that moves: when does it let go of it?
    fn watch_lift(&self, from: usize, name: QueueName, finish: bool, mut removed: Removed<SimEngine>) -> Command<SimEngine> {
        self.context.moves().ordered(name, from);
        let context = Arc::clone(&self.context);
        let removed = move |queue, share| {
            context.moves().reached(name, Step::Lifted);
            removed(queue, share);
        };
        Command::Remove { which: Which::Queue(name), finish, removed: Box::new(removed) }
    }

    /// A worker is asked to serve a queue. Of one that moves: does it?
    fn watch_addition(
        &self,
        name: QueueName,
        share: Share,
        make: Make<SimEngine>,
        added: Added<SimEngine>,
    ) -> Command<SimEngine> {
        let Some(is_refused) = self.context.moves().handed(name) else { return Command::Add { name, share, make, added } };
        let refuse = |make: Make<SimEngine>| -> Make<SimEngine> {
            Box::new(move |_| {
                // The queue is there until its worker is to serve it.
                drop(make);
                Err("its doorbell cannot be watched".to_owned())
            })
        };
        let make = if is_refused { refuse(make) } else { make };
        let context = Arc::clone(&self.context);
        let added = move |outcome: Result<(), _>| {
            context.moves().reached(name, if outcome.is_ok() { Step::Added } else { Step::Refused });
            added(outcome);
        };
        Command::Add { name, share, make, added: Box::new(added) }
    }

    /// Is a client admitted when no other excludes it, refused when one does, and made to wait when all of these are leaving?
    fn check_admission(&self, client: u64, terms: Terms, denied: Option<&Denied>) {
        let (holders, shared) = (self.context.holders(), self.shared);
        let mut in_the_way = holders.iter().filter(|holder| terms.is_kept_out_by(holder.terms, shared));
        match (in_the_way.clone().next(), denied) {
            (None, None) => {}
            (Some(_), Some(Denied::BusyForNow(_))) if in_the_way.all(|holder| holder.is_leaving) => {}
            (Some(_), Some(Denied::Busy(_))) if in_the_way.any(|holder| !holder.is_leaving) => {}
            (other, _) => {
                let what = denied.map_or("is admitted".to_owned(), |denied| format!("is refused ({denied:?})"));
                self.context.violated(|| format!("client {client}, {terms:?}, {what}; in its way: {other:?}"));
            }
        }
    }

    fn lay_out(&self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<SimEngine>, Refusal> {
        let limits = &client.limits;
        let (queues, depth) = (wanted.queue_count.min(limits.max_queues), wanted.depth.min(limits.max_depth));
        let seed = u32::try_from(client.id & 0xffff).unwrap_or(0);
        let mut layout = RegionLayout::plan(&PROFILE, queues, depth, wanted.pool_bytes.min(limits.max_pool_bytes), seed);
        layout.features = client.features;
        let assignments: Vec<Assignment> = layout.queues.iter().map(|_| Assignment::choose(&self.workers)).collect();
        let mut grant = Grant::new(layout, |region| self.context.mapped(region))?;
        let attachment = self.attachment(Channel::of(&grant), wanted.flags & ATTACH_READ_ONLY != 0);
        let ends: Vec<End> = std::mem::take(&mut grant.queues).into_iter().map(|queue| (queue, None)).collect();
        let info = self.info(attachment.reads_only);
        let commands = self.commands((client.id, client.share), &attachment, &assignments, ends);
        let reply = grant.attached(info.to_bytes());
        Ok(Granted { attachment: Box::new(attachment), assignments, reply, grant, commands })
    }

    pub(crate) fn attachment(&self, channel: Channel, reads_only: bool) -> SimAttachment {
        let (context, export, departures) = (Arc::clone(&self.context), Arc::clone(&self.export), Arc::clone(&self.departures));
        SimAttachment { context, export, channel, reads_only, departures }
    }

    fn info(&self, reads_only: bool) -> BlockInfo {
        BlockInfo { sector_count: self.context.disk().size() as u64, ..self.export.info(reads_only) }
    }

    /// The disk has a new size: every queue is to know.
    pub(crate) fn announce_resize(&self) {
        let info = self.info(false);
        let reached = if self.context.is_broken(Variant::ResizeNotAnnounced) { 1 } else { self.workers.len() };
        for worker in &self.workers[..reached] {
            let announce = move |queue: &mut SimQueue| queue.server.announce_resize(&info);
            worker.mailbox.send(Command::change(Which::All, When::Now, announce));
        }
    }

    /// What the workers are to do so that they serve the queues.
    pub(crate) fn commands(
        &self,
        (client, share): (u64, &Share),
        attachment: &SimAttachment,
        assignments: &[Assignment],
        ends: Vec<End>,
    ) -> Vec<(usize, Command<SimEngine>)> {
        let Channel { region, layout, .. } = &attachment.channel;
        let of_queue = ends.into_iter().zip(&layout.queues).zip(assignments).zip(0_u16..);
        let command = of_queue.map(|((((queue, state), geometry), assignment), index)| {
            let memory = RegionTable::of_pool(region, layout.pool_offset_bytes, layout.pool_bytes);
            let counters = Arc::<QueueCounters>::default();
            let (depth, place) = (geometry.depth, (Arc::clone(region), *geometry));
            let read_only = attachment.reads_only && !self.context.is_broken(Variant::ReadOnlyWrites);
            let info = self.info(read_only);
            let lane = Arc::clone(&self.lanes[assignment.worker]);
            let disk = QueueDisk { context: Arc::clone(&self.context), client, lane, info };
            let make = move |id| -> Result<Box<dyn Queue<SimEngine>>, String> {
                let memory = memory.map_err(|fault| format!("{fault:?}"))?;
                let mut server = QueueServer::new(queue, id, QueueSetup { depth, info, read_only, memory, counters });
                state.iter().for_each(|state| server.restore(state));
                let name = QueueName { client, index };
                Ok(Box::new(SimQueue { name, place, server, disk, before_last: None }))
            };
            let context = Arc::clone(&self.context);
            let added = move |added: Result<(), _>| {
                if added.is_err() {
                    context.violated(|| format!("a queue of client {client} is not served"));
                }
            };
            let name = QueueName { client, index };
            (assignment.worker, Command::Add { name, share: share.clone(), make: Box::new(make), added: Box::new(added) })
        });
        command.collect()
    }
}

impl Attachment<SimEngine> for SimAttachment {
    fn name(&self) -> &str {
        self.export.name()
    }

    fn service(&self) -> u16 {
        SERVICE_BLOCK
    }

    fn memory(&self) -> Option<&dyn TakesMemory<SimEngine>> {
        Some(self)
    }

    fn leave(&self, client: u64) {
        let mut holders = self.context.holders();
        holders.iter_mut().filter(|holder| holder.client == client).for_each(|holder| holder.is_leaving = true);
        drop(holders);
        if self.context.is_broken(Variant::ClaimEndsAtHangUp) {
            self.export.leave(client);
        }
        self.export.is_leaving(client);
    }

    fn release(&self, client: u64) {
        if self.context.disk().works_for(client) {
            self.context.violated(|| format!("client {client} is released while its requests are in flight"));
        }
        self.context.holders().retain(|holder| holder.client != client);
        self.context.oracle().released(Some(client));
        if !self.context.is_broken(Variant::ClaimKept) {
            self.export.leave(client);
        }
        self.departures.fetch_add(1, Ordering::Relaxed);
    }
}

impl TakesMemory<SimEngine> for SimAttachment {
    fn add_region(&self, client: u64, id: u16, region: &Arc<Region>, access: u16, ack: Ack) -> Command<SimEngine> {
        self.context.mapped(region);
        let region = Arc::clone(region);
        change(client, When::Now, ack, move |server| {
            let _ = server.memory.insert(id, &region, 0, region.length_bytes(), access);
        })
    }

    fn remove_region(&self, client: u64, id: u16, ack: Ack) -> Command<SimEngine> {
        let when = if self.context.is_broken(Variant::MemoryGoesAtOnce) { When::Now } else { When::Idle };
        change(client, when, ack, move |server| {
            let _ = server.memory.remove(id);
        })
    }
}

fn change(client: u64, when: When, ack: Ack, change: impl Fn(&mut QueueServer) + Send + 'static) -> Command<SimEngine> {
    Command::change(Which::Client(client), when, move |queue: &mut SimQueue| {
        let _until_dropped = &ack;
        change(&mut queue.server);
    })
}

/// The export of a new daemon.
pub(crate) fn export(config: &fipsee_daemon::config::DiskConfig, disk: AnyDisk) -> Arc<Export> {
    Arc::new(Export::new(config, disk))
}
