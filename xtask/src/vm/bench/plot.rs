//! The picture of a run: 4 KiB reads of null disks, requests per second and latency over the number in flight.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::plan::{DEPTHS, Extent, FIP, HOST, Load, QEMU, VIRTIO};
use super::report::Machine;
use super::results::{Figures, Results};
use crate::setup::is_installed;
use crate::step;

const WIDTH: f64 = 1180.0;
const HEIGHT: f64 = 560.0;
const TOP: f64 = 120.0;
const BOTTOM: f64 = 470.0;
const PANEL_WIDTH: f64 = 430.0;
/// Opaque, so that it reads alike on light and dark pages.
const PAPER: &str = "#fcfcfa";
const INK: &str = "#1c2228";
const FAINT: &str = "#5c6670";
const GRID: &str = "#dce0e2";

/// A line of the picture, with its colour and dashes.
const LINES: [(Load, &str, &str, &str); 6] = [
    (Load::reads(FIP, 1), "fip_blk", "#0b6e99", "none"),
    (Load::reads(FIP, 1).polled(), "fip_blk, polled", "#0b6e99", "6 4"),
    (Load::reads(HOST, 1), "null_blk in the guest (irqmode=0)", "#8a9298", "none"),
    (Load::reads(HOST, 1).polled(), "the same, polled", "#8a9298", "6 4"),
    (Load::reads(VIRTIO, 1), "virtio_blk, fipseed", "#c25b1e", "none"),
    (Load::reads(QEMU, 1), "virtio_blk, qemu-storage-daemon", "#c25b1e", "6 4"),
];

/// A panel: where it begins, what it shows, and the powers of ten at its bottom and top.
struct Panel {
    left: f64,
    title: &'static str,
    figure: fn(&Figures) -> f64,
    from: f64,
    to: f64,
    label: fn(f64) -> String,
}

/// Draw `stem`.svg, and `stem`.png from it; returns what to say of it.
pub(super) fn write(stem: &Path, results: &Results, machine: &Machine, extent: Extent) -> Result<String, String> {
    let (svg_path, png_path) = (stem.with_extension("svg"), stem.with_extension("png"));
    let svg = draw(results, machine, extent);
    fs::write(&svg_path, svg).map_err(|error| format!("cannot write {}: {error}", svg_path.display()))?;
    if !is_installed("rsvg-convert") {
        return Ok(format!("plot: {}; no PNG: rsvg-convert is not installed", svg_path.display()));
    }
    let mut command = Command::new("rsvg-convert");
    step::succeed(command.arg("--zoom=2").arg("--output").arg(&png_path).arg(&svg_path))?;
    Ok(format!("plot: {}, {}", svg_path.display(), png_path.display()))
}

fn draw(results: &Results, machine: &Machine, extent: Extent) -> String {
    let panels = [
        Panel {
            left: 90.0,
            title: "Requests per second. Up is better.",
            figure: |figures| figures.iops,
            from: 4.0,
            to: 7.0,
            label: |value| if value < 1e6 { format!("{:.0} k", value / 1e3) } else { format!("{:.0} M", value / 1e6) },
        },
        Panel {
            left: 670.0,
            title: "Latency of a request, p50. Down is better.",
            figure: |figures| figures.p50_ns,
            from: 2.0,
            to: 6.0,
            label: |value| if value < 1e3 { format!("{value:.0} ns") } else { format!("{:.0} µs", value / 1e3) },
        },
    ];
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"DejaVu Sans, Verdana, sans-serif\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"{PAPER}\"/>\n"
    );
    text(&mut svg, 24.0, 32.0, 19, INK, "start", "A guest reads 4 KiB at random from a null disk, from within its kernel");
    for (number, (_, name, color, dashes)) in LINES.iter().enumerate() {
        let (x, y) = (24.0 + 380.0 * count(number / 2), 56.0 + 18.0 * count(number % 2));
        stroke(&mut svg, &[(x, y), (x + 30.0, y)], color, dashes);
        text(&mut svg, x + 38.0, y + 4.0, 13, INK, "start", name);
    }
    for panel in &panels {
        panel.draw(&mut svg, results);
    }
    let footer = [
        format!(
            "Medians of {} rounds of {} ms each, every disk in one boot of user-mode Linux 6.1 with one CPU; back ends on another CPU.",
            extent.rounds, extent.ms
        ),
        format!("{}, Linux {}; revision {}, {}", machine.cpu, machine.kernel, machine.revision, &machine.date),
    ];
    for (number, line) in footer.iter().enumerate() {
        text(&mut svg, 24.0, 525.0 + 18.0 * count(number), 11, FAINT, "start", line);
    }
    svg.push_str("</svg>\n");
    svg
}

impl Panel {
    fn draw(&self, svg: &mut String, results: &Results) {
        text(svg, self.left, TOP - 18.0, 13, INK, "start", self.title);
        let mut power = self.from;
        while power <= self.to {
            let y = self.y(10_f64.powf(power));
            stroke(svg, &[(self.left, y), (self.left + PANEL_WIDTH, y)], GRID, "none");
            text(svg, self.left - 8.0, y + 4.0, 11, FAINT, "end", &(self.label)(10_f64.powf(power)));
            power += 1.0;
        }
        for (place, depth) in DEPTHS.iter().enumerate() {
            text(svg, self.x(place), BOTTOM + 18.0, 11, FAINT, "middle", &depth.to_string());
        }
        text(svg, self.left + PANEL_WIDTH / 2.0, BOTTOM + 36.0, 11, FAINT, "middle", "requests in flight");
        for (load, _, color, dashes) in LINES {
            let value = |depth| results.median(Load { depth, ..load }, self.figure);
            let points = DEPTHS.iter().enumerate().filter_map(|(place, depth)| Some((self.x(place), self.y(value(*depth)?))));
            stroke(svg, &points.collect::<Vec<_>>(), color, dashes);
        }
    }

    fn x(&self, place: usize) -> f64 {
        self.left + PANEL_WIDTH * count(place) / count(DEPTHS.len() - 1)
    }

    /// Logarithmic, and never outside.
    fn y(&self, value: f64) -> f64 {
        let share = (value.max(1.0).log10() - self.from) / (self.to - self.from);
        BOTTOM - share.clamp(0.0, 1.0) * (BOTTOM - TOP)
    }
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn text(svg: &mut String, x: f64, y: f64, size: u32, color: &str, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    // Writing into a string does not fail, here and below.
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{color}\" text-anchor=\"{anchor}\">{words}</text>"
    );
}

fn stroke(svg: &mut String, points: &[(f64, f64)], color: &str, dashes: &str) {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>",
        points.join(" ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_has_every_line_and_stays_inside() {
        let mut results = Results::default();
        for depth in DEPTHS {
            let fields = format!("block=4096 write=0 depth={depth} polled=0 requests=1 errors=0 unpolled=0");
            results.take(&format!("run 0 fnull {fields} iops=99999999 mean_ns=1 p50_ns=1 p99_ns=1")).expect("a report");
        }
        let extent = Extent { rounds: 1, ms: 1, claims_only: false, idle_seconds: 1, wakes: 1 };
        let svg = draw(&results, &super::super::report::machine(Path::new(".")), extent);
        for (_, name, _, _) in LINES {
            assert!(svg.contains(name), "{name} is missing");
        }
        let lowest = format!(" {:.1},{BOTTOM:.1}", 670.0 + PANEL_WIDTH);
        assert!(svg.contains(&lowest), "one nanosecond is at the bottom");
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}
