//! The picture of a run: the round trip of one message, messages per second one way, each mechanism on a line of its own.

use std::path::Path;
use std::process::{Command, Stdio};

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Run;
use crate::harness::BURST;
use crate::machine_info;
use crate::mechanisms::{Entry, Kind};
use crate::results::{Measure, to_ns};

const WIDTH: i32 = 1180;
const HEAD: i32 = 108;
const LINE: i32 = 24;
/// Space between groups.
const GAP: i32 = 12;
const FOOT: i32 = 66;
const LABEL_X: i32 = 24;
const LATENCY: Panel = Panel { left: 260, width: 390 };
const RATE: Panel = Panel { left: 750, width: 340 };
/// The ring with the streams that are shown, of the mechanisms that choose.
const SLOTS: u32 = 1024;

/// Opaque, so that it reads alike on light and dark pages.
const PAPER: RGBColor = RGBColor(0xfc, 0xfc, 0xfa);
const INK: RGBColor = RGBColor(0x1c, 0x22, 0x28);
const FAINT: RGBColor = RGBColor(0x5c, 0x66, 0x70);
const GRID: RGBColor = RGBColor(0xdc, 0xe0, 0xe2);
const FONT: &str = "DejaVu Sans, Verdana, sans-serif";

type Canvas<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

#[derive(Clone, Copy)]
struct Panel {
    left: i32,
    width: i32,
}

/// Powers of ten that a panel reaches from and to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decades {
    from: i32,
    to: i32,
}

/// What one line shows.
struct Row {
    name: &'static str,
    kind: Kind,
    /// p50 and p99.
    round_trip_ns: Option<(f64, f64)>,
    /// In batches, and message by message.
    per_second: [Option<f64>; 2],
}

/// Draw `stem`.svg, and `stem`.png from it; returns what to say of it.
pub(crate) fn write(stem: &Path, run: &Run) -> Result<String, String> {
    let text = |key: &str| run.machine[key].as_str().unwrap_or("unknown");
    let footer = [
        format!(
            "Two processes on two CPUs, every byte checked; medians of {} interleaved rounds; logarithmic scales. Streams: rings of {SLOTS} slots where they can be chosen.",
            run.rounds
        ),
        format!(
            "{}; revision {}, {}",
            machine_info::describe(&run.machine),
            text("revision"),
            text("date").split('T').next().unwrap_or("")
        ),
    ];
    let svg = draw(&rows(run), &footer)?;
    let (svg_path, png_path) = (stem.with_extension("svg"), stem.with_extension("png"));
    std::fs::write(&svg_path, svg).map_err(|error| format!("cannot write {}: {error}", svg_path.display()))?;
    let said = format!("plot: {}", svg_path.display());
    let mut command = Command::new("rsvg-convert");
    command.arg("--zoom=2").arg("--output").arg(&png_path).arg(&svg_path).stdin(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(format!("{said}, {}", png_path.display())),
        Ok(status) => Err(format!("rsvg-convert failed: {status}")),
        Err(_) => Ok(format!("{said}; no PNG: install librsvg2-bin")),
    }
}

/// What was measured, group by group, fastest first.
fn rows(run: &Run) -> Vec<Row> {
    let row = |entry: &Entry| {
        let round_trip = |figure: fn(&crate::harness::Outcome) -> f64| run.results.median(entry.name, Measure::RoundTrip, figure);
        let per_second = |batch| {
            let measure = Measure::Stream { batch, slots: entry.chooses_slots.then_some(SLOTS) };
            run.results.median(entry.name, measure, |outcome| 1e9 / to_ns(outcome.mean))
        };
        Row {
            name: entry.name,
            kind: entry.kind,
            round_trip_ns: round_trip(|outcome| to_ns(outcome.p50)).zip(round_trip(|outcome| to_ns(outcome.p99))),
            per_second: [per_second(BURST), per_second(1)],
        }
    };
    let mut rows: Vec<Row> = run.entries.iter().map(row).filter(|row| row.round_trip_ns.is_some()).collect();
    let latency = |row: &Row| row.round_trip_ns.map_or(f64::INFINITY, |(p50, _)| p50);
    rows.sort_by(|a, b| a.kind.cmp(&b.kind).then(latency(a).total_cmp(&latency(b))));
    rows
}

