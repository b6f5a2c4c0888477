//! The picture of a run: latency one at a time, requests per second 64 at a time, every way on a line of its own.

use fipsee_measure::machine;
use fipsee_measure::plot::dots::{self, Row, Words};
use fipsee_measure::plot::{BASELINE, OURS, RGBColor, THEIRS};
use serde_json::Value;

use crate::matrix::{DEEP, SHALLOW};
use crate::table::{IOPS, P50, P99, Results};
use crate::ways::{Entry, Kind, WAYS};

const fn color_of(kind: Kind) -> RGBColor {
    match kind {
        Kind::Ours => OURS,
        Kind::Peer => THEIRS,
        Kind::Baseline => BASELINE,
    }
}

const WORDS: Words<'static> = Words {
    title: "Random reads of 4 KiB: Fip-see and what people use today",
    legend: &[(OURS, "Fip-see", 100), (THEIRS, "other servers", 130), (BASELINE, "no server", 100)],
    heads: ["One at a time: latency, dot p50, tick p99. Left is better.", "64 at a time: requests per second. Right is better."],
    footer: &[],
};

pub(crate) fn draw(results: &Results, entry: &Value) -> Result<String, String> {
    let row = |way: &Entry| Row {
        name: way.name,
        group: way.kind as u8,
        color: color_of(way.kind),
        time_ns: results.median(way.name, SHALLOW, P50).zip(results.median(way.name, SHALLOW, P99)),
        rates: [results.median(way.name, DEEP, IOPS), None],
    };
    let conditions = format!(
        "Medians of one run, {} times {} s each; logarithmic scales. Other servers serve null disks, each on the CPU where it was fastest.",
        entry["rounds"], entry["seconds"]
    );
    let footer = [conditions, machine::of_revision(&entry["machine"])];
    dots::draw(&Words { footer: &footer, ..WORDS }, WAYS.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ways::{CALL, LIBRARY, QEMU_NBD};

    #[test]
    fn every_way_that_was_measured_is_drawn() {
        let mut results = Results::default();
        for (way, p50) in [(QEMU_NBD, 20_000.0), (LIBRARY, 130.0), (CALL, 20.0)] {
            results.add_cell(way, SHALLOW, P50, p50);
            results.add_cell(way, SHALLOW, P99, p50 * 2.0);
        }
        results.add_cell(LIBRARY, DEEP, IOPS, 53e6);
        let svg = draw(&results, &json!({ "rounds": 5, "seconds": 1.0, "machine": { "cpu": "A CPU" } })).expect("a picture");
        for words in [LIBRARY, QEMU_NBD, CALL, "130 ns", "20 µs", "53 M", "5 times 1.0 s", "A CPU"] {
            assert!(svg.contains(words), "{words} is missing");
        }
        assert!(!svg.contains("nbdkit"), "it was not measured");
    }
}
