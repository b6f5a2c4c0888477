//! `fipsee ping --compare`: the channel beside its bare ring, the report's ring and the floors of the machine.

use fipsee_measure::claim::Claim;
use fipsee_measure::harness::rounds::{self, Line};
use fipsee_measure::harness::{Design, Spec, Task};
use fipsee_measure::statistics::{Spread, States};
use serde_json::json;

use crate::error::Error;
use crate::output::{self, Table};

/// What is compared at each task.
const TASKS: [Task; 9] = [
    Task::Queue(1),
    Task::Queue(2),
    Task::Queue(4),
    Task::Queue(8),
    Task::Queue(16),
    Task::Queue(64),
    Task::Stream(64),
    Task::Stream(1024),
    Task::Stream(8192),
];
const DESIGNS: [Design; 6] =
    [Design::Channel, Design::Bare, Design::Classic, Design::ClassicStores, Design::OneLine, Design::TwoLines];

pub(super) fn specs(base: &Spec) -> Vec<Spec> {
    let all = TASKS.into_iter().flat_map(|task| DESIGNS.map(|design| Spec { design, task, ..base.clone() }));
    all.filter(|spec| spec.design.is_ring() || spec.task == Task::Queue(1)).collect()
}

/// What was measured in one state of the machine.
struct Part {
    /// None where there was one state.
    state: Option<&'static str>,
    lines: Vec<Line>,
}

/// The rounds parted by their floors, if they were of two states; without lines that no round measured.
fn parts(lines: Vec<Line>, states: States) -> Vec<Part> {
    let (near, far): (Vec<Line>, Vec<Line>) = lines.into_iter().map(|line| line.split(states).into()).unzip();
    let part =
        |state, lines: Vec<Line>| Part { state, lines: lines.into_iter().filter(|line| !line.rounds.is_empty()).collect() };
    match states.border {
        None => vec![part(None, near)],
        Some(_) => vec![part(Some("near"), near), part(Some("far"), far)],
    }
}

pub(super) fn report(lines: Vec<Line>, head: &str, tsc_hz: u64, json: bool) -> Result<(), Error> {
    let states = rounds::states(&lines);
    let parts = parts(lines, states);
    if json {
        return parts.iter().try_for_each(|part| print_json(part, states, tsc_hz));
    }
    output::print(head)?;
    for part in &parts {
        if let (Some(state), Some(border)) = (part.state, states.border) {
            let side = if state == "near" { "below" } else { "above" };
            output::print(&format!("\n{state}: rounds in which one line took {side} {border:.0} cycles\n"))?;
        }
        print_tables(part, tsc_hz)?;
    }
    Ok(())
}

fn print_json(part: &Part, states: States, tsc_hz: u64) -> Result<(), Error> {
    for line in &part.lines {
        let mut object = line.to_json(tsc_hz)?;
        for (key, baseline) in [("ratio_to_classic", Design::Classic), ("ratio_to_one_line", Design::OneLine)] {
            if let Some(other) = rounds::find(&part.lines, baseline, line.spec.task, None) {
                object[key] = line.ratio_to(other).to_json();
            }
        }
        object["state"] = json!(part.state);
        object["near_below_cycles"] = json!(states.border);
        object["one_line_cycles"] = Spread::of(line.floors.clone()).to_json();
        output::print_json(&object)?;
    }
    claims(&part.lines).iter().try_for_each(|claim| {
        let mut object = claim.to_json();
        object["state"] = json!(part.state);
        output::print_json(&object)
    })
}

fn print_tables(part: &Part, tsc_hz: u64) -> Result<(), Error> {
    let headings = ["TASK", "DESIGN", "ROUNDS", "CYCLES/MSG", "SPREAD", "NS/MSG", "/CLASSIC", "SPREAD", "/ONE LINE", "SPREAD"];
    let mut table = Table::new(2, &headings);
    for line in &part.lines {
        table.push(row(line, &part.lines, tsc_hz));
    }
    output::print(&format!("{}\n", table.render()))?;
    let mut verdicts = Table::new(2, &["CLAIM", "HERE", "MEASURED", "LIMIT"]);
    for claim in claims(&part.lines) {
        let value = claim.value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let verdict = claim.verdict().to_owned();
        verdicts.push(vec![claim.text, verdict, value, format!("{:.2}", claim.limit)]);
    }
    output::print(&verdicts.render())
}

