//! The heat map of the costs (the report's figure 6).

use fipsee_measure::plot::heat::{Map, Picture};
use fipsee_topology::machine::Machine;
use fipsee_topology::matrix::Matrix;

use crate::error::Error;

/// What was measured, as the text of an SVG.
pub(crate) fn draw(machine: &Machine, matrix: &Matrix) -> Result<String, Error> {
    let cpus = &machine.usable;
    let names: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    let row = |from: &usize| cpus.iter().map(|to| Some(matrix.get(*from, *to)?.median_ticks)).collect();
    let own = matrix.own_ticks.map_or(String::new(), |own| format!("Taking a line that need not move: {own:.0} cycles. "));
    let picture = Picture {
        head: ["Moving a modified cache line between two CPUs", "Median cycles a line, from the row's CPU to the column's"],
        columns: "to CPU",
        names: &names,
        maps: &[Map { title: "From the row's CPU".to_owned(), figures: cpus.iter().map(row).collect() }],
        is_logarithmic: false,
        legend: Some(&|ticks| format!("{ticks:.0} ({:.0} ns)", matrix.to_ns(ticks))),
        foot: &[format!("{}; {} Hz", machine.model, matrix.tsc_hz), format!("{own}Grey: not measured.")],
    };
    Ok(picture.draw()?)
}

#[cfg(test)]
mod tests {
    use fipsee_topology::matrix::Cost;

    use super::*;

    #[test]
    fn every_cost_is_in_its_square_and_directions_differ() {
        let mut machine = Machine::default();
        machine.usable = (0..4).collect();
        // Two sockets, the way back between them more expensive.
        let ticks = |from: usize, to: usize| match (from / 2, to / 2) {
            (0, 1) => 369.0,
            (1, 0) => 465.0,
            _ => 160.0,
        };
        let directions = (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let cost = |(from, to)| ((from, to), Cost { median_ticks: ticks(from, to), least_ticks: 1.0 });
        let matrix = Matrix::new(2_200_000_000, Some(22.0), directions.map(cost).collect::<Vec<_>>());
        let svg = draw(&machine, &matrix).expect("drawn");
        for (figure, count) in [("\n369\n", 4), ("\n465\n", 4), ("\n160\n", 4), ("22 cycles", 1), ("465 (211 ns)", 1)] {
            assert_eq!(svg.matches(figure).count(), count, "{figure:?}");
        }
    }
}
