//! Pictures as SVG: [`dots`] on lines of their own, [`curves`] over a size, [`heat`] maps of pairs.

pub mod curves;
pub mod dots;
pub mod heat;

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
pub use plotters::style::RGBColor;
pub use plotters::style::text_anchor::HPos as Side;
use plotters::style::text_anchor::{Pos, VPos};

/// Opaque, so that it reads alike on light and dark pages.
pub const PAPER: RGBColor = RGBColor(0xfc, 0xfc, 0xfa);
pub const INK: RGBColor = RGBColor(0x1c, 0x22, 0x28);
/// Of words that explain.
pub const FAINT: RGBColor = RGBColor(0x5c, 0x66, 0x70);
/// Of lines behind figures.
pub const GRID: RGBColor = RGBColor(0xdc, 0xe0, 0xe2);
pub const OURS: RGBColor = RGBColor(0x0b, 0x6e, 0x99);
pub const THEIRS: RGBColor = RGBColor(0xc2, 0x5b, 0x1e);
pub const KERNEL: RGBColor = RGBColor(0x7a, 0x5a, 0x9a);
/// What nothing can be faster than.
pub const BASELINE: RGBColor = RGBColor(0x8a, 0x92, 0x98);
/// The floor of the machine.
pub const FLOOR: RGBColor = RGBColor(0x4d, 0x8b, 0x31);

const FONT: &str = "DejaVu Sans, Verdana, sans-serif";

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The SVG text of what `paint` draws on paper of this size.
fn draw((width, height): (i32, i32), paint: impl FnOnce(&Canvas<'_>) -> Drawn) -> Result<String, String> {
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (width.unsigned_abs(), height.unsigned_abs())).into_drawing_area();
        let painted = canvas.fill(&PAPER).map_err(Into::into).and_then(|()| paint(&canvas));
        let presented = painted.and_then(|()| canvas.present().map_err(Into::into));
        presented.map_err(|error| format!("cannot draw the picture: {error}; report this"))?;
    }
    Ok(svg)
}

/// Words whose `side` is at a place, in the middle of their height.
fn write(canvas: &Canvas<'_>, at: (i32, i32), size: i32, color: &RGBColor, side: Side, words: &str) -> Drawn {
    let style = (FONT, size).into_font().color(color).pos(Pos::new(side, VPos::Center));
    Ok(canvas.draw_text(words, &style, at)?)
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Check that `path` names a picture: before a measurement that could not be saved.
pub fn check(path: &Path) -> Result<(), String> {
    let is_svg = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg"));
    if is_svg { Ok(()) } else { Err(format!("{}: a picture is SVG; let the name end in .svg", path.display())) }
}

pub fn save(path: &Path, svg: &str) -> Result<(), String> {
    check(path)?;
    std::fs::write(path, svg)
        .map_err(|error| format!("cannot write {}: {error}; choose a place that can be written", path.display()))
}

/// Nanoseconds, for people.
pub fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{} µs", short(ns / 1e3)),
        ns => format!("{} ms", short(ns / 1e6)),
    }
}

/// A number per second, for people.
pub fn rate(per_second: f64) -> String {
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

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            [duration(130.4), duration(1000.0), duration(21_600.0), duration(4.5e6)],
            ["130 ns", "1 µs", "22 µs", "4.5 ms"]
        );
        assert_eq!([rate(530.0), rate(114_400.0), rate(6.64e6), rate(53e6)], ["530", "114 k", "6.6 M", "53 M"]);
    }

    #[test]
    fn other_endings_are_refused_before_anything_is_written() {
        assert!(["a.svg", "b.SVG", "x/a.svg"].iter().all(|name| check(Path::new(name)).is_ok()));
        for name in ["a", "a.jpg", "a.png", "a.svg.gz", ".svg"] {
            let error = save(Path::new(name), "<svg/>").expect_err(name);
            assert!(error.starts_with(name) && error.ends_with("let the name end in .svg"), "{error}");
            assert!(!Path::new(name).exists());
        }
    }
}
