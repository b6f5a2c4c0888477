//! One measurement of one mechanism: two processes, and what came out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fipsee_measure::harness::drive::{self, Answers, Calls, PeerError, Receives, STREAM_CHUNK, Sends};
use fipsee_measure::harness::{Amount, Design, Partner, RunLength, Sample, Spec, Task, serve};
use fipsee_measure::statistics::{middle, to_f64};
use fipsee_ring::Message;
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_topology::pin;

use super::process::{self, ReportWriter};
use super::spin_backoff::SpinBackoff;
use super::{BURST, End, Mechanism, Outcome, Plan, Side, shared};

/// A measurement that takes longer than this is not going to end: the slowest takes a few seconds.
const LIMIT: Duration = Duration::from_secs(20);

pub type Runner = fn(&Plan) -> Result<Outcome, String>;

/// Calls and their answers, `plan.burst` at a time.
pub fn calls<C: Mechanism>(plan: &Plan) -> Result<Outcome, String> {
    let client =
        |end: &mut Driven<C::End>, plan: &Plan| drive::call(end, size(plan), plan.length()).map(|sample| calls_of(&sample, plan));
    run::<C>(plan, plan.bursts() * plan.burst as u64, client, |end| drive::answer(end))
}

/// Messages one way, `plan.burst` at a time.
pub fn stream<C: Mechanism>(plan: &Plan) -> Result<Outcome, String> {
    let client = |end: &mut Driven<C::End>, plan: &Plan| {
        drive::send(end, size(plan), plan.length_of_stream()).map(|sample| stream_of(&sample))
    };
    run::<C>(plan, plan.chunks() * STREAM_CHUNK, client, |end| drive::receive(end))
}

/// A design of the product or of the report: calls, or with `streams` messages one way.
pub fn design(design: Design, streams: bool, plan: &Plan) -> Result<Outcome, String> {
    process::run_alone(LIMIT, |_| {
        process::caught(|| {
            let (ours, theirs) = Partner::sockets()?;
            let [client, server] = plan.cpus;
            process::fork(|| {
                if pin::bind(server).is_ok() {
                    serve(&Seqpacket::from_fd(theirs));
                }
            })?;
            pin::bind(client).map_err(|error| format!("cannot run on CPU {client}: {error}"))?;
            let task = if streams { Task::Stream(plan.slots) } else { Task::Queue(size(plan)) };
            let spec = Spec { design, task, batch: size(plan), one_cpu: client == server, ..Spec::default() };
            let length = if streams { plan.length_of_stream() } else { plan.length() };
            let sample = Partner::at(ours).measure(&spec, length)?;
            Ok(if streams { stream_of(&sample) } else { calls_of(&sample, plan) })
        })
    })
}

/// The two CPUs of a measurement: the first and the last that this process may use.
pub fn choose_cpus() -> Result<[usize; 2], String> {
    match pin::allowed().unwrap_or_default().as_slice() {
        [first, .., last] => Ok([*first, *last]),
        cpus => Err(format!("this process may use only {} CPU; messages between two CPUs need two", cpus.len())),
    }
}

fn size(plan: &Plan) -> u32 {
    u32::try_from(plan.burst).unwrap_or(1)
}

impl Plan {
    fn length(&self) -> RunLength {
        RunLength { warm_up: Amount::Count(self.warm_up), measured: Amount::Count(self.exchanges) }
    }

    const fn bursts(&self) -> u64 {
        self.warm_up + self.exchanges
    }

    /// So many pieces of a stream hold at least as many messages.
    const fn pieces(&self, bursts: u64) -> u64 {
        (bursts * self.burst as u64).div_ceil(STREAM_CHUNK)
    }

    const fn length_of_stream(&self) -> RunLength {
        let (warm_up, measured) = (self.pieces(self.warm_up), self.pieces(self.exchanges));
        RunLength { warm_up: Amount::Count(warm_up), measured: Amount::Count(measured) }
    }

    const fn chunks(&self) -> u64 {
        self.pieces(self.warm_up) + self.pieces(self.exchanges)
    }
}

fn calls_of(sample: &Sample, plan: &Plan) -> Outcome {
    let each = |ticks: f64| ticks / f64::from(size(plan));
    let ticks = &sample.ticks;
    Outcome {
        p50: each(middle(ticks)),
        p99: each(to_f64(ticks.value_at_quantile(0.99))),
        min: each(to_f64(ticks.min())),
        mean: each(ticks.mean()),
    }
}

/// Of a stream there is one figure.
fn stream_of(sample: &Sample) -> Outcome {
    let each = to_f64(sample.elapsed_ticks) / to_f64(sample.messages.max(1));
    Outcome { p50: each, p99: each, min: each, mean: each }
}

