//! The figures of the Fip-see report on its machines, for comparison: the middle of its three or four runs, in cycles of 2.4 GHz.

/// Its machine for the tables.
pub(super) const MACHINE: &str =
    "Intel Xeon E5530 (Nehalem) at 2.4 GHz, kernel drivers on CPUs 0 and 3 of one socket, hyper-threading off";

/// One row of its tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Published {
    /// Messages in a burst.
    pub(super) queue: u32,
    /// Cycles of a burst with its answers.
    pub(super) min: u32,
    pub(super) mean: u32,
    pub(super) median: u32,
}

const fn row(queue: u32, min: u32, mean: u32, median: u32) -> Published {
    Published { queue, min, mean, median }
}

/// Table 1: with PAUSE.
const WITH_PAUSE: [Published; 7] = [
    row(1, 324, 384, 380),
    row(2, 364, 499, 500),
    row(4, 472, 622, 624),
    row(8, 576, 852, 868),
    row(16, 804, 1381, 1396),
    row(32, 1512, 2280, 2264),
    row(64, 2444, 3995, 3956),
];

/// Table 5, which is the first line, and table 6: without PAUSE.
const WITHOUT_PAUSE: [Published; 7] = [
    row(1, 468, 565, 552),
    row(2, 516, 740, 726),
    row(4, 738, 973, 954),
    row(8, 1020, 1385, 1320),
    row(16, 1710, 2213, 2124),
    row(32, 3096, 3750, 3666),
    row(64, 6252, 7171, 7044),
];

/// The report's row for bursts of `queue`.
pub(super) fn burst(queue: u32, pause: bool) -> Option<Published> {
    let table = if pause { &WITH_PAUSE } else { &WITHOUT_PAUSE };
    table.iter().find(|row| row.queue == queue).copied()
}

/// One state of a CPU that waits by MWAIT.
pub(super) struct Mwait {
    pub(super) state: &'static str,
    pub(super) min: u32,
    pub(super) mean: u32,
    pub(super) median: u32,
}

const fn mwait(state: &'static str, min: u32, mean: u32, median: u32) -> Mwait {
    Mwait { state, min, mean, median }
}

/// Table 3: the answering side waits by MWAIT, the calling side polls with PAUSE, turbo on.
pub(super) const MWAIT_TURBO: [Mwait; 4] =
    [mwait("C1", 552, 742, 726), mwait("C1E", 552, 742, 726), mwait("C3", 2583, 3058, 3054), mwait("C6", 5736, 6502, 6459)];

/// Table 4: the same, turbo off.
pub(super) const MWAIT_NO_TURBO: [Mwait; 4] =
    [mwait("C1", 580, 772, 760), mwait("C1E", 736, 859, 776), mwait("C3", 2952, 3159, 3172), mwait("C6", 6760, 6904, 6876)];

/// Table 7: the same as table 3, the calling side polls without PAUSE.
pub(super) const MWAIT_NO_PAUSE: [Mwait; 4] =
    [mwait("C1", 846, 1514, 1476), mwait("C1E", 843, 1484, 1473), mwait("C3", 870, 4297, 4224), mwait("C6", 822, 9786, 9651)];

/// The rows of a table in one sentence.
pub(super) fn mwait_sentence(rows: &[Mwait]) -> String {
    let row = |row: &Mwait| format!("{} {}, {} and {}", row.state, row.min, row.mean, row.median);
    let rows: Vec<String> = rows.iter().map(row).collect();
    format!(
        "minimum, mean and median cycles of a round trip whose answering side waits by MONITOR and MWAIT, by state: {}",
        rows.join("; ")
    )
}

/// Table 2, which only explains.
pub(super) const STATES: &str = "C1 (halt: the core's clocks stop), C1E (enhanced halt: voltage and perhaps frequency fall, too), C3 (deep sleep: \
     level-1 and level-2 caches can be flushed), C6 (deep power down: the core's state goes to memory)";

/// Figure 6, and the sentences about cost beside it.
pub(super) const LINES: &str = "a modified line moves from socket 0 to socket 1 in 369 cycles and back in 465 (Dell R820, four sockets, \
     figure 6); within a socket of the Nehalem in about 80; a round trip between two threads of one core takes 124";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_of_the_tables_is_there_with_and_without_pause() {
        for queue in [1, 2, 4, 8, 16, 32, 64] {
            let [with, without] = [true, false].map(|pause| burst(queue, pause).expect("a row of the report"));
            assert!(with.min < with.median && with.median < without.median, "PAUSE helped there at every size: {queue}");
        }
        assert!(burst(3, true).is_none());
    }
}
