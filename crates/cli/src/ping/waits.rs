//! `fipsee ping --waits`: the cost of each wait mode, in latency and in processor time. Two processes over a channel of the
//! product, with its doorbells, both waiting in the same way; no daemon.

mod side;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use fipsee_ring::clock;
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::wait::WaitMode;
use hdrhistogram::Histogram;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde_json::{Value, json};

use self::side::{ANSWER, ANSWER_WITH_CPU_TIME, Caller};
pub(crate) use self::side::{PeerArguments, run_peer};
use crate::error::Error;
use crate::output::{self, Table};
use crate::process;

/// Exchanges before the measured ones: they map pages, fill caches, and let the CPU reach its frequency.
const WARM_UP: Duration = Duration::from_millis(50);
/// The length of the exchanges.
const BUSY: Duration = Duration::from_millis(500);
/// The silence in which processor time is measured.
const IDLE: Duration = Duration::from_secs(1);
/// Silences before a message, and how often each.
const SILENCES: [(Duration, u32); 4] = [
    (Duration::from_micros(1), 2000),
    (Duration::from_micros(50), 1000),
    (Duration::from_millis(1), 200),
    (Duration::from_millis(100), 10),
];
/// Silences from here on sleep, shorter ones spin.
const SLEPT: Duration = Duration::from_millis(1);

/// The results of one wait mode. Times of exchanges in ticks, all others in nanoseconds.
struct Measured {
    round_trip_ticks: Histogram<u64>,
    wakeup_ns: Vec<Histogram<u64>>,
    idle_cpu_percent: f64,
}

/// Measure each wait mode, the calling side on the first of `cpus` and the answering side on the second.
pub(crate) fn run(cpus: Option<[usize; 2]>, json: bool) -> Result<(), Error> {
    // Measured once, before the peer is bound to a CPU and takes it.
    let tsc_hz = clock::ticks_per_second();
    let mut lines = Vec::new();
    let headings = ["WAIT", "CYCLES P50", "NS P50", "NS P99", "WAKE 1us", "50us", "1ms", "100ms", "IDLE CPU"];
    let mut table = Table::new(1, &headings);
    for mode in WaitMode::ALL {
        let measured = match mode.available() {
            Ok(()) => Ok(measure(mode, cpus)?),
            Err(unavailable) => Err(unavailable.missing()),
        };
        match (&measured, json) {
            (Ok(measured), true) => output::print_json(&measured.to_json(mode, tsc_hz))?,
            (Err(missing), true) => output::print_json(&json!({ "wait": mode.name(), "unavailable": missing }))?,
            (Ok(measured), false) => table.push(measured.to_row(mode)),
            (Err(missing), false) => lines.push(format!("{mode}: this CPU has {missing}\n")),
        }
    }
    if json {
        return Ok(());
    }
    let place = cpus.map_or_else(|| "wherever the scheduler puts them".to_owned(), |[a, b]| format!("on CPUs {a} and {b}"));
    let head = format!(
        "two processes {place}, both waiting in the same way; a call and its answer at once after another (CYCLES, NS), from publishing to \
         receiving\na call after a silence (WAKE, p50/p99 in ns), processor time of a side that waits for a second (IDLE CPU); \
         cycles of {tsc_hz} Hz\n"
    );
    output::print(&format!("{head}{}{}", table.render(), lines.concat()))
}

fn measure(mode: WaitMode, cpus: Option<[usize; 2]>) -> Result<Measured, Error> {
    let mut exchange = Exchange::start(mode, cpus)?;
    let caller = &mut exchange.caller;
    call_for(caller, WARM_UP, None)?;
    let mut round_trip_ticks = histogram()?;
    call_for(caller, BUSY, Some(&mut round_trip_ticks))?;
    let wakeup_ns = SILENCES.map(|(silence, count)| wake_up(caller, silence, count));
    let wakeup_ns = wakeup_ns.into_iter().collect::<Result<_, _>>()?;
    let idle_cpu_percent = idle(caller)?;
    exchange.stop()?;
    Ok(Measured { round_trip_ticks, wakeup_ns, idle_cpu_percent })
}

fn histogram() -> Result<Histogram<u64>, Error> {
    let histogram = Histogram::new_with_bounds(1, 1_000_000_000_000, 3);
    histogram.map_err(|error| format!("cannot make a histogram: {error}; report this").into())
}

/// How long a side that sleeps takes to wake up after `count` silences of `silence`, in nanoseconds.
pub(super) fn sleepers_wake_ups(cpus: Option<[usize; 2]>, silence: Duration, count: u32) -> Result<Histogram<u64>, Error> {
    let mut exchange = Exchange::start(WaitMode::Sleep, cpus)?;
    call_for(&mut exchange.caller, WARM_UP, None)?;
    let latency_ns = wake_up(&mut exchange.caller, silence, count)?;
    exchange.stop()?;
    Ok(latency_ns)
}

