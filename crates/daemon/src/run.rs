//! From a configuration to a running daemon, and back.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fipsee_net::server::tap::Tap;
use fipsee_ring::clock;
use fipsee_serve::unix::listener::Listener;
use fipsee_topology::machine::Machine;
use rustix::net::SocketType;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::admin::{Admin, HandingOver, admin_path};
use crate::config::{Arguments, Config, make_usual_folder, sockets_of_ports};
use crate::confine::Confinement;
use crate::daemonize::{self, Ready};
use crate::export::{Export, Opened};
use crate::fault_log::FaultLog;
use crate::live::Live;
use crate::log::{self, LogLevel};
use crate::metrics::{self, MetricsListener, Sources};
use crate::overlay::Overlay;
use crate::placement::{self, WorkerPlacement};
use crate::reload;
use crate::scaling::Scaling;
use crate::service_thread::ServiceThread;
use crate::services::{self, Registry, Services};
use crate::takeover::take::{Failure, Old};
use crate::takeover::wire::Greeting;
use crate::transport::inherited::{self, Inherited};
use crate::transport::tap::{self, ServedTap, Taps};
use crate::transport::unix::{DRAIN_TIMEOUT, Ended, UnixSocket};
use crate::transport::vhost_user::{self, Socket, Target, VhostUserSockets};
use crate::worker::{self, Command, WorkerHandle};
use crate::{notify, takeover};

/// How long the old daemon may take to end once it has handed over.
const OLD_END_TIMEOUT: Duration = Duration::from_secs(1);

/// Run a command line: serve, or check the configuration.
pub fn start(arguments: Arguments) -> Result<(), String> {
    start_with(arguments, &[])
}

/// As [`start`], with more services (docs/adding-a-service.md).
pub fn start_with(arguments: Arguments, services: Services) -> Result<(), String> {
    if arguments.daemonize && !arguments.check_config {
        return daemonize::start();
    }
    let is_check = arguments.check_config;
    // First: no file may be opened at the numbers of the inherited sockets.
    let inherited = if is_check { Ok(Inherited::default()) } else { inherited::take(arguments.ready_fd) };
    let config = arguments.into_config()?;
    if is_check {
        placement::check(&config, &Machine::this())?;
        println!("the configuration is sound: {} disks", config.disks.len());
        return Ok(());
    }
    let confinement = Confinement::wanted(config.confine, services::needs(&config, services));
    run_confined(config, inherited, confinement, services)
}

/// Serve until SIGTERM or SIGINT, then let clients finish. The process is not confined: `confine` is for one that is only
/// the daemon.
///
/// # Errors
/// In words that say what to do: a disk cannot be opened, a socket cannot be bound, a limit is too low.
pub fn run(config: Config) -> Result<(), String> {
    let inherited = inherited::take(config.arguments.ready_fd);
    run_confined(config, inherited, Confinement::default(), &[])
}

/// What is wrong with what was inherited is reported once there is a log.
fn run_confined(
    config: Config,
    inherited: Result<Inherited, String>,
    confinement: Confinement,
    services: Services,
) -> Result<(), String> {
    if config.arguments.new_session {
        // It cannot fail: the process was just made.
        let _ = rustix::process::setsid();
    }
    let log = log::start(&config.log_level, config.log_format)?;
    raise_descriptor_limit()?;
    let stop = readable_signals(&[signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])?;
    // Without a file there is nothing to reload, and SIGHUP ends the daemon as usual.
    let hang_up = config.arguments.config.as_ref().map(|_| readable_signals(&[signal_hook::consts::SIGHUP])).transpose()?;
    let mut inherited = inherited?;
    let ready = Ready::new(inherited.ready.take());
    let chooses = Arc::new(placement::Places::new(&config)?);
    let places = chooses.choose(chooses.usable());
    // Of those that serve at once.
    let least = config.workers.bounds(places.len()).map_or(1, |(least, _)| least);
    placement::prefer_memory(&places[..least]);
    let process = Process { stop, hang_up, confinement, services, chooses, places, log, ready };
    if config.arguments.takeover {
        match serve(config.clone(), None, &process) {
            Err(Failure::Refused(reason)) => return Err(reason),
            Err(Failure::OldDied) => {
                tracing::warn!("the daemon to take over from has died; starting as if there had been none");
            }
            Ok(()) => return Ok(()),
        }
    }
    serve(config, Some(inherited), &process).map_err(|failure| match failure {
        Failure::Refused(reason) => reason,
        Failure::OldDied => "there was no daemon to take over from".to_owned(),
    })
}

