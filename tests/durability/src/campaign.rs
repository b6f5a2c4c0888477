//! One campaign: a daemon, a writer, kills, and a comparison after each.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Blocking};

use fipsee_oracle::content::{self, Found, SECTOR_BYTES};
use fipsee_oracle::daemon;
use fipsee_testkit::{Daemon, Random};

use crate::oracle::{Counts, DurabilityPoint, Oracle};
use crate::record::Record;

/// Sectors of the disk: few, so that each is written often.
const SECTOR_COUNT: u64 = 2048;
const DISK_BYTES: u64 = SECTOR_COUNT * SECTOR_BYTES as u64;
/// What should happen soon has failed after so long.
const TIMEOUT: Duration = Duration::from_secs(120);
/// A kill comes after a random number of completions below this.
const COMPLETIONS_PER_KILL: u64 = 400;
/// Moves between two comparisons.
const MOVES_PER_CHECK: u64 = 8;

/// The writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// The Rust library.
    Library,
    /// A guest in user space, over vhost-user.
    VhostUser,
}

/// The disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Storage {
    /// A file disk: what was acknowledged outlives the daemon.
    File,
    /// The same, each request after a while of its own: they end in another order than they began.
    Late,
    /// A disk with a cache that is lost with the daemon.
    PowerCut,
    /// The same, and half of what was not flushed survives, sector by sector.
    Torn,
}

impl Storage {
    fn spec(self, directory: &Path, seed: u64) -> String {
        let file = format!("file:{},size={}", directory.join("disk").display(), DISK_BYTES);
        match self {
            Self::File => file,
            Self::Late => format!("delay:50us+500us,seed={seed}:{file}"),
            Self::PowerCut => format!("powercut:{file}"),
            Self::Torn => format!("powercut:survive=50,seed={seed}:{file}"),
        }
    }
}

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Victim {
    /// The daemon; the writer goes on with the next one.
    Daemon,
    /// The writer; another goes on.
    Client,
    /// Both, as when a machine loses its power.
    Both,
    /// Nothing is killed: the queue goes from one worker to the other.
    Worker,
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// The program that this library is part of: daemon and writers are it, too.
    pub program: PathBuf,
    pub directory: PathBuf,
    pub way: Way,
    pub storage: Storage,
    pub victim: Victim,
    pub kills: u64,
    pub seed: u64,
}

/// The oracle, its first objection, and the wake-up of those that wait for it.
type Shared = (Mutex<(Oracle, Option<String>)>, Condvar);

#[derive(Clone)]
struct Bench {
    oracle: Arc<Shared>,
}

impl Bench {
    fn lock(&self) -> MutexGuard<'_, (Oracle, Option<String>)> {
        self.oracle.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receive a writer's records to its end.
    fn listen(&self, output: ChildStdout) {
        let mut output = BufReader::new(output);
        loop {
            let received = Record::read(&mut output);
            let mut state = self.lock();
            let outcome = match received {
                Ok(Some(record)) => state.0.receive(record),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            self.oracle.1.notify_all();
            if let Err(error) = outcome {
                state.1.get_or_insert(error);
                return;
            }
        }
    }

    /// Wait until the oracle fulfils `condition`.
    fn wait(&self, what: &str, mut condition: impl FnMut(&Oracle) -> bool) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        let mut state = self.lock();
        loop {
            if let Some(error) = &state.1 {
                return Err(error.clone());
            }
            if condition(&state.0) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("not within {TIMEOUT:?}: {what}; {} requests are in flight", state.0.in_flight()));
            }
            let waited = self.oracle.1.wait_timeout(state, Duration::from_millis(100));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

struct Writer {
    child: Child,
    input: Option<ChildStdin>,
    listener: JoinHandle<()>,
}

struct Campaign<'a> {
    settings: &'a Settings,
    bench: Bench,
    random: Random,
    daemon: Daemon,
    writer: Option<Writer>,
    moves: u64,
}

/// Kill so many times, and compare each time.
pub fn run(settings: &Settings) -> Result<Counts, String> {
    std::fs::create_dir_all(&settings.directory).map_err(|error| format!("{}: {error}", settings.directory.display()))?;
    // The guest has no write cache.
    let outlives = settings.way == Way::VhostUser || matches!(settings.storage, Storage::File | Storage::Late);
    let point = if outlives { DurabilityPoint::Completion } else { DurabilityPoint::Flush };
    let oracle = (Mutex::new((Oracle::new(point, SECTOR_COUNT), None)), Condvar::new());
    let spec = settings.storage.spec(&settings.directory, settings.seed);
    let mut campaign = Campaign {
        settings,
        bench: Bench { oracle: Arc::new(oracle) },
        random: Random(settings.seed),
        daemon: daemon::start(daemon::own(&settings.program), &settings.directory, &spec)?,
        writer: None,
        moves: 0,
    };
    let outcome = campaign.run();
    campaign.abort();
    outcome?;
    let counts = campaign.bench.lock().0.counts;
    Ok(counts)
}

