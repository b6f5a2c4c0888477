//! The daemon's configuration: command line, and a TOML file (docs/configuration.md).

mod disk;
mod file;
pub(crate) mod names;
mod network;
mod share;
mod table;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use fipsee_block::disk::DiskSpec;
use fipsee_ring::wait::{DEFAULT_LOOK, WaitMode};
use fipsee_serve::governor::Mode;
use fipsee_serve::session::ClientLimits;

use self::file::{File, MAX_CLIENTS};
use self::names::{NameOf, Names};
pub use self::names::{group_name, group_number, user_name, user_number};
pub use self::network::{NetworkConfig, PortConfig, TapConfig};
pub(crate) use self::network::{dump as dump_networks, dump_port, parse_port, sockets as sockets_of_ports};
pub(crate) use self::share::{ShareConfig, user_key};
use crate::confine::Confine;
use crate::disk_limits::DiskLimits;
use crate::export::AllowList;
use crate::log;
use crate::metrics::{self, Endpoint};
use crate::notification::Notify;
use crate::placement::Placement;
use crate::rates::RateLimits;
use crate::transport::unix::ClientSettings;

/// Clients connected at a time, unless set.
const DEFAULT_MAX_CLIENTS: usize = 4096;
/// More workers than this are a mistake: no machine has the CPUs.
const MAX_WORKERS: usize = 512;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Serve disks to programs on this host over shared-memory rings.
#[derive(Clone, Debug, Parser)]
#[command(name = "fipseed", version = crate::VERSION, about, max_term_width = 110)]
pub struct Arguments {
    /// A disk to serve; may be repeated. KIND:ARGS is null:SIZE, memory:SIZE[,huge|thp][,lock][,overcommit], or
    /// file:PATH[,size=SIZE][,block=512|4096][,direct=on|off|auto]; any kind takes ,ro ,exclusive and ,shared. For
    /// tests, delay:, error: or powercut: with their options go before the KIND.
    #[arg(long = "disk", value_name = "NAME=KIND:ARGS")]
    disks: Vec<String>,
    /// Serve a disk to virtual machines at this Unix socket, as a vhost-user-blk device; may be repeated.
    #[arg(long = "vhost-user", value_name = "DISK=PATH")]
    vhost_user: Vec<String>,
    /// Read settings and disks from a TOML file; options given here take precedence.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// A request in flight for so long counts as stalled, in milliseconds. For tests.
    #[arg(long, hide = true, default_value_t = 30_000)]
    stalled_after_ms: u64,
    /// Take over from the running daemon with the same options: clients continue without an error, and it ends.
    #[arg(long)]
    pub(crate) takeover: bool,
    /// With --takeover: wait so long for requests that are at a disk; if it takes longer, nothing is taken over.
    #[arg(long, value_name = "MS", default_value_t = 1000, requires = "takeover")]
    pub(crate) takeover_wait_ms: u64,
    /// Once it serves, write a line with the word ready to this descriptor, and close it.
    #[arg(long, value_name = "FD")]
    pub(crate) ready_fd: Option<i32>,
    /// Go on in the background: this command ends once the daemon serves, and prints its process, or ends with the daemon's
    /// error. The log stays on standard error.
    #[arg(long, conflicts_with = "ready_fd")]
    pub(crate) daemonize: bool,
    /// Of the process that --daemonize starts.
    #[arg(long, hide = true)]
    pub(crate) new_session: bool,
    /// Check this configuration, and end; disks are not opened.
    #[arg(long)]
    pub(crate) check_config: bool,
    #[arg(skip)]
    names: Names,
}

