//! The picture of a run: latency one at a time, requests per second 64 at a time, every way on a line of its own.

use std::path::Path;
use std::process::{Command, Stdio};

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde_json::Value;

use crate::machine_info;
use crate::matrix::{DEEP, SHALLOW};
use crate::server::find_program;
use crate::table::{IOPS, P50, P99, Results};
use crate::ways::{Kind, WAYS};

const WIDTH: i32 = 1180;
const HEAD: i32 = 108;
const LINE: i32 = 26;
/// Space between groups.
const GAP: i32 = 12;
const FOOT: i32 = 66;
const LABEL_X: i32 = 24;
/// Left end and width of the two panels; what is written behind the last mark needs the rest.
const LATENCY: Panel = Panel { left: 270, width: 380 };
const RATE: Panel = Panel { left: 750, width: 340 };

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

/// What one line shows.
#[derive(Debug, PartialEq)]
struct Row {
    name: &'static str,
    kind: Kind,
    /// p50 and p99, one at a time.
    latency_ns: Option<(f64, f64)>,
    /// 64 at a time.
    iops: Option<f64>,
}

/// Powers of ten that a panel reaches from and to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decades {
    from: i32,
    to: i32,
}

/// Draw `stem`.svg, and `stem`.png from it; returns what to say of it.
pub(crate) fn write(stem: &Path, results: &Results, entry: &Value) -> Result<String, String> {
    let svg = draw(&rows(results), &footer(entry))?;
    let (svg_path, png_path) = (stem.with_extension("svg"), stem.with_extension("png"));
    std::fs::write(&svg_path, svg).map_err(|error| format!("cannot write {}: {error}", svg_path.display()))?;
    let said = format!("plot: {}", svg_path.display());
    let converter = match find_program("rsvg-convert") {
        Ok(converter) => converter,
        Err(reason) => return Ok(format!("{said}; no PNG: {reason}")),
    };
    let mut command = Command::new(converter);
    command.arg("--zoom=2").arg("--output").arg(&png_path).arg(&svg_path).stdin(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(format!("{said}, {}", png_path.display())),
        other => Err(format!("rsvg-convert failed: {other:?}")),
    }
}

/// What was measured, group by group, fastest first.
fn rows(results: &Results) -> Vec<Row> {
    let row = |name, kind| {
        let p50 = results.median(name, SHALLOW, P50);
        let latency_ns = p50.zip(results.median(name, SHALLOW, P99));
        Row { name, kind, latency_ns, iops: results.median(name, DEEP, IOPS) }
    };
    let measured = WAYS.iter().map(|entry| row(entry.name, entry.kind));
    let mut rows: Vec<Row> = measured.filter(|row| row.latency_ns.is_some() || row.iops.is_some()).collect();
    let latency = |row: &Row| row.latency_ns.map_or(f64::INFINITY, |(p50, _)| p50);
    rows.sort_by(|a, b| (a.kind as u8).cmp(&(b.kind as u8)).then(latency(a).total_cmp(&latency(b))));
    rows
}

fn footer(entry: &Value) -> [String; 2] {
    let machine = &entry["machine"];
    let text = |key: &str| machine[key].as_str().unwrap_or("unknown");
    [
        format!(
            "Medians of one run, {} times {} s each; logarithmic scales. Other servers serve null disks, each on the CPU where it was fastest.",
            entry["rounds"], entry["seconds"]
        ),
        format!(
            "{}; revision {}, {}",
            machine_info::describe(machine),
            text("revision"),
            text("date").split('T').next().unwrap_or("")
        ),
    ]
}