struct Process {
    /// Become readable at a signal.
    stop: UnixStream,
    hang_up: Option<UnixStream>,
    confinement: Confinement,
    services: Services,
    chooses: Arc<placement::Places>,
    places: Vec<WorkerPlacement>,
    log: LogLevel,
    ready: Ready,
}

pub(crate) struct Origin {
    pub(crate) clients: Listener,
    /// Made last, if it does not exist: a client that finds it finds everything ready.
    pub(crate) admin: Option<Listener>,
    /// The vhost-user sockets, for the disk or port of this name.
    pub(crate) machines: Vec<(String, Listener)>,
    /// The sockets of scrapers, and those that another daemon had and that are to be removed.
    pub(crate) metrics: (Vec<MetricsListener>, Vec<MetricsListener>),
    /// The devices that are ports, by these.
    pub(crate) taps: Vec<(String, Tap)>,
    pub(crate) exports: Vec<Arc<Export>>,
    /// Those that were not served before.
    pub(crate) opened: Opened,
    /// What was changed at run time.
    pub(crate) overlay: Overlay,
}

impl Origin {
    fn fresh(config: &Config, inherited: Inherited) -> Result<Self, String> {
        let Inherited { client, admin, metrics, devices, .. } = inherited;
        let clients = client.map_or_else(|| bind(&config.listen_path()?, SocketType::SEQPACKET, 0o666), Ok)?;
        let mut opened = Opened::default();
        let mut machines = Vec::new();
        for disk in &config.disks {
            opened.0.push(Export::open(disk)?);
            // Before the daemon confines itself: a later refusal would leave files that it may no longer remove.
            for path in &disk.vhost_user {
                machines.push((disk.spec.name.clone(), vhost_user::bind(&disk.spec.name, path)?));
            }
        }
        for (port, path) in sockets_of_ports(&config.networks) {
            let listener = vhost_user::bind(&port, path)?;
            machines.push((port, listener));
        }
        let passed = metrics.into_iter().map(|listener| MetricsListener { listener, is_passed: true });
        let metrics = metrics::listen(&config.metrics, passed.collect())?;
        let taps = tap::open_all(&config.networks, tap::inherited(&config.networks, devices)?)?;
        let overlay = Overlay::default();
        Ok(Self { clients, admin, machines, metrics, taps, exports: opened.0.clone(), opened, overlay })
    }
}

/// Everything that serves, before it starts.
struct Daemon {
    workers: Vec<WorkerHandle>,
    threads: Vec<JoinHandle<()>>,
    live: Arc<Live>,
    vms: Arc<VhostUserSockets>,
    sockets: Vec<Socket>,
    taps: (Arc<Taps>, Vec<ServedTap>),
    listeners: (Arc<Listener>, Arc<Listener>),
    admin: ServiceThread,
    metrics: (Arc<[MetricsListener]>, Option<ServiceThread>),
    /// Of another daemon.
    unwanted: Vec<MetricsListener>,
    clients: UnixSocket,
    opened: Opened,
}

/// Start with these sockets, or with the sockets, disks and clients of the running daemon.
fn serve(config: Config, inherited: Option<Inherited>, process: &Process) -> Result<(), Failure> {
    let (origin, mut old) = match inherited {
        Some(inherited) => (Origin::fresh(&config, inherited).map_err(Failure::Refused)?, None),
        None => {
            let path = config.listen_path().map_err(Failure::Refused)?;
            let (origin, old) = Old::find(&config, &path, config.arguments.takeover_wait_ms)?;
            (origin, Some(old))
        }
    };
    let built = Daemon::build(config, origin, process).map_err(Failure::Refused);
    let daemon = built.and_then(|mut daemon| {
        let begun = match &mut old {
            Some(old) => daemon.take_clients(old, &process.confinement),
            None => process.confinement.calls().map_err(Failure::Refused),
        };
        match begun {
            Ok(()) => Ok(daemon),
            Err(failure) => {
                daemon.abandon();
                Err(failure)
            }
        }
    });
    let daemon = daemon.inspect_err(|failure| old.iter_mut().for_each(|old| old.conversation.refuse(failure)))?;
    daemon.run(old, &process.ready).map_err(Failure::Refused)
}