/// Calls for some time, timed if a histogram is given.
fn call_for(caller: &mut Caller, duration: Duration, mut ticks: Option<&mut Histogram<u64>>) -> Result<(), Error> {
    let started = Instant::now();
    while started.elapsed() < duration {
        let from = clock::ticks_fenced();
        caller.call(ANSWER)?;
        let to = clock::ticks_fenced();
        if let Some(ticks) = &mut ticks {
            ticks.saturating_record(to.wrapping_sub(from));
        }
    }
    Ok(())
}

/// From publishing to the copy on the other side, after a silence, as measured by the other side.
fn wake_up(caller: &mut Caller, silence: Duration, count: u32) -> Result<Histogram<u64>, Error> {
    let mut latency_ns = histogram()?;
    for _ in 0..count {
        be_silent(silence);
        latency_ns.saturating_record(caller.call(ANSWER)?[1].max(1));
    }
    Ok(latency_ns)
}

fn be_silent(duration: Duration) {
    if duration >= SLEPT {
        // tidy: allow sleep, the silence is what is measured
        return std::thread::sleep(duration);
    }
    let started = Instant::now();
    while started.elapsed() < duration {
        core::hint::spin_loop();
    }
}

/// Percent of a CPU that the other side uses while no message comes.
fn idle(caller: &mut Caller) -> Result<f64, Error> {
    let before_ns = caller.call(ANSWER_WITH_CPU_TIME)?[2];
    let started = Instant::now();
    be_silent(IDLE);
    let after_ns = caller.call(ANSWER_WITH_CPU_TIME)?[2];
    Ok(100.0 * Duration::from_nanos(after_ns.saturating_sub(before_ns)).as_secs_f64() / started.elapsed().as_secs_f64())
}

/// A channel with the answering process at its other end.
struct Exchange {
    caller: Caller,
    child: Child,
}

impl Exchange {
    fn start(mode: WaitMode, cpus: Option<[usize; 2]>) -> Result<Self, Error> {
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(|error| Error::io("make a pair of sockets", &error.into()))?;
        let mut command = process::again("waits-peer");
        command.arg("--wait").arg(mode.name());
        if let Some([own, peer]) = cpus {
            command.arg("--cpu").arg(peer.to_string());
            process::bind_to_cpu(own)?;
        }
        command.stdin(Stdio::from(theirs));
        let mut child = command.spawn().map_err(|error| Error::io("start the answering process", &error))?;
        // Closes its copy of the other end: from here on a hang-up means that the child is gone.
        drop(command);
        match Caller::new(mode, Seqpacket::from_fd(ours)) {
            Ok(caller) => Ok(Self { caller, child }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    fn stop(mut self) -> Result<(), Error> {
        self.caller.stop();
        let status = self.child.wait().map_err(|error| Error::io("wait for the answering process", &error))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the answering process failed ({status}); see its message above").into())
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Measured {
    fn to_json(&self, mode: WaitMode, tsc_hz: u64) -> Value {
        let ticks = |quantile| self.round_trip_ticks.value_at_quantile(quantile);
        let wake_up = |((silence, count), ns): (&(Duration, u32), &Histogram<u64>)| {
            json!({
                "silence_us": u64::try_from(silence.as_micros()).unwrap_or(u64::MAX),
                "count": count,
                "ns_p50": ns.value_at_quantile(0.5),
                "ns_p99": ns.value_at_quantile(0.99),
            })
        };
        let wake_ups: Vec<_> = SILENCES.iter().zip(&self.wakeup_ns).map(wake_up).collect();
        json!({
            "wait": mode.name(),
            "round_trip_cycles_p50": ticks(0.5),
            "round_trip_cycles_p99": ticks(0.99),
            "round_trip_ns_p50": clock::ticks_to_ns(ticks(0.5)),
            "round_trip_ns_p99": clock::ticks_to_ns(ticks(0.99)),
            "round_trips": self.round_trip_ticks.len(),
            "wakeups": wake_ups,
            "idle_cpu_percent": self.idle_cpu_percent,
            "clock": side::shared_clock(),
            "tsc_hz": tsc_hz,
        })
    }

    fn to_row(&self, mode: WaitMode) -> Vec<String> {
        let ticks = |quantile| self.round_trip_ticks.value_at_quantile(quantile);
        let mut row = vec![
            mode.to_string(),
            ticks(0.5).to_string(),
            clock::ticks_to_ns(ticks(0.5)).to_string(),
            clock::ticks_to_ns(ticks(0.99)).to_string(),
        ];
        row.extend(self.wakeup_ns.iter().map(|ns| format!("{}/{}", ns.value_at_quantile(0.5), ns.value_at_quantile(0.99))));
        row.push(format!("{:.2}%", self.idle_cpu_percent));
        row
    }
}
