//! Heat maps: a square for each pair of ways to wait, light to dark by the logarithm of its figure.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::Error;
use crate::topology::heat_color;

const PAPER: RGBColor = RGBColor(0xfc, 0xfc, 0xfa);
const INK: RGBColor = RGBColor(0x1c, 0x22, 0x28);
const FAINT: RGBColor = RGBColor(0x5c, 0x66, 0x70);
/// Not measured.
const EMPTY: RGBColor = RGBColor(0xe6, 0xe8, 0xe8);
const FONT: &str = "DejaVu Sans, Verdana, sans-serif";

const LEFT: i32 = 90;
const TOP: i32 = 118;
const BOTTOM: i32 = 44;
const CELL: (i32, i32) = (62, 40);
/// Between two maps.
const GAP: i32 = 46;
/// Figures on squares darker than this are drawn in light ink.
const DARK: f64 = 0.55;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// One map.
pub(super) struct Map {
    pub(super) title: String,
    /// By row and column; none: not measured.
    pub(super) figures: Vec<Vec<Option<f64>>>,
}

/// Maps beside each other, all with the same names of rows and columns and the same scale.
pub(super) fn draw(head: &str, [rows, columns]: [&str; 2], names: &[&str], maps: &[Map]) -> Result<String, Error> {
    let side = i32::try_from(names.len()).unwrap_or(1);
    let (width, height) = (CELL.0 * side, CELL.1 * side);
    let count = i32::try_from(maps.len()).unwrap_or(1);
    let size = (LEFT + (width + GAP + LEFT) * count - LEFT, TOP + height + BOTTOM);
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (size.0.unsigned_abs(), size.1.unsigned_abs())).into_drawing_area();
        let paint = || -> Drawn {
            canvas.fill(&PAPER)?;
            write(&canvas, head, (20, 22), 13, &INK, HPos::Left)?;
            let range = range(maps);
            for (map, index) in maps.iter().zip(0..) {
                let left = LEFT + index * (width + GAP + LEFT);
                write(&canvas, &map.title, (left, 54), 15, &INK, HPos::Left)?;
                write(&canvas, columns, (left + width / 2, 78), 12, &FAINT, HPos::Center)?;
                map.paint(&canvas, left, names, range)?;
            }
            let legend = format!("{rows}. Darker: more cycles, by the logarithm, the same scale for all. Grey: not measured.");
            write(&canvas, &legend, (20, size.1 - 20), 12, &FAINT, HPos::Left)?;
            canvas.present()
        };
        paint().map_err(|error| format!("cannot draw the picture: {error:?}; report this"))?;
    }
    Ok(svg)
}

fn write(canvas: &Canvas<'_>, words: &str, at: (i32, i32), size: i32, color: &RGBColor, side: HPos) -> Drawn {
    canvas.draw_text(words, &(FONT, size).into_font().color(color).pos(Pos::new(side, VPos::Center)), at)
}

/// Logarithms of the smallest and the largest.
fn range(maps: &[Map]) -> (f64, f64) {
    let all = || maps.iter().flat_map(|map| map.figures.iter().flatten().flatten()).map(|figure| figure.max(1.0).ln());
    (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max))
}

impl Map {
    fn paint(&self, canvas: &Canvas<'_>, left: i32, names: &[&str], (low, high): (f64, f64)) -> Drawn {
        for (name, index) in names.iter().zip(0..) {
            let middle = (left + index * CELL.0 + CELL.0 / 2, TOP + index * CELL.1 + CELL.1 / 2);
            write(canvas, name, (middle.0, TOP - 14), 11, &INK, HPos::Center)?;
            write(canvas, name, (left - 8, middle.1), 11, &INK, HPos::Right)?;
        }
        for (row, y) in self.figures.iter().zip((0..).map(|index| TOP + index * CELL.1)) {
            for (figure, x) in row.iter().zip((0..).map(|index| left + index * CELL.0)) {
                let part = figure.map(|figure| if high > low { (figure.max(1.0).ln() - low) / (high - low) } else { 0.0 });
                let color = part.map_or(EMPTY, heat_color);
                canvas.draw(&Rectangle::new([(x, y), (x + CELL.0 - 1, y + CELL.1 - 1)], color.filled()))?;
                if let (Some(figure), Some(part)) = (figure, part) {
                    let ink = if part > DARK { PAPER } else { INK };
                    let middle = (x + CELL.0 / 2, y + CELL.1 / 2);
                    write(canvas, &format!("{figure:.0}"), middle, 12, &ink, HPos::Center)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_in_its_square_and_what_is_missing_is_grey() {
        let map = |title: &str, figures| Map { title: title.to_owned(), figures };
        let maps = [
            map("first", vec![vec![Some(100.0), Some(20_000.0)], vec![None, Some(450.0)]]),
            map("second", vec![vec![None; 2]; 2]),
        ];
        let svg = draw("head", ["rows", "columns"], &["spin", "sleep"], &maps).expect("drawn");
        for (part, count) in [("\n100\n", 1), ("\n20000\n", 1), ("\n450\n", 1), ("#E6E8E8", 5), ("\nspin\n", 4)] {
            assert_eq!(svg.matches(part).count(), count, "{part:?} in {svg}");
        }
    }
}
