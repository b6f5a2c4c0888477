//! The results as a picture: cycles by size, and the distribution of the exchanges of the smallest size.

use fipsee_measure::harness::Task;
use fipsee_measure::harness::rounds::Line;
use fipsee_measure::plot::curves::{self, Curve, Panel, Points};
use fipsee_measure::plot::{OURS, THEIRS};

use crate::error::Error;
use crate::units;

/// The distribution is drawn up to here; beyond are interruptions by the kernel.
const LAST_QUANTILE: f64 = 0.999;

/// The SVG text.
pub(super) fn draw(lines: &[Line], head: &str) -> Result<String, Error> {
    let head: Vec<&str> = head.lines().collect();
    Ok(curves::draw(&panels(lines)?, &head, &[])?)
}

fn panels(lines: &[Line]) -> Result<Vec<Panel<'static>>, Error> {
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
    let mut of_sizes = vec![Curve::new("median", OURS, middle)];
    if !is_stream || lines.iter().any(|line| line.rounds.len() > 1) {
        of_sizes.push(Curve::new(high_name, THEIRS, high));
    }
    let mut panels = vec![Panel {
        title: "Cycles per message".to_owned(),
        names: [x_name, "cycles"],
        is_logarithmic: [true, false],
        curves: of_sizes,
        label: curves::plain,
    }];
    if let Some(line) = lines.first().filter(|_| !is_stream) {
        panels.push(Panel {
            title: format!("Bursts of {}: share that took at most so long", line.total()?.messages / line.bursts()?.max(1)),
            names: ["cycles per burst", "share"],
            is_logarithmic: [false, false],
            curves: vec![Curve::new("distribution", OURS, line.distribution(LAST_QUANTILE)?)],
            label: curves::plain,
        });
    }
    Ok(panels)
}
