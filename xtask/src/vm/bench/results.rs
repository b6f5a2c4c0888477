//! What came of a run, and what its rounds say together.

use std::collections::BTreeMap;

use super::plan::{DEVICES, Load, WAKE, WATCH_BESIDE, round_of};

/// What one load came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) iops: f64,
    pub(super) mean_ns: f64,
    pub(super) p50_ns: f64,
    pub(super) p99_ns: f64,
}

/// Processor time, in percent of a CPU, while a watch lasted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Watch {
    pub(super) name: String,
    pub(super) percent: Vec<(&'static str, f64)>,
}

#[derive(Debug, Default)]
pub(super) struct Results {
    rounds: BTreeMap<Load, BTreeMap<u32, Figures>>,
    /// Of the first request after some idleness, by device: nanoseconds, turn by turn.
    wakes: BTreeMap<&'static str, BTreeMap<u32, f64>>,
    pub(super) watches: Vec<Watch>,
}

/// The middle one, the upper of two; `None` of none.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

impl Results {
    /// Take a report of the guest, without its mark: `run TAG LABEL NAME=VALUE...`; others are none of ours.
    pub(super) fn take(&mut self, report: &str) -> Result<(), String> {
        let mut words = report.split(' ');
        let (Some("run"), Some(tag), Some(label)) = (words.next(), words.next(), words.next()) else { return Ok(()) };
        let wrong = |what: &str| format!("the guest reports '{report}': {what}");
        let fields: BTreeMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
        let number = |name: &str| {
            let value = fields.get(name).and_then(|value| value.parse::<u32>().ok());
            value.ok_or_else(|| wrong(&format!("no {name}")))
        };
        let large = |name: &str| {
            let value = fields.get(name).and_then(|value| value.parse::<f64>().ok());
            value.ok_or_else(|| wrong(&format!("no {name}")))
        };
        let device = DEVICES.into_iter().find(|device| device.label == label).ok_or_else(|| wrong("no such device"))?;
        for (name, what) in [("errors", "requests failed"), ("unpolled", "requests were not polled for")] {
            if number(name)? != 0 {
                return Err(wrong(what));
            }
        }
        if large("requests")? < 1.0 {
            return Err(wrong("no request was carried out"));
        }
        if let Some(turn) = tag.strip_prefix(WAKE) {
            let turn = turn.parse().map_err(|_| wrong("no such tag"))?;
            self.wakes.entry(label_of(label)).or_default().insert(turn, large("mean_ns")?);
            return Ok(());
        }
        if tag == WATCH_BESIDE {
            return Ok(());
        }
        let (round, iostats) = round_of(tag).ok_or_else(|| wrong("no such tag"))?;
        let load = Load {
            device,
            block: number("block")?,
            write: number("write")? == 1,
            depth: number("depth")?,
            polled: number("polled")? == 1,
            iostats,
        };
        let figures =
            Figures { iops: large("iops")?, mean_ns: large("mean_ns")?, p50_ns: large("p50_ns")?, p99_ns: large("p99_ns")? };
        self.rounds.entry(load).or_default().insert(round, figures);
        Ok(())
    }

    /// Every load with its rounds in order.
    pub(super) fn series(&self) -> impl Iterator<Item = (&Load, Vec<Figures>)> {
        self.rounds.iter().map(|(load, rounds)| (load, rounds.values().copied().collect()))
    }

    pub(super) fn median(&self, load: Load, figure: impl Fn(&Figures) -> f64) -> Option<f64> {
        median(self.rounds.get(&load)?.values().map(figure).collect())
    }

    /// The median of what `combine` makes of the figures of two loads in the same round.
    pub(super) fn paired(&self, one: Load, other: Load, combine: impl Fn(&Figures, &Figures) -> f64) -> Option<f64> {
        let (one, other) = (self.rounds.get(&one)?, self.rounds.get(&other)?);
        median(one.iter().filter_map(|(round, figures)| Some(combine(figures, other.get(round)?))).collect())
    }

    /// The median of one load's requests per second over those of the best of `others` in the same round.
    pub(super) fn over_best(&self, one: Load, others: &[Load]) -> Option<f64> {
        let rounds = self.rounds.get(&one)?;
        let best = |round: &u32| {
            let iops = others.iter().filter_map(|other| Some(self.rounds.get(other)?.get(round)?.iops));
            iops.max_by(f64::total_cmp)
        };
        median(rounds.iter().filter_map(|(round, figures)| Some(figures.iops / best(round)?)).collect())
    }

