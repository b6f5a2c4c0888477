//! Two figures of many things, each on a line of its own: a time with its p99, and rates. Logarithmic.

use plotters::prelude::*;

use super::{Canvas, Drawn, FAINT, GRID, INK, PAPER, Side, count, draw as draw_on, duration, rate, write};

const WIDTH: i32 = 1180;
const HEAD: i32 = 108;
const LINE: i32 = 26;
/// Space between groups.
const GAP: i32 = 12;
const FOOT: i32 = 66;
const LABEL_X: i32 = 24;
/// Left end and width of the two panels; what is written behind the last mark needs the rest.
const TIMES: Panel = Panel { left: 270, width: 380 };
const RATES: Panel = Panel { left: 750, width: 340 };

#[derive(Clone, Copy)]
struct Panel {
    left: i32,
    width: i32,
}

#[derive(Debug, PartialEq)]
pub struct Row<'a> {
    pub name: &'a str,
    /// Rows of one group are together.
    pub group: u8,
    /// Of its marks.
    pub color: RGBColor,
    pub time_ns: Option<(f64, f64)>,
    /// Per second: a dot, and a circle.
    pub rates: [Option<f64>; 2],
}

#[derive(Debug)]
pub struct Words<'a> {
    pub title: &'a str,
    /// Colours with their names, and the space that each takes.
    pub legend: &'a [(RGBColor, &'a str, i32)],
    /// Above the two panels.
    pub heads: [&'a str; 2],
    pub footer: &'a [String],
}

/// Powers of ten that a panel reaches from and to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decades {
    from: i32,
    to: i32,
}

/// Group by group, the fastest of each first.
pub fn draw(words: &Words<'_>, mut rows: Vec<Row<'_>>) -> Result<String, String> {
    rows.retain(|row| row.time_ns.is_some() || row.rates.iter().any(Option::is_some));
    if rows.is_empty() {
        return Err(format!("nothing was measured of what '{}' shows", words.title));
    }
    sort(&mut rows);
    let groups = rows.windows(2).filter(|pair| pair[0].group != pair[1].group).count();
    let bottom = HEAD + LINE * count(rows.len()) + GAP * count(groups);
    draw_on((WIDTH, bottom + FOOT), |canvas| paint(canvas, words, &rows, bottom))
}

