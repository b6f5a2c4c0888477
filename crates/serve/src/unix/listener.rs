//! Taking possession of a socket path.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fipsee_ring::held::{self, LockError};
use fipsee_ring::process::name_of;
use fipsee_ring::seqpacket::socket_address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::peer;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 512;
/// How long another process may keep the folder of a socket locked. It is locked for milliseconds, by servers that start. Any user
/// who may read the folder can lock it for longer; that must not keep a server from starting.
const FOLDER_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// A listening socket. One that we made owns its path, and keeps its folder open. One that was made for us belongs to the service
/// manager, which keeps it for the next daemon.
///
/// There is no lock file: whether a server listens at a path is found by connecting. Servers that start at the same time and find
/// the socket of one that has ended are kept apart by a lock of the folder, which they hold while they look and replace it.
#[derive(Debug)]
pub struct Listener {
    path: PathBuf,
    socket: OwnedFd,
    folder: Option<File>,
    /// Device and inode of the socket at the path.
    place: Option<(u64, u64)>,
    took_over: bool,
    /// Is the path removed at the end?
    removes: AtomicBool,
}

impl Listener {
    /// Listen at `path` with `mode` permissions; a path that an ended server left behind is taken over. One that was killed is
    /// waited for, up to five seconds, until the kernel has ended it.
    ///
    /// # Errors
    /// In words, which end with what to choose instead: a running server, a file that is no socket, a path too long, no folder, no
    /// permission.
    pub fn bind(path: &Path, kind: SocketType, mode: u32) -> Result<Self, String> {
        let address = socket_address(path).map_err(|error| error.to_string())?;
        let folder = open_folder(path)?;
        let (mut probe, found, mut bound) = (None, Cell::new(None), None);
        let attempt = || {
            // The answer of a running server does not change by asking again.
            if probe.as_ref().is_some_and(|connection| !is_hung_up(connection)) {
                return Err(Errno::AGAIN);
            }
            let _alone = FolderLock::take(&folder);
            match look_at(path, kind, &address)? {
                There::Server(connection) => {
                    let pid = connection.as_ref().and_then(|socket| peer::process(socket).ok()).map(|peer| peer.pid);
                    found.set(pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0));
                    probe = connection;
                    Err(Errno::AGAIN)
                }
                there => {
                    bound = Some(listen(path, &there, kind, &address, mode));
                    Ok(())
                }
            }
        };
        let shown = path.display();
        held::take(attempt, || found.get()).map_err(|error| match error {
            LockError::Held(holder) => {
                format!("another server already listens at {shown}{}; stop it, or choose another path", words_for(holder))
            }
            LockError::Failed(errno) => {
                format!("cannot find out whether a server listens at {shown} ({errno}); remove it, or choose another path")
            }
        })?;
        let (socket, took_over) = bound.ok_or("the socket was not made")??;
        let place = place_of(&folder, path);
        Ok(Self { path: path.to_owned(), socket, folder: Some(folder), place, took_over, removes: AtomicBool::new(true) })
    }

    /// A socket that another process listens with, and the folder of its path if that is a process of ours, which made it. The
    /// path stays that process's until [`own`](Self::own).
    pub fn handed_over(path: PathBuf, socket: OwnedFd, folder: Option<OwnedFd>) -> Self {
        let folder = folder.map(File::from);
        let place = folder.as_ref().and_then(|folder| place_of(folder, &path));
        Self { path, socket, folder, place, took_over: false, removes: AtomicBool::new(false) }
    }

    /// From now on the path is ours to remove, if the process that handed over the socket made it; and those that connect see this
    /// process at the other end.
    pub fn own(&self) {
        if self.folder.is_some() {
            self.removes.store(true, Ordering::Relaxed);
            let _ = rustix::net::listen(&self.socket, BACKLOG);
        }
    }

    /// What another process needs to continue with it: the socket, then the folder if the path is ours.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.socket.as_fd()).chain(self.folder.as_ref().map(AsFd::as_fd)).collect()
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
    /// The path goes before the socket is closed: until then no other server takes it for one that was left behind.
    fn drop(&mut self) {
        let Some(folder) = self.folder.as_ref().filter(|_| *self.removes.get_mut()) else { return };
        // Not another socket, which took its place after ours was removed.
        if let (Some(name), true) = (self.path.file_name(), self.place.is_some() && self.place == place_of(folder, &self.path)) {
            let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        }
    }
}

fn words_for(server: Option<u32>) -> String {
    match server {
        None => String::new(),
        Some(pid) if pid == std::process::id() => " (this very process)".to_owned(),
        Some(pid) => format!(" (process {pid}, {})", name_of(pid).as_deref().unwrap_or("which is gone")),
    }
}

