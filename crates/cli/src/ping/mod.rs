//! `fipsee ping`: the cost of a message. One side publishes messages, the other answers or receives them; two processes over the
//! product's channel, or over a baseline; no daemon.

mod ablate;
mod compare;
mod counter;
mod picture;
mod plain;
mod report;
mod waits;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use fipsee::cpus::{CpuChoice, best_pair};
use fipsee_measure::harness::{Change, Design, Partner, Spec, Task, rounds, serve};
use fipsee_measure::plot;
use fipsee_ring::layout::{MAX_SLOTS, MIN_SLOTS};
use fipsee_ring::pace::MAX_HOLD_TICKS;
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_ring::tuning::Choices;
use fipsee_ring::wait::WaitMode;
use fipsee_topology::machine::Machine;
use fipsee_topology::{cache, choose};
use rustix::process::Signal;

use crate::error::Error;
use crate::{process, units};

/// Rounds of a comparison unless set otherwise: enough for a median that one bad round does not change.
const COMPARED_ROUNDS: u32 = 15;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Messages per burst, up to 4096
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(Spec::MAX_QUEUE)))]
    queue: Option<u32>,
    /// Several burst sizes, one after the other [default: 1,2,4,8,16,32,64]
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "queue",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(Spec::MAX_QUEUE)))]
    queues: Vec<u32>,
    /// A one-way stream instead of messages and answers
    #[arg(long, conflicts_with_all = ["queue", "queues"])]
    stream: bool,
    /// Slots of the stream's ring, powers of two [default: 64,1024,8192]
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "stream", value_parser = parse_slots)]
    slots: Vec<u32>,
    /// What carries the messages
    #[arg(long, value_name = "WHAT", value_enum, default_value = "channel")]
    design: Design,
    /// How both sides of the channel wait for messages
    #[arg(long, value_name = "MODE", default_value = "adaptive", value_parser = parse_wait)]
    wait: String,
    /// Delay both sides' first look by so many ticks, instead of finding the delays that suit the machine
    #[arg(long, value_name = "CALLER,ANSWERER", value_delimiter = ',', num_args = 1, conflicts_with_all = ["ablate", "stream"])]
    first_look: Vec<u64>,
    /// Look again without a PAUSE instruction between two looks
    #[arg(long)]
    no_pause: bool,
    /// Two threads of one process instead of two processes
    #[arg(long)]
    threads: bool,
    /// What each way to wait costs: round trip, waking up after a silence, processor time while idle
    #[arg(long, conflicts_with_all = ["queue", "queues", "no_pause", "threads", "stream", "design", "wait", "first_look", "compare", "ablate", "plot"])]
    waits: bool,
    /// Run the two sides on these CPUs, or auto: a pair that fipsee topology recommends
    /// [default: the first two this process may use]
    #[arg(long, value_name = "auto|A,B")]
    cpus: Option<CpuChoice>,
    /// Measure each line of the table for so long, over all rounds
    #[arg(long, value_name = "S", default_value = "1", value_parser = units::parse_seconds)]
    seconds: Duration,
    /// Measure everything so many times, in an order that turns [default: 1; 15 with --compare and --ablate]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,
    /// Compare the channel with its bare ring, the ring of the Fip-see report, and bare cache lines, in about a minute; near and far
    /// CPUs apart
    #[arg(long, conflicts_with_all = ["queue", "queues", "stream", "design", "first_look"])]
    compare: bool,
    /// Change each choice of the channel's hot path in turn, and show what that costs
    #[arg(long, conflicts_with_all = ["queue", "queues", "stream", "design", "compare"])]
    ablate: bool,
    /// With --ablate: compare these words of choices (docs/protocol.md section 2.6), for example 0x11231, with the choices in
    /// force
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "ablate", value_parser = parse_word)]
    choices: Vec<u32>,
    /// Repeat tables 1 to 7 and figure 6 of the Fip-see report, in less than ten minutes: a page with pictures and JSON in this
    /// directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["queue", "queues", "stream", "slots", "design", "wait", "first_look", "no_pause",
          "threads", "waits", "seconds", "rounds", "compare", "ablate", "json", "plot"])]
    report: Option<PathBuf>,
    /// Take so long for the report, for tests
    #[arg(long, value_name = "S", hide = true, requires = "report", default_value = report::DEFAULT_SECONDS, value_parser = units::parse_seconds)]
    report_seconds: Duration,
    /// Print one JSON object per line of the table
    #[arg(long)]
    json: bool,
    /// Draw it, too, into this file, .svg
    #[arg(long, value_name = "FILE", conflicts_with_all = ["compare", "ablate"])]
    plot: Option<PathBuf>,
}

