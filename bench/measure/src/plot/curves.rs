//! Curves over a size, in panels beside each other.

use std::ops::Range;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use super::{Canvas, Drawn, FONT, GRID, INK, PAPER, draw as draw_on};

const WIDTH: i32 = 1180;
const HEIGHT: i32 = 440;
/// Of a line of words above or below.
const WORDS: i32 = 20;
/// A panel of more curves has no room for their names: these are on the right of all panels.
const MOST_NAMED: usize = 6;
/// Of the names on the right, and of one of them.
const NAMES_WIDTH: i32 = 220;
const NAME_HEIGHT: i32 = 20;
const DASH: i32 = 6;
const SAMPLE: i32 = 16;
/// A curve of more points is drawn without them.
const MOST_MARKED: usize = 16;

/// Places of a curve, from left to right.
pub type Points = Vec<(f64, f64)>;

#[derive(Clone, Debug)]
pub struct Curve<'a> {
    /// In the legend, where there are several.
    pub name: &'a str,
    pub color: RGBColor,
    /// Instead of a whole line.
    pub is_dashed: bool,
    pub points: Points,
}

impl<'a> Curve<'a> {
    /// A whole line.
    pub const fn new(name: &'a str, color: RGBColor, points: Points) -> Self {
        Self { name, color, is_dashed: false, points }
    }

    /// Of its sample beside its name, from where to where.
    fn dashes(&self) -> Vec<[i32; 2]> {
        if self.is_dashed { vec![[0, DASH], [SAMPLE - DASH, SAMPLE]] } else { vec![[0, SAMPLE]] }
    }
}

#[derive(Clone, Debug)]
pub struct Panel<'a> {
    /// Above it.
    pub title: String,
    /// Below it, and on its left.
    pub names: [&'a str; 2],
    /// Is it drawn by the logarithm, from left to right and upwards?
    pub is_logarithmic: [bool; 2],
    pub curves: Vec<Curve<'a>>,
    /// A figure of the upward axis, for people.
    pub label: fn(f64) -> String,
}

