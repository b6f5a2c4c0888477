//! `fipsee ping --compare`: the channel beside its bare ring, the report's ring and the floors of the machine.

use serde_json::json;

use super::plan::{Design, Spec, Task};
use super::rounds::{self, Line, Spread};
use crate::error::Error;
use crate::output::{self, Table};

/// The designs compared at each task.
const TASKS: [Task; 6] =
    [Task::Queue(1), Task::Queue(8), Task::Queue(64), Task::Stream(64), Task::Stream(1024), Task::Stream(8192)];
const DESIGNS: [Design; 6] =
    [Design::Channel, Design::Bare, Design::Classic, Design::ClassicStores, Design::OneLine, Design::TwoLines];

pub(super) fn specs(base: &Spec) -> Vec<Spec> {
    let all = TASKS.into_iter().flat_map(|task| DESIGNS.map(|design| Spec { design, task, ..base.clone() }));
    all.filter(|spec| spec.design.is_ring() || spec.task == Task::Queue(1)).collect()
}

/// A claim about the channel and whether it holds here.
struct Claim {
    text: String,
    value: f64,
    limit: f64,
}

pub(super) fn report(lines: &[Line], head: &str, tsc_hz: u64, json: bool) -> Result<(), Error> {
    let claims = claims(lines);
    if json {
        for line in lines {
            let mut object = line.to_json(tsc_hz)?;
            for (key, baseline) in [("ratio_to_classic", Design::Classic), ("ratio_to_one_line", Design::OneLine)] {
                if let Some(other) = rounds::find(lines, baseline, line.spec.task, None) {
                    object[key] = line.ratio_to(other).to_json();
                }
            }
            output::print_json(&object)?;
        }
        for Claim { text, value, limit } in claims {
            output::print_json(&json!({ "claim": text, "value": value, "limit": limit, "holds": value <= limit }))?;
        }
        return Ok(());
    }
    let headings = ["TASK", "DESIGN", "CYCLES/MSG", "SPREAD", "NS/MSG", "/CLASSIC", "SPREAD", "/ONE LINE", "SPREAD"];
    let mut table = Table::new(2, &headings);
    for line in lines {
        table.push(row(line, lines, tsc_hz));
    }
    output::print(&format!("{head}{}\n", table.render()))?;
    let mut verdicts = Table::new(2, &["CLAIM", "HERE", "MEASURED", "LIMIT"]);
    for Claim { text, value, limit } in claims {
        let verdict = if value <= limit { "holds" } else { "does not hold" };
        verdicts.push(vec![text, verdict.to_owned(), format!("{value:.2}"), format!("{limit:.2}")]);
    }
    output::print(&verdicts.render())
}

fn row(line: &Line, lines: &[Line], tsc_hz: u64) -> Vec<String> {
    let cycles = line.cycles_per_message();
    let mut row = vec![
        rounds::task_name(line.spec.task),
        line.spec.design.name().to_owned(),
        format!("{:.1}", cycles.median),
        format!("{:.1}-{:.1}", cycles.min, cycles.max),
        format!("{:.1}", rounds::to_ns(cycles.median, tsc_hz)),
    ];
    for baseline in [Design::Classic, Design::OneLine] {
        if let Some(other) = rounds::find(lines, baseline, line.spec.task, None) {
            let Spread { median, min, max } = line.ratio_to(other);
            row.extend([format!("{median:.2}"), format!("{min:.2}-{max:.2}")]);
        }
    }
    row
}

fn claims(lines: &[Line]) -> Vec<Claim> {
    let line = |design, task| rounds::find(lines, design, task, None);
    let ratio = |task, baseline| match (line(Design::Channel, task), line(baseline, task)) {
        (Some(own), Some(other)) => own.ratio_to(other).median,
        _ => f64::NAN,
    };
    let claim = |text: &str, value, limit| Claim { text: text.to_owned(), value, limit };
    let mut claims = vec![
        claim("round trip, to the classic ring's", ratio(Task::Queue(1), Design::Classic), 0.85),
        claim("queue 8, to the classic ring's", ratio(Task::Queue(8), Design::Classic), 0.97),
        claim("queue 64, to the classic ring's", ratio(Task::Queue(64), Design::Classic), 0.80),
    ];
    for slots in [64, 1024, 8192] {
        let text = format!("stream of {slots} slots, to the classic ring's");
        claims.push(claim(&text, ratio(Task::Stream(slots), Design::Classic), 0.70));
    }
    for task in TASKS {
        let limit = if task == Task::Queue(1) { 0.85 } else { 1.10 };
        let text = format!("{}, to the classic ring's with our stores", rounds::task_name(task));
        claims.push(claim(&text, ratio(task, Design::ClassicStores), limit));
    }
    for task in TASKS {
        claims.push(claim(&format!("{}, to the bare ring's", rounds::task_name(task)), ratio(task, Design::Bare), 1.05));
    }
    claims
}
