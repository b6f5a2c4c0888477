//! A mount from attach to detach.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use fipsee::claim;
use fipsee_block::wire::CAPABILITY_WRITE;
use fipsee_topology::machine::Machine;
use fuser::{Config, INodeNo, Notifier, Session, SessionACL};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;

use super::compound::CompoundRequests;
use super::filesystem::DiskFile;
use super::lane::{Lane, LinkEvent};
use super::link::{self, MountAttachment, MountedDisk, Target};
use super::log::log;
use super::mount_point::MountPoint;
use super::placement::Placement;
use super::ranges::Ranges;
use super::{Arguments, Cache, background, kernel};
use crate::error::Error;
use crate::{output, process, units};

/// The notifier of new sizes to the kernel, once set.
type SharedNotifier = Arc<Mutex<Option<Notifier>>>;

pub(super) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    if background::is_second() {
        background::leave_session();
    }
    let signals = stop_signals()?;
    let place = MountPoint::prepare(&arguments.file)?;
    let target = Target {
        socket: std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned()),
        disk: arguments.disk.clone(),
        read_only: arguments.read_only,
        claim: claim::of(arguments.force),
        lane_count: arguments.threads,
        reconnect: arguments.timeout(),
    };
    let attached = link::attach(target)?;
    let read_only = !attached.mounted.can(CAPABILITY_WRITE);
    if read_only && !arguments.read_only {
        log(&format!("disk '{}' is read-only; so is {}", arguments.disk, arguments.file.display()));
    }
    let threads = Threads::start(attached)?;
    let served = serve(arguments, &place, read_only, &threads, &signals);
    threads.end();
    served
}

fn stop_signals() -> Result<UnixStream, Error> {
    let pipe = || -> io::Result<UnixStream> {
        let (read, write) = UnixStream::pair()?;
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        read.set_nonblocking(true)?;
        Ok(read)
    };
    pipe().map_err(|error| Error::io("watch for signals", &error))
}

/// The threads of this program, apart from fuser's.
struct Threads {
    lanes: Vec<Arc<Lane>>,
    mounted: Arc<MountedDisk>,
    /// The worker's CPU of each lane, at attach.
    worker_cpus: Vec<Option<usize>>,
    ranges: Arc<Ranges>,
    notifier: SharedNotifier,
    news: mpsc::Sender<LinkEvent>,
    stop: Arc<OwnedFd>,
    lane_threads: Vec<JoinHandle<()>>,
    supervisor: JoinHandle<()>,
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new().name(name).spawn(body).map_err(|error| Error::io("start a thread", &error))
}

impl Threads {
    fn start(attached: MountAttachment) -> Result<Self, Error> {
        let MountAttachment { supervisor, lanes, mounted, worker_cpus, sender } = attached;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC);
        let stop = Arc::new(stop.map_err(|error| Error::io("make an eventfd", &error.into()))?);
        let notifier = SharedNotifier::default();
        let attend = |(index, lane): (usize, &Arc<Lane>)| {
            let (lane, stop) = (Arc::clone(lane), Arc::clone(&stop));
            spawn(format!("fip-lane-{index}"), move || lane.attend(stop.as_fd()))
        };
        let lane_threads = lanes.iter().enumerate().map(attend).collect::<Result<_, _>>()?;
        let supervisor = {
            let notifier = Arc::clone(&notifier);
            spawn("fip-link".to_owned(), move || supervisor.run(&|| notify_of_size(&notifier)))?
        };
        Ok(Self { lanes, mounted, worker_cpus, ranges: Arc::default(), notifier, news: sender, stop, lane_threads, supervisor })
    }

    fn compound(&self) -> CompoundRequests {
        CompoundRequests {
            lane: Arc::clone(&self.lanes[0]),
            mounted: Arc::clone(&self.mounted),
            ranges: Arc::clone(&self.ranges),
        }
    }

    /// No thread submits any more: detach.
    fn end(self) {
        self.lanes.iter().for_each(|lane| lane.stop());
        // A failed write to an eventfd cannot be handled.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        for thread in self.lane_threads {
            let _ = thread.join();
        }
        let _ = self.news.send(LinkEvent::Stop);
        let _ = self.supervisor.join();
    }
}

fn notify_of_size(notifier: &SharedNotifier) {
    if let Some(notifier) = &*notifier.lock().unwrap_or_else(PoisonError::into_inner) {
        // A negative offset: the attributes only. The kernel drops pages beyond a new end when it asks for the size.
        let _ = notifier.inval_inode(INodeNo::ROOT, -1, 0);
    }
}

