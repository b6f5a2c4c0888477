//! Taking possession of a socket path.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::held::{self, LockError, LockKind};
use crate::seqpacket::socket_address;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 512;

/// A listening socket. One that we made owns its path: a lock file beside it keeps a second server off, even across a
/// crash. One that was made for us belongs to the service manager, which keeps it for the next daemon.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    socket: OwnedFd,
    lock: Option<File>,
    /// Those that were made for the path, the innermost first.
    folders: Vec<PathBuf>,
    took_over: bool,
    /// Is the path removed at the end?
    removes: AtomicBool,
}

impl Listener {
    /// Listen at `path` with `mode` permissions; a path that an ended server left behind is taken over. One that was killed is
    /// waited for, up to five seconds, until the kernel has ended it.
    ///
    /// # Errors
    /// In words, which end with what to choose instead: a running server, a file that is no socket, a path too long,
    /// no permission.
    pub fn bind(path: &Path, kind: SocketType, mode: u32) -> Result<Self, String> {
        socket_address(path).map_err(|error| error.to_string())?;
        let folders = make_folders(path)?;
        let bound = lock_beside(path).and_then(|lock| {
            let (socket, took_over) = listen(path, kind, mode).inspect_err(|_| drop(std::fs::remove_file(lock_path(path))))?;
            Ok((lock, socket, took_over))
        });
        let (lock, socket, took_over) = bound.inspect_err(|_| remove_folders(&folders))?;
        Ok(Self { path: path.to_owned(), socket, lock: Some(lock), folders, took_over, removes: AtomicBool::new(true) })
    }

    /// A socket that another process listens with, and the lock beside its path if that is a process of ours, which made it. The
    /// path stays that process's until [`own`](Self::own).
    pub fn handed_over(path: PathBuf, socket: OwnedFd, lock: Option<OwnedFd>) -> Self {
        let lock = lock.map(File::from);
        Self { path, socket, lock, folders: Vec::new(), took_over: false, removes: AtomicBool::new(false) }
    }

    /// From now on the path is ours to remove, if the process that handed over the socket made it.
    pub fn own(&self) {
        self.removes.store(self.lock.is_some(), Ordering::Relaxed);
    }

    /// What another process needs to continue with it: the socket, then the lock if there is one.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.socket.as_fd()).chain(self.lock.as_ref().map(AsFd::as_fd)).collect()
    }

    pub const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Was a socket found at the path that an ended server had left there?
    pub const fn took_over(&self) -> bool {
        self.took_over
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if *self.removes.get_mut() {
            let _ = std::fs::remove_file(&self.path);
            let _ = std::fs::remove_file(lock_path(&self.path));
            remove_folders(&self.folders);
        }
    }
}

/// Returns those that were not there, the innermost first.
fn make_folders(path: &Path) -> Result<Vec<PathBuf>, String> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(Vec::new()) };
    let made = folder.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let made: Vec<PathBuf> = made.map(Path::to_owned).collect();
    std::fs::create_dir_all(folder).map_err(|error| {
        remove_folders(&made);
        format!("cannot create {} for the socket: {error}; choose another path", folder.display())
    })?;
    Ok(made)
}

/// Remove what is empty of them.
fn remove_folders(folders: &[PathBuf]) {
    for folder in folders {
        let _ = std::fs::remove_dir(folder);
    }
}

/// The caller has the lock beside the path. Also returned: did an ended server leave a socket there?
fn listen(path: &Path, kind: SocketType, mode: u32) -> Result<(OwnedFd, bool), String> {
    let shown = path.display();
    let address = socket_address(path).map_err(|error| error.to_string())?;
    let took_over = match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(format!("{shown} exists and is not a socket; remove it or choose another path"));
        }
        Ok(_) => {
            let removed = std::fs::remove_file(path);
            removed.map_err(|error| format!("cannot remove the stale socket {shown}: {error}; choose another path"))?;
            true
        }
        Err(_) => false,
    };
    let listen = || -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::bind(&socket, &address)?;
        let begun = std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .and_then(|()| Ok(rustix::net::listen(&socket, BACKLOG)?));
        begun.inspect_err(|_| drop(std::fs::remove_file(path)))?;
        Ok(socket)
    };
    let socket = listen().map_err(|error| {
        format!("cannot listen at {shown}: {error}; check the directory's permissions or choose another path")
    })?;
    Ok((socket, took_over))
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn lock_beside(path: &Path) -> Result<File, String> {
    let lock_path = lock_path(path);
    let shown = lock_path.display();
    // The file may vanish between open and lock when its owner is just leaving; then the lock is on a removed file.
    for _ in 0..100 {
        let open = |how: OFlags| {
            let flags = OFlags::CREATE | how | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            rustix::fs::open(&lock_path, flags, Mode::RUSR | Mode::WUSR)
        };
        // Some file systems lock only what may be written; some processes may write nothing here.
        let file = open(OFlags::RDWR).or_else(|error| if error == Errno::ACCESS { open(OFlags::RDONLY) } else { Err(error) });
        let file = file.map_err(|error| {
            format!("cannot create {shown}: {error}; check the directory's permissions or choose another path")
        })?;
        let file = File::from(file);
        let ours = file.metadata().map_err(|error| format!("cannot look at {shown}: {error}"))?;
        let attempt = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        held::take(attempt, || held::holder(LockKind::Flock, &ours)).map_err(|error| match error {
            LockError::Held(holder) => {
                let (path, by) = (path.display(), held::describe(holder));
                format!("another server already listens at {path}: its lock is held{by}; stop it, or choose another path")
            }
            LockError::Failed(errno) => format!("cannot lock {shown}: {errno}; choose a path on another file system"),
        })?;
        if lock_path.metadata().is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(file);
        }
    }
    Err(format!("{shown} keeps vanishing; something else uses this path; choose another path"))
}