    /// First requests after idleness: turns in order.
    pub(super) fn wakes(&self) -> impl Iterator<Item = (&'static str, Vec<f64>)> {
        self.wakes.iter().map(|(label, turns)| (*label, turns.values().copied().collect()))
    }

    /// The median over the turns of one device's first request over another's.
    pub(super) fn wake_ratio(&self, one: &str, other: &str) -> Option<f64> {
        let (one, other) = (self.wakes.get(one)?, self.wakes.get(other)?);
        median(one.iter().filter_map(|(turn, ns)| Some(ns / other.get(turn)?)).collect())
    }

    /// What `role` took while the watch of that name lasted.
    pub(super) fn percent(&self, watch: &str, role: &str) -> Option<f64> {
        let watch = self.watches.iter().find(|one| one.name == watch)?;
        watch.percent.iter().find(|(name, _)| *name == role).map(|(_, percent)| *percent)
    }
}

fn label_of(label: &str) -> &'static str {
    DEVICES.iter().find(|device| device.label == label).map_or("", |device| device.label)
}

#[cfg(test)]
mod tests {
    use super::super::plan::{FIP, HOST, QEMU, VIRTIO};
    use super::*;

    fn report(tag: &str, label: &str, depth: u32, iops: u32, p50_ns: u32) -> String {
        format!(
            "run {tag} {label} device=/dev/x block=4096 write=0 depth={depth} batch=1 refill=0 polled=0 requests=9 ns=5 \
             iops={iops} errors=0 unpolled=0 samples=9 mean_ns={p50_ns} p50_ns={p50_ns} p99_ns=7 most_ns=8"
        )
    }

    #[test]
    fn rounds_are_compared_with_the_same_round() {
        let mut results = Results::default();
        for (round, ours, host) in [("0", 100, 50), ("1", 30, 10), ("2", 10, 10)] {
            results.take(&report(round, "fnull", 64, ours, 5)).expect("a report");
            results.take(&report(round, "host", 64, host, 4)).expect("a report");
        }
        let (ours, host) = (Load::reads(FIP, 64), Load::reads(HOST, 64));
        assert_eq!(results.paired(ours, host, |a, b| a.iops / b.iops), Some(2.0));
        assert_eq!(results.median(ours, |figures| figures.iops), Some(30.0));
        assert_eq!(results.paired(ours, Load::reads(QEMU, 64), |a, b| a.iops / b.iops), None);
    }

    #[test]
    fn best_other_is_sought_in_each_round() {
        let mut results = Results::default();
        for (round, ours, qemu, virtio) in [("0", 60, 10, 20), ("1", 60, 30, 20), ("2", 60, 1, 15)] {
            for (label, iops) in [("fnull", ours), ("qemu", qemu), ("vnull", virtio)] {
                results.take(&report(round, label, 1, iops, 5)).expect("a report");
            }
        }
        let of = |device| Load::reads(device, 1);
        assert_eq!(results.over_best(of(FIP), &[of(QEMU), of(VIRTIO)]), Some(3.0));
    }

    #[test]
    fn failed_requests_and_unplanned_ones_are_errors() {
        let mut results = Results::default();
        let good = report("0", "host", 1, 5, 5);
        for bad in [
            good.replace("errors=0", "errors=1"),
            good.replace("unpolled=0", "unpolled=2"),
            good.replace("requests=9", "requests=0"),
            good.replace(" host ", " hots "),
            good.replace("iops=5", ""),
            good.replace("run 0", "run zero"),
        ] {
            assert!(results.take(&bad).is_err(), "{bad}");
        }
        assert_eq!(results.series().count(), 0);
        assert_eq!(results.take("passed"), Ok(()));
        assert_eq!(results.take(&good), Ok(()));
    }

    #[test]
    fn first_requests_after_idleness_are_listed_apart() {
        let mut results = Results::default();
        for (turn, ours, theirs) in [("wake0", 20, 40), ("wake1", 90, 30), ("wake2", 10, 40)] {
            results.take(&report(turn, "fnull", 1, 1, ours)).expect("a report");
            results.take(&report(turn, "vnull", 1, 1, theirs)).expect("a report");
        }
        assert_eq!(results.series().count(), 0);
        assert_eq!(results.wake_ratio("fnull", "vnull"), Some(0.5));
    }
}