/// What the two processes share beside the mechanism.
struct Control {
    server_is_ready: AtomicU64,
    /// All messages of the stream were received and checked.
    stream_is_through: AtomicU64,
}

/// An end as the harness drives it. Mechanisms know no last message, so both sides count.
struct Driven<'a, E> {
    end: E,
    control: &'a Control,
    burst: usize,
    /// Messages to come.
    left: u64,
}

impl<E: End> Calls for Driven<'_, E> {
    #[inline(always)]
    fn exchange(&mut self, calls: &[Message], answers: &mut [Message]) -> Result<(), PeerError> {
        self.end.send(calls);
        let mut count = 0;
        while count < answers.len() {
            count += self.end.receive(&mut answers[count..]);
        }
        Ok(())
    }

    fn send(&mut self, _: &Message) {}
}

impl<E: End> Answers for Driven<'_, E> {
    #[inline(always)]
    fn serve(&mut self, answer: &mut impl FnMut(&Message) -> Option<Message>) -> Result<(), PeerError> {
        let (mut calls, mut answers) = ([Message::ZERO; BURST], [Message::ZERO; BURST]);
        while self.left > 0 {
            let count = self.end.receive(&mut calls[..self.burst]);
            for (reply, call) in answers.iter_mut().zip(&calls[..count]) {
                let Some(answer) = answer(call) else { return Ok(()) };
                *reply = answer;
            }
            self.end.send(&answers[..count]);
            self.left = self.left.saturating_sub(count as u64);
        }
        Ok(())
    }
}

impl<E: End> Sends for Driven<'_, E> {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) -> Result<(), PeerError> {
        if self.left > 0 {
            self.end.send(messages);
            self.left = self.left.saturating_sub(messages.len() as u64);
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), PeerError> {
        let mut backoff = SpinBackoff::default();
        while self.left == 0 && self.control.stream_is_through.load(Ordering::Acquire) == 0 {
            backoff.pause();
        }
        Ok(())
    }
}

impl<E: End> Receives for Driven<'_, E> {
    #[inline(always)]
    fn receive(&mut self, take: &mut impl FnMut(&Message) -> bool) -> Result<(), PeerError> {
        let mut messages = [Message::ZERO; BURST];
        while self.left > 0 {
            let count = self.end.receive(&mut messages[..self.burst]);
            if !messages[..count].iter().all(&mut *take) {
                return Ok(());
            }
            self.left = self.left.saturating_sub(count as u64);
        }
        self.control.stream_is_through.store(1, Ordering::Release);
        Ok(())
    }
}

type ClientWork<E> = fn(&mut Driven<'_, E>, &Plan) -> Result<Outcome, PeerError>;
type ServerWork<E> = fn(&mut Driven<'_, E>) -> Result<(), PeerError>;

fn run<C: Mechanism>(
    plan: &Plan,
    messages: u64,
    client: ClientWork<C::End>,
    server: ServerWork<C::End>,
) -> Result<Outcome, String> {
    process::run_alone(LIMIT, |writer| process::caught(|| conduct::<C>(plan, messages, writer, client, server)))
}

fn conduct<C: Mechanism>(
    plan: &Plan,
    messages: u64,
    writer: &ReportWriter,
    client: ClientWork<C::End>,
    server: ServerWork<C::End>,
) -> Result<Outcome, String> {
    let text = |error| match error {
        PeerError::Gone => "the other side is gone".to_owned(),
        PeerError::Wrong(text) => text,
    };
    process::bind_to(&plan.cpus[..1])?;
    // SAFETY: two atomics.
    let control = unsafe { shared::zeroed::<Control>() }?;
    let mechanism = C::share(plan)?;
    let driven = |end| Driven { end, control, burst: plan.burst, left: messages };
    let work = |mechanism: C| -> Result<(), String> {
        process::bind_to(&plan.cpus[1..])?;
        let end = mechanism.open(Side::Server, plan)?;
        control.server_is_ready.store(1, Ordering::Release);
        server(&mut driven(end)).map_err(text)
    };
    let mut mechanism = Some(mechanism);
    let child = process::fork(|| {
        let served = process::caught(|| mechanism.take().map_or(Ok(()), work));
        if let Err(error) = served {
            writer.send(&Err(error));
        }
    })?;
    let Some(mechanism) = mechanism.take() else { return Err("the mechanism is gone".to_owned()) };
    let mut end = driven(mechanism.open(Side::Client, plan)?);
    while control.server_is_ready.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    let outcome = client(&mut end, plan).map_err(text)?;
    // Its error, if it has one to report, comes before our success.
    process::wait_for(child);
    Ok(outcome)
}