fn draw(rows: &[Row], footer: &[String]) -> Result<String, String> {
    if rows.is_empty() {
        return Err("nothing of what it shows was measured: 4 KiB reads".to_owned());
    }
    let mut svg = String::new();
    let groups = rows.windows(2).filter(|pair| pair[0].kind != pair[1].kind).count();
    let count = |number: usize| i32::try_from(number).unwrap_or(0);
    let bottom = HEAD + LINE * count(rows.len()) + GAP * count(groups);
    let height = bottom + FOOT;
    {
        let size = (WIDTH.unsigned_abs(), height.unsigned_abs());
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        paint(&canvas, rows, footer, bottom).map_err(|error| format!("cannot draw: {error}"))?;
    }
    Ok(svg)
}

fn paint(canvas: &Canvas<'_>, rows: &[Row], footer: &[String], bottom: i32) -> Result<(), Box<dyn std::error::Error>> {
    canvas.fill(&PAPER)?;
    let text = |x, y, size, color: &RGBColor, side, words: &str| {
        let style = (FONT, size).into_font().color(color).pos(Pos::new(side, VPos::Center));
        canvas.draw_text(words, &style, (x, y))
    };
    // A figure must stay readable where it crosses the grid.
    let figure = |x, y, words: &str| {
        let width = 8 * i32::try_from(words.chars().count()).unwrap_or(0);
        canvas.draw(&Rectangle::new([(x - 3, y - 8), (x + width, y + 8)], PAPER.filled()))?;
        text(x, y, 12, &INK, HPos::Left, words)
    };
    text(LABEL_X, 28, 19, &INK, HPos::Left, "Random reads of 4 KiB: Fip-see and what people use today")?;
    for (place, kind) in [Kind::Ours, Kind::Peer, Kind::Yardstick].into_iter().enumerate() {
        let x = RATE.left + [0, 100, 230][place];
        canvas.draw(&Circle::new((x + 5, 28), 5, color_of(kind).filled()))?;
        text(x + 16, 28, 13, &INK, HPos::Left, legend(kind))?;
    }
    let latencies = decades(rows.iter().filter_map(|row| row.latency_ns).flat_map(|(p50, p99)| [p50, p99]));
    let rates = decades(rows.iter().filter_map(|row| row.iops));
    text(LATENCY.left, 62, 13, &INK, HPos::Left, "One at a time: latency, dot p50, tick p99. Left is better.")?;
    text(RATE.left, 62, 13, &INK, HPos::Left, "64 at a time: requests per second. Right is better.")?;
    for (panel, range, label) in [(LATENCY, latencies, duration as fn(f64) -> String), (RATE, rates, rate)] {
        for power in range.from..=range.to {
            let x = panel.place(10_f64.powi(power), range);
            canvas.draw(&PathElement::new([(x, HEAD - 14), (x, bottom)], GRID.stroke_width(1)))?;
            text(x, HEAD - 24, 11, &FAINT, HPos::Center, &label(10_f64.powi(power)))?;
        }
    }
    let mut y = HEAD + LINE / 2;
    for (index, row) in rows.iter().enumerate() {
        if index > 0 && rows[index - 1].kind != row.kind {
            y += GAP;
        }
        let color = color_of(row.kind);
        text(LABEL_X, y, 13, &INK, HPos::Left, row.name)?;
        if let Some((p50, p99)) = row.latency_ns {
            let (from, to) = (LATENCY.place(p50, latencies), LATENCY.place(p99, latencies));
            canvas.draw(&PathElement::new([(from, y), (to, y)], color.stroke_width(2)))?;
            canvas.draw(&PathElement::new([(to, y - 5), (to, y + 5)], color.stroke_width(2)))?;
            canvas.draw(&Circle::new((from, y), 5, color.filled()))?;
            figure(to + 9, y, &duration(p50))?;
        }
        if let Some(iops) = row.iops {
            let x = RATE.place(iops, rates);
            canvas.draw(&Circle::new((x, y), 5, color.filled()))?;
            figure(x + 12, y, &rate(iops))?;
        }
        y += LINE;
    }
    for (number, line) in (0..).zip(footer) {
        text(LABEL_X, bottom + 26 + 19 * number, 11, &FAINT, HPos::Left, line)?;
    }
    canvas.present()?;
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

/// The smallest range of powers of ten around all positive values.
#[expect(clippy::cast_possible_truncation, reason = "logarithms of floats are small")]
fn decades(values: impl Iterator<Item = f64>) -> Decades {
    let (least, most) = values
        .filter(|value| value.is_finite() && *value > 0.0)
        .fold((f64::MAX, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    if most == 0.0 {
        return Decades { from: 0, to: 1 };
    }
    let from = least.log10().floor() as i32;
    Decades { from, to: (most.log10().ceil() as i32).max(from + 1) }
}

const fn color_of(kind: Kind) -> RGBColor {
    match kind {
        Kind::Ours => RGBColor(0x0b, 0x6e, 0x99),
        Kind::Peer => RGBColor(0xc2, 0x5b, 0x1e),
        Kind::Yardstick => RGBColor(0x8a, 0x92, 0x98),
    }
}

const fn legend(kind: Kind) -> &'static str {
    match kind {
        Kind::Ours => "Fip-see",
        Kind::Peer => "other servers",
        Kind::Yardstick => "no server",
    }
}

/// Nanoseconds, for people.
pub(crate) fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{} µs", short(ns / 1e3)),
        ns => format!("{} ms", short(ns / 1e6)),
    }
}