// Settings of the file; the command line has most of them, too. No documentation comment: it would become the program's
// description.
#[derive(Clone, Debug, Default, Args)]
struct Settings {
    /// Listen at this Unix socket [default: $FIPSEE_SOCKET, /run/fipsee/fipsee.sock for root, else
    /// $XDG_RUNTIME_DIR/fipsee/fipsee.sock].
    #[arg(long, value_name = "PATH")]
    listen: Option<PathBuf>,
    /// Worker threads; each polls on a CPU of its own: a number, a range of which as many are used as the load needs, for example 1..4, or
    /// auto, 1 to all usable CPUs but one [default: auto; 1 with --cpus].
    #[arg(long, value_name = "N", value_parser = Mode::from_str, allow_negative_numbers = true)]
    workers: Option<Mode>,
    /// CPUs to bind the workers to, for example 2,3 [default: see --placement].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = integer::<usize>, allow_negative_numbers = true)]
    cpus: Vec<usize>,
    /// Choose the workers' CPUs by the machine's topology (see fipsee topology), or leave them to the scheduler [default: auto].
    #[arg(long, value_enum)]
    placement: Option<Placement>,
    /// How workers wait: adaptive, sleep, or never sleep and pause, spin, yield, umwait, tpause, monitorx between two
    /// looks; `fipsee ping --waits` measures them [default: adaptive].
    #[arg(long, value_name = "MODE")]
    wait: Option<WaitMode>,
    /// In adaptive mode, poll for so many microseconds before sleeping [default: 200].
    #[arg(long, value_name = "US", value_parser = integer::<u64>, allow_negative_numbers = true)]
    look_us: Option<u64>,
    /// Clients connected at a time [default: 4096].
    #[arg(long, value_name = "N", value_parser = integer::<usize>, allow_negative_numbers = true)]
    max_clients: Option<usize>,
    /// Let this user attach to the disks given with --disk, beside root and the daemon's own; may be repeated.
    #[arg(long, value_name = "NAME")]
    allow_user: Vec<String>,
    /// Let this group, as primary or supplementary one, attach to the disks given with --disk; may be repeated.
    #[arg(long, value_name = "NAME")]
    allow_group: Vec<String>,
    /// As --allow-user, by number.
    #[arg(long, value_name = "UID", value_parser = uid, allow_negative_numbers = true)]
    allow_uid: Vec<u32>,
    /// As --allow-group, by number.
    #[arg(long, value_name = "GID", value_parser = gid, allow_negative_numbers = true)]
    allow_gid: Vec<u32>,
    /// Serve metrics to Prometheus here: at a Unix socket, or at IP:PORT of this host alone; may be repeated.
    #[arg(long, value_name = "PATH|IP:PORT", value_parser = metrics::parse)]
    metrics: Vec<Endpoint>,
    #[arg(skip)]
    max_clients_per_user: Option<usize>,
    #[arg(skip)]
    max_queues: Option<u16>,
    #[arg(skip)]
    max_depth: Option<u32>,
    #[arg(skip)]
    max_pool_bytes: Option<u64>,
    #[arg(skip)]
    max_memory_bytes: Option<u64>,
    #[arg(skip)]
    max_memory_bytes_per_user: Option<u64>,
    /// Once started, give up privileges that a daemon does not need: as far as the kernel can, wholly or not start, or not at all
    /// [default: best-effort].
    #[arg(long, value_enum)]
    confine: Option<Confine>,
    /// A folder where disks and sockets may be added later, besides the folders of existing ones; may be repeated.
    #[arg(long = "confine-path", value_name = "FOLDER")]
    confine_paths: Vec<PathBuf>,
    /// Log level: error, warn, info, debug, trace [default: info].
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Log format [default: text].
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
}

/// A disk and the users that may use it.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The disk.
    pub spec: DiskSpec,
    /// The users that may attach.
    pub allow: AllowList,
    /// Limits of its own.
    pub limits: DiskLimits,
    /// Of all its clients together.
    pub rates: RateLimits,
    /// Sockets for virtual machines.
    pub vhost_user: Vec<PathBuf>,
    /// When its clients are notified.
    pub notify: Notify,
    /// It has a worker to itself.
    pub dedicated: bool,
}

impl DiskConfig {
    /// A disk without limits and a policy of notifications of its own, and without a socket for virtual machines.
    pub const fn new(spec: DiskSpec, allow: AllowList) -> Self {
        let limits = DiskLimits { max_clients: None, max_queues: None, max_depth: None };
        let rates = RateLimits { iops: None, bytes_per_second: None, burst_ms: None };
        Self { spec, allow, limits, rates, vhost_user: Vec::new(), notify: Notify(None), dedicated: false }
    }
}

