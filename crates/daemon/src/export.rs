//! Exports: named disks, the users that may use them, and the clients attached to them.

mod client;
mod notify;

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fipsee_block::disk::{AnyDisk, Disk, DiskSpec, FileDisk};
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{BlockInfo, CAPABILITY_WRITE};
use fipsee_serve::limit::Limiter;
use fipsee_serve::session::Credentials;
use fipsee_serve::{Share, probe};
use serde::{Deserialize, Serialize};

pub use self::client::AttachedClient;
use crate::config::DiskConfig;
use crate::disk_limits::DiskLimits;
use crate::notification::Notify;
use crate::rates::RateLimits;
use crate::totals::Totals;

/// The users that may attach, besides root and the daemon's own user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowList {
    /// Every user that can open the socket.
    pub everyone: bool,
    pub uids: Vec<u32>,
    /// Groups, primary or not.
    pub gids: Vec<u32>,
}

impl AllowList {
    pub(crate) fn allows(&self, uid: u32, gid: u32, more_gids: &[u32]) -> bool {
        let own = rustix::process::geteuid().as_raw();
        let is_of_a_group = || self.gids.contains(&gid) || self.gids.iter().any(|gid| more_gids.contains(gid));
        self.everyone || uid == 0 || uid == own || self.uids.contains(&uid) || is_of_a_group()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A program, over rings.
    Ring,
    /// A hypervisor, for the virtqueues of its guest.
    VhostUser,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::VhostUser => "vhost-user",
        }
    }
}

/// What an attachment may do to the contents of a disk, and what that means for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Reader,
    /// It may write, beside others that may.
    Writer,
    /// It may write, and no other attachment may.
    SoleWriter,
}

