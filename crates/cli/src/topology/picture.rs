//! The heat map of the costs (the report's figure 6).

use fipsee_topology::machine::Machine;
use fipsee_topology::matrix::Matrix;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::Error;

/// Opaque, so that it reads alike on light and dark pages.
const PAPER: RGBColor = RGBColor(0xfc, 0xfc, 0xfa);
const INK: RGBColor = RGBColor(0x1c, 0x22, 0x28);
const FAINT: RGBColor = RGBColor(0x5c, 0x66, 0x70);
/// Not measured.
const EMPTY: RGBColor = RGBColor(0xe6, 0xe8, 0xe8);
/// From cheap to expensive, light to dark: readable without colours.
const SCALE: [(u8, u8, u8); 4] = [(0xfb, 0xf3, 0xc8), (0xf2, 0xb1, 0x5c), (0xd1, 0x4f, 0x3f), (0x5b, 0x12, 0x3c)];
const FONT: &str = "DejaVu Sans, Verdana, sans-serif";

/// Room beside the map, for labels.
const LEFT: i32 = 84;
const TOP: i32 = 112;
const RIGHT: i32 = 150;
const BOTTOM: i32 = 74;
/// The map's width; its cells fill it.
const MAP: i32 = 620;
/// Labels and figures this far apart do not overlap.
const LABEL_ROOM: i32 = 22;
const FIGURE_ROOM: i32 = 40;
/// Narrowest picture: the title must fit.
const LEAST_WIDTH: i32 = 480;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

pub(super) fn draw(machine: &Machine, matrix: &Matrix) -> Result<String, Error> {
    let mut svg = String::new();
    {
        let count = i32::try_from(machine.usable.len()).unwrap_or(i32::MAX).max(1);
        let cell = (MAP / count).clamp(2, 90);
        let size = cell.saturating_mul(count);
        let width = (LEFT + size + RIGHT).max(LEAST_WIDTH);
        let height = TOP + size.max(160) + BOTTOM;
        let canvas = SVGBackend::with_string(&mut svg, (width.unsigned_abs(), height.unsigned_abs())).into_drawing_area();
        let map = Map { machine, matrix, cell, size, range: range(matrix) };
        map.paint(&canvas, height).map_err(|error| Error::from(format!("cannot draw: {error:?}; leave --plot out")))?;
    }
    Ok(svg)
}

/// The lowest and the highest cost, with a minimum distance: noise must not look like a difference.
fn range(matrix: &Matrix) -> (f64, f64) {
    let medians = || matrix.costs().map(|(_, cost)| cost.median_ticks);
    let (low, high) = (medians().fold(f64::INFINITY, f64::min), medians().fold(0.0, f64::max));
    (low.min(high), high.max(low * 1.5))
}

struct Map<'a> {
    machine: &'a Machine,
    matrix: &'a Matrix,
    cell: i32,
    size: i32,
    range: (f64, f64),
}

fn text(canvas: &Canvas<'_>, words: &str, at: (i32, i32), size: i32, color: &RGBColor, side: HPos) -> Drawn {
    let style = (FONT, size).into_font().color(color).pos(Pos::new(side, VPos::Center));
    canvas.draw_text(words, &style, at)
}

