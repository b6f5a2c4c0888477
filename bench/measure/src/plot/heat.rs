//! Heat maps: a square for each pair, light to dark by its figure.

use plotters::prelude::*;

use super::{Canvas, Drawn, FAINT, INK, PAPER, Side, count, draw as draw_on, write};

/// The square of a pair that was not measured.
const EMPTY: RGBColor = RGBColor(0xe6, 0xe8, 0xe8);
/// From cheap to expensive, light to dark: readable without colours.
const SCALE: [RGBColor; 4] =
    [RGBColor(0xfb, 0xf3, 0xc8), RGBColor(0xf2, 0xb1, 0x5c), RGBColor(0xd1, 0x4f, 0x3f), RGBColor(0x5b, 0x12, 0x3c)];
/// Room beside and above the maps, for labels, and for each line below them.
const LEFT: i32 = 90;
const TOP: i32 = 118;
const FOOT_LINE: i32 = 20;
/// Between two maps.
const GAP: i32 = 46;
/// Beside the last one, for the legend of the colours.
const LEGEND: i32 = 150;
/// The widest map, which is filled by its squares.
const MAP: i32 = 620;
/// Labels and figures this far apart do not overlap.
const LABEL_ROOM: i32 = 22;
const FIGURE_ROOM: i32 = 40;
/// Narrowest picture: the words above must fit.
const LEAST_WIDTH: i32 = 480;
/// Figures on squares darker than this are drawn in light ink.
const DARK: f64 = 0.55;

/// One map: a square for each pair of a row and a column.
#[derive(Clone, Debug)]
pub struct Map {
    pub title: String,
    /// `figures[row][column]`; `None` if that pair was not measured.
    pub figures: Vec<Vec<Option<f64>>>,
}

/// Maps beside each other, all with the same names of rows and columns and the same scale.
pub struct Picture<'a> {
    /// Two lines above all.
    pub head: [&'a str; 2],
    /// What the columns mean.
    pub columns: &'a str,
    /// The names of the rows, which are those of the columns, too.
    pub names: &'a [String],
    pub maps: &'a [Map],
    /// Is a colour chosen by the logarithm of its figure?
    pub is_logarithmic: bool,
    /// How the legend of the colours writes a figure; `None`: no legend. Its middle figure is that of a linear scale.
    pub legend: Option<&'a dyn Fn(f64) -> String>,
    /// Lines below.
    pub foot: &'a [String],
}

/// Where squares are, and what their colours mean.
struct Scale {
    cell: (i32, i32),
    range: (f64, f64),
    is_logarithmic: bool,
}

impl Picture<'_> {
    /// The SVG text.
    pub fn draw(&self) -> Result<String, String> {
        let side = count(self.names.len()).max(1);
        let width = (MAP / side).clamp(2, 90);
        let cell = (width, if self.maps.len() > 1 { width * 2 / 3 } else { width });
        let map = (cell.0 * side, cell.1 * side);
        let legend = if self.legend.is_some() { LEGEND } else { 0 };
        let wide = LEFT + (map.0 + GAP + LEFT) * count(self.maps.len()) - LEFT + legend;
        let size = (wide.max(LEAST_WIDTH), TOP + map.1.max(160) + 30 + FOOT_LINE * count(self.foot.len()));
        let scale = Scale { cell, range: self.range(), is_logarithmic: self.is_logarithmic };
        draw_on(size, |canvas| {
            write(canvas, (20, 22), 15, &INK, Side::Left, self.head[0])?;
            write(canvas, (20, 44), 12, &FAINT, Side::Left, self.head[1])?;
            for (one, index) in self.maps.iter().zip(0..) {
                let left = LEFT + index * (map.0 + GAP + LEFT);
                write(canvas, (left, 68), 15, &INK, Side::Left, &one.title)?;
                write(canvas, (left + map.0 / 2, 88), 12, &FAINT, Side::Center, self.columns)?;
                self.labels(canvas, left, cell)?;
                scale.squares(canvas, left, &one.figures)?;
            }
            if let Some(words) = self.legend {
                scale.legend(canvas, LEFT + map.0 + 34, map.1.clamp(120, 300), words)?;
            }
            let foot = TOP + map.1.max(160) + 24;
            let mut lines = self.foot.iter().zip(0..);
            lines.try_for_each(|(line, index)| write(canvas, (20, foot + FOOT_LINE * index), 12, &FAINT, Side::Left, line))
        })
    }

    /// The lowest and the highest figure, with a minimum distance: noise must not look like a difference.
    fn range(&self) -> (f64, f64) {
        let all = || self.maps.iter().flat_map(|map| map.figures.iter().flatten().flatten().copied());
        let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
        (low.min(high), high.max(low * 1.5))
    }

    fn labels(&self, canvas: &Canvas<'_>, left: i32, cell: (i32, i32)) -> Drawn {
        let every = (LABEL_ROOM + cell.1 - 1) / cell.1;
        for (name, index) in self.names.iter().zip(0..).filter(|(_, index): &(_, i32)| index % every == 0) {
            let middle = (left + index * cell.0 + cell.0 / 2, TOP + index * cell.1 + cell.1 / 2);
            write(canvas, (middle.0, TOP - 14), 11, &INK, Side::Center, name)?;
            write(canvas, (left - 8, middle.1), 11, &INK, Side::Right, name)?;
        }
        Ok(())
    }
}