fn place_of(folder: &File, path: &Path) -> Option<(u64, u64)> {
    let found = rustix::fs::statat(folder, path.file_name()?, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((found.st_dev, found.st_ino))
}

fn open_folder(path: &Path) -> Result<File, String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let open = |how: OFlags| rustix::fs::open(folder, how | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    // A folder that may be used and not read cannot be locked; everything else works.
    let opened = open(OFlags::RDONLY).or_else(|error| if error == Errno::ACCESS { open(OFlags::PATH) } else { Err(error) });
    opened.map(File::from).map_err(|error| {
        let (folder, path) = (folder.display(), path.display());
        match error {
            Errno::NOENT => format!("the folder {folder} does not exist; make it (mkdir -p {folder}), or choose another path"),
            Errno::NOTDIR => format!("cannot listen at {path}: {folder} is not a folder; choose another path"),
            error => format!("cannot listen at {path}: {folder}: {error}; check its permissions, or choose another path"),
        }
    })
}

/// Ends with it.
struct FolderLock<'a>(&'a File);

impl<'a> FolderLock<'a> {
    /// `None`: the folder cannot be locked, or another process does not unlock it.
    fn take(folder: &'a File) -> Option<Self> {
        let deadline = Instant::now() + FOLDER_TIMEOUT;
        loop {
            match rustix::fs::flock(folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Self(folder)),
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(PAUSE), // tidy: allow sleep, nothing reports the end of a lock, and a blocking call would have no timeout
                Err(_) => return None,
            }
        }
    }
}

impl Drop for FolderLock<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

/// What is at a path.
enum There {
    Nothing,
    NoSocket,
    /// The socket of a server that has ended.
    LeftBehind,
    /// A server, and a connection to it if it took one.
    Server(Option<OwnedFd>),
}

fn look_at(path: &Path, kind: SocketType, address: &SocketAddrUnix) -> Result<There, Errno> {
    match std::fs::symlink_metadata(path) {
        // Any other error is that of the bind that follows, too.
        Err(_) => return Ok(There::Nothing),
        Ok(found) if !found.file_type().is_socket() => return Ok(There::NoSocket),
        Ok(_) => {}
    }
    let other = if kind == SocketType::STREAM { SocketType::SEQPACKET } else { SocketType::STREAM };
    for kind in [kind, other] {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        match rustix::net::connect(&socket, address) {
            Ok(()) => return Ok(There::Server(Some(socket))),
            Err(Errno::CONNREFUSED) => return Ok(There::LeftBehind),
            Err(Errno::NOENT) => return Ok(There::Nothing),
            // It listens, with a socket of another type.
            Err(Errno::PROTOTYPE) => {}
            // As many wait as may.
            Err(Errno::AGAIN) => break,
            // Not a lock, which could become free.
            Err(Errno::ACCESS) => return Err(Errno::PERM),
            Err(errno) => return Err(errno),
        }
    }
    Ok(There::Server(None))
}

fn is_hung_up(connection: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(connection, PollFlags::RDHUP)];
    let looked = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    looked.is_err() || !watched[0].revents().is_empty()
}

/// Also returned: did an ended server leave a socket there?
fn listen(path: &Path, there: &There, kind: SocketType, address: &SocketAddrUnix, mode: u32) -> Result<(OwnedFd, bool), String> {
    let shown = path.display();
    let took_over = match there {
        There::NoSocket => return Err(format!("{shown} exists and is not a socket; remove it or choose another path")),
        There::LeftBehind => {
            let removed = std::fs::remove_file(path);
            removed.map_err(|error| format!("cannot remove the stale socket {shown}: {error}; choose another path"))?;
            true
        }
        There::Nothing | There::Server(_) => false,
    };
    let listen = || -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::bind(&socket, address)?;
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "sockets of the kernel")]
    fn one_of_many_that_find_the_socket_of_an_ended_server_gets_its_path() {
        let folder = std::env::temp_dir().join(format!("fipsee-listener-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder");
        let path = folder.join("s");
        for _ in 0..20 {
            drop(std::os::unix::net::UnixListener::bind(&path).expect("a free path"));
            let barrier = Barrier::new(8);
            let bind = || {
                barrier.wait();
                Listener::bind(&path, SocketType::SEQPACKET, 0o600)
            };
            let all: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(bind)).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            assert_eq!(all.iter().filter(|bound| bound.as_ref().is_ok_and(Listener::took_over)).count(), 1);
            let refused = |bound: &&Result<Listener, String>| {
                bound
                    .as_ref()
                    .is_err_and(|text| text.contains("another server already listens") && text.contains("this very process"))
            };
            assert_eq!(all.iter().filter(refused).count(), 7, "{all:?}");
            drop(all);
            assert!(!path.exists());
        }
        std::fs::remove_dir(&folder).expect("nothing is left in it");
    }
}
