//! `fipsee ping`: the cost of the ring alone. One side publishes a burst of messages, the other answers each with one;
//! two processes over a shared memory file, no daemon.

mod exchange;
mod peer;

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::json;

use fipsee_ring::clock;

use self::exchange::{Exchange, Spin};
pub(crate) use self::peer::{PeerArguments, run_peer};
use crate::error::Error;
use crate::output::{self, Table};
use crate::process;

/// Slots of each ring, and so the largest burst.
const SLOT_COUNT: u32 = 64;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Messages per burst, 1 to 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SLOT_COUNT)))]
    queue: Option<u32>,
    /// Several burst sizes, one after the other [default: 1,2,4,8,16,32,64]
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "queue",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(SLOT_COUNT)))]
    queues: Vec<u32>,
    /// Measure each size for so long
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    seconds: Duration,
    /// Print one JSON object per size, on a line of its own
    #[arg(long)]
    json: bool,
    /// Run the two sides on these CPUs [default: the first two this process may use]
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1)]
    cpus: Vec<usize>,
    /// Look again without a PAUSE instruction between two looks
    #[arg(long)]
    no_pause: bool,
    /// Two threads of one process instead of two processes
    #[arg(long)]
    threads: bool,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds <= 86_400.0);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("'{text}' is no time; write seconds above 0, up to a day"))
}

/// Times of whole bursts, in ticks of the time-stamp counter.
struct Measured {
    queue: u32,
    batch_ticks: Histogram<u64>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let cpus = choose_cpus(&arguments.cpus)?;
    let spin = match (cpus, arguments.no_pause) {
        (None, _) => Spin::Yield,
        (Some(_), true) => Spin::Bare,
        (Some(_), false) => Spin::Pause,
    };
    let sizes = match (arguments.queue, arguments.queues.as_slice()) {
        (Some(queue), _) => vec![queue],
        (None, []) => vec![1, 2, 4, 8, 16, 32, 64],
        (None, list) => list.to_vec(),
    };
    // Measured once, before the peer is bound to a CPU and takes it.
    let tsc_hz = clock::ticks_per_second();
    let mut exchange = Exchange::start(arguments.threads, cpus, spin)?;
    let mut table = Table::new(0, &["QUEUE", "CYCLES/MSG", "NS/MSG", "BATCH MIN", "MEAN", "P50", "P99", "P50 NS", "BATCHES"]);
    for queue in sizes {
        let measured = exchange.measure(queue, arguments.seconds)?;
        if arguments.json { output::print_json(&measured.to_json(tsc_hz))? } else { table.push(measured.to_row(tsc_hz)) }
    }
    exchange.stop()?;
    if arguments.json {
        return Ok(());
    }
    let how = if arguments.threads { "threads" } else { "processes" };
    let place = cpus.map_or_else(|| "on one CPU".to_owned(), |[a, b]| format!("on CPUs {a} and {b}"));
    let head = format!("two {how} {place}; a burst of QUEUE messages of 60 bytes and as many answers; cycles of {tsc_hz} Hz\n");
    output::print(&format!("{head}{}", table.render()))
}

/// A CPU for each side; `None` where there is only one, or none was asked for and two are not to be had.
fn choose_cpus(wanted: &[usize]) -> Result<Option<[usize; 2]>, Error> {
    let allowed = process::allowed_cpus();
    let pair = match (wanted, allowed.as_slice()) {
        ([a, b], _) if a != b => [*a, *b],
        ([], [a, b, ..]) => [*a, *b],
        ([], _) => return Ok(None),
        _ => return Err("--cpus takes two different CPUs; write them as A,B, for example --cpus 0,1".into()),
    };
    match pair.iter().find(|cpu| !allowed.contains(*cpu)) {
        Some(cpu) => Err(format!("CPU {cpu} is not one this process may use; choose two of {allowed:?}").into()),
        None => Ok(Some(pair)),
    }
}

impl Measured {
    fn cycles_per_message(&self) -> f64 {
        self.batch_ticks.mean() / f64::from(self.queue)
    }

    fn quantile(&self, quantile: f64) -> u64 {
        self.batch_ticks.value_at_quantile(quantile)
    }

    fn to_json(&self, tsc_hz: u64) -> serde_json::Value {
        json!({
            "queue": self.queue,
            "cycles_per_message_mean": self.cycles_per_message(),
            "cycles_per_batch_min": self.batch_ticks.min(),
            "cycles_per_batch_mean": self.batch_ticks.mean(),
            "cycles_per_batch_p50": self.quantile(0.5),
            "cycles_per_batch_p99": self.quantile(0.99),
            "ns_per_batch_p50": clock::ticks_to_ns(self.quantile(0.5)),
            "ns_per_message_mean": self.cycles_per_message() * 1e9 / crate::units::to_f64(tsc_hz),
            "batches": self.batch_ticks.len(),
            "tsc_hz": tsc_hz,
        })
    }

    fn to_row(&self, tsc_hz: u64) -> Vec<String> {
        let ns_per_message = self.cycles_per_message() * 1e9 / crate::units::to_f64(tsc_hz);
        vec![
            self.queue.to_string(),
            format!("{:.1}", self.cycles_per_message()),
            format!("{ns_per_message:.1}"),
            self.batch_ticks.min().to_string(),
            format!("{:.0}", self.batch_ticks.mean()),
            self.quantile(0.5).to_string(),
            self.quantile(0.99).to_string(),
            clock::ticks_to_ns(self.quantile(0.5)).to_string(),
            self.batch_ticks.len().to_string(),
        ]
    }
}
