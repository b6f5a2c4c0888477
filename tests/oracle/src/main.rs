//! `fipsee-oracle`: compares disks with what the protocol allows, under requests that overlap.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use fipsee_oracle::setup::{FrontKind, Setup};
use fipsee_oracle::storage::{Kind, default_folder};
use fipsee_oracle::workload::{Counts, Settings};
use fipsee_oracle::{daemon, interrupt, scenario, slow_file, workload};

/// Many small requests and a large one at times.
const KILLS_MEAN_BYTES: u64 = 64 << 10;

#[derive(Parser)]
#[command(name = "fipsee-oracle", about = "Sends overlapping requests to disks, and compares each sector with what is allowed")]
struct Options {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Subcommand)]
enum Commands {
    /// Random requests of every size.
    Random(Choice),
    /// One write of 16 MiB and sixty small ones into its last pages, together.
    Scenario(Choice),
    /// Random requests, and the daemon killed below them again and again.
    Kills(Choice),
    /// Kills of a daemon with slow writes: they would come late, over the writes of the next daemon.
    LateWrites(Choice),
    /// All of these: every storage by the library, every front on two kinds of it.
    All(Choice),
    /// Serve a file with late writes (used by `late-writes`).
    #[command(hide = true)]
    SlowFile { folder: PathBuf, content: PathBuf, seed: u64 },
    /// Be a daemon (used by the others).
    #[command(hide = true)]
    Daemon {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

/// The options of a disk.
#[derive(Args, Clone, Debug)]
struct Choice {
    /// Only on this storage; may be repeated [default: all, but the folder itself]
    #[arg(long, value_enum)]
    storage: Vec<Kind>,
    /// By this front; may be repeated [default: library]
    #[arg(long, value_enum)]
    front: Vec<FrontKind>,
    /// More options of the disk; may be repeated.
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
    /// Random runs: requests of each; of `all`, other fronts than the library have a tenth.
    #[arg(long, default_value_t = 1_000_000)]
    requests: u64,
    /// Random runs: bytes that each writes, about, in GiB; sizes are chosen so that these suffice.
    #[arg(long, default_value_t = 180)]
    write_gib: u64,
    /// Random runs: requests in flight.
    #[arg(long, default_value_t = 64)]
    depth: u64,
    /// Rounds of the scenario.
    #[arg(long, default_value_t = 10_000)]
    rounds: u64,
    /// Kills of each run [default: 200; of late writes 50; of `all` 100]
    #[arg(long)]
    kills: Option<u64>,
}

fn main() -> ExitCode {
    let outcome = match Options::parse().command {
        Commands::Random(choice) => random(&choice),
        Commands::Scenario(choice) => rounds_of(&choice),
        Commands::Kills(choice) => kills_of(&choice, choice.kills.unwrap_or(200)),
        Commands::LateWrites(choice) => late_writes(&choice, choice.kills.unwrap_or(50)),
        Commands::All(choice) => all(&choice),
        Commands::SlowFile { folder, content, seed } => {
            let bytes = std::fs::read(&content).map_err(|error| format!("{}: {error}", content.display()));
            bytes.and_then(|bytes| slow_file::serve(&folder, bytes, seed))
        }
        Commands::Daemon { arguments } => daemon::serve(arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn random(choice: &Choice) -> Result<(), String> {
    let mean_bytes = Settings::mean_of(choice.requests, choice.write_gib << 30);
    let (requests, seed, depth) = (choice.requests, choice.seed, choice.depth);
    let settings = Settings { requests, mean_bytes, seed, depth, ..Settings::default() };
    each(choice, &mut |setup| setup.run(&mut |site| workload::run(site, &settings)))
}

fn rounds_of(choice: &Choice) -> Result<(), String> {
    each(choice, &mut |setup| setup.run(&mut |site| scenario::run(site, choice.rounds, choice.seed)))
}

fn kills_of(choice: &Choice, kills: u64) -> Result<(), String> {
    let seed = choice.seed;
    let settings = Settings { requests: 0, mean_bytes: KILLS_MEAN_BYTES, resize: false, seed, kills, ..Settings::default() };
    each(choice, &mut |setup| setup.run(&mut |site| workload::run(site, &settings)))
}

fn late_writes(choice: &Choice, kills: u64) -> Result<(), String> {
    // The storage is its own: the slow device, and a file on it.
    let choice = Choice { storage: vec![Kind::Loop4096, Kind::Ext4On4096], ..choice.clone() };
    each(&choice, &mut |setup| setup.late_writes(kills, setup.storage == Kind::Ext4On4096, choice.seed))
}

/// What fails does not keep the rest from running.
fn all(choice: &Choice) -> Result<(), String> {
    let kills = choice.kills.unwrap_or(100);
    let tenth = Choice { requests: choice.requests / 10, write_gib: choice.write_gib / 10, ..choice.clone() };
    let storage = vec![Kind::Ext4, Kind::Ext4On4096];
    let cached = Choice { storage: storage.clone(), disk: vec!["block=512,direct=off".to_owned()], ..tenth.clone() };
    let direct_loop = Choice { storage: vec![Kind::Loop512, Kind::Loop4096], direct_loop: true, ..tenth.clone() };
    let files = vec![Kind::Folder, Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Ext4On4096];
    let front: Vec<FrontKind> = FrontKind::ALL.into_iter().filter(|front| *front != FrontKind::Library).collect();
    let both = Choice { front: vec![FrontKind::Library, FrontKind::VhostUser], ..choice.clone() };
    let outcomes = [
        random(choice),
        random(&cached),
        random(&direct_loop),
        random(&Choice { front, storage: storage.clone(), ..tenth }),
        rounds_of(&Choice { storage: files, ..choice.clone() }),
        kills_of(&Choice { storage, ..both.clone() }, kills),
        late_writes(&both, kills),
    ];
    outcomes.into_iter().collect()
}

/// Every storage, front and disk that was chosen.
fn each(choice: &Choice, act: &mut dyn FnMut(&Setup) -> Result<Counts, String>) -> Result<(), String> {
    interrupt::arm()?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let all: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Folder).collect();
    let kinds = if choice.storage.is_empty() { all } else { choice.storage.clone() };
    let fronts = if choice.front.is_empty() { vec![FrontKind::Library] } else { choice.front.clone() };
    let built = std::env::var_os("FIPSEE_DIST").map_or_else(|| PathBuf::from("target/dist"), PathBuf::from).join("bin/fipsee");
    let fipsee = choice.fipsee.clone().or_else(|| built.exists().then_some(built));
    let (mut violations, mut done) = (0, 0);
    for storage in kinds {
        if let Some(reason) = storage.missing() {
            println!("{storage:?}: skipped: {reason}");
            continue;
        }
        // The folder itself is for a file system that is there; in memory there are others for that.
        let usual = || if storage == Kind::Folder { std::env::temp_dir() } else { default_folder() };
        let folder = choice.folder.clone().unwrap_or_else(usual);
        for (front, disk) in fronts.iter().flat_map(|front| choice.disk.iter().map(move |disk| (front, disk))) {
            if front.is_mount() && fipsee.is_none() {
                println!("{front:?}: skipped: no program that mounts; run `cargo xtask dist`, or give --fipsee");
                continue;
            }
            let setup = Setup {
                daemon: choice.daemon.clone(),
                fipsee: fipsee.clone(),
                front: *front,
                disk: disk.clone(),
                size_bytes: choice.size_mib << 20,
                queues: choice.queues,
                direct_loop: choice.direct_loop,
                forgives: choice.forgive,
                ..Setup::new(&own, storage, &folder)
            };
            let (what, begun) = (setup.describe(), Instant::now());
            match act(&setup) {
                Ok(counts) => println!("{what}: no violation in {:.1?}: {counts}", begun.elapsed()),
                Err(error) => {
                    eprintln!("{what}: VIOLATION after {:.1?}: {error}", begun.elapsed());
                    violations += 1;
                }
            }
            done += 1;
            interrupt::check()?;
        }
    }
    if violations > 0 { Err(format!("{violations} of {done} runs had violations")) } else { Ok(()) }
}