impl Role {
    /// Do two attachments of these roles exclude each other?
    const fn excludes(self, other: Self) -> bool {
        matches!((self, other), (Self::SoleWriter, Self::SoleWriter | Self::Writer) | (Self::Writer, Self::SoleWriter))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct AttachRequest {
    pub kind: Kind,
    pub exclusive: bool,
    pub role: Role,
    /// May it write beside a sole writer?
    pub ignores_claims: bool,
}

pub struct Export {
    /// Its configuration; the size may have changed, and [`shared`](Self::shared).
    pub(crate) spec: DiskSpec,
    shared: AtomicBool,
    pub(crate) disk: Arc<AnyDisk>,
    /// Of all its clients together.
    pub(crate) limiter: Arc<Limiter>,
    users: Mutex<Users>,
    /// A client has left.
    left: Condvar,
}

struct Users {
    allow: AllowList,
    limits: DiskLimits,
    /// Of queues without a policy of their client's own.
    notify: Notify,
    rates: RateLimits,
    attached: Vec<AttachedClient>,
    /// It is being removed: no client can attach.
    retired: bool,
    /// Of clients that are gone.
    totals: Totals,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Denied {
    NotAllowed(String),
    /// Its request conflicts with attached clients.
    Busy(String),
    /// Likewise, but those clients have hung up, and only their last requests are not finished.
    BusyForNow(String),
    /// The disk has as many clients as it may.
    Full(String),
    /// Likewise, counting clients that have hung up.
    FullForNow(String),
    Gone,
}

/// Disks that are open and not served yet. When dropped, the files that were made for them are removed: a refused change leaves
/// nothing behind.
#[derive(Default)]
pub(crate) struct Opened(pub(crate) Vec<Arc<Export>>);

impl Opened {
    /// They are served from now on.
    pub(crate) fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        for export in &self.0 {
            if let Some(Err(problem)) = export.disk.file_disk().map(FileDisk::remove_if_new) {
                tracing::warn!(disk = export.name(), problem, "a new file is left behind");
            }
        }
    }
}

impl Denied {
    const fn busy(holder: &AttachedClient, text: String) -> Self {
        if holder.leaving { Self::BusyForNow(text) } else { Self::Busy(text) }
    }

    #[must_use]
    pub fn into_text(self) -> String {
        match self {
            Self::NotAllowed(text) | Self::Busy(text) | Self::BusyForNow(text) | Self::Full(text) | Self::FullForNow(text) => {
                text
            }
            Self::Gone => "the disk has just been removed".to_owned(),
        }
    }
}

impl Users {
    fn of(&mut self, client: u64) -> Option<&mut AttachedClient> {
        self.attached.iter_mut().find(|attached| attached.client == client)
    }

    fn add(&mut self, client: AttachedClient) {
        client.notify.set(self.notify.0);
        self.attached.push(client);
    }

    /// An attached client of these; one that is leaving only if there is no other.
    fn in_the_way(&self, is_in_the_way: impl Fn(&AttachedClient) -> bool) -> Option<&AttachedClient> {
        self.attached.iter().filter(|attached| is_in_the_way(attached)).min_by_key(|attached| attached.leaving)
    }
}

impl Export {
    /// Serve `disk` as `config` says.
    pub fn new(config: &DiskConfig, disk: AnyDisk) -> Self {
        let DiskConfig { allow, limits, rates, notify, .. } = config.clone();
        let limiter = Arc::<Limiter>::default();
        limiter.set(rates.in_force());
        let totals = Totals::default();
        let users = Mutex::new(Users { allow, limits, rates, notify, attached: Vec::new(), retired: false, totals });
        let (spec, shared) = (config.spec.clone(), AtomicBool::new(config.spec.shared));
        Self { spec, shared, disk: Arc::new(disk), limiter, users, left: Condvar::new() }
    }

    pub(crate) fn open(disk: &DiskConfig) -> Result<Arc<Self>, String> {
        Self::open_with(disk, None)
    }

    /// Open it, or continue with the file that another process has opened for it.
    pub(crate) fn open_with(disk: &DiskConfig, passed: Option<OwnedFd>) -> Result<Arc<Self>, String> {
        let spec = &disk.spec;
        let opened = passed.map_or_else(|| spec.open(), |file| spec.open_passed(file));
        let export = Self::new(disk, opened?);
        let size_bytes = export.info(false).size_bytes();
        let (io, unit_bytes) = export.io().unzip();
        let (kind, unit_bytes) = (export.disk.kinds().join(":"), unit_bytes.flatten());
        let path = spec.kind.file().map(|path| path.display().to_string());
        let AllowList { everyone, uids, gids } = &disk.allow;
        let DiskLimits { max_clients, max_queues, max_depth } = disk.limits;
        let (max_clients, max_queues, max_depth) =
            (max_clients.map(u32::from), max_queues.map(u16::from), max_depth.map(u32::from));
        tracing::info!(
            disk = spec.name,
            kind,
            path,
            size_bytes,
            read_only = spec.ro,
            io,
            unit_bytes,
            allow_everyone = everyone,
            allow_uids = ?uids,
            allow_gids = ?gids,
            max_clients,
            max_queues,
            max_depth,
            "opened"
        );
        Ok(Arc::new(export))
    }

    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// How a file disk's requests reach the file: `direct`, with the unit in bytes, or `cached`.
    pub(crate) fn io(&self) -> Option<(&'static str, Option<u64>)> {
        let unit_bytes = self.disk.file_disk()?.direct_unit_bytes();
        Some((if unit_bytes.is_some() { "direct" } else { "cached" }, unit_bytes))
    }

    pub fn info(&self, read_only: bool) -> BlockInfo {
        let mut info = self.disk.info();
        if self.spec.ro || read_only {
            info.capabilities &= !CAPABILITY_WRITE;
        }
        info
    }

    /// May a client of this user attach at all?
    pub(crate) fn is_open_to(&self, &Credentials { uid, gid, ref more_gids, .. }: &Credentials) -> bool {
        let users = self.lock();
        !users.retired && users.allow.allows(uid, gid, more_gids)
    }

    pub fn admit(&self, client: u64, credentials: &Credentials, request: AttachRequest) -> Result<(), Denied> {
        let Credentials { uid, gid, ref more_gids, .. } = *credentials;
        let name = &self.spec.name;
        let mut users = self.lock();
        if users.retired {
            return Err(Denied::Gone);
        }
        if !users.allow.allows(uid, gid, more_gids) {
            let text =
                format!("disk '{name}' is not for user {uid} (group {gid}); add them to allow_uids or allow_gids of the disk");
            return Err(Denied::NotAllowed(text));
        }
        self.check_room(&users)?;
        let exclusive = request.exclusive || self.spec.exclusive;
        if let Some(holder) = users.in_the_way(|other| exclusive || other.exclusive) {
            let how = if holder.exclusive { "exclusively" } else { "and exclusive use was asked for" };
            let text = format!("disk '{name}' is in use {how} by {}; end that first", holder.shown());
            return Err(Denied::busy(holder, text));
        }
        let role = self.role_in_force(request.role);
        if !request.ignores_claims {
            self.check_claims(&users, client, role)?;
        }
        probe!(attach, client, credentials.pid, uid, name.as_ptr(), name.len());
        users.add(AttachedClient::new(request.kind, client, credentials, exclusive, role));
        Ok(())
    }

    /// Is there a place for one more client?
    fn check_room(&self, users: &Users) -> Result<(), Denied> {
        let Some(limit) = users.limits.max_clients.map(NonZeroU32::get) else { return Ok(()) };
        let limit_clients = usize::try_from(limit).unwrap_or(usize::MAX);
        if users.attached.len() < limit_clients {
            return Ok(());
        }
        let name = &self.spec.name;
        let text = format!(
            "disk '{name}' has its limit of {limit} clients (max_clients of the disk); end one, or raise the limit: fipsee disk set \
             {name} --max-clients N"
        );
        let staying = users.attached.iter().filter(|client| !client.leaving).count();
        Err(if staying < limit_clients { Denied::FullForNow(text) } else { Denied::Full(text) })
    }

    /// May several clients write at a time, whatever they claim?
    pub(crate) fn shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// For clients that attach from now on. Returns whether that is a change.
    pub(crate) fn set_shared(&self, shared: bool) -> bool {
        self.shared.swap(shared, Ordering::Relaxed) != shared
    }

    fn role_in_force(&self, wanted: Role) -> Role {
        match wanted {
            _ if self.spec.ro => Role::Reader,
            Role::SoleWriter if self.shared() => Role::Writer,
            wanted => wanted,
        }
    }

    fn check_claims(&self, users: &Users, client: u64, role: Role) -> Result<(), Denied> {
        let excluded = |other: &AttachedClient| other.client != client && role.excludes(other.role);
        let Some(holder) = users.in_the_way(excluded) else { return Ok(()) };
        let (name, process) = (&self.spec.name, holder.shown());
        let how = if holder.role == Role::SoleWriter { "is its sole writer" } else { "may write it, too" };
        let advice = if holder.leaving { "try again in a moment" } else { "end that first" };
        let text = format!(
            "disk '{name}' cannot be written safely: {process} {how}; {advice}, attach read-only, write beside it at your own \
             risk (--force), or serve the disk with shared = true"
        );
        Err(Denied::busy(holder, text))
    }

    /// The first queue of an attached client's device is about to be served, which writes and expects to be the only writer.
    /// Waits so long for clients that have hung up to be gone.
    pub(crate) fn claim(&self, client: u64, timeout: Duration) -> Result<(), String> {
        let deadline = Instant::now() + timeout;
        let role = self.role_in_force(Role::SoleWriter);
        let mut users = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.check_claims(&users, client, role) {
                Ok(()) => {
                    users.of(client).into_iter().for_each(|attached| attached.role = role);
                    return Ok(());
                }
                Err(Denied::BusyForNow(_)) if !left.is_zero() => {
                    users = self.left.wait_timeout(users, left).unwrap_or_else(PoisonError::into_inner).0;
                }
                Err(denied) => return Err(denied.into_text()),
            }
        }
    }

    /// No queue of the device is still served, and nothing of it is in flight.
    pub(crate) fn end_claim(&self, client: u64) {
        self.lock().of(client).into_iter().for_each(|attached| attached.role = Role::Reader);
    }

    /// The client's connection is closed; its requests in flight and its claims continue.
    pub fn is_leaving(&self, client: u64) {
        self.lock().of(client).into_iter().for_each(|attached| attached.leaving = true);
    }

    /// A client that another daemon admitted stays, on the same terms, whatever the list says now.
    pub fn keep(&self, kind: Kind, client: u64, credentials: &Credentials, (exclusive, role): (bool, Role)) {
        self.lock().add(AttachedClient::new(kind, client, credentials, exclusive, role));
    }

    /// Whether an attached client is exclusive, and its role.
    pub fn terms_of(&self, client: u64) -> (bool, Role) {
        self.lock().of(client).map_or((false, Role::Reader), |attached| (attached.exclusive, attached.role))
    }

    /// Publish the numbers of an admitted client's queues, and the CPUs that serve them.
    pub(crate) fn set_queues(&self, client: u64, queues: Vec<Arc<QueueCounters>>, worker_cpus: Vec<Option<usize>>) {
        if let Some(attached) = self.lock().of(client) {
            attached.count(&queues);
            (attached.queues, attached.worker_cpus) = (queues, worker_cpus);
        }
    }

    /// Count these as well, whether or not the client has the queues now.
    pub(crate) fn count(&self, client: u64, queues: &[Arc<QueueCounters>]) {
        self.lock().of(client).into_iter().for_each(|attached| attached.count(queues));
    }

    /// A worker on this CPU serves a queue from now on.
    pub(crate) fn queue_moved(&self, client: u64, index: u16, cpu: Option<usize>) {
        if let Some(shown) = self.lock().of(client).and_then(|attached| attached.worker_cpus.get_mut(usize::from(index))) {
            *shown = cpu;
        }
    }

    pub(crate) fn counters(&self, client: u64, queue: u16) -> Option<Arc<QueueCounters>> {
        self.lock().of(client)?.queues.get(usize::from(queue)).cloned()
    }

    pub fn leave(&self, client: u64) {
        let mut users = self.lock();
        if let Some(index) = users.attached.iter().position(|attached| attached.client == client) {
            let gone = users.attached.remove(index);
            probe!(detach, client, gone.pid, gone.uid, self.spec.name.as_ptr(), self.spec.name.len());
            users.totals.finish(&gone);
        }
        drop(users);
        self.left.notify_all();
    }

    pub fn attached(&self) -> Vec<AttachedClient> {
        self.lock().attached.clone()
    }

    /// As of [`attached`](Self::attached), without a copy.
    pub(crate) fn for_each_attached(&self, visit: impl FnMut(&AttachedClient)) {
        self.lock().attached.iter().for_each(visit);
    }

    /// What the first attached client has that has it.
    pub(crate) fn find_attached<T>(&self, find: impl FnMut(&AttachedClient) -> Option<T>) -> Option<T> {
        self.lock().attached.iter().find_map(find)
    }

    /// What clients have done, those that are attached included.
    pub(crate) fn totals(&self) -> Totals {
        let users = self.lock();
        let mut totals = users.totals.clone();
        users.attached.iter().for_each(|client| totals.add(client));
        totals
    }

    /// For another daemon, which gets the attached clients and their counters beside it.
    pub(crate) fn totals_of_gone(&self) -> Totals {
        self.lock().totals.clone()
    }

    /// Continue with those of another daemon.
    pub(crate) fn set_totals(&self, totals: Totals) {
        self.lock().totals = totals;
    }

    pub(crate) fn allow(&self) -> AllowList {
        self.lock().allow.clone()
    }

    pub(crate) fn limits(&self) -> DiskLimits {
        self.lock().limits
    }

    /// For clients that attach from now on. Returns whether that is a change.
    pub(crate) fn set_limits(&self, limits: DiskLimits) -> bool {
        std::mem::replace(&mut self.lock().limits, limits) != limits
    }

    pub(crate) fn rates(&self) -> RateLimits {
        self.lock().rates
    }

    /// From now on; the workers are to be notified. Returns whether that is a change.
    pub(crate) fn set_rates(&self, rates: RateLimits) -> bool {
        let mut users = self.lock();
        self.limiter.set(rates.in_force());
        std::mem::replace(&mut users.rates, rates) != rates
    }

    /// The share of the workers that an attached client has.
    pub(crate) fn set_share(&self, client: u64, share: &Share) {
        self.lock().of(client).into_iter().for_each(|attached| attached.share = Some(share.clone()));
    }

    /// Change the list of users that may attach. Attached clients stay. Returns whether the list changed.
    pub(crate) fn set_allow(&self, allow: &AllowList) -> bool {
        std::mem::replace(&mut self.lock().allow, allow.clone()) != *allow
    }

    /// Refuse further clients, if none is attached; otherwise returns the process of one.
    pub(crate) fn retire(&self) -> Result<(), i32> {
        let mut users = self.lock();
        users.retired = users.attached.is_empty();
        users.attached.first().map_or(Ok(()), |client| Err(client.pid))
    }

    /// Undo [`retire`](Self::retire).
    pub(crate) fn reinstate(&self) {
        self.lock().retired = false;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
