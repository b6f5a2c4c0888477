//! What moving a modified cache line from one CPU to another costs (the report's figure 6).
//!
//! A pool of lines goes back and forth. One side takes all of them and leaves them modified, with one atomic exchange each; only
//! then the other takes them all in turn, and times that. The time divided by the lines is the cost of a transfer with ownership
//! in that direction, as both sides of a ring pay it, including the exchange itself (some 20 cycles).
//!
//! - Each exchange returns the sequence number that the other side left: a line that was not where it should be is an error, and
//!   the next address depends on it, so transfers never overlap, whatever the CPU reorders.
//! - Lines are on pages of their own and are taken in random order: no prefetcher guesses the next.
//! - The memory is with each side in turn, because its home may matter; pairs are measured one after the other, all of them
//!   several times over, so that a disturbance falls on few rounds of many pairs.

use std::io;
use std::time::{Duration, Instant};

use fipsee_ring::{AtomicU32, Ordering, clock};

use crate::lines::{LINE_COUNT, Lines};
use crate::machine::Machine;
use crate::matrix::{Cost, Matrix, kind_of, median, to_f64};
use crate::other_side::{self, LOOKS_PER_YIELD, TIMEOUT};
use crate::pin;

/// Times that each pair is visited: an even number, so that the memory is with each of the two equally often.
const VISITS: u32 = 6;
/// Rounds of a visit that are counted.
const ROUNDS: u32 = 32;
/// Rounds before these, not counted: pages, TLB and clock frequency settle.
const WARM_UP_ROUNDS: u32 = 8;
/// All pairs are measured if that takes no longer; else a sample of each kind.
pub const FULL_WITHIN: Duration = Duration::from_secs(10);
const SAMPLE_PER_KIND: usize = 2;
/// A round this many times longer than the median was disturbed; if more than one in [`DISTURBED_ONE_IN`] was, a warning says so.
const DISTURBED_FACTOR: f64 = 3.0;
const DISTURBED_ONE_IN: usize = 10;

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course {
    /// Pairs of CPUs; each is measured in both directions.
    pub pairs: Vec<(usize, usize)>,
    /// Is it a sample of each kind of pair, instead of all?
    pub is_sample: bool,
    /// How long it will take, by how long one visit took here.
    pub expected: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub matrix: Matrix,
    /// Did other load disturb more than one round in ten? The medians are right while it was fewer than half of them.
    pub is_disturbed: bool,
}

/// Plan a measurement of the machine's usable CPUs: all pairs with `full` or if that is quick. One visit of the first
/// pair shows how long it takes, and fails as [`run`] does.
pub fn course(machine: &Machine, full: bool) -> io::Result<Course> {
    let cpus = &machine.usable;
    let all: Vec<(usize, usize)> =
        cpus.iter().enumerate().flat_map(|(index, a)| cpus[index + 1..].iter().map(move |b| (*a, *b))).collect();
    let Some(first) = all.first() else {
        return Ok(Course { pairs: all, is_sample: false, expected: Duration::ZERO });
    };
    let started = Instant::now();
    visit(*first)?;
    let visit_time = started.elapsed();
    let expected = |pairs: &[_]| visit_time.saturating_mul(VISITS).saturating_mul(u32::try_from(pairs.len()).unwrap_or(u32::MAX));
    let sampled = sample(machine, &all);
    let is_sample = !full && expected(&all) > FULL_WITHIN && sampled.len() < all.len();
    let pairs = if is_sample { sampled } else { all };
    Ok(Course { expected: expected(&pairs), pairs, is_sample })
}

fn sample(machine: &Machine, pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut taken = std::collections::BTreeMap::<_, usize>::new();
    let is_wanted = |(a, b): &&(usize, usize)| {
        let Some((a, b)) = machine.cpu(*a).zip(machine.cpu(*b)) else { return false };
        let count = taken.entry(kind_of(a, b)).or_default();
        *count += 1;
        *count <= SAMPLE_PER_KIND
    };
    pairs.iter().filter(is_wanted).copied().collect()
}

