//! From a configuration to a running daemon, and back.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use rustix::net::SocketType;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;

use crate::admin::Admin;
use crate::config::{Config, LogFormat};
use crate::export::Export;
use crate::front::local::LocalFront;
use crate::front::socket::Listener;
use crate::worker::{self, Command};

/// Serve until SIGTERM or SIGINT, then let clients finish.
///
/// # Errors
/// In words that say what to do: a disk cannot be opened, a socket cannot be had, a limit is too low.
pub fn run(config: Config) -> Result<(), String> {
    start_log(&config)?;
    raise_descriptor_limit()?;
    let stop = stop_signals()?;
    let listener = Listener::bind(&config.listen, SocketType::SEQPACKET, 0o666)?;
    let exports = open_exports(&config)?;
    let (mut workers, mut threads) = (Vec::new(), Vec::new());
    for (index, cpu) in worker_cpus(&config).into_iter().enumerate() {
        let (handle, thread) = worker::spawn(index, cpu, config.wait, config.look)
            .map_err(|error| format!("cannot start worker {index}: {error}"))?;
        workers.push(handle);
        threads.push(thread);
    }
    let admin = Admin { exports: exports.clone(), workers: workers.clone(), started: Instant::now() };
    let admin = admin.spawn(&config.listen)?;
    let front = LocalFront::new(listener, &stop, workers.clone(), exports.clone(), config.front);
    let front = front.map_err(|error| format!("cannot watch the socket: {error}"))?;
    for export in &exports {
        let size_bytes = export.info(false).size_bytes();
        tracing::info!(
            disk = export.name(),
            kind = export.disk().kind(),
            size_bytes,
            read_only = export.is_read_only(),
            "exported"
        );
    }
    tracing::info!(socket = %config.listen.display(), workers = workers.len(), "ready");
    let drained = front.run();
    admin.stop();
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

fn start_log(config: &Config) -> Result<(), String> {
    let filter = EnvFilter::try_new(&config.log_level).map_err(|error| format!("log level '{}': {error}", config.log_level))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let started = match config.log_format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    // A program that embeds the daemon may have a log of its own.
    drop(started);
    Ok(())
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

fn stop_signals() -> Result<UnixStream, String> {
    let pipe = || -> std::io::Result<UnixStream> {
        let (read, write) = UnixStream::pair()?;
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(read)
    };
    pipe().map_err(|error| format!("cannot watch for signals: {error}"))
}

fn open_exports(config: &Config) -> Result<Vec<Arc<Export>>, String> {
    let mut exports = Vec::<Arc<Export>>::new();
    for disk in &config.disks {
        let spec = &disk.spec;
        if exports.iter().any(|export| export.name() == spec.name) {
            return Err(format!("disk '{}' is defined twice; give each its own name", spec.name));
        }
        let opened = spec.open()?;
        exports.push(Arc::new(Export::new(spec.name.clone(), opened, spec.ro, spec.exclusive, disk.allow.clone())));
    }
    Ok(exports)
}

/// The CPU of each worker: as configured, else the last of those this process may use, leaving the first to clients; with
/// more workers than CPUs nobody is bound.
fn worker_cpus(config: &Config) -> Vec<Option<usize>> {
    if !config.cpus.is_empty() {
        return config
            .cpus
            .iter()
            .take(config.workers)
            .map(|cpu| Some(*cpu))
            .chain(std::iter::repeat(None))
            .take(config.workers)
            .collect();
    }
    let allowed = rustix::thread::sched_getaffinity(None)
        .map(|set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect::<Vec<_>>());
    match allowed {
        Ok(cpus) if cpus.len() >= config.workers && cpus.len() > 1 => {
            cpus.into_iter().rev().take(config.workers).map(Some).collect()
        }
        _ => vec![None; config.workers],
    }
}