impl Daemon {
    fn build(config: Config, origin: Origin, process: &Process) -> Result<Self, String> {
        let Process { stop, hang_up, confinement, services, chooses, places, log, .. } = process;
        let opened = origin.opened;
        let listener = Arc::new(origin.clients);
        let handed_over = origin.machines.iter().map(|(_, listener)| listener.path());
        confinement.files(&config, std::iter::once(listener.path()).chain(handed_over))?;
        let mut overlay = origin.overlay;
        let live = Arc::new(Live::new(origin.exports, config.clients, overlay.switches(&config.networks)));
        overlay.retain_groups(&config.shares);
        live.shares.replace(&config.shares, overlay.shares());
        let (mut workers, mut threads) = (Vec::new(), Vec::new());
        for (index, place) in places.iter().enumerate() {
            let (handle, thread) =
                worker::spawn(&config, index, *place).map_err(|error| format!("cannot start worker {index}: {error}"))?;
            workers.push(handle);
            threads.push(thread);
        }
        let scaling = scaling_of(&config, &overlay, &workers, &live, chooses)?;
        // Afterwards: unbound workers run anywhere.
        placement::leave_to_workers(&places[..scaling.count()]);
        if confinement.is_wanted() {
            worker::start_engines(&workers)?;
            worker::make_rings_for_machines(&config);
        }
        let vms = Arc::new(VhostUserSockets::new(workers.clone(), Arc::clone(&live)));
        let serve_at = |(name, listener): (String, _)| vms.serve_at(Target::find(&live, &name)?, listener);
        let sockets = origin.machines.into_iter().map(serve_at).collect::<Result<_, _>>()?;
        let taps = Taps::with(workers.clone(), Arc::clone(&live), origin.taps)?;
        let path = admin_path(listener.path());
        let admin = Arc::new(origin.admin.map_or_else(|| bind(&path, SocketType::STREAM, 0o600), Ok)?);
        let registry = Registry::new(&config, &live, &workers, services);
        let (registered, served) = (registry.clone(), Arc::clone(&live));
        let clients = UnixSocket::new(
            Arc::clone(&listener),
            stop,
            workers.clone(),
            served,
            registered,
            Arc::clone(&scaling),
            Arc::clone(&vms),
        );
        let clients = clients.map_err(|error| format!("cannot watch the socket: {error}"))?;
        let hang_up = hang_up.as_ref().map(UnixStream::try_clone).transpose();
        let listeners = (listener, admin);
        let metrics: Arc<[MetricsListener]> = origin.metrics.0.into();
        let handing_over = Arc::new(HandingOver::new().map_err(|error| format!("cannot watch for takeovers: {error}"))?);
        let sources = Sources::new(Arc::clone(&live), workers.clone(), Arc::clone(&scaling), registry.clone());
        let admin = Admin {
            live: Arc::clone(&live),
            vms: Arc::clone(&vms),
            taps: Arc::clone(&taps.0),
            workers: workers.clone(),
            scaling,
            registry,
            started: Instant::now(),
            running: config,
            overlay,
            log: log.clone(),
            confinement: confinement.clone(),
            listeners: (Arc::clone(&listeners.0), Arc::clone(&listeners.1)),
            metrics: Arc::clone(&metrics),
            clients: Arc::clone(&clients.orders),
            handing_over: Arc::clone(&handing_over),
        };
        let faults = FaultLog::new(Arc::clone(&live), Arc::clone(&taps.0));
        let hang_up = hang_up.map_err(|error| format!("cannot watch for signals: {error}"))?;
        let admin = admin.spawn(faults, hang_up).map_err(|error| format!("cannot start the admin thread: {error}"))?;
        let scrapers = metrics::spawn(Arc::clone(&metrics), sources, handing_over);
        let scrapers = scrapers.map_err(|error| format!("cannot start the metrics thread: {error}"))?;
        let (metrics, unwanted) = ((metrics, scrapers), origin.metrics.1);
        Ok(Self { workers, threads, live, vms, sockets, taps, listeners, admin, metrics, unwanted, clients, opened })
    }

