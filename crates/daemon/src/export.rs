//! Exports: disks under a name, who may use them, and who does.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use fipsee_block::disk::{AnyDisk, Disk};
use fipsee_block::stats::QueueCounters;
use fipsee_block::wire::{BlockInfo, CAPABILITY_WRITE};

use crate::config::DiskConfig;

/// Who may attach, beside root and the daemon's own user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList {
    /// Everyone who can open the socket.
    pub everyone: bool,
    /// Users.
    pub uids: Vec<u32>,
    /// Groups, primary or not.
    pub gids: Vec<u32>,
}

impl AllowList {
    fn allows(&self, uid: u32, gid: u32, more_gids: &[u32]) -> bool {
        let own = rustix::process::geteuid().as_raw();
        let is_of_a_group = || self.gids.contains(&gid) || self.gids.iter().any(|gid| more_gids.contains(gid));
        self.everyone || uid == 0 || uid == own || self.uids.contains(&uid) || is_of_a_group()
    }
}

/// How a client is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program, over rings.
    Ring,
    /// A hypervisor, for the virtqueues of its guest.
    VhostUser,
}

impl Kind {
    /// As the admin socket says it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::VhostUser => "vhost-user",
        }
    }
}

/// An attached client, as `fipsee stat` shows it.
#[derive(Clone, Debug)]
pub struct Attached {
    /// How.
    pub kind: Kind,
    /// The front's number for it.
    pub client: u64,
    /// Its process, as the kernel told when it connected.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The numbers of its queues.
    pub queues: Vec<Arc<QueueCounters>>,
    /// The CPU of each queue's worker, if it is bound to one.
    pub worker_cpus: Vec<Option<usize>>,
    /// Is nobody else to be attached?
    pub exclusive: bool,
}

/// A disk under a name.
pub struct Export {
    name: String,
    disk: AnyDisk,
    read_only: bool,
    exclusive: bool,
    users: Mutex<Users>,
}

/// Who may use a disk, and who does.
struct Users {
    allow: AllowList,
    attached: Vec<Attached>,
    /// It is being removed: nobody attaches any more.
    retired: bool,
}

/// Why a client may not attach.
#[derive(Debug, PartialEq, Eq)]
pub enum Denied {
    /// It is not on the list.
    NotAllowed(String),
    /// Someone has exclusive use, or it asked for exclusive use of a disk others use.
    Busy(String),
    /// It has just been removed.
    Gone,
}

/// Disks that are open and not served yet. Dropped, the files that were made for them are gone again: what is refused changes nothing.
#[derive(Default)]
pub struct Opened(Vec<Arc<Export>>);

impl Opened {
    /// One more.
    pub fn add(&mut self, export: Arc<Export>) {
        self.0.push(export);
    }

    /// All of them.
    #[must_use]
    pub fn exports(&self) -> &[Arc<Export>] {
        &self.0
    }

    /// They are served from now on.
    pub fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        for export in &self.0 {
            if let Err(problem) = export.disk.remove_if_new() {
                tracing::warn!(disk = export.name, problem, "something stays behind");
            }
        }
    }
}

impl Export {
    /// Put `disk` under `name`.
    #[must_use]
    pub const fn new(name: String, disk: AnyDisk, read_only: bool, exclusive: bool, allow: AllowList) -> Self {
        Self { name, disk, read_only, exclusive, users: Mutex::new(Users { allow, attached: Vec::new(), retired: false }) }
    }

    /// Go on with the disk that another daemon serves as `info`, its content in `file`.
    ///
    /// # Errors
    /// Clients would notice the difference, or it cannot be had.
    pub fn take_over(disk: &DiskConfig, info: &BlockInfo, file: Option<OwnedFd>) -> Result<Arc<Self>, String> {
        let spec = &disk.spec;
        let served = spec.take_over(info, file)?;
        Ok(Arc::new(Self::new(spec.name.clone(), served, spec.ro, spec.exclusive, disk.allow.clone())))
    }

