//! What each lie costs a client that behaves: its throughput while the lie is told, between two quiet spells.
//!
//! `cargo xtask bench hostile` runs it. The daemon is this package's, beside this program.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use fipsee_block::client::{AttachOptions, Disk, Error, Queue};
use fipsee_hostile::lies::{BUSY, LIES, Lie, Random, Until};

/// A victim's throughput beside each lie, interleaved with quiet.
#[derive(Debug, Parser)]
struct Arguments {
    /// Seconds of each spell, quiet or not.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Spells of each lie; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Requests the victim has outstanding.
    #[arg(long, default_value_t = 32)]
    depth: u32,
    /// Workers of the daemon.
    #[arg(long, default_value_t = 1)]
    workers: u32,
    /// Lies whose names contain this; without it, all.
    lie: Option<String>,
}

/// A daemon of our own, gone with us.
struct Daemon {
    child: Child,
    folder: PathBuf,
}

impl Daemon {
    fn start(workers: u32) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("hostile-daemon");
        let folder = std::env::temp_dir().join(format!("fipsee-hostile-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let mut command = Command::new(&program);
        command.arg("--listen").arg(folder.join("s")).args(["--workers", &workers.to_string()]);
        command.args(["--disk", "victim=memory:64M", "--disk", "liar=memory:64M", "--log-level", "error"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("cannot start {}: {error}; build it first", program.display()))?;
        Ok(Self { child, folder })
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("s")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The client that behaves: random reads of 4 KiB.
struct Victim {
    disk: Disk,
    queue: Queue,
    random: Random,
    depth: u32,
}

impl Victim {
    fn attach(socket: &Path, depth: u32) -> Result<Self, String> {
        let mut options = AttachOptions::new("victim");
        options.depth = depth;
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match Disk::attach(socket, &options) {
                Ok((disk, mut queues)) => {
                    let queue = queues.pop().ok_or("no queue")?;
                    return Ok(Self { disk, queue, random: Random(7), depth });
                }
                Err(Error::Connect { .. }) if Instant::now() < deadline => std::thread::yield_now(),
                Err(error) => return Err(format!("cannot attach: {error}")),
            }
        }
    }

    /// Requests a second for so long.
    fn measure(&mut self, spell: Duration) -> Result<f64, String> {
        let buffer = self.disk.allocate(u64::from(self.depth) * 4096).map_err(|error| error.to_string())?;
        let sectors = self.disk.info().sector_count / 8;
        let (started, mut finished) = (Instant::now(), 0_u64);
        while started.elapsed() < spell {
            // Looking at the clock costs more than a request: some hundred between two looks.
            for _ in 0..64 {
                while self.queue.free() > 0 {
                    let place = u64::try_from(self.queue.free()).unwrap_or(1) % u64::from(self.depth);
                    let sector = self.random.number() % sectors * 8;
                    let staged = self.queue.read(sector, buffer.segment(place * 4096, 4096), 0);
                    staged.map_err(|_| "a queue with room is full".to_owned())?;
                }
                let count = self.queue.wait(&mut |_| {}).map_err(|error| error.to_string())?;
                finished += u64::try_from(count).unwrap_or(0);
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        while self.queue.outstanding() > 0 {
            self.queue.wait(&mut |_| {}).map_err(|error| error.to_string())?;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let rate = finished as f64 / seconds;
        Ok(rate)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// One spell beside a lie, between two of quiet; both rates.
fn round(victim: &mut Victim, socket: &Path, lie: &Lie, spell: Duration) -> Result<(f64, f64), String> {
    let before = victim.measure(spell)?;
    let stop = AtomicBool::new(false);
    let (beside, lied) = std::thread::scope(|scope| {
        let liar = scope.spawn(|| {
            let mut outcome = Ok(());
            // Those that lose their channel come again.
            while !stop.load(Ordering::Relaxed) && outcome.is_ok() {
                outcome = lie.tell(socket, "liar", &mut Until::times(u64::MAX, &stop));
            }
            outcome
        });
        let beside = victim.measure(spell);
        stop.store(true, Ordering::Relaxed);
        (beside, liar.join())
    });
    match lied {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(format!("{}: {error}", lie.name)),
        Err(_) => return Err(format!("{}: the liar panicked", lie.name)),
    }
    let after = victim.measure(spell)?;
    Ok(((before + after) / 2.0, beside?))
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let daemon = Daemon::start(arguments.workers)?;
    let mut victim = Victim::attach(&daemon.socket(), arguments.depth)?;
    let spell = Duration::from_secs_f64(arguments.seconds);
    victim.measure(spell)?;
    let mut out = std::io::stdout().lock();
    let mut say = |line: String| writeln!(out, "{line}").map_err(|error| error.to_string());
    say(format!("{:<50} {:>12} {:>12} {:>8}", "lie", "quiet, 1/s", "beside, 1/s", "share"))?;
    let chosen = std::iter::once(&BUSY).chain(LIES);
    let chosen = chosen.filter(|lie| arguments.lie.as_ref().is_none_or(|part| lie.name.contains(part.as_str())));
    for lie in chosen {
        let (mut quiet, mut beside, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..arguments.rounds.max(1) {
            let (without, with) = round(&mut victim, &daemon.socket(), lie, spell)?;
            quiet.push(without);
            beside.push(with);
            shares.push(with / without);
        }
        let share = 100.0 * median(shares);
        say(format!("{:<50} {:>12.0} {:>12.0} {share:>7.1}%", lie.name, median(quiet), median(beside)))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