/// Measure the pairs of `course`.
///
/// # Errors
/// A thread cannot be started or bound, memory is missing, a CPU is so busy that it did not answer for seconds, or a line held
/// what was not written to it.
pub fn run(course: &Course) -> io::Result<Measured> {
    let mut medians = vec![[Vec::new(), Vec::new()]; course.pairs.len()];
    let mut leasts = vec![[f64::INFINITY; 2]; course.pairs.len()];
    let (mut round_count, mut disturbed_count) = (0, 0);
    for visit_number in 0..VISITS {
        for ((pair, medians), leasts) in course.pairs.iter().zip(&mut medians).zip(&mut leasts) {
            let swapped = visit_number % 2 == 1;
            let mut ways = visit(if swapped { (pair.1, pair.0) } else { *pair })?;
            if swapped {
                ways.reverse();
            }
            for ((rounds, medians), least) in ways.into_iter().zip(medians).zip(leasts) {
                let Some(middle) = median(rounds.clone()) else { continue };
                medians.push(middle);
                *least = rounds.iter().copied().fold(*least, f64::min);
                round_count += rounds.len();
                disturbed_count += rounds.iter().filter(|ticks| **ticks > middle * DISTURBED_FACTOR).count();
            }
        }
    }
    let costs = course.pairs.iter().zip(medians).zip(leasts).flat_map(|(((a, b), medians), leasts)| {
        let cost = |medians, least_ticks| median(medians).map(|median_ticks| Cost { median_ticks, least_ticks });
        let [there, back] = medians;
        [((*a, *b), cost(there, leasts[0])), ((*b, *a), cost(back, leasts[1]))]
    });
    let costs = costs.filter_map(|(direction, cost)| Some((direction, cost?)));
    let own_ticks = course.pairs.first().map(|(cpu, _)| own(*cpu)).transpose()?;
    let matrix = Matrix::new(clock::ticks_per_second(), own_ticks, costs);
    Ok(Measured { matrix, is_disturbed: disturbed_count * DISTURBED_ONE_IN > round_count })
}

/// Ticks of taking a line that `cpu` has itself.
fn own(cpu: usize) -> io::Result<f64> {
    let thread = std::thread::Builder::new().name(format!("fip-line-{cpu}")).spawn(move || {
        pin::bind(cpu)?;
        let (lines, order) = (Lines::new()?, random_order());
        let take = |number| take_all(&lines, &order, number).map(|ticks| to_f64(ticks) / to_f64(LINE_COUNT as u64));
        let rounds: Option<Vec<f64>> = (0..WARM_UP_ROUNDS + ROUNDS).map(take).collect();
        let measured = rounds.map(|rounds| rounds.into_iter().skip(usize::try_from(WARM_UP_ROUNDS).unwrap_or(0)).collect());
        let fault = || io::Error::other("a CPU's own lines held what it had not written; its memory is faulty");
        measured.and_then(median).ok_or_else(fault)
    })?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a measuring thread panicked")))
}

/// The number of the turn: in even turns the first CPU takes the lines, in odd ones the second. In a pair of lines of its own.
#[repr(align(128))]
struct Turn(AtomicU32);

/// No more turns: one side has failed.
const ENDED: u32 = u32::MAX;

/// Let the lines go back and forth between two CPUs. Ticks per line of each round, from the first to the second and back; the
/// memory is with the first.
fn visit((a, b): (usize, usize)) -> io::Result<[Vec<f64>; 2]> {
    let (lines, turn) = (Lines::new()?, Turn(AtomicU32::new(0)));
    let side = |cpu, parity| take_turns(&lines, &turn.0, cpu, parity);
    let end = || turn.0.store(ENDED, Ordering::Release);
    let (back, there) = other_side::run_both("fip-line", (a, b), || side(a, 0), || side(b, 1), &end)?;
    Ok([there, back])
}

