//! The tables of the page and of the JSON: numbers, titles, the report's figures, and the outcomes of each.

use fipsee_ring::wait::WaitMode;

use super::Report;
use super::course::Part;
use super::machine::Turbo;
use super::measure::Outcome;
use super::published;

/// The content of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Bursts of each size.
    Sizes,
    /// Idle states of the machine.
    States,
    /// The answering side waits in each way; with a table of wake-ups by idle state.
    Waits { with_wakings: bool },
}

/// One of the seven.
pub(super) struct Table<'a> {
    pub(super) number: u32,
    pub(super) title: &'static str,
    /// The report's figures.
    pub(super) published: String,
    pub(super) content: Content,
    pub(super) outcomes: Vec<&'a Outcome>,
    /// The reason for an empty table.
    pub(super) missing: Option<String>,
}

/// Table 1 to table 7.
pub(super) fn all(report: &Report) -> Vec<Table<'_>> {
    let sizes = |pause: bool, is_wanted: fn(u32) -> bool| {
        let of = |outcome: &&Outcome| {
            outcome.row.part == Part::Sizes && outcome.row.spec.pause == pause && is_wanted(outcome.row.queue())
        };
        report.outcomes.iter().filter(of).collect::<Vec<_>>()
    };
    let table = |number, title, published: String, content, outcomes| Table {
        number,
        title,
        published,
        content,
        outcomes,
        missing: None,
    };
    let waits = Content::Waits { with_wakings: true };
    let polling = waits_beside(report, WaitMode::Pause);
    let mut tables = vec![
        table(1, "bursts of 1 to 64 messages, with PAUSE", with_machine(true), Content::Sizes, sizes(true, |_| true)),
        table(2, "idle states of a CPU", published::STATES.to_owned(), Content::States, Vec::new()),
        table(
            3,
            "the answering side waits in each way, the calling side polls with PAUSE, turbo on",
            published::mwait_sentence(&published::MWAIT_TURBO),
            waits,
            polling.clone(),
        ),
        table(4, "the same, turbo off", published::mwait_sentence(&published::MWAIT_NO_TURBO), waits, polling),
        table(5, "bursts of 1, without PAUSE", with_machine(false), Content::Sizes, sizes(false, |queue| queue == 1)),
        table(6, "bursts of 2 to 64, without PAUSE", with_machine(false), Content::Sizes, sizes(false, |queue| queue > 1)),
        table(
            7,
            "the answering side waits in each way, the calling side polls without PAUSE",
            published::mwait_sentence(&published::MWAIT_NO_PAUSE),
            Content::Waits { with_wakings: false },
            waits_beside(report, WaitMode::Spin),
        ),
    ];
    let other = match report.info.turbo {
        Turbo::Off => 3,
        Turbo::On | Turbo::Unknown => 4,
    };
    for table in tables.iter_mut().filter(|table| table.number == other) {
        table.outcomes.clear();
        table.missing = Some(turbo_advice(report));
    }
    tables
}

fn with_machine(pause: bool) -> String {
    let with = if pause { "with PAUSE" } else { "without PAUSE; table 5 there with the prefetchers off" };
    format!("column IN THE REPORT, {with}: median cycles on its machine, {}", published::MACHINE)
}

fn turbo_advice(report: &Report) -> String {
    let rest = "this command changes no frequencies";
    match (report.info.turbo, report.info.turbo_switch) {
        (Turbo::Unknown, _) | (_, None) => {
            format!("not measured: the kernel shows no switch for turbo here, and {rest}; table 3 is as the machine is")
        }
        (now, Some(switch)) => format!(
            "not measured: turbo is {} and {rest}; for this table run `{switch}` as root and repeat the command with another directory",
            now.name()
        ),
    }
}

/// Round trips whose calling side waits in this way, one for each way of the answering side.
fn waits_beside(report: &Report, caller: WaitMode) -> Vec<&Outcome> {
    let of = |outcome: &&Outcome| outcome.row.part == Part::Waits && outcome.row.spec.wait == caller.name();
    report.outcomes.iter().filter(of).collect()
}

/// The round trip whose sides wait in these ways.
pub(super) fn waiting(report: &Report, caller: WaitMode, answerer: WaitMode) -> Option<&Outcome> {
    waits_beside(report, caller).into_iter().find(|outcome| outcome.row.answerer_wait() == answerer.name())
}

/// Pairs of CPUs.
pub(super) fn pairs(report: &Report) -> Vec<&Outcome> {
    report.outcomes.iter().filter(|outcome| outcome.row.part == Part::Pairs).collect()
}
