//! The table.

use std::fmt::Write;

use super::Run;
use crate::harness::BURST;
use crate::mechanisms::{Entry, names};
use crate::results::{Measure, STREAM_SLOTS, to_ns};

const NAME_WIDTH: usize = 30;

/// Append the table of `run` to `text`: calls, then streams.
pub(crate) fn write(text: &mut String, run: &Run) {
    let [client, server] = run.cpus;
    let _ = writeln!(
        text,
        "Messages of 60 bytes between two processes, on CPU {client} and CPU {server}. Cycles of the time-stamp counter per message,\n\
         medians of {} rounds; xF: times what {} takes, median of the rounds' ratios; '-': not applicable or not\n\
         selected; *: fixed buffer size, compared with our smallest ring, of 64 slots.\n",
        run.rounds,
        names::RING
    );
    let _ = writeln!(text, "{:<NAME_WIDTH$} |{:^56} |{:^20}", "CALL AND ANSWER", "one at a time", "64 at a time");
    let heads = ["p50", "p50 ns", "p99", "min", "mean", "xF"].map(|head| format!("{head:>8} ")).concat();
    let _ = writeln!(text, "{:<NAME_WIDTH$} |{heads}  |{:>8} {:>8}", "", "p50", "xF");
    in_groups(text, run, write_calls);
    let _ = writeln!(text, "\n{:<NAME_WIDTH$} |{:^48} |{:^48}", "ONE WAY", "in batches of up to 64", "message by message");
    let heads = STREAM_SLOTS.map(|slots| format!("{slots:>8} {:>6} ", "xF")).concat();
    let _ = writeln!(text, "{:<NAME_WIDTH$} |{heads} |{heads}", "  slots of the ring");
    in_groups(text, run, write_streams);
    for (name, error) in run.results.errors() {
        let _ = writeln!(text, "FAILED: {name}: {error}");
    }
}

fn in_groups(text: &mut String, run: &Run, write_row: fn(&mut String, &Run, &Entry)) {
    let mut kind = None;
    for entry in &run.entries {
        if kind.is_some_and(|kind| kind != entry.kind) {
            text.push('\n');
        }
        kind = Some(entry.kind);
        match entry.missing {
            Some(what_to_do) => {
                let _ = writeln!(text, "{:<NAME_WIDTH$} | not built: {what_to_do}", entry.name);
            }
            None => write_row(text, run, entry),
        }
    }
}

fn write_calls(text: &mut String, run: &Run, entry: &Entry) {
    let results = &run.results;
    let _ = write!(text, "{:<NAME_WIDTH$} |", entry.name);
    let figures = [
        results.median(entry.name, Measure::RoundTrip, |outcome| outcome.p50),
        results.median(entry.name, Measure::RoundTrip, |outcome| to_ns(outcome.p50)),
        results.median(entry.name, Measure::RoundTrip, |outcome| outcome.p99),
        results.median(entry.name, Measure::RoundTrip, |outcome| outcome.min),
        results.median(entry.name, Measure::RoundTrip, |outcome| outcome.mean),
        results.ratio(entry.name, names::RING, Measure::RoundTrip),
    ];
    for figure in figures {
        let _ = write!(text, "{:>8} ", cell(figure));
    }
    let burst = results.median(entry.name, Measure::Burst, |outcome| outcome.p50);
    let _ = writeln!(text, "  |{:>8} {:>8}", cell(burst), cell(results.ratio(entry.name, names::RING, Measure::Burst)));
}

fn write_streams(text: &mut String, run: &Run, entry: &Entry) {
    if entry.stream.is_none() {
        return;
    }
    let _ = write!(text, "{:<NAME_WIDTH$} ", entry.name);
    for batch in [BURST, 1] {
        text.push('|');
        for slots in STREAM_SLOTS {
            // A buffer of its own size is measured once, and is in the place of our smallest ring.
            let is_own = !entry.chooses_slots;
            let measure = Measure::Stream { batch, slots: Some(slots).filter(|_| !is_own) };
            let is_shown = !is_own || slots == STREAM_SLOTS[0];
            let figure = run.results.median(entry.name, measure, |outcome| outcome.mean).filter(|_| is_shown);
            let ratio = run.results.ratio(entry.name, names::RING, measure).filter(|_| is_shown);
            let mark = if is_own && is_shown { "*" } else { " " };
            let _ = write!(text, "{:>8}{mark}{:>6} ", cell(figure), cell(ratio));
        }
        text.push(' ');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
}

/// Three digits or more.
fn cell(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 9.995 => format!("{value:.2}"),
        Some(value) if value < 99.95 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([0.567, 1.0, 9.999, 12.34, 1234.5].map(|value| cell(Some(value))), ["0.57", "1.00", "10.0", "12.3", "1234"]);
        assert_eq!(cell(None), "-");
    }
}