/// The whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) listen: Option<PathBuf>,
    /// The disks.
    pub disks: Vec<DiskConfig>,
    /// The networks.
    pub networks: Vec<NetworkConfig>,
    /// Of `[[user]]` and `[[group]]`.
    pub(crate) shares: Vec<ShareConfig>,
    pub(crate) workers: Mode,
    /// For the workers; empty: see `placement`.
    pub(crate) cpus: Vec<usize>,
    pub(crate) placement: Placement,
    pub(crate) wait: WaitMode,
    /// How long workers poll before sleeping.
    pub(crate) look: Duration,
    /// A request in flight for so long counts as stalled.
    pub(crate) stall_limit: Duration,
    pub(crate) clients: ClientSettings,
    /// Where metrics are served.
    pub(crate) metrics: Vec<Endpoint>,
    pub(crate) confine: Confine,
    pub(crate) confine_paths: Vec<PathBuf>,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
    /// Its source, to be read again.
    pub(crate) arguments: Arguments,
}

/// For options: the words of the standard library are a programmer's.
fn integer<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "write an integer, for example 2".to_owned())
}

fn uid(text: &str) -> Result<u32, String> {
    number_of(text, "--allow-user")
}

fn gid(text: &str) -> Result<u32, String> {
    number_of(text, "--allow-group")
}

/// Of a user or group, for which another option takes names.
fn number_of(text: &str, for_names: &str) -> Result<u32, String> {
    let is_name = text.starts_with(char::is_alphabetic);
    integer(text).map_err(|problem| if is_name { format!("{problem}, or {for_names} {text}") } else { problem })
}

impl Arguments {
    /// Read the file, if there is one, and put both together.
    ///
    /// # Errors
    /// What is wrong, where (line and column for the file), and what to do.
    pub fn into_config(self) -> Result<Config, String> {
        let own = self.settings.clone();
        log::set_format(own.log_format.unwrap_or_default());
        let File { settings: file, mut disks, shares, networks } =
            self.config.as_deref().map(|path| self.read_file(path)).transpose()?.unwrap_or_default();
        log::set_format(own.log_format.or(file.log_format).unwrap_or_default());
        let allow = self.allow_list()?;
        for disk in &self.disks {
            disks.push(DiskConfig::new(DiskSpec::parse(disk)?, allow.clone()));
        }
        if disks.is_empty() && networks.is_empty() {
            return Err("no disk to serve; name one with --disk, for example --disk a=memory:256M".to_owned());
        }
        if let Some(name) = given_twice(disks.iter().map(|disk| &disk.spec.name)) {
            return Err(defined_twice(name));
        }
        check_files(&disks)?;
        share::check_machines(&shares, &disks, &networks)?;
        for text in &self.vhost_user {
            add_socket(text, &mut disks)?;
        }
        check_devices(&networks)?;
        check_sockets(&disks, &networks)?;
        let log_level = own.log_level.or(file.log_level).unwrap_or_else(|| "info".to_owned());
        log::parse_level(&log_level)?;
        let cpus = if own.cpus.is_empty() { file.cpus } else { own.cpus };
        let workers = workers_of(own.workers.or(file.workers), &cpus);
        let max_clients = own.max_clients.or(file.max_clients).unwrap_or(DEFAULT_MAX_CLIENTS);
        check_numbers(workers, &cpus, (max_clients, file.max_clients_per_user))?;
        let wait = own.wait.or(file.wait).unwrap_or_default();
        wait.available().map_err(|unavailable| unavailable.to_string())?;
        let metrics = if own.metrics.is_empty() { file.metrics } else { own.metrics };
        if let Some(endpoint) = given_twice(metrics.iter()) {
            return Err(format!("metrics are to be served at {endpoint} twice; remove one of the two"));
        }
        let limits = ClientLimits::default();
        let clients = ClientSettings {
            max_clients,
            max_clients_per_user: file.max_clients_per_user,
            max_memory_bytes_per_user: file.max_memory_bytes_per_user,
            limits: ClientLimits {
                max_queues: file.max_queues.unwrap_or(limits.max_queues),
                max_depth: file.max_depth.unwrap_or(limits.max_depth),
                max_pool_bytes: file.max_pool_bytes.unwrap_or(limits.max_pool_bytes),
                max_memory_bytes: file.max_memory_bytes.unwrap_or(limits.max_memory_bytes),
            },
        };
        for disk in &disks {
            disk.limits.check(&clients).map_err(|text| format!("disk '{}': {text}", disk.spec.name))?;
        }
        Ok(Config {
            listen: own.listen.or(file.listen),
            disks,
            networks,
            shares,
            workers,
            cpus,
            placement: own.placement.or(file.placement).unwrap_or_default(),
            wait,
            look: own.look_us.or(file.look_us).map_or(DEFAULT_LOOK, Duration::from_micros),
            stall_limit: Duration::from_millis(self.stalled_after_ms),
            clients,
            metrics,
            confine: own.confine.or(file.confine).unwrap_or_default(),
            confine_paths: [file.confine_paths, own.confine_paths].concat(),
            log_level,
            log_format: own.log_format.or(file.log_format).unwrap_or_default(),
            arguments: self,
        })
    }

