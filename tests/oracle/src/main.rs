//! `fipsee-oracle`: compares disks with what the protocol allows, under requests that overlap.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand, ValueEnum};
use fipsee_daemon::config::Arguments;
use fipsee_oracle::daemon::{Daemon, Program};
use fipsee_oracle::front::Front;
use fipsee_oracle::front::library::Library;
use fipsee_oracle::front::mount::{Mount, MountedFile};
use fipsee_oracle::front::rings::Rings;
use fipsee_oracle::front::vhost_user::VhostUser;
use fipsee_oracle::slow::Slow;
use fipsee_oracle::storage::{Kind, Storage, default_folder};
use fipsee_oracle::workload::{Counts, Settings, Site};
use fipsee_oracle::{interrupt, scenario, workload};

#[derive(Parser)]
#[command(name = "fipsee-oracle", about = "Sends overlapping requests to disks, and compares each sector with what is allowed")]
struct Options {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Subcommand)]
enum Commands {
    /// Random requests of every size.
    Random {
        #[command(flatten)]
        choice: Choice,
        /// Requests of each run.
        #[arg(long, default_value_t = 1_000_000)]
        requests: u64,
        /// Bytes that each run writes, at most, in GiB.
        #[arg(long, default_value_t = 186)]
        write_gib: u64,
        /// Requests in flight.
        #[arg(long, default_value_t = 64)]
        depth: u64,
    },
    /// One write of 16 MiB and sixty small ones into its last pages, together.
    Scenario {
        #[command(flatten)]
        choice: Choice,
        /// Rounds of each run.
        #[arg(long, default_value_t = 10_000)]
        rounds: u64,
    },
    /// Random requests, and the daemon killed below them again and again.
    Kills {
        #[command(flatten)]
        choice: Choice,
        /// Kills of each run.
        #[arg(long, default_value_t = 200)]
        kills: u64,
    },
    /// Kills of a daemon whose writes are slow, so that they would come late to what the next daemon has written.
    LateWrites {
        #[command(flatten)]
        choice: Choice,
        /// Kills of each run.
        #[arg(long, default_value_t = 50)]
        kills: u64,
    },
    /// Be a daemon (used by the others).
    #[command(hide = true)]
    Daemon {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// How requests reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FrontKind {
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

/// The options of a disk.
#[derive(Args, Clone, Debug)]
struct Choice {
    /// Only on this storage; may be repeated [default: ext4]
    #[arg(long, value_enum)]
    storage: Vec<Kind>,
    /// Only by this front; may be repeated [default: library]
    #[arg(long, value_enum)]
    front: Vec<FrontKind>,
    /// More options of the disk: block=512,direct=on; may be repeated.
    #[arg(long, default_value = "block=512")]
    disk: Vec<String>,
    /// Size of the disk in MiB.
    #[arg(long, default_value_t = 64)]
    size_mib: u64,
    /// Queues.
    #[arg(long, default_value_t = 2)]
    queues: u16,
    /// What is random; the same for the same number, except for time.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for images [default: memory, if there is room]
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Loop devices bypass the page cache of their file.
    #[arg(long)]
    direct_loop: bool,
    /// Another daemon than this program's own.
    #[arg(long)]
    daemon: Option<PathBuf>,
    /// The program that mounts [default: that of `cargo xtask dist`]
    #[arg(long)]
    fipsee: Option<PathBuf>,
    /// Compare on when a request fails: old daemons fail a flush sooner than they are seen to lose data.
    #[arg(long)]
    forgive: bool,
}

fn main() -> ExitCode {
    let outcome = match Options::parse().command {
        Commands::Random { choice, requests, write_gib, depth } => each(&choice, &mut |site, seed| {
            let settings = Settings {
                requests,
                mean_bytes: Settings::mean_of(requests, write_gib << 30),
                seed,
                depth,
                ..Settings::default()
            };
            workload::run(site, &settings)
        }),
        Commands::Scenario { choice, rounds } => each(&choice, &mut |site, seed| scenario::run(site, rounds, seed)),
        Commands::Kills { choice, kills } => each(&choice, &mut |site, seed| {
            let settings =
                Settings { requests: 0, mean_bytes: KILLS_MEAN_BYTES, resize: false, seed, kills, ..Settings::default() };
            workload::run(site, &settings)
        }),
        Commands::LateWrites { choice, kills } => late_writes(&choice, kills),
        Commands::Daemon { arguments } => {
            let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            let all = std::iter::once(OsString::from("fipseed")).chain(arguments);
            fipsee_daemon::start(Arguments::parse_from(all))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Many small requests and a large one at times.
const KILLS_MEAN_BYTES: u64 = 64 << 10;

type Act<'a> = &'a mut dyn FnMut(&mut Site<'_>, u64) -> Result<Counts, String>;

/// Every storage, front and disk that was chosen.
fn each(choice: &Choice, act: Act<'_>) -> Result<(), String> {
    interrupt::arm()?;
    let kinds = if choice.storage.is_empty() { vec![Kind::Ext4] } else { choice.storage.clone() };
    let mut outcome = Ok(());
    for kind in kinds {
        if let Some(reason) = kind.missing() {
            println!("{kind:?}: skipped: {reason}");
            continue;
        }
        for front in fronts(choice) {
            for disk in &choice.disk {
                let what = format!("{front:?} on {kind:?} ({disk})");
                let begun = Instant::now();
                match one(choice, kind, front, disk, act) {
                    Ok(counts) => println!("{what}: no violation in {:.1?}: {counts:?}", begun.elapsed()),
                    Err(error) => {
                        eprintln!("{what}: VIOLATION after {:.1?}: {error}", begun.elapsed());
                        outcome = Err("there were violations".to_owned());
                    }
                }
                interrupt::check()?;
            }
        }
    }
    outcome
}

/// On the slow device itself, and on a file system there.
fn late_writes(choice: &Choice, kills: u64) -> Result<(), String> {
    interrupt::arm()?;
    if let Some(reason) = Kind::Ext4On4096.missing() {
        println!("late writes: skipped: {reason}");
        return Ok(());
    }
    let mut outcome = Ok(());
    for on_ext4 in [false, true] {
        for front in fronts(choice) {
            let what = format!("{front:?} on {}", if on_ext4 { "ext4 on a slow device" } else { "a slow device" });
            let begun = Instant::now();
            match late_writes_on(choice, front, kills, on_ext4) {
                Ok(counts) => println!("{what}: no violation in {:.1?}: {counts:?}", begun.elapsed()),
                Err(error) => {
                    eprintln!("{what}: VIOLATION after {:.1?}: {error}", begun.elapsed());
                    outcome = Err("there were violations".to_owned());
                }
            }
            interrupt::check()?;
        }
    }
    outcome
}

/// Bytes of a slow disk, of which a few pages are used.
const SLOW_BYTES: u64 = 1 << 20;

fn late_writes_on(choice: &Choice, front: FrontKind, kills: u64, on_ext4: bool) -> Result<Counts, String> {
    let folder = choice.folder.clone().unwrap_or_else(default_folder);
    let (program, fipsee) = (program(choice)?, fipsee(choice)?);
    let slow = Slow::new(&program, &fipsee, &folder, SLOW_BYTES, on_ext4)?;
    let mut daemon = Daemon::start(&program, slow.folder(), &slow.spec(&choice.disk[0]))?;
    let mut front = open(choice, front, &daemon, slow.folder())?;
    let mut site = Site { front: front.as_mut(), daemon: &mut daemon, storage: None, forgives: choice.forgive };
    let outcome = workload::run(&mut site, &Settings::for_late_writes(kills, choice.seed));
    drop(front);
    outcome.map_err(|error| format!("{error}\n--- log of the daemon ---\n{}", daemon.log()))
}

/// Memory for the data of requests in flight.
const ARENA_BYTES: u64 = 96 << 20;

fn open(choice: &Choice, kind: FrontKind, daemon: &Daemon, folder: &Path) -> Result<Box<dyn Front>, String> {
    let queues = choice.queues;
    Ok(match kind {
        FrontKind::Library => Box::new(Library::attach(&daemon.socket(), queues, 64, ARENA_BYTES)?),
        FrontKind::VhostUser => Box::new(VhostUser::start(&daemon.vm_socket(), queues, ARENA_BYTES)?),
        FrontKind::Rings => Box::new(Rings::start(&daemon.vm_socket(), queues, ARENA_BYTES)?),
        FrontKind::Mount | FrontKind::MountDirect => {
            let (fipsee, file) = (fipsee(choice)?, folder.join("mounted"));
            let mount = Mount::new(&fipsee, &daemon.socket(), &file)?;
            Box::new(MountedFile::open(mount, &file, kind == FrontKind::MountDirect, ARENA_BYTES)?)
        }
    })
}

/// The program that mounts: as was said, or as `cargo xtask dist` built it.
fn fipsee(choice: &Choice) -> Result<PathBuf, String> {
    let built = std::env::var_os("FIPSEE_DIST").map_or_else(|| PathBuf::from("target/dist"), PathBuf::from).join("bin/fipsee");
    let found = choice.fipsee.clone().unwrap_or(built);
    if found.exists() {
        Ok(found)
    } else {
        Err(format!("{} is not there; run `cargo xtask dist`, or give --fipsee", found.display()))
    }
}

fn program(choice: &Choice) -> Result<Program, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    Ok(choice.daemon.clone().map_or(Program::Own(own), Program::Other))
}

fn fronts(choice: &Choice) -> Vec<FrontKind> {
    if choice.front.is_empty() { vec![FrontKind::Library] } else { choice.front.clone() }
}

fn one(choice: &Choice, kind: Kind, front: FrontKind, disk: &str, act: Act<'_>) -> Result<Counts, String> {
    let folder = choice.folder.clone().unwrap_or_else(default_folder);
    let storage = Storage::new(kind, &folder, choice.size_mib << 20, choice.direct_loop)?;
    let mut daemon = Daemon::start(&program(choice)?, storage.folder(), &storage.spec(disk))?;
    let mut front = open(choice, front, &daemon, storage.folder())?;
    let mut site = Site { front: front.as_mut(), daemon: &mut daemon, storage: Some(&storage), forgives: choice.forgive };
    let outcome = act(&mut site, choice.seed);
    drop(front);
    outcome.map_err(|error| format!("{error}\n--- log of the daemon ---\n{}", daemon.log()))
}
