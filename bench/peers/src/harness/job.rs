//! One measurement of one mechanism: two processes, and what came out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fipsee_ring::{Message, clock};

use super::message::{Checker, answer_to, call};
use super::process::{self, ReportWriter};
use super::spin_backoff::SpinBackoff;
use super::{BURST, End, Mechanism, Outcome, Plan, Side, shared};

/// A measurement that takes longer than this is not going to end: the slowest takes a few seconds.
const LIMIT: Duration = Duration::from_secs(20);

/// A function that measures one mechanism.
pub type Runner = fn(&Plan) -> Result<Outcome, String>;

/// Calls and their answers, `plan.burst` at a time.
///
/// # Errors
/// Why there is no measurement: the mechanism is not to be had here, or a message was lost or wrong.
pub fn calls<C: Mechanism>(plan: &Plan) -> Result<Outcome, String> {
    match plan.burst {
        1 => run::<C>(plan, ask::<C::End, 1>, answer::<C::End, 1>),
        _ => run::<C>(plan, ask::<C::End, BURST>, answer::<C::End, BURST>),
    }
}

/// Messages one way, `plan.burst` at a time.
///
/// # Errors
/// As for [`calls`].
pub fn stream<C: Mechanism>(plan: &Plan) -> Result<Outcome, String> {
    match plan.burst {
        1 => run::<C>(plan, pour::<C::End, 1>, drain::<C::End, 1>),
        _ => run::<C>(plan, pour::<C::End, BURST>, drain::<C::End, BURST>),
    }
}

/// The two CPUs of a measurement: the first and the last that this process may use.
///
/// # Errors
/// There are fewer than two.
pub fn choose_cpus() -> Result<[usize; 2], String> {
    match process::allowed_cpus().as_slice() {
        [first, .., last] => Ok([*first, *last]),
        cpus => Err(format!("this process may use only {} CPU; messages between two CPUs need two", cpus.len())),
    }
}

/// What the two processes share beside the mechanism.
struct Control {
    server_is_ready: AtomicU64,
    /// All messages of the stream were received and checked.
    stream_is_through: AtomicU64,
}

type ClientWork<E> = fn(&mut E, &Plan, &Control) -> Result<Outcome, String>;
type ServerWork<E> = fn(&mut E, &Plan, &Control) -> Result<(), String>;

fn run<C: Mechanism>(plan: &Plan, client: ClientWork<C::End>, server: ServerWork<C::End>) -> Result<Outcome, String> {
    process::run_alone(LIMIT, |writer| process::caught(|| conduct::<C>(plan, writer, client, server)))
}

fn conduct<C: Mechanism>(
    plan: &Plan,
    writer: &ReportWriter,
    client: ClientWork<C::End>,
    server: ServerWork<C::End>,
) -> Result<Outcome, String> {
    process::bind_to(&plan.cpus[..1])?;
    // SAFETY: two atomics.
    let control = unsafe { shared::zeroed::<Control>() }?;
    let mechanism = C::share(plan)?;
    let serve = |mechanism: C| -> Result<(), String> {
        process::bind_to(&plan.cpus[1..])?;
        let mut end = mechanism.open(Side::Server, plan)?;
        control.server_is_ready.store(1, Ordering::Release);
        server(&mut end, plan, control)
    };
    let mut mechanism = Some(mechanism);
    let child = process::fork(|| {
        let served = process::caught(|| mechanism.take().map_or(Ok(()), serve));
        if let Err(error) = served {
            writer.send(&Err(error));
        }
    })?;
    let Some(mechanism) = mechanism.take() else { return Err("the mechanism is gone".to_owned()) };
    let mut end = mechanism.open(Side::Client, plan)?;
    while control.server_is_ready.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    let outcome = client(&mut end, plan, control)?;
    // Its error, if it has one to report, comes before our success.
    process::wait_for(child);
    Ok(outcome)
}

