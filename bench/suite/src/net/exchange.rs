//! What is exchanged between the two ends of a way, and what is measured of it.

use std::time::{Duration, Instant};

use fipsee_measure::statistics::{to_f64, within_step};
use fipsee_ring::clock;

use crate::table::{BANDWIDTH, BEST, FRAMES, P50, Results};

/// Of a message, with its Ethernet header where there is one.
pub(super) const SIZES: [usize; 6] = [64, 256, 1024, 4096, 16 << 10, 64 << 10];
pub(super) const QUICK_SIZES: [usize; 2] = [64, 64 << 10];
pub(super) const SMALLEST: usize = 64;
/// Bytes of an acknowledgement.
pub(super) const ACKNOWLEDGEMENT: usize = 64;
/// Frames that leave together where the rate is measured.
pub(super) const BURST: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exchange {
    /// A message to the other end.
    OneWay,
    /// And one of the same length back.
    RoundTrip,
    /// Message, acknowledgement, reply, acknowledgement.
    FourSteps,
    /// Messages to the other end, as many as possible.
    Rate,
}

impl Exchange {
    pub(super) const ALL: [Self; 4] = [Self::OneWay, Self::RoundTrip, Self::FourSteps, Self::Rate];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::OneWay => "one way",
            Self::RoundTrip => "round trip",
            Self::FourSteps => "four steps",
            Self::Rate => "one-way rate",
        }
    }

    /// As the program of the kernel's ways has it.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::OneWay => "there",
            Self::RoundTrip => "back",
            Self::FourSteps => "steps",
            Self::Rate => "rate",
        }
    }
}

pub(super) fn size(bytes: usize) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { format!("{} KiB", bytes >> 10) }
}

pub(super) fn candidate(way: &str, exchange: Exchange, bytes: usize) -> String {
    format!("{way}, {}, {}", exchange.name(), size(bytes))
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Measured {
    Times {
        p50_ns: f64,
        best_ns: f64,
    },
    /// Messages per second.
    Rate(f64),
}

impl Measured {
    pub(super) fn add_to(self, results: &mut Results, candidate: &str, bytes: usize) {
        match self {
            Self::Times { p50_ns, best_ns } => {
                results.add(candidate, P50, p50_ns);
                results.add(candidate, BEST, best_ns);
            }
            Self::Rate(rate) => {
                results.add(candidate, FRAMES, rate);
                results.add(candidate, BANDWIDTH, rate * to_f64(bytes as u64));
            }
        }
    }
}

pub(super) fn ticks_to_ns(ticks: u64) -> f64 {
    to_f64(ticks) * 1e9 / to_f64(clock::ticks_per_second().max(1))
}

/// Do it again and again for so long, of which the first tenth is not counted; the middle and the shortest time.
pub(super) fn time(seconds: f64, mut exchange: impl FnMut() -> Result<(), String>) -> Result<Measured, String> {
    const MOST: usize = 1 << 21;
    let (begun, mut times) = (Instant::now(), Vec::with_capacity(MOST));
    while begun.elapsed() < Duration::from_secs_f64(seconds / 10.0) {
        exchange()?;
    }
    while times.len() < MOST && (begun.elapsed() < Duration::from_secs_f64(seconds) || times.is_empty()) {
        let before = clock::ticks();
        exchange()?;
        times.push(clock::ticks().wrapping_sub(before));
    }
    let best_ns = times.iter().min().copied().map_or(f64::NAN, ticks_to_ns);
    Ok(Measured::Times { p50_ns: middle_ns(times), best_ns })
}

/// The median, finer than the steps of the counter.
pub(super) fn middle_ns(mut ticks: Vec<u64>) -> f64 {
    ticks.sort_unstable();
    let counts = ticks.chunk_by(|one, other| one == other).map(|alike| (ticks_to_ns(alike[0]), alike.len() as u64));
    within_step(&counts.collect::<Vec<_>>()).unwrap_or(f64::NAN)
}