impl Campaign<'_> {
    fn run(&mut self) -> Result<(), String> {
        self.start_writer()?;
        for kill in 1..=self.settings.kills {
            self.one_kill().map_err(|error| format!("kill {kill}, seed {}: {error}", self.settings.seed))?;
        }
        self.finish().map_err(|error| format!("at the end, seed {}: {error}", self.settings.seed))
    }

    fn one_kill(&mut self) -> Result<(), String> {
        let more = self.random.below(COMPLETIONS_PER_KILL);
        let target = self.bench.lock().0.counts.completed + more;
        self.bench.wait("the writer goes on", |oracle| oracle.counts.completed >= target)?;
        match self.settings.victim {
            Victim::Daemon => {
                self.daemon.kill_and_begin()?;
                self.check(false, false)
            }
            Victim::Worker => {
                self.moves += 1;
                daemon::move_queues(&self.daemon, self.moves % 2 == 1)?;
                if self.moves.is_multiple_of(MOVES_PER_CHECK) { self.check(false, true) } else { Ok(()) }
            }
            Victim::Client => {
                self.signal_writer()?;
                self.await_killed_writer()?;
                self.check(true, true)?;
                self.start_writer()
            }
            Victim::Both => {
                // Signalled first: a writer that is still attaching would end by itself when its daemon is gone.
                self.signal_writer()?;
                self.daemon.kill_and_begin()?;
                self.await_killed_writer()?;
                self.bench.lock().0.lose_cache();
                self.check(true, false)?;
                self.start_writer()
            }
        }
    }

    /// Let the writer end in order, and compare with all that was completed.
    fn finish(&mut self) -> Result<(), String> {
        let Some(mut writer) = self.writer.take() else { return Err("no writer".to_owned()) };
        writer.input = None;
        self.bench.wait("the writer ends", |oracle| oracle.has_ended)?;
        let status = writer.child.wait().map_err(|error| error.to_string())?;
        let _ = writer.listener.join();
        if !status.success() {
            return Err(format!("the writer ended with {status}"));
        }
        self.check(true, true)
    }

    fn start_writer(&mut self) -> Result<(), String> {
        let token = self.bench.lock().0.last_token + 1;
        let mut command = Command::new(&self.settings.program);
        let (way, socket) = match self.settings.way {
            Way::Library => ("library", self.daemon.socket()),
            Way::VhostUser => ("vhost-user", daemon::vm_socket(&self.daemon)),
        };
        command.args(["writer", way]).arg(socket);
        for number in [SECTOR_COUNT, token, self.random.below(u64::MAX)] {
            command.arg(number.to_string());
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| format!("the writer does not start: {error}"))?;
        let (Some(output), bench) = (child.stdout.take(), self.bench.clone()) else { return Err("no pipe".to_owned()) };
        let input = child.stdin.take();
        self.writer = Some(Writer { child, input, listener: std::thread::spawn(move || bench.listen(output)) });
        Ok(())
    }

    fn signal_writer(&mut self) -> Result<(), String> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if let Some(status) = writer.child.try_wait().map_err(|error| error.to_string())? {
            return Err(format!("the writer ended by itself, with {status}"));
        }
        writer.child.kill().map_err(|error| error.to_string())
    }

    /// The writer is killed: take the records that it had sent.
    fn await_killed_writer(&mut self) -> Result<(), String> {
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        writer.child.wait().map_err(|error| error.to_string())?;
        let _ = writer.listener.join();
        let mut state = self.bench.lock();
        state.0.writer_died();
        state.1.clone().map_or(Ok(()), Err)
    }

    /// A client of our own. `alone`: when all others are gone, with their requests in flight.
    fn attach(&self, alone: bool) -> Result<Blocking, String> {
        let deadline = Instant::now() + TIMEOUT;
        let options = AttachOptions { read_only: true, exclusive: alone, ..AttachOptions::new("d") };
        loop {
            match Blocking::attach(&self.daemon.socket(), &options) {
                Ok(blocking) => return Ok(blocking),
                Err(error) if Instant::now() > deadline => return Err(format!("the daemon does not take us: {error}")),
                // tidy: allow sleep, nothing notifies when a socket is there
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Compare all of the disk with the records. `is_up`: the disk has kept its cache.
    fn check(&self, alone: bool, is_up: bool) -> Result<(), String> {
        let mut client = self.attach(alone)?;
        let token = self.bench.lock().0.begin_check(is_up);
        let mut bytes = vec![0; usize::try_from(DISK_BYTES).unwrap_or(0)];
        client.read_at(&mut bytes, 0).map_err(|error| format!("the disk cannot be read: {error}"))?;
        client.detach().map_err(|error| error.to_string())?;
        let found: Vec<Found> = content::identify_all(&bytes, 0).collect();
        // A running writer sends its record before it submits; the record may not have been received yet.
        let newest = found.iter().map(|found| match found {
            Found::Value(value) | Found::Torn(value) => u64::from(*value),
            Found::Misplaced(..) | Found::Garbage(_) => 0,
        });
        let newest = newest.max().unwrap_or(0);
        self.bench.wait("the newest write was reported", |oracle| oracle.last_token >= newest)?;
        self.bench.lock().0.end_check(token, is_up, &found)
    }

    fn abort(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            let _ = writer.child.kill();
            let _ = writer.child.wait();
            let _ = writer.listener.join();
        }
    }
}