/// A number per second, for people.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        n if n < 1e3 => format!("{n:.0}"),
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
    use crate::ways::{CALL, LIBRARY, QEMU_NBD};

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            [duration(130.4), duration(1000.0), duration(21_600.0), duration(4.5e6)],
            ["130 ns", "1 µs", "22 µs", "4.5 ms"]
        );
        assert_eq!([rate(530.0), rate(114_400.0), rate(6.64e6), rate(53e6)], ["530", "114 k", "6.6 M", "53 M"]);
    }

    #[test]
    fn decades_hold_every_value() {
        assert_eq!(decades([19.0, 45_000.0].into_iter()), Decades { from: 1, to: 5 });
        assert_eq!(decades([100.0].into_iter()), Decades { from: 2, to: 3 });
        assert_eq!(decades([f64::NAN, 0.0].into_iter()), Decades { from: 0, to: 1 });
    }

    #[test]
    fn places_are_logarithmic_and_inside_the_panel() {
        let (panel, range) = (Panel { left: 100, width: 300 }, Decades { from: 1, to: 4 });
        assert_eq!([10.0, 100.0, 10_000.0, 1.0, 1e9].map(|value| panel.place(value, range)), [100, 200, 400, 100, 400]);
    }

    #[test]
    fn lines_are_grouped_and_the_fastest_is_first() {
        let mut results = Results::default();
        for (way, p50) in [(QEMU_NBD, 20_000.0), (LIBRARY, 130.0), (CALL, 20.0), ("Rust library, memory disk", 120.0)] {
            results.add_cell(way, SHALLOW, P50, p50);
            results.add_cell(way, SHALLOW, P99, p50 * 2.0);
        }
        results.add_cell("fio's null engine", DEEP, IOPS, 6e6);
        let names: Vec<&str> = rows(&results).iter().map(|row| row.name).collect();
        assert_eq!(names, ["Rust library, memory disk", LIBRARY, QEMU_NBD, CALL, "fio's null engine"]);
    }

    #[test]
    fn picture_names_every_line_and_its_figures() {
        let rows = [
            Row { name: LIBRARY, kind: Kind::Ours, latency_ns: Some((130.0, 190.0)), iops: Some(53e6) },
            Row { name: QEMU_NBD, kind: Kind::Peer, latency_ns: None, iops: Some(118e3) },
        ];
        let svg = draw(&rows, &["a machine".to_owned()]).expect("a picture");
        for words in [LIBRARY, QEMU_NBD, "130 ns", "53 M", "118 k", "a machine"] {
            assert!(svg.contains(words), "{words} is missing");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
        assert!(draw(&[], &[]).is_err());
    }
}
