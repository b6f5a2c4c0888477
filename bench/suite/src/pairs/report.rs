//! What a run of pairs found, as a table and as JSON.

use fipsee_measure::statistics::States;
use serde_json::{Value, json};

use super::statistics::{Pair, Summary, Verdict, state_of};
use super::workload::Workload;

/// A workload and all its pairs so far.
pub(super) struct Measured {
    pub(super) workload: Workload,
    pub(super) pairs: Vec<Pair>,
}

pub(super) fn table(measured: &[Measured], states: States) -> String {
    let mut text = format!(
        "{:<32} {:>9} {:>6} {:>9} {:>12} {:>12} {:>7} {:>16}  {}\n",
        "workload", "pairs", "state", "floor ns", "old ns", "new ns", "ratio", "95 % interval", "verdict"
    );
    for one in measured {
        let summary = Summary::of(&one.pairs, states);
        let figure = |of: fn(&Pair) -> f64| summary.median_of(of).map_or("-".to_owned(), |value| format!("{value:.1}"));
        let (ratio, interval) = summary.estimate.map_or(("-".to_owned(), "-".to_owned()), |estimate| {
            (format!("{:.4}", estimate.ratio), format!("{:.4} - {:.4}", estimate.interval.0, estimate.interval.1))
        });
        text += &format!(
            "{:<32} {:>9} {:>6} {:>9} {:>12} {:>12} {ratio:>7} {interval:>16}  {}\n",
            one.workload.to_string(),
            format!("{} of {}", summary.used.len(), one.pairs.len()),
            summary.state.text(),
            figure(|pair| pair.floors_ns[0]),
            figure(|pair| pair.old_ns),
            figure(|pair| pair.new_ns),
            summary.verdict.text(),
        );
    }
    text + "times per request, medians of the pairs compared: those measured wholly in the state that more pairs saw\n"
}

/// Every workload with its pairs, in the order in which they were measured.
pub(super) fn to_json(measured: &[Measured], states: States) -> Value {
    let workloads = measured.iter().map(|one| {
        let summary = Summary::of(&one.pairs, states);
        let pairs = one.pairs.iter().map(|pair| {
            json!({
                "floors_ns": pair.floors_ns,
                "old_ns": pair.old_ns,
                "new_ns": pair.new_ns,
                "new_first": pair.new_first,
                "state": state_of(states, pair).map(|state| state.text()),
            })
        });
        json!({
            "workload": one.workload.to_string(),
            "state": summary.state.text(),
            "pairs_compared": summary.used.len(),
            "ratio": summary.estimate.map(|estimate| estimate.ratio),
            "interval": summary.estimate.map(|estimate| [estimate.interval.0, estimate.interval.1]),
            "verdict": summary.verdict.text().to_lowercase(),
            "pairs": pairs.collect::<Vec<_>>(),
        })
    });
    workloads.collect()
}

/// Is nothing slower? An error names what is.
pub(super) fn judge(measured: &[Measured], states: States) -> Result<String, String> {
    let with = |verdict| {
        let found = measured.iter().filter(|one| Summary::of(&one.pairs, states).verdict == verdict);
        found.map(|one| one.workload.to_string()).collect::<Vec<_>>()
    };
    let (slower, undecided) = (with(Verdict::Slower), with(Verdict::Undecided));
    if !slower.is_empty() {
        return Err(format!("slower than before: {}; the whole interval of the ratio is beyond 1.02", slower.join("; ")));
    }
    if !undecided.is_empty() {
        return Ok(format!(
            "nothing is shown to be slower, but undecided: {}; measure on a quieter machine",
            undecided.join("; ")
        ));
    }
    Ok("nothing is slower".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::workload::WORKLOADS;
    use super::*;

    fn measured(index: usize, count: usize, ratio: f64) -> Measured {
        let pair = Pair { floors_ns: [110.0; 3], old_ns: 200.0, new_ns: 200.0 * ratio, new_first: true };
        Measured { workload: WORKLOADS[index], pairs: vec![pair; count] }
    }

    const STATES: States = States::with_border(None);

    #[test]
    fn what_is_slower_is_an_error_and_what_is_undecided_is_named() {
        let judged = judge(&[measured(0, 12, 1.0), measured(1, 12, 1.03)], STATES);
        assert!(judged.is_err_and(|text| text.contains("null, 4 KiB read QD64") && !text.contains("QD1;")), "slower");
        let judged = judge(&[measured(0, 12, 1.0), measured(1, 3, 1.5)], STATES);
        assert!(judged.is_ok_and(|text| text.contains("undecided: null, 4 KiB read QD64")), "too few pairs");
        assert_eq!(judge(&[measured(0, 12, 1.0), measured(1, 12, 0.5)], STATES), Ok("nothing is slower".to_owned()));
    }

    #[test]
    fn table_and_json_say_the_same() {
        let all = [measured(0, 12, 1.03), measured(8, 2, 1.0)];
        let table = table(&all, STATES);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[1].starts_with("null, 4 KiB read QD1 "), "{table}");
        for figure in ["12 of 12", " one ", " 110.0 ", " 200.0 ", " 206.0 ", " 1.0300 ", "1.0300 - 1.0300", "SLOWER"] {
            assert!(lines[1].contains(figure), "{figure} is missing:\n{table}");
        }
        assert!(lines[2].contains("file, 512 B write QD64") && lines[2].ends_with("undecided"), "{table}");
        let json = to_json(&all, STATES);
        assert_eq!((&json[0]["verdict"], &json[0]["pairs_compared"]), (&json!("slower"), &json!(12)));
        assert_eq!(json[0]["pairs"].as_array().map(Vec::len), Some(12));
        assert_eq!((&json[1]["ratio"], &json[1]["verdict"]), (&Value::Null, &json!("undecided")));
    }
}