impl Map<'_> {
    fn paint(&self, canvas: &Canvas<'_>, height: i32) -> Drawn {
        canvas.fill(&PAPER)?;
        text(canvas, "Moving a modified cache line between two CPUs", (24, 28), 19, &INK, HPos::Left)?;
        let what = "Median cycles a line, from the row's CPU to the column's";
        text(canvas, what, (24, 54), 13, &FAINT, HPos::Left)?;
        text(canvas, "to CPU", (LEFT + self.size / 2, TOP - 36), 12, &FAINT, HPos::Center)?;
        text(canvas, "from", (24, TOP + self.size / 2), 12, &FAINT, HPos::Left)?;
        self.labels(canvas)?;
        for (row, from) in (0..).zip(&self.machine.usable) {
            for (column, to) in (0..).zip(&self.machine.usable) {
                self.square(canvas, (row, column), (*from, *to))?;
            }
        }
        self.legend(canvas)?;
        let machine = format!("{}; {} Hz", self.machine.model, self.matrix.tsc_hz);
        text(canvas, &machine, (24, height - 40), 12, &FAINT, HPos::Left)?;
        let own =
            self.matrix.own_ticks.map_or(String::new(), |own| format!("Taking a line that need not move: {own:.0} cycles. "));
        text(canvas, &format!("{own}Grey: not measured."), (24, height - 20), 12, &FAINT, HPos::Left)
    }

    fn labels(&self, canvas: &Canvas<'_>) -> Drawn {
        let every = (LABEL_ROOM + self.cell - 1) / self.cell;
        let labels = (0..).zip(&self.machine.usable).filter(|(index, _): &(i32, _)| index % every == 0);
        for (index, cpu) in labels {
            let middle = index * self.cell + self.cell / 2;
            text(canvas, &cpu.to_string(), (LEFT + middle, TOP - 14), 12, &INK, HPos::Center)?;
            text(canvas, &cpu.to_string(), (LEFT - 10, TOP + middle), 12, &INK, HPos::Right)?;
        }
        Ok(())
    }

    fn square(&self, canvas: &Canvas<'_>, (row, column): (i32, i32), (from, to): (usize, usize)) -> Drawn {
        let (x, y) = (LEFT + column * self.cell, TOP + row * self.cell);
        let gap = i32::from(self.cell >= 8);
        let cost = self.matrix.get(from, to);
        let color = cost.map_or(EMPTY, |cost| self.color(cost.median_ticks));
        canvas.draw(&Rectangle::new([(x, y), (x + self.cell - gap, y + self.cell - gap)], color.filled()))?;
        match cost {
            Some(cost) if self.cell >= FIGURE_ROOM => {
                let ink = if self.part(cost.median_ticks) > 0.55 { PAPER } else { INK };
                let middle = (x + self.cell / 2, y + self.cell / 2);
                text(canvas, &format!("{:.0}", cost.median_ticks), middle, 13, &ink, HPos::Center)
            }
            _ => Ok(()),
        }
    }

    /// The legend of the colours.
    fn legend(&self, canvas: &Canvas<'_>) -> Drawn {
        const STEPS: i32 = 60;
        let (x, height) = (LEFT + self.size + 34, self.size.clamp(120, 300));
        for step in 0..STEPS {
            let (upper, lower) = (TOP + height * step / STEPS, TOP + height * (step + 1) / STEPS);
            let color = mix(1.0 - f64::from(step) / f64::from(STEPS - 1));
            canvas.draw(&Rectangle::new([(x, upper), (x + 16, lower)], color.filled()))?;
        }
        let (low, high) = self.range;
        for (part, ticks) in [(0, high), (1, f64::midpoint(low, high)), (2, low)] {
            let words = format!("{ticks:.0} ({:.0} ns)", self.matrix.to_ns(ticks));
            text(canvas, &words, (x + 24, TOP + height * part / 2), 12, &INK, HPos::Left)?;
        }
        Ok(())
    }

    /// The position between the lowest and the highest cost.
    fn part(&self, ticks: f64) -> f64 {
        let (low, high) = self.range;
        if high > low { ((ticks - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 }
    }

    fn color(&self, ticks: f64) -> RGBColor {
        mix(self.part(ticks))
    }
}

/// The colour of a part of the scale.
pub(crate) fn mix(part: f64) -> RGBColor {
    let place = part.clamp(0.0, 1.0) * 3.0;
    let pairs = SCALE.windows(2).zip([0.0, 1.0, 2.0]);
    let blend = |from: u8, to: u8, part: f64| {
        let value = f64::from(from) + (f64::from(to) - f64::from(from)) * part;
        (0..=u8::MAX).find(|byte| f64::from(*byte) >= value.round()).unwrap_or(u8::MAX)
    };
    let pick = |(pair, start): (&[(u8, u8, u8)], f64)| {
        let (from, to, part) = (pair[0], pair[1], place - start);
        (part <= 1.0).then(|| RGBColor(blend(from.0, to.0, part), blend(from.1, to.1, part), blend(from.2, to.2, part)))
    };
    pairs.map(pick).find_map(|color| color).unwrap_or(RGBColor(SCALE[3].0, SCALE[3].1, SCALE[3].2))
}

#[cfg(test)]
mod tests {
    use fipsee_topology::machine::Cpu;
    use fipsee_topology::matrix::Cost;

    use super::*;

    /// Two sockets of four cores of two threads: (machine, matrix), the second direction between sockets more expensive.
    pub(super) fn example(count: usize) -> (Machine, Matrix) {
        let mut machine = Machine::default();
        let cpu = |number: usize| Cpu {
            number,
            core: number / 2 * 2,
            socket: Some(number * 2 / count),
            cache: None,
            node: None,
            is_small: false,
        };
        machine.model = "an example".to_owned();
        machine.cpus = (0..count).map(cpu).collect();
        machine.usable = (0..count).collect();
        let ticks = |from: usize, to: usize| match (from / 2 == to / 2, from * 2 / count, to * 2 / count) {
            (true, _, _) => 30.0,
            (_, a, b) if a == b => 160.0,
            (_, 0, _) => 369.0,
            _ => 465.0,
        };
        let directions = (0..count).flat_map(|from| (0..count).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let cost = |(from, to)| ((from, to), Cost { median_ticks: ticks(from, to), least_ticks: 1.0 });
        (machine, Matrix::new(2_200_000_000, Some(22.0), directions.map(cost).collect::<Vec<_>>()))
    }

    #[test]
    fn every_cost_is_in_its_square_and_directions_differ() {
        let (machine, matrix) = example(8);
        let svg = draw(&machine, &matrix).expect("drawn");
        for (figure, count) in [("\n369\n", 16), ("\n465\n", 16), ("\n30\n", 8), ("\n160\n", 16)] {
            assert_eq!(svg.matches(figure).count(), count, "{figure:?}");
        }
        if let Some(path) = std::env::var_os("FIPSEE_KEEP_PLOT") {
            std::fs::write(path, svg).expect("written");
        }
    }

    #[test]
    fn large_machines_are_drawn_without_figures_and_small_ones_with() {
        for count in [4, 64, 256] {
            let (machine, matrix) = example(count);
            let svg = draw(&machine, &matrix).expect("drawn");
            assert_eq!(svg.contains("\n465\n"), count == 4, "{count}");
            assert!(svg.matches("<rect").count() >= count * count);
        }
    }

    #[test]
    fn dearer_is_darker() {
        let light = |part: f64| {
            let RGBColor(red, green, blue) = mix(part);
            u32::from(red) + u32::from(green) + u32::from(blue)
        };
        let lights: Vec<u32> = (0..=20).map(|step| light(f64::from(step) / 20.0)).collect();
        assert!(lights.windows(2).all(|pair| pair[0] > pair[1]), "{lights:?}");
    }
}