fn parse_slots(text: &str) -> Result<u32, String> {
    let slots = text.parse::<u32>().ok().filter(|slots| slots.is_power_of_two() && (MIN_SLOTS..=MAX_SLOTS).contains(slots));
    slots.ok_or_else(|| format!("'{text}' is no size of a ring; write a power of two from {MIN_SLOTS} to {MAX_SLOTS}"))
}

fn parse_word(text: &str) -> Result<u32, String> {
    let word = text.strip_prefix("0x").map(|hex| u32::from_str_radix(hex, 16));
    word.and_then(Result::ok).ok_or_else(|| format!("'{text}' is no word of choices; write hexadecimal digits after 0x"))
}

fn parse_wait(text: &str) -> Result<String, String> {
    let wait = text.parse::<WaitMode>()?;
    wait.available().map_err(|unavailable| unavailable.to_string())?;
    Ok(text.to_owned())
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    if let Some(path) = &arguments.plot {
        plot::check(path)?;
    }
    if let Some(directory) = &arguments.report {
        let wanted = arguments.cpus.as_ref().map_or(Ok(None), |wanted| choose_cpus(Some(wanted)))?;
        return report::run(directory, wanted, arguments.report_seconds);
    }
    let cpus = choose_cpus(arguments.cpus.as_ref())?;
    if arguments.waits {
        return waits::run(cpus, arguments.json);
    }
    let base = Spec {
        design: arguments.design,
        wait: arguments.wait.clone(),
        pause: !arguments.no_pause,
        change: first_look(&arguments.first_look)?,
        ..base_spec(cpus)
    };
    let tsc_hz = rounds::tsc_hz();
    let _ = counter::counter_step(); // Found once, as the rate is: before the other side runs.
    let compared = arguments.compare || arguments.ablate;
    let rounds = arguments.rounds.unwrap_or(if compared { COMPARED_ROUNDS } else { 1 });
    let specs = match (arguments.compare, arguments.ablate) {
        (true, _) => compare::specs(&base),
        (_, true) => ablate::specs(&base, &arguments.choices)?,
        _ => tasks(arguments)?.into_iter().map(|task| Spec { task, ..base.clone() }).collect(),
    };
    let mut partner = if arguments.threads { Partner::start_thread(cpus)? } else { start_partner(cpus)? };
    let lines = rounds::measure(&mut partner, specs, rounds, arguments.seconds, arguments.compare)?;
    drop(partner);
    let head = head(arguments, cpus, rounds, tsc_hz);
    match (arguments.compare, arguments.ablate) {
        (true, _) => return compare::report(lines, &head, tsc_hz, arguments.json),
        (_, true) => ablate::report(&lines, &head, tsc_hz, arguments.json),
        _ => plain::report(&lines, &head, tsc_hz, arguments.json),
    }?;
    match &arguments.plot {
        Some(path) => Ok(plot::save(path, &picture::draw(&lines, &head)?)?),
        None => Ok(()),
    }
}

/// The second side in a process of its own, on the second of `cpus`.
fn start_partner(cpus: Option<[usize; 2]>) -> Result<Partner, Error> {
    let mut command = process::again("ping-peer");
    command.args(cpus.map(|[_, second]| format!("--cpu={second}")));
    Ok(Partner::start_process(command, cpus)?)
}

/// The command line that `ping` gives to its second process, whose standard input is a socket to the first.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArguments {
    #[arg(long)]
    parent: i32,
    #[arg(long)]
    cpu: Option<usize>,
}