/// A figure with as many digits as it needs.
pub fn plain(value: f64) -> String {
    if value < 10.0 && value.fract() != 0.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// The panels beside each other, below the lines of `head` and above those of `foot`.
pub fn draw(panels: &[Panel<'_>], head: &[&str], foot: &[String]) -> Result<String, String> {
    if panels.iter().any(|panel| panel.curves.iter().all(|curve| curve.points.is_empty())) {
        return Err("nothing was measured of what the picture shows".to_owned());
    }
    let lines = |lines: usize| WORDS * super::count(lines);
    let (above, below) = (lines(head.len()) + 16, lines(foot.len()) + 8);
    let apart = named_apart(panels);
    let right = if apart.is_empty() { 0 } else { NAMES_WIDTH };
    draw_on((WIDTH + right, HEIGHT + above + below), |canvas| {
        for (number, line) in (0..).zip(head) {
            canvas.draw_text(line, &(FONT, 12).into_font().color(&INK), (20, 16 + WORDS * number))?;
        }
        for (number, line) in (0..).zip(foot) {
            canvas.draw_text(line, &(FONT, 11).into_font().color(&super::FAINT), (20, HEIGHT + above + WORDS * number))?;
        }
        for (number, curve) in (0..).zip(&apart) {
            let at = (WIDTH + 8, above + 40 + NAME_HEIGHT * number);
            curve.dashes().into_iter().try_for_each(|[from, to]| {
                canvas.draw(&PathElement::new([(at.0 + from, at.1), (at.0 + to, at.1)], curve.color.stroke_width(2)))
            })?;
            canvas.draw_text(curve.name, &(FONT, 12).into_font().color(&INK), (at.0 + SAMPLE + 6, at.1 - 6))?;
        }
        let parts = canvas.margin(above, below, 8, 8 + right).split_evenly((1, panels.len()));
        parts.iter().zip(panels).try_for_each(|(part, panel)| panel.paint(part, apart.is_empty()))
    })
}

/// The curves whose names are beside the panels, each once; none where all have room.
fn named_apart<'a>(panels: &'a [Panel<'a>]) -> Vec<&'a Curve<'a>> {
    if panels.iter().all(|panel| panel.curves.len() <= MOST_NAMED) {
        return Vec::new();
    }
    let mut named: Vec<&Curve<'_>> = Vec::new();
    for curve in panels.iter().flat_map(|panel| &panel.curves) {
        if named.iter().all(|known| known.name != curve.name) {
            named.push(curve);
        }
    }
    named
}

/// From the smallest to the largest, with some width where they are equal.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
    if least < most { least..most } else { least * 0.9..least * 1.1 + 0.1 }
}

/// Whole powers of ten around it.
fn decades(range: &Range<f64>) -> Range<f64> {
    10_f64.powf(range.start.max(1e-9).log10().floor())..10_f64.powf(range.end.log10().ceil())
}

impl Panel<'_> {
    fn paint(&self, part: &Canvas<'_>, is_named: bool) -> Drawn {
        let points = || self.curves.iter().flat_map(|curve| curve.points.iter());
        let (x, y) = (range(points().map(|(x, _)| *x)), range(points().map(|(_, y)| *y)));
        let mut chart = ChartBuilder::on(part);
        chart.margin(10).caption(&self.title, (FONT, 15).into_font().color(&INK));
        chart.x_label_area_size(40).y_label_area_size(70);
        let upwards = 0.0..y.end * 1.05;
        match self.is_logarithmic {
            [true, true] => self.curves(&mut chart.build_cartesian_2d(x.log_scale(), decades(&y).log_scale())?, is_named),
            [true, false] => self.curves(&mut chart.build_cartesian_2d(x.log_scale(), upwards)?, is_named),
            [false, true] => self.curves(&mut chart.build_cartesian_2d(x, decades(&y).log_scale())?, is_named),
            [false, false] => self.curves(&mut chart.build_cartesian_2d(x, upwards)?, is_named),
        }
    }

    fn curves<'a, 'b: 'a, X, Y>(&self, chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>, is_named: bool) -> Drawn
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let [x_name, y_name] = self.names;
        let (x_label, y_label) = (|value: &f64| plain(*value), |value: &f64| (self.label)(*value));
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(x_name).y_desc(y_name).x_label_formatter(&x_label).y_label_formatter(&y_label);
        mesh.label_style((FONT, 12).into_font().color(&INK)).axis_style(INK).light_line_style(PAPER).bold_line_style(GRID);
        mesh.draw()?;
        let is_named = is_named && self.curves.len() > 1;
        for curve in &self.curves {
            let Curve { name, color, is_dashed, points } = curve;
            let style = color.stroke_width(2);
            let line = if *is_dashed {
                chart.draw_series(DashedLineSeries::new(points.iter().copied(), 6, 4, style))?
            } else {
                chart.draw_series([PathElement::new(points.clone(), style)])?
            };
            if is_named {
                let dashes = curve.dashes();
                line.label(*name).legend(move |(x, y)| {
                    let dash = |index: usize| dashes.get(index).map_or_else(Vec::new, |dash| dash.map(|end| (end, 0)).to_vec());
                    // One element for both: a path that is closed is drawn as its lines.
                    EmptyElement::at((x, y)) + PathElement::new(dash(0), style) + PathElement::new(dash(1), style)
                });
            }
            if points.len() <= MOST_MARKED {
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, color.filled())))?;
            }
        }
        if is_named {
            let mut labels = chart.configure_series_labels();
            labels.position(SeriesLabelPosition::UpperRight).label_font((FONT, 12).into_font().color(&INK));
            labels.background_style(PAPER).border_style(GRID).draw()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OURS, THEIRS, rate};
    use super::*;

    #[test]
    fn every_curve_is_drawn_and_named_on_every_kind_of_axis() {
        let curves = vec![
            Curve::new("ours", OURS, vec![(1.0, 1e4), (64.0, 5e6)]),
            Curve { is_dashed: true, ..Curve::new("theirs", THEIRS, vec![(1.0, 2e4), (64.0, 3e5)]) },
            Curve::new("not measured", THEIRS, Vec::new()),
        ];
        for x in [false, true] {
            for y in [false, true] {
                let panel = Panel {
                    title: "a title".to_owned(),
                    names: ["in flight", "per second"],
                    is_logarithmic: [x, y],
                    curves: curves.clone(),
                    label: rate,
                };
                let svg = draw(&[panel], &["head"], &["foot".to_owned()]).expect("a picture");
                for words in ["a title", "in flight", "per second", "ours", "theirs", "head", "foot"] {
                    assert!(svg.contains(words), "{words} is missing");
                }
            }
        }
        assert_eq!(decades(&(2e4..5e6)), 1e4..1e7);
    }

    #[test]
    fn many_curves_are_named_once_beside_the_panels() {
        let names: Vec<String> = (0..=MOST_NAMED).map(|number| format!("way {number}")).collect();
        let curve = |name| Curve { is_dashed: true, ..Curve::new(name, OURS, vec![(1.0, 1.0), (2.0, 2.0)]) };
        let panel = |curves| Panel { title: String::new(), names: ["", ""], is_logarithmic: [true; 2], curves, label: plain };
        let panels = |count: usize| [(); 2].map(|()| panel(names[..count].iter().map(|name| curve(name)).collect()));
        let counts = [MOST_NAMED, MOST_NAMED + 1].map(|count| {
            let svg = draw(&panels(count), &[], &[]).expect("a picture");
            names.iter().map(|name| svg.matches(name).count()).collect::<Vec<_>>()
        });
        assert_eq!(counts, [[2, 2, 2, 2, 2, 2, 0], [1; 7]]);
    }

    #[test]
    fn nothing_is_no_picture() {
        let panel = Panel { title: String::new(), names: ["", ""], is_logarithmic: [true; 2], curves: Vec::new(), label: plain };
        assert!(draw(&[panel], &[], &[]).is_err());
    }
}
