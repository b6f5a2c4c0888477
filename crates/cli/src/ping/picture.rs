//! The results as a picture: cycles by size, and the distribution of the exchanges of the smallest size.

use std::error::Error as AnyError;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::plan::Task;
use super::rounds::Line;
use crate::error::Error;
use crate::units;

const SIZE: (u32, u32) = (1180, 460);
/// Opaque, so that it reads alike on light and dark pages.
const PAPER: RGBColor = RGBColor(0xfc, 0xfc, 0xfa);
const INK: RGBColor = RGBColor(0x1c, 0x22, 0x28);
const GRID: RGBColor = RGBColor(0xdc, 0xe0, 0xe2);
pub(super) const MIDDLE: RGBColor = RGBColor(0x0b, 0x6e, 0x99);
pub(super) const TAIL: RGBColor = RGBColor(0xb3, 0x5c, 0x1e);
const FONT: &str = "DejaVu Sans, Verdana, sans-serif";
/// The distribution is drawn up to here; beyond are interruptions by the kernel.
const LAST_QUANTILE: f64 = 0.999;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Points = Vec<(f64, f64)>;

/// One panel.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) x_name: &'static str,
    pub(super) y_name: &'static str,
    /// Sizes, which double.
    pub(super) logarithmic_x: bool,
    pub(super) curves: Vec<(&'static str, RGBColor, Points)>,
}

/// The SVG text.
pub(super) fn draw(lines: &[Line], head: &str) -> Result<String, Error> {
    render(&panels(lines)?, head)
}

/// The panels beside each other, below the line `head`.
pub(super) fn render(panels: &[Panel], head: &str) -> Result<String, Error> {
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        paint(&canvas, panels, head.trim_end()).map_err(|error| format!("cannot draw the picture: {error}; report this"))?;
    }
    Ok(svg)
}

fn panels(lines: &[Line]) -> Result<Vec<Panel>, Error> {
    let mut by_size = [Points::new(), Points::new()];
    for line in lines {
        let size = match line.spec.task {
            Task::Queue(size) | Task::Stream(size) => f64::from(size),
        };
        let cycles = line.cycles_per_message();
        let high = match line.spec.task {
            Task::Queue(queue) => units::to_f64(line.total()?.ticks.value_at_quantile(0.99)) / f64::from(queue),
            Task::Stream(_) => cycles.max,
        };
        by_size[0].push((size, cycles.median));
        by_size[1].push((size, high));
    }
    let [middle, high] = by_size;
    let is_stream = lines.iter().any(|line| matches!(line.spec.task, Task::Stream(_)));
    let (x_name, high_name) = if is_stream { ("slots of the ring", "slowest round") } else { ("messages per burst", "p99") };
    let mut curves = vec![("median", MIDDLE, middle)];
    if !is_stream || lines.iter().any(|line| line.rounds.len() > 1) {
        curves.push((high_name, TAIL, high));
    }
    let mut panels =
        vec![Panel { title: "Cycles per message".to_owned(), x_name, y_name: "cycles", logarithmic_x: true, curves }];
    if let Some(line) = lines.first().filter(|_| !is_stream) {
        panels.push(Panel {
            title: format!("Bursts of {}: share that took at most so long", line.total()?.messages / line.bursts()?.max(1)),
            x_name: "cycles per burst",
            y_name: "share",
            logarithmic_x: false,
            curves: vec![("distribution", MIDDLE, line.distribution(LAST_QUANTILE)?)],
        });
    }
    Ok(panels)
}

fn paint(canvas: &Canvas<'_>, panels: &[Panel], head: &str) -> Result<(), Box<dyn AnyError>> {
    canvas.fill(&PAPER)?;
    canvas.draw_text(head, &(FONT, 12).into_font().color(&INK), (20, 16))?;
    let parts = canvas.margin(36, 8, 8, 8).split_evenly((1, panels.len()));
    for (part, panel) in parts.iter().zip(panels) {
        panel.paint(part)?;
    }
    canvas.present()?;
    Ok(())
}

/// From the smallest to the largest, with some width where they are equal.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
    if least < most { least..most } else { least * 0.9..least * 1.1 + 0.1 }
}

impl Panel {
    fn paint(&self, part: &Canvas<'_>) -> Result<(), Box<dyn AnyError>> {
        let points = || self.curves.iter().flat_map(|(_, _, points)| points.iter());
        let x = range(points().map(|(x, _)| *x));
        let y = 0.0..range(points().map(|(_, y)| *y)).end * 1.05;
        let mut chart = ChartBuilder::on(part);
        chart.margin(10).caption(&self.title, (FONT, 15).into_font().color(&INK));
        chart.x_label_area_size(40).y_label_area_size(60);
        if self.logarithmic_x {
            self.curves(&mut chart.build_cartesian_2d(x.log_scale(), y)?)
        } else {
            self.curves(&mut chart.build_cartesian_2d(x, y)?)
        }
    }

    fn curves<'a, 'b: 'a, X>(
        &self,
        chart: &mut ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, RangedCoordf64>>,
    ) -> Result<(), Box<dyn AnyError>>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let label =
            |value: &f64| if *value < 10.0 && value.fract() != 0.0 { format!("{value:.1}") } else { format!("{value:.0}") };
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(self.x_name).y_desc(self.y_name).x_label_formatter(&label).y_label_formatter(&label);
        mesh.label_style((FONT, 12).into_font().color(&INK)).axis_style(INK).light_line_style(PAPER).bold_line_style(GRID);
        mesh.draw()?;
        for (name, color, points) in &self.curves {
            let line = chart.draw_series([PathElement::new(points.clone(), color.stroke_width(2))])?;
            if self.curves.len() > 1 {
                let color = *color;
                line.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
            }
            if points.len() <= 16 {
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, color.filled())))?;
            }
        }
        if self.curves.len() > 1 {
            let mut labels = chart.configure_series_labels();
            labels.position(SeriesLabelPosition::UpperRight).label_font((FONT, 12).into_font().color(&INK));
            labels.background_style(PAPER).border_style(GRID).draw()?;
        }
        Ok(())
    }
}
