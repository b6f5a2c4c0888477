//! A disk from the storage up: what a run is to be made of, and the run on it.

use std::path::{Path, PathBuf};

use fipsee_testkit::Daemon;

use crate::daemon;
use crate::front::Front;
use crate::front::guest::Setup as GuestSetup;
use crate::front::library::Library;
use crate::front::mount::{MountedFile, mount};
use crate::front::rings::Rings;
use crate::front::vhost_user::VhostUser;
use crate::slow::Slow;
use crate::storage::{Kind, Storage};
use crate::workload::{self, Counts, Settings, Site};

/// Memory for the data of requests in flight.
const ARENA_BYTES: u64 = 96 << 20;
/// Requests in flight in a queue.
const DEPTH: u32 = 64;
/// Bytes of a slow disk, of which a few pages are used.
const SLOW_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FrontKind {
    /// The Rust library.
    Library,
    /// A guest in user space, on virtqueues.
    VhostUser,
    /// A guest in user space, on rings in its own memory.
    Rings,
    /// The file of `fipsee mount`.
    Mount,
    /// The same, with O_DIRECT.
    MountDirect,
}

impl FrontKind {
    pub const ALL: [Self; 5] = [Self::Library, Self::VhostUser, Self::Rings, Self::Mount, Self::MountDirect];

    /// Does it need the program that mounts?
    pub const fn is_mount(self) -> bool {
        matches!(self, Self::Mount | Self::MountDirect)
    }
}

#[derive(Clone, Debug)]
pub struct Setup {
    /// This program: its hidden commands are the daemon and the slow file.
    pub own: PathBuf,
    pub daemon: Option<PathBuf>,
    pub fipsee: Option<PathBuf>,
    pub storage: Kind,
    pub front: FrontKind,
    /// More options of the disk: `block=512,direct=on`.
    pub disk: String,
    pub size_bytes: u64,
    pub queues: u16,
    pub folder: PathBuf,
    /// Loop devices bypass the page cache of their file.
    pub direct_loop: bool,
    pub forgives: bool,
}

impl Setup {
    /// The library on this storage, with the usual disk.
    pub fn new(own: &Path, storage: Kind, folder: &Path) -> Self {
        Self {
            own: own.to_owned(),
            daemon: None,
            fipsee: None,
            storage,
            front: FrontKind::Library,
            disk: "block=512".to_owned(),
            size_bytes: 64 << 20,
            queues: 2,
            folder: folder.to_owned(),
            direct_loop: false,
            forgives: false,
        }
    }

    pub fn describe(&self) -> String {
        let loops = if self.direct_loop { ", loop with direct I/O" } else { "" };
        format!("{:?} on {:?} ({}{loops})", self.front, self.storage, self.disk)
    }

    fn program(&self) -> Vec<String> {
        self.daemon.as_ref().map_or_else(|| daemon::own(&self.own), |other| vec![other.to_string_lossy().into_owned()])
    }

    /// Make storage, daemon and front, and do it there.
    pub fn run(&self, act: &mut dyn FnMut(&mut Site<'_>) -> Result<Counts, String>) -> Result<Counts, String> {
        let storage = Storage::new(self.storage, &self.folder, self.size_bytes, self.direct_loop)?;
        self.run_on(storage.folder(), &storage.spec(&self.disk), Some(&storage), act)
    }

    /// The daemon is killed with writes to slow storage in flight. `on_ext4`: the disk is a file there, not the device.
    pub fn late_writes(&self, kills: u64, on_ext4: bool, seed: u64) -> Result<Counts, String> {
        let slow = Slow::new(&self.own, &self.folder, SLOW_BYTES, on_ext4, seed)?;
        let settings = Settings::for_late_writes(kills, seed);
        self.run_on(slow.folder(), &slow.spec(&self.disk), None, &mut |site| workload::run(site, &settings))
    }

    fn run_on(
        &self,
        folder: &Path,
        spec: &str,
        storage: Option<&Storage>,
        act: &mut dyn FnMut(&mut Site<'_>) -> Result<Counts, String>,
    ) -> Result<Counts, String> {
        let mut daemon = daemon::start(self.program(), folder, spec)?;
        let mut front = self.open(&daemon, folder)?;
        let outcome = act(&mut Site { front: front.as_mut(), daemon: &mut daemon, storage, forgives: self.forgives });
        drop(front);
        outcome.map_err(|error| format!("{error}\n--- log of the daemon ---\n{}", daemon.log()))
    }

    fn open(&self, daemon: &Daemon, folder: &Path) -> Result<Box<dyn Front>, String> {
        Ok(match self.front {
            FrontKind::Library => Box::new(Library::attach(&daemon.socket(), self.queues, DEPTH, ARENA_BYTES)?),
            FrontKind::VhostUser => {
                let guest = GuestSetup { queues: self.queues, arena_bytes: ARENA_BYTES, write_cache: true };
                Box::new(VhostUser::start(&daemon::vm_socket(daemon), guest)?)
            }
            FrontKind::Rings => Box::new(Rings::start(&daemon::vm_socket(daemon), self.queues, ARENA_BYTES)?),
            FrontKind::Mount | FrontKind::MountDirect => {
                let fipsee = self.fipsee.as_ref().ok_or("no program that mounts; run `cargo xtask dist`, or give --fipsee")?;
                let file = folder.join("mounted");
                let server = mount(fipsee, &daemon.socket(), &file)?;
                Box::new(MountedFile::open(server, &file, self.front == FrontKind::MountDirect, ARENA_BYTES)?)
            }
        })
    }
}