fn draw(rows: &[Row], footer: &[String]) -> Result<String, String> {
    if rows.is_empty() {
        return Err("nothing of what the plot shows was measured: round trips".to_owned());
    }
    let mut svg = String::new();
    let groups = rows.windows(2).filter(|pair| pair[0].kind != pair[1].kind).count();
    let count = |number: usize| i32::try_from(number).unwrap_or(0);
    let bottom = HEAD + LINE * count(rows.len()) + GAP * count(groups);
    {
        let size = (WIDTH.unsigned_abs(), (bottom + FOOT).unsigned_abs());
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        paint(&canvas, rows, footer, bottom).map_err(|error| format!("cannot draw: {error}"))?;
    }
    Ok(svg)
}

fn write_text(canvas: &Canvas<'_>, at: (i32, i32), size: i32, color: &RGBColor, side: HPos, words: &str) -> Result<(), String> {
    let style = (FONT, size).into_font().color(color).pos(Pos::new(side, VPos::Center));
    canvas.draw_text(words, &style, at).map_err(|error| error.to_string())
}

fn paint(canvas: &Canvas<'_>, rows: &[Row], footer: &[String], bottom: i32) -> Result<(), Box<dyn std::error::Error>> {
    canvas.fill(&PAPER)?;
    write_text(canvas, (LABEL_X, 28), 19, &INK, HPos::Left, "Messages of 60 bytes between two CPUs: Fip-see and its peers")?;
    let latencies = decades(rows.iter().filter_map(|row| row.round_trip_ns).flat_map(|(p50, p99)| [p50, p99]));
    let rates = decades(rows.iter().flat_map(|row| row.per_second).flatten());
    let head = "Message and answer: time, dot p50, tick p99. Left is better.";
    write_text(canvas, (LATENCY.left, 62), 13, &INK, HPos::Left, head)?;
    let head = "One way: messages per second. Dot: by ones, circle: by 64.";
    write_text(canvas, (RATE.left, 62), 13, &INK, HPos::Left, head)?;
    for (panel, range, label) in [(LATENCY, latencies, duration as fn(f64) -> String), (RATE, rates, rate)] {
        for power in range.from..=range.to {
            let x = panel.place(10_f64.powi(power), range);
            canvas.draw(&PathElement::new([(x, HEAD - 14), (x, bottom)], GRID.stroke_width(1)))?;
            write_text(canvas, (x, HEAD - 24), 11, &FAINT, HPos::Center, &label(10_f64.powi(power)))?;
        }
    }
    let mut y = HEAD + LINE / 2;
    for (index, row) in rows.iter().enumerate() {
        if index > 0 && rows[index - 1].kind != row.kind {
            y += GAP;
        }
        paint_row(canvas, row, y, latencies, rates)?;
        y += LINE;
    }
    for (number, line) in (0..).zip(footer) {
        write_text(canvas, (LABEL_X, bottom + 26 + 19 * number), 11, &FAINT, HPos::Left, line)?;
    }
    canvas.present()?;
    Ok(())
}