fn row(line: &Line, lines: &[Line], tsc_hz: u64) -> Vec<String> {
    let cycles = line.cycles_per_message();
    let mut row = vec![
        rounds::task_name(line.spec.task),
        line.spec.design.name().to_owned(),
        line.rounds.len().to_string(),
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
    let ratio = |task, baseline| Some(line(Design::Channel, task)?.ratio_to(line(baseline, task)?).median);
    let claim = |limit, task, what: &str, baseline| {
        Claim::at_most(limit, format!("{}, to the {what}", rounds::task_name(task)), ratio(task, baseline))
    };
    let over_classic = |limit, task| claim(limit, task, "classic ring's", Design::Classic);
    let round_trip = ratio(Task::Queue(1), Design::Classic);
    let mut claims = vec![
        Claim::at_most(0.85, "round trip, to the classic ring's", round_trip),
        over_classic(0.97, Task::Queue(8)),
        over_classic(0.80, Task::Queue(64)),
    ];
    claims.extend([64, 1024, 8192].map(|slots| {
        Claim::at_most(
            0.70,
            format!("stream of {slots} slots, to the classic ring's"),
            ratio(Task::Stream(slots), Design::Classic),
        )
    }));
    claims.extend(TASKS.map(|task| {
        let limit = if task == Task::Queue(1) { 0.85 } else { 1.10 };
        claim(limit, task, "classic ring's with our stores", Design::ClassicStores)
    }));
    claims.extend(TASKS.map(|task| claim(1.05, task, "bare ring's", Design::Bare)));
    claims
}

#[cfg(test)]
mod tests {
    use fipsee_measure::harness::{Sample, drive};
    use fipsee_ring::pace::Delays;

    use super::*;

    /// A line of rounds whose bursts took so many ticks, beside these floors.
    fn line(design: Design, rounds: &[u64], floors: &[f64]) -> Line {
        let sample = |ticks: &u64| {
            let mut histogram = drive::histogram().expect("a histogram");
            histogram.record_n(*ticks, 100).expect("in range");
            Sample { ticks: histogram, messages: 100, elapsed_ticks: 100 * ticks, delays: Delays::default(), answerer_cpu_ns: 0 }
        };
        let spec = Spec { design, ..Spec::default() };
        Line { spec, rounds: rounds.iter().map(sample).collect(), floors: floors.to_vec() }
    }

    #[test]
    fn a_mark_is_judged_in_either_state_by_the_rounds_of_that_state() {
        let floors = [300.0, 1000.0, 310.0, 990.0];
        let lines = vec![
            line(Design::Channel, &[80_000, 300_000, 80_000, 300_000], &floors),
            line(Design::Classic, &[100_000, 300_000, 100_000, 300_000], &floors),
        ];
        let states = rounds::states(&lines);
        let parts = parts(lines, states);
        let judged = |part: &Part| (part.state, claims(&part.lines)[0].holds());
        assert_eq!(parts.iter().map(judged).collect::<Vec<_>>(), [(Some("near"), Some(true)), (Some("far"), Some(false))]);
    }

    #[test]
    fn one_state_is_one_part_of_all_rounds() {
        let lines = vec![line(Design::Channel, &[80, 90], &[300.0, 310.0])];
        let states = rounds::states(&lines);
        let parts = parts(lines, states);
        assert!(matches!(parts.as_slice(), [Part { state: None, lines }] if lines.iter().all(|line| line.rounds.len() == 2)));
        assert!(claims(&parts[0].lines).iter().all(|claim| claim.holds().is_none()), "there is nothing to compare with");
    }
}