impl Scale {
    /// The position of a figure between the lowest, 0, and the highest, 1.
    fn part(&self, figure: f64) -> f64 {
        let scaled = |value: f64| if self.is_logarithmic { value.max(1.0).ln() } else { value };
        let (low, high) = (scaled(self.range.0), scaled(self.range.1));
        if high > low { ((scaled(figure) - low) / (high - low)).clamp(0.0, 1.0) } else { 0.0 }
    }

    fn squares(&self, canvas: &Canvas<'_>, left: i32, figures: &[Vec<Option<f64>>]) -> Drawn {
        let (width, height) = self.cell;
        let gap = i32::from(width >= 8);
        for (row, y) in figures.iter().zip((0..).map(|index| TOP + index * height)) {
            for (figure, x) in row.iter().zip((0..).map(|index| left + index * width)) {
                let color = figure.map_or(EMPTY, |figure| color(self.part(figure)));
                canvas.draw(&Rectangle::new([(x, y), (x + width - gap, y + height - gap)], color.filled()))?;
                if let Some(figure) = figure.filter(|_| width >= FIGURE_ROOM) {
                    let ink = if self.part(figure) > DARK { PAPER } else { INK };
                    let middle = (x + width / 2, y + height / 2);
                    write(canvas, middle, 12, &ink, Side::Center, &format!("{figure:.0}"))?;
                }
            }
        }
        Ok(())
    }

    fn legend(&self, canvas: &Canvas<'_>, x: i32, height: i32, words: &dyn Fn(f64) -> String) -> Drawn {
        const STEPS: i32 = 60;
        for step in 0..STEPS {
            let (upper, lower) = (TOP + height * step / STEPS, TOP + height * (step + 1) / STEPS);
            let color = color(1.0 - f64::from(step) / f64::from(STEPS - 1));
            canvas.draw(&Rectangle::new([(x, upper), (x + 16, lower)], color.filled()))?;
        }
        let (low, high) = self.range;
        for (part, figure) in [(0, high), (1, f64::midpoint(low, high)), (2, low)] {
            write(canvas, (x + 24, TOP + height * part / 2), 12, &INK, Side::Left, &words(figure))?;
        }
        Ok(())
    }
}

/// The colour of a part of the scale.
fn color(part: f64) -> RGBColor {
    DerivedColorMap::new(&SCALE).get_color(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(maps: &[Map], side: usize, legend: Option<&dyn Fn(f64) -> String>) -> String {
        let names: Vec<String> = (0..side).map(|index| format!("name{index}")).collect();
        let foot = ["rows".to_owned()];
        let picture = Picture {
            head: ["head", "more"],
            columns: "columns",
            names: &names,
            maps,
            is_logarithmic: legend.is_none(),
            legend,
            foot: &foot,
        };
        picture.draw().expect("drawn")
    }

    #[test]
    fn every_figure_is_in_its_square_and_what_is_missing_is_grey() {
        let map = |title: &str, figures| Map { title: title.to_owned(), figures };
        let maps = [
            map("first", vec![vec![Some(100.0), Some(20_000.0)], vec![None, Some(450.0)]]),
            map("second", vec![vec![None; 2]; 2]),
        ];
        let svg = drawn(&maps, 2, None);
        for (part, count) in
            [("\n100\n", 1), ("\n20000\n", 1), ("\n450\n", 1), ("#E6E8E8", 5), ("\nname1\n", 4), ("\nsecond\n", 1)]
        {
            assert_eq!(svg.matches(part).count(), count, "{part:?} in {svg}");
        }
    }

    #[test]
    fn large_maps_are_drawn_without_figures_and_small_ones_with() {
        for side in [4, 64, 256] {
            let row = |row: usize| {
                (0..side).map(|column| (row != column).then_some(if row < column { 369.0 } else { 465.0 })).collect()
            };
            let map = Map { title: String::new(), figures: (0..side).map(row).collect() };
            let svg = drawn(&[map], side, Some(&|figure| format!("{figure} cycles")));
            assert_eq!(svg.matches("\n465\n").count(), if side == 4 { 6 } else { 0 }, "{side}");
            assert!(svg.matches("<rect").count() >= side * side && svg.contains("369 cycles"));
        }
    }

    #[test]
    fn dearer_is_darker() {
        let light = |part: f64| {
            let RGBColor(red, green, blue) = color(part);
            u32::from(red) + u32::from(green) + u32::from(blue)
        };
        let lights: Vec<u32> = (0..=20).map(|step| light(f64::from(step) / 20.0)).collect();
        assert!(lights.windows(2).all(|pair| pair[0] > pair[1]), "{lights:?}");
    }
}
