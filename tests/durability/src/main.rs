//! `fipsee-endure`: kills daemons and clients, and says what was lost.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use fipsee_durability::campaign::{self, Settings, Storage, Victim, Way};
use fipsee_durability::writer::{self, Plan};
use fipsee_oracle::daemon::{self, die_with_parent};

#[derive(Parser)]
#[command(name = "fipsee-endure", about = "Kills daemons and clients under load, and compares disks with what was acknowledged")]
struct Options {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Subcommand)]
enum Commands {
    /// Run campaigns: all of them, or those that the options choose.
    Run {
        /// Kills of each campaign.
        #[arg(long, default_value_t = 500)]
        kills: u64,
        /// What is random; the same for the same number, except for time.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Only by this way.
        #[arg(long, value_enum)]
        way: Option<Way>,
        /// Only on this storage.
        #[arg(long, value_enum)]
        storage: Option<Storage>,
        /// Only killing this.
        #[arg(long, value_enum)]
        kill: Option<Victim>,
        /// The folder of disks and sockets; removed at the end [default: a new folder in the temporary directory].
        #[arg(long)]
        directory: Option<PathBuf>,
    },
    /// Be a daemon (used by `run`).
    #[command(hide = true)]
    Daemon {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Be a writer (used by `run`).
    #[command(hide = true)]
    Writer { way: Way, socket: PathBuf, sector_count: u64, first_token: u64, seed: u64 },
}

/// What is worth killing.
const CAMPAIGNS: [(Storage, Victim); 8] = [
    (Storage::File, Victim::Daemon),
    (Storage::File, Victim::Client),
    (Storage::Late, Victim::Daemon),
    (Storage::PowerCut, Victim::Both),
    (Storage::Torn, Victim::Both),
    (Storage::Torn, Victim::Daemon),
    (Storage::File, Victim::Worker),
    (Storage::Late, Victim::Worker),
];

fn main() -> ExitCode {
    let outcome = match Options::parse().command {
        Commands::Run { kills, seed, way, storage, kill, directory } => {
            let name = format!("fipsee-endure-{}", std::process::id());
            let directory = directory.unwrap_or_else(|| std::env::temp_dir().join(name));
            let mut outcome = Ok(());
            for way_now in [Way::Library, Way::VhostUser].into_iter().filter(|one| way.is_none_or(|way| way == *one)) {
                let chosen =
                    |pair: &&(Storage, Victim)| storage.is_none_or(|one| one == pair.0) && kill.is_none_or(|one| one == pair.1);
                for (storage, victim) in CAMPAIGNS.iter().filter(chosen) {
                    outcome = outcome.and(one(way_now, *storage, *victim, kills, seed, &directory));
                }
            }
            outcome
        }
        Commands::Daemon { arguments } => daemon::serve(arguments),
        Commands::Writer { way, socket, sector_count, first_token, seed } => {
            die_with_parent();
            writer::attach(way, &socket).and_then(|front| writer::run(front, Plan { sector_count, first_token, seed }))
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

fn one(way: Way, storage: Storage, victim: Victim, kills: u64, seed: u64, directory: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let settings = Settings { program, directory: directory.join("campaign"), way, storage, victim, kills, seed };
    let begun = Instant::now();
    let what = format!("{way:?} on {storage:?}, killing {victim:?}");
    let counts = campaign::run(&settings)
        .map_err(|error| format!("{what}: {error}\nthe disk and the daemon's log are in {}", settings.directory.display()))?;
    let _ = std::fs::remove_dir_all(directory);
    let forgotten = match storage {
        Storage::File | Storage::Late => String::new(),
        Storage::PowerCut | Storage::Torn => format!(", {} times a sector was forgotten that was not flushed", counts.forgotten),
    };
    println!(
        "{what}: {kills} {}, {} requests, 0 lost, 0 double, 0 missing ({} writes over others in flight; {} flushes and FUA; {} in flight when the daemon died, {} \
         with their writer; {} reconnections; {} sectors compared{forgotten}) in {:.0?}",
        if victim == Victim::Worker { "moves" } else { "kills" },
        counts.completed,
        counts.overlapping,
        counts.hardened,
        counts.in_flight_at_loss,
        counts.died,
        counts.resumed,
        counts.checked,
        begun.elapsed(),
    );
    Ok(())
}