fn serve(
    arguments: &Arguments,
    place: &MountPoint,
    read_only: bool,
    threads: &Threads,
    signals: &UnixStream,
) -> Result<(), Error> {
    let (jobs, compound_jobs) = mpsc::channel();
    let compound = threads.compound();
    let compound_thread = spawn("fip-compound".to_owned(), move || compound.run(&compound_jobs))?;
    let placement = Placement::choose(&arguments.cpus, &Machine::this(), &threads.worker_cpus);
    let cpus = placement.first_cpus();
    let file = DiskFile {
        lanes: threads.lanes.clone(),
        mounted: Arc::clone(&threads.mounted),
        ranges: Arc::clone(&threads.ranges),
        compound: jobs,
        owner: place.owner(read_only),
        read_only,
        kernel_cache: arguments.cache == Cache::Kernel,
        mounted_at: SystemTime::now(),
        next_lane: AtomicUsize::new(0),
        placement,
    };
    let options = kernel::Options { disk: &arguments.disk, read_only, allow_other: arguments.allow_other };
    let device = kernel::mount(place.path(), options)?;
    for lane in &threads.lanes {
        lane.set_device(device.try_clone().map_err(|error| undo(place, &error))?);
    }
    let mut config = Config::default();
    config.n_threads = Some(arguments.threads.into());
    config.clone_fd = true;
    let acl = if arguments.allow_other { SessionACL::All } else { SessionACL::Owner };
    let session = Session::from_fd(file, device, acl, config);
    let session = session.map_err(|error| undo(place, &error))?;
    *threads.notifier.lock().unwrap_or_else(PoisonError::into_inner) = Some(session.notifier());
    let (ended, end) = UnixStream::pair().map_err(|error| undo(place, &error))?;
    let running = std::thread::Builder::new().name("fip-mount".to_owned()).spawn(move || {
        // fuser's threads inherit it.
        let bound = process::bind_to_cpus(&cpus);
        bound.unwrap_or_else(|error| log(&format!("{error}; going on without")));
        let outcome = session.run();
        drop(end);
        outcome
    });
    let running = running.map_err(|error| undo(place, &error))?;
    say_ready(arguments, place, threads)?;
    wait_for_the_end(place, threads, signals, &ended);
    // The kernel has closed the file and handed over everything it had still to write.
    *threads.notifier.lock().unwrap_or_else(PoisonError::into_inner) = None;
    let outcome = running.join().unwrap_or_else(|_| Err(io::Error::other("a thread that served the file panicked")));
    let _ = compound_thread.join();
    if !read_only && let Err(errno) = threads.compound().flush() {
        return Err(not_flushed(&arguments.disk, threads, errno.into()));
    }
    match outcome {
        // The kernel reports this, too, when the last user closes the file during the final read. An abort leaves the mount.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::CONNABORTED) && !place.is_mounted() => Ok(()),
        outcome => outcome.map_err(|error| Error::io(format_args!("serve {}", place.path().display()), &error)),
    }
}

/// The disk could not be flushed at the end.
fn not_flushed(disk: &str, threads: &Threads, errno: i32) -> Error {
    if threads.lanes.iter().any(|lane| lane.lock().channel.is_none()) {
        let text = format!(
            "the daemon of disk '{disk}' is gone: what was written and not flushed before may be lost; start fipseed and check the disk"
        );
        return text.into();
    }
    Error::io(format_args!("flush disk '{disk}' at the end"), &io::Error::from_raw_os_error(errno))
}

/// Unmount a file that cannot be served.
fn undo(place: &MountPoint, error: &io::Error) -> Error {
    let _ = kernel::unmount(place.path(), true);
    Error::io(format_args!("serve {}", place.path().display()), error)
}

fn say_ready(arguments: &Arguments, place: &MountPoint, threads: &Threads) -> Result<(), Error> {
    let (path, size) = (place.path().display(), units::bytes(threads.mounted.size_bytes()));
    output::print(&format!(
        "mounted {} on {path} ({size}); unmount with {} {path}\n",
        arguments.disk,
        kernel::unmount_command()
    ))?;
    if background::is_second() { background::release_inherited() } else { Ok(()) }
}

/// Wait until the file is unmounted. A signal unmounts it.
fn wait_for_the_end(place: &MountPoint, threads: &Threads, signals: &UnixStream, ended: &UnixStream) {
    let mut is_asked = false;
    while !wait_for_either(signals.as_fd(), ended.as_fd()) {
        // One byte per signal; each counts.
        let _ = io::Read::read(&mut &*signals, &mut [0]);
        if is_asked {
            log(&format!("second signal: {} is no longer served; its users get errors", place.path().display()));
            std::process::exit(1);
        }
        is_asked = true;
        unmount_at_signal(place, threads);
    }
}

/// Returns whether the session ended; otherwise a signal came.
fn wait_for_either(signals: BorrowedFd<'_>, ended: BorrowedFd<'_>) -> bool {
    loop {
        let mut fds = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&ended, PollFlags::IN)];
        // Interrupted by that signal: poll again.
        let _ = rustix::event::poll(&mut fds, None);
        if !fds[1].revents().is_empty() {
            return true;
        }
        if !fds[0].revents().is_empty() {
            return false;
        }
    }
}

fn unmount_at_signal(place: &MountPoint, threads: &Threads) {
    let path = place.path().display();
    if let Err(errno) = threads.compound().flush() {
        log(&format!("cannot flush the disk before unmounting: {}", io::Error::from_raw_os_error(errno.into())));
    }
    match kernel::unmount(place.path(), false) {
        Ok(()) => {}
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => match kernel::unmount(place.path(), true) {
            Ok(()) => log(&format!(
                "{path} is in use; its name is gone, and it is served until its users close it; a second signal ends it at once"
            )),
            Err(error) => log(&format!("cannot unmount {path}, which is in use: {error}")),
        },
        Err(error) => log(&format!("cannot unmount {path}: {error}; a second signal ends it at once")),
    }
}
