//! From a configuration to a running daemon, and back.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fipsee_ring::listener::Listener;
use rustix::net::SocketType;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::admin::{Admin, admin_path};
use crate::config::{Arguments, Config, default_listen};
use crate::export::Export;
use crate::front::inherited::{self, Inherited};
use crate::front::local::{DRAIN_TIMEOUT, LocalFront};
use crate::front::vhost_user::{Socket, VhostUserFront};
use crate::live::Live;
use crate::reload::{self, Reloader};
use crate::worker::{self, Command};
use crate::{log, notify, placement};

/// What a command line asks for: to serve, or to check the configuration.
///
/// # Errors
/// As [`run`], and what is wrong with the configuration.
pub fn start(arguments: Arguments) -> Result<(), String> {
    let is_check = arguments.check_config;
    let config = arguments.into_config()?;
    if is_check {
        println!("the configuration is sound: {} disks", config.disks.len());
        return Ok(());
    }
    run(config)
}

/// Serve until SIGTERM or SIGINT, then let clients finish.
///
/// # Errors
/// In words that say what to do: a disk cannot be opened, a socket cannot be had, a limit is too low.
pub fn run(config: Config) -> Result<(), String> {
    // First: no file may be opened where the inherited sockets are.
    let inherited = inherited::take();
    let log = log::start(&config.log_level, config.log_format)?;
    raise_descriptor_limit()?;
    let stop = readable_signals(&[signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])?;
    // Without a file there is nothing to read again, and a terminal that hangs up ends the daemon as ever.
    let hang_up = config.arguments.file().map(|_| readable_signals(&[signal_hook::consts::SIGHUP])).transpose()?;
    let Inherited { client, admin } = inherited?;
    let listener = client.map_or_else(|| listen(&config), Ok)?;
    let socket = listener.path().to_owned();
    let places = placement::choose(&config);
    placement::prefer_memory(&places);
    let exports = config.disks.iter().map(Export::open).collect::<Result<_, _>>()?;
    let live = Arc::new(Live::new(exports, config.front));
    let (mut workers, mut threads) = (Vec::new(), Vec::new());
    for (index, place) in places.into_iter().enumerate() {
        let (handle, thread) = worker::spawn(index, place, config.wait, config.look)
            .map_err(|error| format!("cannot start worker {index}: {error}"))?;
        workers.push(handle);
        threads.push(thread);
    }
    let vms = Arc::new(VhostUserFront::new(workers.clone(), Arc::clone(&live)));
    let sockets = vhost_user_sockets(&config, &live, &vms)?;
    // Last: who finds it finds everything.
    let admin_listener = admin.map_or_else(|| bind(&admin_path(&socket), SocketType::STREAM, 0o600), Ok)?;
    let reloader = Reloader::new(Arc::clone(&live), Arc::clone(&vms), config, log);
    let (workers_of_admin, started) = (workers.clone(), Instant::now());
    let admin = Admin { live: Arc::clone(&live), vms: Arc::clone(&vms), workers: workers_of_admin, started, reloader, hang_up };
    let admin = admin.spawn(admin_listener)?;
    let front = LocalFront::new(listener, &stop, workers.clone(), Arc::clone(&live));
    let front = front.map_err(|error| format!("cannot watch the socket: {error}"))?;
    vms.add(sockets);
    tracing::info!(socket = %socket.display(), workers = workers.len(), "ready");
    notify::ready(&reload::serving(&live));
    let drained = front.run();
    admin.stop();
    let drained = vms.stop(DRAIN_TIMEOUT) && drained;
    if !drained {
        // The workers still wait for a disk, and would keep the process.
        return Err("requests in flight did not finish; the daemon ends without them, their clients have no answer".to_owned());
    }
    for worker in &workers {
        worker.mailbox.send(Command::Stop);
    }
    for thread in threads {
        thread.join().map_err(|_| "a worker panicked; see the log above")?;
    }
    tracing::info!("stopped");
    Ok(())
}

fn vhost_user_sockets(config: &Config, live: &Live, vms: &VhostUserFront) -> Result<Vec<Socket>, String> {
    let served = live.now();
    let of_disk = config.disks.iter().zip(&served.exports);
    of_disk.flat_map(|(disk, export)| disk.vhost_user.iter().map(|path| vms.prepare(export, path))).collect()
}

fn listen(config: &Config) -> Result<Listener, String> {
    let path = config.listen.clone().map_or_else(default_listen, Ok)?;
    bind(&path, SocketType::SEQPACKET, 0o666)
}

fn bind(path: &Path, kind: SocketType, mode: u32) -> Result<Listener, String> {
    let listener = Listener::bind(path, kind, mode).map_err(|text| format!("{text} with --listen"))?;
    if listener.took_over() {
        tracing::info!(path = %path.display(), "taking over the socket of a daemon that is gone");
    }
    Ok(listener)
}

/// Descriptors that a daemon with one disk, one worker and one client needs.
const FEWEST_DESCRIPTORS: u64 = 128;

/// Every client costs descriptors: take as many as the hard limit allows.
fn raise_descriptor_limit() -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    match getrlimit(Resource::Nofile).current {
        Some(current) if current < FEWEST_DESCRIPTORS => Err(format!(
            "only {current} files may be open, at least {FEWEST_DESCRIPTORS} are needed; raise the limit (ulimit -n, or LimitNOFILE= in the unit)"
        )),
        _ => Ok(()),
    }
}

/// A stream that becomes readable when one of these comes.
fn readable_signals(signals: &[i32]) -> Result<UnixStream, String> {
    let pipe = || -> std::io::Result<UnixStream> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        for signal in signals {
            signal_hook::low_level::pipe::register(*signal, write.try_clone()?)?;
        }
        Ok(read)
    };
    pipe().map_err(|error| format!("cannot watch for signals: {error}"))
}