pub(crate) fn run_peer(arguments: &PeerArguments) -> Result<(), Error> {
    process::die_with_parent(arguments.parent, Signal::KILL)?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| Error::io("take over the socket", &error))?;
    if let Some(cpu) = arguments.cpu {
        process::bind_to_cpu(cpu)?;
    }
    serve(&Seqpacket::from_fd(socket));
    Ok(())
}

/// A message and its answer through the channel as it is.
fn base_spec(cpus: Option<[usize; 2]>) -> Spec {
    Spec { one_cpu: cpus.is_none(), measured: measured_choices(cpus).word(), ..Spec::default() }
}

/// The choices that `fipsee topology` has measured for the two CPUs, if any.
fn measured_choices(cpus: Option<[usize; 2]>) -> Choices {
    let machine = Machine::this();
    let kept = cpus.and_then(|[a, b]| Some((machine.distance(a, b), cache::load(&machine).ok()?.1)));
    kept.and_then(|(distance, kept)| kept.choices.get(&distance).map(|chosen| chosen.choices)).unwrap_or_default()
}

fn first_look(ticks: &[u64]) -> Result<Option<Change>, Error> {
    match *ticks {
        [] => Ok(None),
        [caller, answerer] if caller.max(answerer) <= MAX_HOLD_TICKS => Ok(Some(Change::FirstLookAfter([caller, answerer]))),
        _ => {
            Err(format!("--first-look takes two delays of at most {MAX_HOLD_TICKS} ticks, for example --first-look 40,80").into())
        }
    }
}

fn tasks(arguments: &Arguments) -> Result<Vec<Task>, Error> {
    if arguments.stream {
        if !arguments.design.is_ring() {
            return Err("a bare line has no streams; choose --design channel, bare or classic".into());
        }
        let slots = if arguments.slots.is_empty() { &[64, 1024, 8192] } else { arguments.slots.as_slice() };
        return Ok(slots.iter().copied().map(Task::Stream).collect());
    }
    let queues = match (arguments.queue, arguments.queues.as_slice()) {
        (Some(queue), _) => vec![queue],
        (None, []) if !arguments.design.is_ring() => vec![1],
        (None, []) => vec![1, 2, 4, 8, 16, 32, 64],
        (None, list) => list.to_vec(),
    };
    if !arguments.design.is_ring() && queues != [1] {
        return Err("a bare line holds one message; use --queue 1, or --design channel, bare or classic".into());
    }
    Ok(queues.into_iter().map(Task::Queue).collect())
}

/// The sentence above a table: the measurement and its CPUs.
fn head(arguments: &Arguments, cpus: Option<[usize; 2]>, rounds: u32, tsc_hz: u64) -> String {
    let how = if arguments.threads { "threads" } else { "processes" };
    let place = cpus.map_or_else(|| "on one CPU".to_owned(), |[a, b]| format!("on CPUs {a} and {b}"));
    let what = match (arguments.compare || arguments.ablate, arguments.stream) {
        (true, _) => format!("messages of 60 bytes, every one checked; {rounds} rounds"),
        (_, true) => format!("{}: a one-way stream of messages of 60 bytes", arguments.design.name()),
        _ => format!("{}: bursts of QUEUE messages of 60 bytes and as many answers", arguments.design.name()),
    };
    let pause = if arguments.no_pause { ", no PAUSE" } else { "" };
    let measured = measured_choices(cpus);
    let (choices, why) = if measured == Choices::NONE {
        (choose::of_family(), choose::BY_FAMILY)
    } else {
        (measured, "measured by fipsee topology")
    };
    format!(
        "two {how} {place}, wait {}{pause}; {what}; {}\nchoices of rings: {} ({why})\n",
        arguments.wait,
        rounds::cycles_of(tsc_hz),
        choose::summary(choices)
    )
}

/// A CPU for each side; `None` where there is only one, or no CPUs were given and two are not available.
fn choose_cpus(wanted: Option<&CpuChoice>) -> Result<Option<[usize; 2]>, Error> {
    let wanted = match wanted {
        None => &[][..],
        Some(CpuChoice::List(list)) => list,
        Some(CpuChoice::Auto) => return Ok(best_pair()),
    };
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
