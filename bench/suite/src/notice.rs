//! `cargo xtask bench notice`: how soon each side notices that the other is gone, and how long a takeover holds requests up. Tests
//! check that it happens; when, depends on the machine, and is recorded here, every time of every try.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Disk, Error};
use fipsee_measure::claim::{self, Claim};
use fipsee_measure::cpus::Cpus;
use fipsee_measure::machine::Run;
use fipsee_measure::results::append;
use fipsee_ring::wait::WaitMode;
use fipsee_testkit::faulty::faults::FAULTS;
use serde_json::json;

use crate::Settings;
use crate::daemon::Daemon;
use crate::hostile::{Injected, Neighbour, await_release, holdings};
use crate::table::{MILLISECONDS, Results};

const RELEASE: &str = "client killed: everything of it is released";
const TAKEOVER: &str = "takeover: longest time without an answer";
/// Longer than any measurement takes.
const NEVER_ANSWERED: &str = "a=delay:60000000us:null:1M";
/// A client that sleeps when nothing comes does so by then.
const ASLEEP: Duration = Duration::from_millis(20);
/// Before and after a takeover.
const AROUND: Duration = Duration::from_millis(50);

/// Tries at least: a distribution of fewer says little.
const TRIES: usize = 20;

fn of_mode(mode: WaitMode) -> String {
    format!("daemon killed: noticed, waiting by {}", mode.name())
}

pub(crate) fn run(settings: &Settings) -> Result<(), String> {
    let run = Run::begin_in_sight();
    let modes: Vec<WaitMode> = WaitMode::ALL.into_iter().filter(|mode| mode.available().is_ok()).collect();
    let rounds = if settings.quick { 1 } else { settings.rounds.max(TRIES) };
    let mut results = Results::default();
    for _ in 0..rounds {
        for mode in modes.iter().filter(|mode| settings.chooses(&of_mode(**mode))) {
            results.add(&of_mode(*mode), MILLISECONDS, notice_of_death(*mode)?);
        }
        for (name, measure) in [(RELEASE, release as fn() -> Result<f64, String>), (TAKEOVER, takeover)] {
            if settings.chooses(name) {
                results.add(name, MILLISECONDS, measure()?);
            }
        }
    }
    if results.series.is_empty() {
        return Err("--only leaves nothing to measure".to_owned());
    }
    let (machine, noise) = run.end();
    results.print();
    let median = |name: &str| results.get(name, MILLISECONDS).map(|series| series.median());
    let slowest = modes.iter().filter_map(|mode| median(&of_mode(*mode))).reduce(f64::max);
    let claims = [
        Claim::at_most(100.0, "ms until the daemon's end is noticed, slowest way to wait, median", slowest),
        Claim::at_most(100.0, "ms until everything of a killed client is released, median", median(RELEASE)),
        Claim::at_most(100.0, "ms without an answer during a takeover, median", median(TAKEOVER)),
    ];
    println!("\n{}", claim::table(&claims));
    let judged = noise.judge(&[]);
    let entry = json!({
        "suite": "notice",
        "machine": machine,
        "rounds": rounds,
        "series": results.to_json(),
        "claims": claim::to_json(&claims),
    });
    append(&settings.file("notice", &judged), &entry)?;
    if settings.is_whole() { judged } else { Ok(()) }
}

fn daemon(disk: &str) -> Result<Daemon, String> {
    let server = Cpus::choose().server.to_string();
    Daemon::start_program(&Daemon::shipped()?, &[disk.to_owned()], &["--workers", "1", "--cpus", &server])
}

fn ms_since(instant: Instant) -> f64 {
    instant.elapsed().as_secs_f64() * 1e3
}

/// A client waits in this way for an answer that does not come, and the daemon is killed.
fn notice_of_death(wait: WaitMode) -> Result<f64, String> {
    let daemon = daemon(NEVER_ANSWERED)?;
    let options = AttachOptions { wait, ..AttachOptions::new("a") };
    let (disk, mut queues) = Disk::attach(&daemon.socket(), &options).map_err(|error| format!("cannot attach: {error}"))?;
    let mut queue = queues.pop().ok_or("no queue")?;
    let (begun, begins) = mpsc::channel();
    let client = std::thread::spawn(move || {
        let _disk = disk;
        let staged = queue.flush(1).is_ok();
        queue.submit();
        let _ = begun.send(());
        let ended = queue.wait(&mut |_| {});
        (staged && matches!(ended, Err(Error::Disconnected)), Instant::now())
    });
    begins.recv().map_err(|error| error.to_string())?;
    std::thread::sleep(ASLEEP); // tidy: allow sleep, the client needs time to fall asleep
    let killed = Instant::now();
    daemon.kill();
    match client.join() {
        Ok((true, noticed)) => Ok(noticed.duration_since(killed).as_secs_f64() * 1e3),
        _ => Err(format!("a client that waits by {wait} did not notice that the daemon was killed")),
    }
}

/// A correct client under load is killed.
fn release() -> Result<f64, String> {
    let daemon = daemon("neighbour=memory:64M")?;
    let before = holdings(daemon.pid())?;
    let baseline = FAULTS.iter().find_map(|fault| fault.baseline).ok_or("no fault has a baseline")?;
    let neighbour = Neighbour::start(Injected::Disk(baseline), &daemon.socket(), Cpus::choose().client)?;
    std::thread::sleep(AROUND); // tidy: allow sleep, it is to be killed in the middle of its work
    await_release(daemon.pid(), before, neighbour.kill())
}

/// A client has one request after another answered while a second daemon takes over.
fn takeover() -> Result<f64, String> {
    let mut daemon = daemon("a=memory:1M")?;
    let (disk, mut queues) =
        Disk::attach(&daemon.socket(), &AttachOptions::new("a")).map_err(|error| format!("cannot attach: {error}"))?;
    let mut queue = queues.pop().ok_or("no queue")?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let (mut last, mut longest) = (Instant::now(), 0.0_f64);
            while !stop.load(Ordering::Relaxed) {
                queue.flush(1).map_err(|_| "a queue with room is full".to_owned())?;
                queue.submit();
                while queue.outstanding() > 0 {
                    queue.wait(&mut |_| {}).map_err(|error| error.to_string())?;
                }
                longest = longest.max(ms_since(last));
                last = Instant::now();
            }
            Ok::<f64, String>(longest)
        });
        std::thread::sleep(AROUND); // tidy: allow sleep, requests are to be under way before
        let taken_over = daemon.take_over();
        std::thread::sleep(AROUND); // tidy: allow sleep, and after
        stop.store(true, Ordering::Relaxed);
        let longest = client.join().unwrap_or_else(|_| Err("the client panicked".to_owned()));
        drop(disk);
        taken_over.and(longest)
    })
}
