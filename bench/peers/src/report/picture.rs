//! The picture of a run: the round trip of one message, messages per second one way, each mechanism on a line of its own.

use fipsee_measure::machine;
use fipsee_measure::plot::dots::{self, Row, Words};
use fipsee_measure::plot::{BASELINE, KERNEL, OURS, RGBColor, THEIRS};

use super::Run;
use crate::harness::{BURST, Outcome};
use crate::mechanisms::{Entry, Kind};
use crate::results::{Measure, to_ns};

/// The ring with the streams that are shown, of the mechanisms that choose.
const SLOTS: u32 = 1024;

const fn color_of(kind: Kind) -> RGBColor {
    match kind {
        Kind::Ours => OURS,
        Kind::Baseline => BASELINE,
        Kind::Ring | Kind::Library => THEIRS,
        Kind::Kernel => KERNEL,
    }
}

pub(super) fn draw(run: &Run) -> Result<String, String> {
    let row = |entry: &Entry| {
        let time = |figure: fn(&Outcome) -> f64| run.results.median(entry.name, Measure::RoundTrip, figure);
        let per_second = |batch| {
            let measure = Measure::Stream { batch, slots: entry.chooses_slots.then_some(SLOTS) };
            run.results.median(entry.name, measure, |outcome| 1e9 / to_ns(outcome.mean))
        };
        let time_ns = time(|outcome| to_ns(outcome.p50)).zip(time(|outcome| to_ns(outcome.p99)));
        let rates = time_ns.map_or([None; 2], |_| [per_second(1), per_second(BURST)]);
        Row { name: entry.name, group: entry.kind as u8, color: color_of(entry.kind), time_ns, rates }
    };
    let conditions = format!(
        "Two processes on two CPUs, every byte checked; medians of {} interleaved rounds; logarithmic scales. Streams: rings of {SLOTS} slots where they can be chosen.",
        run.rounds
    );
    let footer = [conditions, machine::of_revision(&run.machine)];
    let words = Words {
        title: "Messages of 60 bytes between two CPUs: Fip-see and its peers",
        legend: &[],
        heads: [
            "Message and answer: time, dot p50, tick p99. Left is better.",
            "One way: messages per second. Dot: by ones, circle: by 64.",
        ],
        footer: &footer,
    };
    dots::draw(&words, run.entries.iter().map(row).collect())
}