fn paint_row(
    canvas: &Canvas<'_>,
    row: &Row,
    y: i32,
    latencies: Decades,
    rates: Decades,
) -> Result<(), Box<dyn std::error::Error>> {
    let color = color_of(row.kind);
    // A figure must stay readable where it crosses the grid.
    let figure = |x: i32, words: &str| -> Result<(), Box<dyn std::error::Error>> {
        let width = 8 * i32::try_from(words.chars().count()).unwrap_or(0);
        canvas.draw(&Rectangle::new([(x - 3, y - 8), (x + width, y + 8)], PAPER.filled()))?;
        Ok(write_text(canvas, (x, y), 12, &INK, HPos::Left, words)?)
    };
    write_text(canvas, (LABEL_X, y), 13, &INK, HPos::Left, row.name)?;
    if let Some((p50, p99)) = row.round_trip_ns {
        let (from, to) = (LATENCY.place(p50, latencies), LATENCY.place(p99, latencies));
        canvas.draw(&PathElement::new([(from, y), (to, y)], color.stroke_width(2)))?;
        canvas.draw(&PathElement::new([(to, y - 5), (to, y + 5)], color.stroke_width(2)))?;
        canvas.draw(&Circle::new((from, y), 5, color.filled()))?;
        figure(to + 9, &duration(p50))?;
    }
    let [batches, singles] = row.per_second.map(|rate| rate.map(|rate| RATE.place(rate, rates)));
    if let Some((best, at)) = row.per_second.into_iter().flatten().reduce(f64::max).zip(batches.max(singles)) {
        figure(at + 12, &rate(best))?;
    }
    if let Some(x) = batches {
        canvas.draw(&Circle::new((x, y), 5, color.stroke_width(2)))?;
    }
    if let Some(x) = singles {
        canvas.draw(&Circle::new((x, y), 5, color.filled()))?;
    }
    Ok(())
}

impl Panel {
    /// The place of `value`, logarithmically.
    #[expect(clippy::cast_possible_truncation, reason = "a pixel of a panel, clamped to it")]
    fn place(self, value: f64, range: Decades) -> i32 {
        let share = (value.log10() - f64::from(range.from)) / f64::from(range.to - range.from);
        self.left + (share.clamp(0.0, 1.0) * f64::from(self.width)).round() as i32
    }
}

/// The smallest range of powers of ten around all values.
#[expect(clippy::cast_possible_truncation, reason = "logarithms of floats are small")]
fn decades(values: impl Iterator<Item = f64>) -> Decades {
    let (least, most) = values.fold((f64::MAX, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    if most == 0.0 {
        return Decades { from: 0, to: 1 };
    }
    let from = least.log10().floor() as i32;
    Decades { from, to: (most.log10().ceil() as i32).max(from + 1) }
}

const fn color_of(kind: Kind) -> RGBColor {
    match kind {
        Kind::Ours => RGBColor(0x0b, 0x6e, 0x99),
        Kind::Yardstick => RGBColor(0x8a, 0x92, 0x98),
        Kind::Ring | Kind::Library => RGBColor(0xc2, 0x5b, 0x1e),
        Kind::Kernel => RGBColor(0x7a, 0x5a, 0x9a),
    }
}

/// Nanoseconds, for people.
fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{} µs", short(ns / 1e3)),
        ns => format!("{} ms", short(ns / 1e6)),
    }
}

/// A number per second, for people.
fn rate(per_second: f64) -> String {
    match per_second {
        n if n < 1e6 => format!("{} k", short(n / 1e3)),
        n => format!("{} M", short(n / 1e6)),
    }
}

/// Two or three digits, without a zero behind the point.
fn short(number: f64) -> String {
    let text = if number < 10.0 { format!("{number:.1}") } else { format!("{number:.0}") };
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_names_every_line_and_its_figures() {
        let rows = [
            Row { name: "ours", kind: Kind::Ours, round_trip_ns: Some((176.0, 310.0)), per_second: [Some(150e6), Some(80e6)] },
            Row { name: "theirs", kind: Kind::Kernel, round_trip_ns: Some((65_000.0, 1e5)), per_second: [None, Some(930e3)] },
        ];
        let svg = draw(&rows, &["a machine".to_owned()]).expect("a picture");
        for words in ["ours", "theirs", "176 ns", "150 M", "65 µs", "930 k", "a machine"] {
            assert!(svg.contains(words), "{words} is missing");
        }
        assert!(draw(&[], &[]).is_err());
    }
}
