//! `fipsee ping --ablate`: each choice of the channel's hot path changed by itself, against the channel as it is.

use fipsee_measure::harness::rounds::{self, Line};
use fipsee_measure::harness::{CHANGES, Change, Design, Spec, Task};
use fipsee_measure::statistics::Spread;

use crate::error::Error;
use crate::output::{self, Table};

const TASKS: [Task; 6] =
    [Task::Queue(1), Task::Queue(8), Task::Queue(64), Task::Stream(64), Task::Stream(1024), Task::Stream(8192)];

/// `words`: compare these words of choices instead.
pub(super) fn specs(base: &Spec, words: &[u32]) -> Result<Vec<Spec>, Error> {
    let tuning = base.options()?.tuning;
    let mut changes: Vec<Option<Change>> = vec![None];
    if words.is_empty() {
        changes.extend((0..CHANGES.len()).map(|row| Some(Change::Row(row))));
    }
    changes.extend(words.iter().map(|word| Some(Change::Choices(*word))));
    let all = TASKS.into_iter().flat_map(|task| {
        changes.iter().map(move |change| Spec { design: Design::Channel, task, change: *change, ..base.clone() })
    });
    Ok(all.filter(|spec| spec.change.is_none_or(|change| change.concerns(spec.task, &tuning))).collect())
}

pub(super) fn report(lines: &[Line], head: &str, tsc_hz: u64, json: bool) -> Result<(), Error> {
    let as_it_is = |line: &Line| rounds::find(lines, Design::Channel, line.spec.task, None);
    if json {
        return lines.iter().try_for_each(|line| {
            let mut object = line.to_json(tsc_hz)?;
            if let Some(channel) = as_it_is(line) {
                object["ratio_to_channel"] = line.ratio_to(channel).to_json();
            }
            output::print_json(&object)
        });
    }
    let mut table = Table::new(2, &["TASK", "CHANGE", "CYCLES/MSG", "SPREAD", "NS/MSG", "/CHANNEL", "SPREAD"]);
    for line in lines {
        let cycles = line.cycles_per_message();
        let ratio = as_it_is(line).map(|channel| line.ratio_to(channel));
        let Spread { median, min, max } = ratio.unwrap_or(Spread { median: f64::NAN, min: f64::NAN, max: f64::NAN });
        table.push(vec![
            rounds::task_name(line.spec.task),
            line.spec.change.map_or_else(|| "(as it is)".to_owned(), |change| change.to_string()),
            format!("{:.1}", cycles.median),
            format!("{:.1}-{:.1}", cycles.min, cycles.max),
            format!("{:.1}", rounds::to_ns(cycles.median, tsc_hz)),
            format!("{median:.2}"),
            format!("{min:.2}-{max:.2}"),
        ]);
    }
    output::print(&format!("{head}{}", table.render()))
}