    /// Of the disks on the command line.
    fn allow_list(&self) -> Result<AllowList, String> {
        let own = &self.settings;
        let all = |numbers: &[u32], of, names: &[String], option: &str| {
            let named = names.iter().map(|name| self.names.number(of, name));
            let found = numbers.iter().copied().map(Ok).chain(named).collect::<Result<Vec<u32>, _>>();
            found.map_err(|problem| format!("{option}: {problem}"))
        };
        let uids = all(&own.allow_uid, NameOf::User, &own.allow_user, "--allow-user")?;
        let gids = all(&own.allow_gid, NameOf::Group, &own.allow_group, "--allow-group")?;
        Ok(AllowList { everyone: false, uids, gids })
    }

    fn read_file(&self, path: &Path) -> Result<File, String> {
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        file::read(&text, &|of, name| self.names.number(of, name)).map_err(|problem| {
            log::set_format(self.settings.log_format.or_else(|| file::log_format(&text)).unwrap_or_default());
            format!("in {}: {problem}", path.display())
        })
    }
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    let problem = match error.kind() {
        ErrorKind::NotFound => "there is no such file; check the path".to_owned(),
        ErrorKind::IsADirectory => "it is a folder; name a file in it".to_owned(),
        ErrorKind::PermissionDenied => {
            "permission denied; change the mode or owner of the file or its folder, or use another user".to_owned()
        }
        ErrorKind::InvalidData => "it is no text in UTF-8; check the path, or save it as UTF-8".to_owned(),
        _ => error.to_string(),
    };
    format!("cannot read {}: {problem}", path.display())
}

fn defined_twice(name: &str) -> String {
    format!("disk '{name}' is defined twice; give each its own name")
}

/// As many as are asked for. With CPUs that are given for them, no more than those.
const fn workers_of(asked: Option<Mode>, cpus: &[usize]) -> Mode {
    match asked {
        Some(Mode::AUTO) if !cpus.is_empty() => Mode::Auto { least: 1, most: cpus.len() },
        None if !cpus.is_empty() => Mode::Fixed(1),
        None => Mode::AUTO,
        Some(mode) => mode,
    }
}

