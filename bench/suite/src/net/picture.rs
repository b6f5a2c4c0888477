//! The picture of a run: every way over the size of a message.

use fipsee_measure::machine;
use fipsee_measure::plot::curves::{Curve, Panel, Points, draw};
use fipsee_measure::plot::{BASELINE, FLOOR, INK, KERNEL, OURS, RGBColor, THEIRS, duration, rate};
use fipsee_measure::statistics::to_f64;
use serde_json::Value;

use super::exchange::{Exchange, candidate};
use crate::table::{FRAMES, P50, Results, Series};

const OUR_TAPS: RGBColor = RGBColor(0xb0, 0x8d, 0x1e);
const COLORS: [RGBColor; 7] = [OURS, OUR_TAPS, THEIRS, KERNEL, FLOOR, BASELINE, INK];

const TWO_CPUS: &str = ", two CPUs";

pub(super) fn paths(ways: &[&'static str], sizes: &[usize], results: &Results, entry: &Value) -> Option<Result<String, String>> {
    // Ways on two CPUs come last, under the names of others.
    let alone: Vec<_> = ways.iter().filter(|way| !way.ends_with(TWO_CPUS)).collect();
    let panel = |exchange: Exchange, title: &str, name: &'static str, label: fn(f64) -> String| {
        let metric = if exchange == Exchange::Rate { FRAMES } else { P50 };
        let curve = |(index, way): (usize, &&'static str)| {
            let point = |bytes: &usize| {
                let median = results.get(&candidate(way, exchange, *bytes), metric).map(Series::median)?;
                Some((to_f64(*bytes as u64), median))
            };
            let points: Points = sizes.iter().filter_map(point).collect();
            let same = alone.iter().position(|other| **other == way.trim_end_matches(TWO_CPUS));
            let color = COLORS[same.unwrap_or(index) % COLORS.len()];
            Curve { is_dashed: way.ends_with(TWO_CPUS), ..Curve::new(way, color, points) }
        };
        let curves: Vec<_> = ways.iter().enumerate().map(curve).filter(|curve| !curve.points.is_empty()).collect();
        Panel { title: title.to_owned(), names: ["bytes of a message", name], is_logarithmic: [true, true], curves, label }
    };
    let panels = [
        panel(Exchange::RoundTrip, "Message and reply, p50", "time", duration),
        panel(Exchange::Rate, "One way, as many as possible", "messages per second", rate),
    ];
    let panels: Vec<_> = panels.into_iter().filter(|panel| !panel.curves.is_empty()).collect();
    let head = "Whole lines: one thread polls both ends, and fipseed has the other CPU. Dashes: a thread on each CPU";
    let conditions = format!("Medians of {} rounds, interleaved in one run.", entry["rounds"]);
    let foot = [conditions, machine::of_revision(&entry["machine"])];
    (!panels.is_empty()).then(|| draw(&panels, &[head], &foot))
}
