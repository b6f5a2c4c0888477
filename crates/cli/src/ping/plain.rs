//! `fipsee ping` of one design: the tables of the Fip-see report.

use fipsee_measure::harness::Task;
use fipsee_measure::harness::rounds::{self, Line};

use crate::error::Error;
use crate::output::{self, Table};
use crate::units;

pub(super) fn report(lines: &[Line], head: &str, tsc_hz: u64, json: bool) -> Result<(), Error> {
    if json {
        return lines.iter().try_for_each(|line| output::print_json(&line.to_json(tsc_hz)?));
    }
    let is_stream = lines.iter().any(|line| matches!(line.spec.task, Task::Stream(_)));
    let mut table = if is_stream {
        Table::new(0, &["SLOTS", "CYCLES/MSG", "SPREAD", "NS/MSG", "MESSAGES/S", "BYTES"])
    } else {
        let batch = ["CY/BURST MIN", "MEAN", "P50", "P99", "P99.9", "NS/BURST MIN", "MEAN", "P50", "P99", "P99.9"];
        let mut headings = vec!["QUEUE", "CY/MSG", "NS/MSG"];
        headings.extend(batch);
        headings.push("BURSTS");
        Table::new(0, &headings)
    };
    for line in lines {
        table.push(match line.spec.task {
            Task::Stream(slots) => stream_row(line, slots, tsc_hz),
            Task::Queue(queue) => queue_row(line, queue, tsc_hz)?,
        });
    }
    output::print(&format!("{head}{}", table.render()))
}

fn stream_row(line: &Line, slots: u32, tsc_hz: u64) -> Vec<String> {
    let cycles = line.cycles_per_message();
    let per_second = units::to_f64(tsc_hz) / cycles.median;
    vec![
        slots.to_string(),
        format!("{:.1}", cycles.median),
        format!("{:.1}-{:.1}", cycles.min, cycles.max),
        format!("{:.1}", rounds::to_ns(cycles.median, tsc_hz)),
        units::count(per_second),
        units::byte_rate(64.0 * per_second),
    ]
}

fn queue_row(line: &Line, queue: u32, tsc_hz: u64) -> Result<Vec<String>, Error> {
    let ticks = line.total()?.ticks;
    let at = |quantile| units::to_f64(ticks.value_at_quantile(quantile));
    let burst = [units::to_f64(ticks.min()), ticks.mean(), at(0.5), at(0.99), at(0.999)];
    let per_message = line.cycles_per_message().median;
    let mut row = vec![queue.to_string(), format!("{per_message:.1}"), format!("{:.1}", rounds::to_ns(per_message, tsc_hz))];
    row.extend(burst.map(|cycles| format!("{cycles:.0}")));
    row.extend(burst.map(|cycles| format!("{:.0}", rounds::to_ns(cycles, tsc_hz))));
    row.push(ticks.len().to_string());
    Ok(row)
}