/// One side of a visit, on `cpu`: takes all lines in the turns of its `parity`. Ticks per line of each round.
fn take_turns(lines: &Lines, turn: &AtomicU32, cpu: usize, parity: u32) -> io::Result<Vec<f64>> {
    other_side::bind(cpu)?;
    let order = random_order();
    let mut rounds = Vec::with_capacity(usize::try_from(ROUNDS).unwrap_or(0));
    for round in 0..WARM_UP_ROUNDS + ROUNDS {
        let number = 2 * round + parity;
        await_turn(turn, number, cpu)?;
        let ticks = take_all(lines, &order, number).ok_or_else(|| {
            io::Error::other(format!(
                "a line came to CPU {cpu} with another content than was written; this machine's memory is not coherent"
            ))
        })?;
        // A store would overwrite `ENDED` if the other side has failed meanwhile.
        let _ = turn.compare_exchange(number, number + 1, Ordering::Release, Ordering::Relaxed);
        if round >= WARM_UP_ROUNDS {
            rounds.push(to_f64(ticks) / to_f64(LINE_COUNT as u64));
        }
    }
    Ok(rounds)
}

fn await_turn(turn: &AtomicU32, number: u32, cpu: usize) -> io::Result<()> {
    let mut since = None;
    loop {
        for _ in 0..LOOKS_PER_YIELD {
            match turn.load(Ordering::Acquire) {
                now if now == number => return Ok(()),
                ENDED => return Err(other_side::ended()),
                _ => std::hint::spin_loop(),
            }
        }
        if since.get_or_insert_with(Instant::now).elapsed() > TIMEOUT {
            return Err(other_side::timed_out(cpu));
        }
        std::thread::yield_now();
    }
}

/// Take every line in this order, which the other side left with `number` in it, and leave `number + 1`. Ticks of all together,
/// or `None` if a line held something else.
fn take_all(lines: &Lines, order: &[usize; LINE_COUNT], number: u32) -> Option<u64> {
    let mut difference = 0;
    let started_ticks = clock::ticks_fenced();
    for index in order {
        // `difference` is 0, which the CPU knows only when the line before has come: it cannot fetch this one earlier.
        let word = lines.word(index ^ usize::try_from(difference).unwrap_or(usize::MAX))?;
        difference |= word.swap(number + 1, Ordering::AcqRel) ^ number;
    }
    let ticks = clock::ticks_fenced().saturating_sub(started_ticks);
    (difference == 0).then_some(ticks)
}

/// All lines, in an order that no prefetcher knows; the same each time.
fn random_order() -> [usize; LINE_COUNT] {
    let mut order = std::array::from_fn(|index| index);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..LINE_COUNT).rev() {
        // Marsaglia, "Xorshift RNGs", 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = state % (last as u64 + 1);
        order.swap(last, usize::try_from(other).unwrap_or(0));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_holds_every_line_once_and_is_not_sorted() {
        let order = random_order();
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, std::array::from_fn(|index| index));
        assert!(order.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count() < 4, "{order:?}");
    }

    #[test]
    fn a_line_with_a_foreign_number_is_noticed() {
        let lines = Lines::new().expect("256 KiB");
        let order = random_order();
        assert!(take_all(&lines, &order, 0).is_some());
        assert!(take_all(&lines, &order, 1).is_some());
        lines.word(5).expect("a line").store(77, Ordering::Relaxed);
        assert_eq!(take_all(&lines, &order, 2), None);
    }

    #[test]
    fn a_side_that_cannot_be_bound_ends_the_other_and_says_why() {
        let cpu = pin::allowed().expect("some")[0];
        let error = visit((cpu, pin::FIRST_UNBINDABLE)).expect_err("no such CPU").to_string();
        assert!(error.starts_with("cannot measure on CPU 1024"), "{error}");
        let error = visit((pin::FIRST_UNBINDABLE, cpu)).expect_err("no such CPU").to_string();
        assert!(error.starts_with("cannot measure on CPU 1024"), "{error}");
    }

    #[test]
    fn two_sides_on_one_cpu_finish_too() {
        let cpu = pin::allowed().expect("some")[0];
        let ways = visit((cpu, cpu)).expect("slow, but done");
        assert!(ways.iter().all(|rounds| rounds.len() == 32 && rounds.iter().all(|ticks| *ticks > 0.0)));
    }
}