fn sort(rows: &mut [Row<'_>]) {
    let time = |row: &Row<'_>| row.time_ns.map_or(f64::INFINITY, |(p50, _)| p50);
    rows.sort_by(|a, b| a.group.cmp(&b.group).then(time(a).total_cmp(&time(b))));
}

fn paint(canvas: &Canvas<'_>, words: &Words<'_>, rows: &[Row<'_>], bottom: i32) -> Drawn {
    write(canvas, (LABEL_X, 28), 19, &INK, Side::Left, words.title)?;
    let mut x = RATES.left;
    for (color, name, width) in words.legend {
        canvas.draw(&Circle::new((x + 5, 28), 5, color.filled()))?;
        write(canvas, (x + 16, 28), 13, &INK, Side::Left, name)?;
        x += width;
    }
    let times = decades(rows.iter().filter_map(|row| row.time_ns).flat_map(|(p50, p99)| [p50, p99]));
    let rates = decades(rows.iter().flat_map(|row| row.rates).flatten());
    let panels = [(TIMES, times, duration as fn(f64) -> String), (RATES, rates, rate)];
    for ((panel, range, label), head) in panels.into_iter().zip(words.heads) {
        write(canvas, (panel.left, 62), 13, &INK, Side::Left, head)?;
        for power in range.from..=range.to {
            let x = panel.place(10_f64.powi(power), range);
            canvas.draw(&PathElement::new([(x, HEAD - 14), (x, bottom)], GRID.stroke_width(1)))?;
            write(canvas, (x, HEAD - 24), 11, &FAINT, Side::Center, &label(10_f64.powi(power)))?;
        }
    }
    let mut y = HEAD + LINE / 2;
    for (index, row) in rows.iter().enumerate() {
        if index > 0 && rows[index - 1].group != row.group {
            y += GAP;
        }
        row.paint(canvas, y, times, rates)?;
        y += LINE;
    }
    for (number, line) in (0..).zip(words.footer) {
        write(canvas, (LABEL_X, bottom + 26 + 19 * number), 11, &FAINT, Side::Left, line)?;
    }
    Ok(())
}

impl Row<'_> {
    fn paint(&self, canvas: &Canvas<'_>, y: i32, times: Decades, rates: Decades) -> Drawn {
        let color = self.color;
        // A figure must stay readable where it crosses the grid.
        let figure = |x: i32, words: &str| -> Drawn {
            let width = 8 * count(words.chars().count());
            canvas.draw(&Rectangle::new([(x - 3, y - 8), (x + width, y + 8)], PAPER.filled()))?;
            write(canvas, (x, y), 12, &INK, Side::Left, words)
        };
        write(canvas, (LABEL_X, y), 13, &INK, Side::Left, self.name)?;
        if let Some((p50, p99)) = self.time_ns {
            let (from, to) = (TIMES.place(p50, times), TIMES.place(p99, times));
            canvas.draw(&PathElement::new([(from, y), (to, y)], color.stroke_width(2)))?;
            canvas.draw(&PathElement::new([(to, y - 5), (to, y + 5)], color.stroke_width(2)))?;
            canvas.draw(&Circle::new((from, y), 5, color.filled()))?;
            figure(to + 9, &duration(p50))?;
        }
        let [dot, circle] = self.rates.map(|rate| rate.map(|rate| RATES.place(rate, rates)));
        if let Some((best, at)) = self.rates.into_iter().flatten().reduce(f64::max).zip(dot.max(circle)) {
            figure(at + 12, &rate(best))?;
        }
        for (x, style) in [(circle, color.stroke_width(2)), (dot, color.filled())] {
            if let Some(x) = x {
                canvas.draw(&Circle::new((x, y), 5, style))?;
            }
        }
        Ok(())
    }
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

#[cfg(test)]
mod tests {
    use super::super::{OURS, THEIRS};
    use super::*;

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

    fn row(name: &str, group: u8, time_ns: Option<(f64, f64)>, rates: [Option<f64>; 2]) -> Row<'_> {
        Row { name, group, color: if group == 0 { OURS } else { THEIRS }, time_ns, rates }
    }

    #[test]
    fn lines_are_grouped_and_the_fastest_is_first() {
        let mut rows: Vec<Row<'_>> = [("nbd", 1, 2e4), ("library", 0, 130.0), ("call", 2, 20.0), ("memory", 0, 120.0)]
            .map(|(name, group, p50)| row(name, group, Some((p50, 2.0 * p50)), [None; 2]))
            .into();
        rows.push(row("null engine", 2, None, [Some(6e6), None]));
        sort(&mut rows);
        assert_eq!(rows.iter().map(|row| row.name).collect::<Vec<_>>(), ["memory", "library", "nbd", "call", "null engine"]);
    }

    #[test]
    fn picture_names_every_line_and_its_figures() {
        let rows = vec![
            row("ours", 0, Some((176.0, 310.0)), [Some(80e6), Some(150e6)]),
            row("theirs", 1, Some((65_000.0, 1e5)), [Some(930e3), None]),
            row("not measured", 1, None, [None; 2]),
        ];
        let footer = ["a machine".to_owned()];
        let legend = [(OURS, "Fip-see", 100)];
        let words = Words { title: "title", legend: &legend, heads: ["times", "rates"], footer: &footer };
        let svg = draw(&words, rows).expect("a picture");
        for words in ["title", "Fip-see", "times", "rates", "ours", "theirs", "176 ns", "150 M", "65 µs", "930 k", "a machine"] {
            assert!(svg.contains(words), "{words} is missing");
        }
        assert!(svg.trim_end().ends_with("</svg>") && !svg.contains("not measured"));
        assert!(draw(&words, Vec::new()).is_err());
    }
}