fn ask<E: End, const SIZE: usize>(end: &mut E, plan: &Plan, _: &Control) -> Result<Outcome, String> {
    let mut samples = Vec::with_capacity(usize::try_from(plan.exchanges).unwrap_or(0));
    let mut checker = Checker::of_answers();
    let (mut calls, mut answers) = ([Message::ZERO; SIZE], [Message::ZERO; SIZE]);
    let mut sequence = 0;
    for exchange in 0..plan.warm_up + plan.exchanges {
        for message in &mut calls {
            *message = call(sequence);
            sequence += 1;
        }
        let from = clock::ticks_fenced();
        end.send(&calls);
        let mut count = 0;
        while count < SIZE {
            count += end.receive(&mut answers[count..]);
        }
        let to = clock::ticks_fenced();
        checker.check(&answers)?;
        if exchange >= plan.warm_up {
            samples.push(to.wrapping_sub(from));
        }
    }
    summary(samples, SIZE).ok_or_else(|| "nothing was measured".to_owned())
}

fn answer<E: End, const SIZE: usize>(end: &mut E, plan: &Plan, _: &Control) -> Result<(), String> {
    let mut checker = Checker::of_calls();
    let (mut calls, mut answers) = ([Message::ZERO; SIZE], [Message::ZERO; SIZE]);
    let mut left = (plan.warm_up + plan.exchanges) * SIZE as u64;
    while left > 0 {
        let count = end.receive(&mut calls);
        for (answer, call) in answers.iter_mut().zip(&calls[..count]) {
            *answer = answer_to(call);
        }
        end.send(&answers[..count]);
        checker.check(&calls[..count])?;
        left = left.saturating_sub(count as u64);
    }
    Ok(())
}

fn pour<E: End, const SIZE: usize>(end: &mut E, plan: &Plan, control: &Control) -> Result<Outcome, String> {
    let mut messages = [Message::ZERO; SIZE];
    let mut sequence = 0;
    let mut from = 0;
    for exchange in 0..plan.warm_up + plan.exchanges {
        if exchange == plan.warm_up {
            from = clock::ticks_fenced();
        }
        for message in &mut messages {
            *message = call(sequence);
            sequence += 1;
        }
        end.send(&messages);
    }
    let mut backoff = SpinBackoff::default();
    while control.stream_is_through.load(Ordering::Acquire) == 0 {
        backoff.pause();
    }
    let ticks = clock::ticks_fenced().wrapping_sub(from);
    summary(vec![ticks], usize::try_from(plan.exchanges).unwrap_or(0) * SIZE).ok_or_else(|| "nothing was measured".to_owned())
}

fn drain<E: End, const SIZE: usize>(end: &mut E, plan: &Plan, control: &Control) -> Result<(), String> {
    let mut checker = Checker::of_calls();
    let mut messages = [Message::ZERO; SIZE];
    let mut left = (plan.warm_up + plan.exchanges) * SIZE as u64;
    while left > 0 {
        let count = end.receive(&mut messages);
        checker.check(&messages[..count])?;
        left = left.saturating_sub(count as u64);
    }
    control.stream_is_through.store(1, Ordering::Release);
    Ok(())
}

/// Ticks per message out of those of exchanges of `messages`.
#[expect(clippy::cast_precision_loss, reason = "ticks of one job are far below 2^53")]
fn summary(mut ticks: Vec<u64>, messages: usize) -> Option<Outcome> {
    ticks.sort_unstable();
    let each = |ticks: u64| ticks as f64 / messages as f64;
    let at = |index: usize| ticks.get(index).copied().map(each);
    let mean = each(ticks.iter().sum()) / ticks.len() as f64;
    Some(Outcome { p50: at(ticks.len() / 2)?, p99: at(ticks.len() * 99 / 100)?, min: at(0)?, mean })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_summed_up_per_message() {
        let outcome = summary((1..=200).map(|tick| tick * 64).collect(), 64);
        assert_eq!(outcome, Some(Outcome { p50: 101.0, p99: 199.0, min: 1.0, mean: 100.5 }));
        assert_eq!(summary(Vec::new(), 1), None);
    }
}