/// Those that the command line and the file give together.
fn check_numbers(workers: Mode, cpus: &[usize], (max_clients, of_one_user): (usize, Option<usize>)) -> Result<(), String> {
    check_workers(workers)?;
    let workers = workers.most().unwrap_or(MAX_WORKERS);
    if cpus.len() > workers {
        let (count, workers) = (cpus.len(), if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") });
        return Err(format!("{count} CPUs for {workers}; ask for {count} workers (--workers, workers), or name fewer CPUs"));
    }
    if max_clients == 0 || max_clients > MAX_CLIENTS {
        return Err(format!("{max_clients} clients at most; use 1 to {MAX_CLIENTS} for --max-clients"));
    }
    match of_one_user {
        Some(of_one) if of_one > max_clients => Err(above_all_clients(of_one, max_clients)),
        _ => Ok(()),
    }
}

/// As a setting of a daemon.
fn check_workers(workers: Mode) -> Result<(), String> {
    let possible = |count: usize| (1..=MAX_WORKERS).contains(&count);
    match workers {
        Mode::Off => Err("off is for a daemon that runs (fipsee workers off); write an integer, a range or auto".to_owned()),
        Mode::Auto { least: 0, .. } => Err(format!("{workers} workers; use 1 to {MAX_WORKERS}")),
        Mode::Fixed(most) | Mode::Auto { most, .. } if !possible(most) && workers != Mode::AUTO => {
            Err(format!("{workers} workers; use 1 to {MAX_WORKERS}"))
        }
        _ => Ok(()),
    }
}

fn above_all_clients(of_one_user: usize, of_all: usize) -> String {
    format!("max_clients_per_user: {of_one_user} is more than max_clients, {of_all}; lower it, or raise max_clients")
}

fn check_devices(networks: &[NetworkConfig]) -> Result<(), String> {
    let devices = networks.iter().flat_map(|network| &network.ports).filter_map(|port| port.tap.as_ref());
    match given_twice(devices.map(|tap| &tap.name)) {
        Some(name) => Err(format!("device '{name}' is that of two ports; each needs its own")),
        None => Ok(()),
    }
}

/// A file that is written is one disk.
fn check_files(disks: &[DiskConfig]) -> Result<(), String> {
    for (index, disk) in disks.iter().enumerate() {
        let Some(path) = disk.spec.kind.file() else { continue };
        let is_same = |other: &&DiskConfig| other.spec.kind.file() == Some(path) && !(other.spec.ro && disk.spec.ro);
        if let Some(other) = disks[..index].iter().find(is_same) {
            let (one, other) = (&other.spec.name, &disk.spec.name);
            return Err(format!(
                "disks '{one}' and '{other}' are the same file, {}; give each its own, or make both read-only",
                path.display()
            ));
        }
    }
    Ok(())
}

fn check_sockets(disks: &[DiskConfig], networks: &[NetworkConfig]) -> Result<(), String> {
    let of_disks = disks.iter().flat_map(|disk| &disk.vhost_user).map(PathBuf::as_path);
    let twice = given_twice(of_disks.chain(sockets_of_ports(networks).map(|(_, path)| path)));
    let text =
        |path: &Path| format!("the vhost-user socket {} is given twice; each disk and each port needs its own", path.display());
    twice.map_or(Ok(()), |path| Err(text(path)))
}

fn given_twice<T: Ord>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = BTreeSet::new();
    all.find_map(|one| seen.replace(one))
}

/// `--vhost-user DISK=PATH`.
fn add_socket(text: &str, disks: &mut [DiskConfig]) -> Result<(), String> {
    let expect = "write DISK=PATH, for example a=/run/fipsee/a.vhost-user";
    let (name, path) = text.split_once('=').ok_or_else(|| format!("--vhost-user {text}: there is no '='; {expect}"))?;
    if path.is_empty() {
        return Err(format!("--vhost-user {text}: the path is missing; {expect}"));
    }
    let names: Vec<String> = disks.iter().map(|disk| disk.spec.name.clone()).collect();
    let disk = disks.iter_mut().find(|disk| disk.spec.name == name);
    let disk =
        disk.ok_or_else(|| format!("--vhost-user {text}: no disk '{name}' is defined; there are: {}", names.join(", ")))?;
    disk.vhost_user.push(path.into());
    Ok(())
}

/// The disks that a configuration file of this text describes. For tests and the fuzzer: no file is read, no disk opened, no name
/// looked up.
pub fn disks_of(text: &str) -> Result<Vec<DiskConfig>, String> {
    file::read(text, &|_, name| Err(format!("'{name}' is not looked up here"))).map(|file| file.disks)
}

impl Config {
    /// Where to listen (docs/protocol.md section 4).
    pub(crate) fn listen_path(&self) -> Result<PathBuf, String> {
        if let Some(path) = self.listen.clone().or_else(|| std::env::var_os("FIPSEE_SOCKET").map(PathBuf::from)) {
            return Ok(path);
        }
        let folder = usual_folder().ok_or("nowhere to listen: XDG_RUNTIME_DIR is not set; use --listen PATH")?;
        Ok(folder.join("fipsee.sock"))
    }
}

/// The folder of sockets for which no other place was chosen.
fn usual_folder() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/run/fipsee"));
    }
    std::env::var_os("XDG_RUNTIME_DIR").map(|base| Path::new(&base).join("fipsee"))
}

/// Make the usual folder if this socket is to be in it. No other folder is made: it would be that of a misspelt path.
pub(crate) fn make_usual_folder(socket: &Path) -> Result<(), String> {
    let Some(folder) = usual_folder().filter(|usual| socket.parent() == Some(usual) && !usual.exists()) else { return Ok(()) };
    // The disks' lists decide who may use the daemon of the system.
    let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
    let made = std::fs::DirBuilder::new().mode(mode).create(&folder);
    // Whatever the umask is.
    let made = made.and_then(|()| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)));
    made.map_err(|error| format!("cannot make {}: {error}; choose another path", folder.display()))
}