    /// Open the disk that `disk` describes.
    ///
    /// # Errors
    /// Why not, in words that say what to do.
    pub fn open(disk: &DiskConfig) -> Result<Arc<Self>, String> {
        let spec = &disk.spec;
        let export = Self::new(spec.name.clone(), spec.open()?, spec.ro, spec.exclusive, disk.allow.clone());
        let size_bytes = export.info(false).size_bytes();
        tracing::info!(disk = spec.name, kind = export.disk.kind(), size_bytes, read_only = spec.ro, "opened");
        Ok(Arc::new(export))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The disk.
    #[must_use]
    pub const fn disk(&self) -> &AnyDisk {
        &self.disk
    }

    /// Is it exported for reading only?
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Does it take one client at a time?
    #[must_use]
    pub const fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    /// What clients are told.
    #[must_use]
    pub fn info(&self, read_only: bool) -> BlockInfo {
        let mut info = self.disk.info();
        if self.read_only || read_only {
            info.capabilities &= !CAPABILITY_WRITE;
        }
        info
    }

    /// Take a place among the attached, or say why not. `more_gids`: the groups beside the primary one.
    ///
    /// # Errors
    /// [`Denied`], in words for the client.
    pub fn admit(
        &self,
        client: u64,
        (pid, uid, gid): (i32, u32, u32),
        more_gids: &[u32],
        kind: Kind,
        exclusive: bool,
    ) -> Result<(), Denied> {
        let name = &self.name;
        let mut users = self.lock();
        if users.retired {
            return Err(Denied::Gone);
        }
        if !users.allow.allows(uid, gid, more_gids) {
            let text =
                format!("disk '{name}' is not for user {uid} (group {gid}); add them to allow_uids or allow_gids of the disk");
            return Err(Denied::NotAllowed(text));
        }
        let exclusive = exclusive || self.exclusive;
        if let Some(holder) = users.attached.iter().find(|other| exclusive || other.exclusive) {
            let how = if holder.exclusive { "exclusively" } else { "and exclusive use was asked for" };
            let text = format!("disk '{name}' is in use {how} by process {}; detach that first", holder.pid);
            return Err(Denied::Busy(text));
        }
        users.attached.push(Attached { kind, client, pid, uid, queues: Vec::new(), worker_cpus: Vec::new(), exclusive });
        Ok(())
    }

    /// A client that another daemon admitted stays, whatever the list says now.
    pub fn keep(&self, attached: Attached) {
        self.lock().attached.push(attached);
    }

    /// Publish the numbers of an admitted client's queues, and where they are served.
    pub fn set_queues(&self, client: u64, queues: Vec<Arc<QueueCounters>>, worker_cpus: Vec<Option<usize>>) {
        if let Some(attached) = self.lock().attached.iter_mut().find(|attached| attached.client == client) {
            (attached.queues, attached.worker_cpus) = (queues, worker_cpus);
        }
    }

    /// The numbers of one queue of a client.
    #[must_use]
    pub fn counters(&self, client: u64, queue: u16) -> Option<Arc<QueueCounters>> {
        let users = self.lock();
        let attached = users.attached.iter().find(|attached| attached.client == client)?;
        attached.queues.get(usize::from(queue)).cloned()
    }

    /// Give the place back.
    pub fn leave(&self, client: u64) {
        self.lock().attached.retain(|attached| attached.client != client);
    }

    /// Who is attached now.
    #[must_use]
    pub fn attached(&self) -> Vec<Attached> {
        self.lock().attached.clone()
    }

    /// Who may attach.
    #[must_use]
    pub fn allow(&self) -> AllowList {
        self.lock().allow.clone()
    }

    /// Change who may attach. Who is attached stays.
    pub fn set_allow(&self, allow: AllowList) {
        self.lock().allow = allow;
    }

    /// Let nobody attach any more, if nobody is; else the process that is.
    ///
    /// # Errors
    /// The process of an attached client.
    pub fn retire(&self) -> Result<(), i32> {
        let mut users = self.lock();
        match users.attached.first() {
            Some(client) => Err(client.pid),
            None => {
                users.retired = true;
                Ok(())
            }
        }
    }

    /// Take back [`retire`](Self::retire).
    pub fn reinstate(&self) {
        self.lock().retired = false;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