    /// From here on this daemon serves the clients of the old one, or it fails and the old one continues.
    fn take_clients(&mut self, old: &mut Old, confinement: &Confinement) -> Result<(), Failure> {
        // Workers measure the clock when they start, for 20 ms: clients must not wait for that.
        let _ = clock::ticks_per_second();
        let adopted = self.clients.adopt(&mut old.conversation, &self.sockets)?;
        // Until now the old one could have died, and this one would have started afresh.
        confinement.calls().map_err(Failure::Refused)?;
        let (clients, machines, quiesced_at_ns) = (adopted.clients, adopted.machines.len(), adopted.quiesced_at_ns);
        if old.conversation.next()?.is_some() {
            return Err(Failure::out_of_order());
        }
        self.clients.begin_adopted(adopted);
        let paused_us = takeover::monotonic_ns().saturating_sub(quiesced_at_ns) / 1000;
        let Greeting { pid, version, .. } = &old.greeting;
        tracing::info!(pid, version, clients, machines, paused_us, "took over from another daemon");
        Ok(())
    }

    /// It never served: release sockets and disks before anything else is tried.
    fn abandon(self) {
        self.admin.stop();
        self.metrics.1.into_iter().for_each(ServiceThread::stop);
        let _ = stop_workers(&self.workers, self.threads);
    }

    fn run(mut self, old: Option<Old>, ready: &Ready) -> Result<(), String> {
        self.opened.keep();
        self.listeners.0.own();
        self.listeners.1.own();
        self.vms.add(std::mem::take(&mut self.sockets));
        std::mem::take(&mut self.taps.1).into_iter().for_each(|tap| self.taps.0.begin(tap));
        for MetricsListener { listener, .. } in self.metrics.0.iter().chain(&self.unwanted) {
            listener.own();
        }
        // Their paths go with them.
        self.unwanted.clear();
        self.admin.begin();
        self.metrics.1.iter().for_each(ServiceThread::begin);
        for MetricsListener { listener, .. } in self.metrics.0.iter() {
            tracing::info!(at = %listener.path().display(), "metrics");
        }
        let socket = self.listeners.0.path().display();
        tracing::info!(%socket, workers = self.workers.len(), "ready");
        if let Some(old) = old {
            // It first notifies the service manager that we are the daemon.
            old.conversation.line.await_end(Instant::now() + OLD_END_TIMEOUT);
        }
        notify::ready(&reload::serving(&self.live));
        ready.notify();
        let ended = self.clients.run();
        if ended == Ended::HandedOver {
            // The threads' resources belong to another daemon now and must not be released.
            std::process::exit(0);
        }
        self.admin.stop();
        self.metrics.1.into_iter().for_each(ServiceThread::stop);
        self.taps.0.stop();
        let drained = self.vms.stop(DRAIN_TIMEOUT) && ended == Ended::Drained;
        if !drained {
            // The workers still wait for a disk, and would keep the process from ending.
            return Err(
                "requests in flight did not finish; the daemon ends without them, their clients have no answer".to_owned()
            );
        }
        stop_workers(&self.workers, self.threads)?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// Which workers are in use, and their owners.
fn scaling_of(
    config: &Config,
    overlay: &Overlay,
    workers: &[WorkerHandle],
    live: &Arc<Live>,
    places: &Arc<placement::Places>,
) -> Result<Arc<Scaling>, String> {
    let mode = overlay.workers().unwrap_or(config.workers);
    let scaling = Scaling::new(Arc::clone(live), workers.to_vec(), mode, Arc::clone(places));
    let scaling = scaling.map_err(|error| format!("cannot watch the workers: {error}"))?;
    let dedicated = reload::dedicated(&overlay.over(&config.disks), &config.shares, overlay);
    scaling.check_dedicated(&dedicated)?;
    scaling.dedicate(&dedicated);
    Ok(Arc::new(scaling))
}

fn stop_workers(workers: &[WorkerHandle], threads: Vec<JoinHandle<()>>) -> Result<(), String> {
    workers.iter().for_each(|worker| worker.mailbox.send(Command::Stop));
    let joined = threads.into_iter().try_for_each(JoinHandle::join);
    joined.map_err(|_| "a worker panicked; see the log above".to_owned())
}

fn bind(path: &Path, kind: SocketType, mode: u32) -> Result<Listener, String> {
    let listener = make_usual_folder(path)
        .and_then(|()| Listener::bind(path, kind, mode))
        .map_err(|text| format!("{text} with --listen"))?;
    if listener.took_over() {
        tracing::info!(path = %path.display(), "taking over the socket of a daemon that is gone");
    }
    Ok(listener)
}

/// Descriptors that a daemon with one disk, one worker and one client needs.
const FEWEST_DESCRIPTORS: u64 = 128;

/// Every client costs descriptors: raise the limit as far as the hard limit allows.
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
