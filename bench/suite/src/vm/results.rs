//! What came of a run, and what its rounds say together.

use std::collections::BTreeMap;

use fipsee_measure::results::Rounds;

use super::causes::All;
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
    pub(super) percent: Vec<(String, f64)>,
}

#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) loads: Rounds<Load, Figures>,
    /// Of the first request after some idleness, by device: nanoseconds, turn by turn.
    pub(super) wakes: Rounds<&'static str, f64>,
    pub(super) watches: Vec<Watch>,
    pub(super) causes: All,
}

impl Results {
    /// Of all reports.
    pub(super) fn of(reports: &str) -> Result<Self, String> {
        let mut results = Self::default();
        reports.lines().try_for_each(|report| results.take(report))?;
        Ok(results)
    }

    /// Take a report: `run TAG LABEL NAME=VALUE...` of the guest, or `cpu WATCH ROLE=PERCENT...`, or what `causes` knows; others are none of ours.
    pub(super) fn take(&mut self, report: &str) -> Result<(), String> {
        let mut words = report.split(' ');
        let (tag, label) = match (words.next(), words.next()) {
            (Some("run"), Some(tag)) => (tag, words.next().unwrap_or_default()),
            (Some("causes" | "exits" | "writes"), Some(_)) => return self.causes.take(report),
            (Some("cpu"), Some(name)) => {
                let percent = words
                    .filter_map(|word| word.split_once('='))
                    .filter_map(|(role, percent)| Some((role.to_owned(), percent.parse().ok()?)));
                self.watches.push(Watch { name: name.to_owned(), percent: percent.collect() });
                return Ok(());
            }
            _ => return Ok(()),
        };
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
            self.wakes.add(device.label, turn, large("mean_ns")?);
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
        self.loads.add(load, round, figures);
        Ok(())
    }

    /// What `role` took while the watch of that name lasted.
    pub(super) fn percent(&self, watch: &str, role: &str) -> Option<f64> {
        let watch = self.watches.iter().find(|one| one.name == watch)?;
        watch.percent.iter().find(|(name, _)| name == role).map(|(_, percent)| *percent)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::FIP;
    use super::*;

    fn report(tag: &str, label: &str, depth: u32, iops: u32, p50_ns: u32) -> String {
        format!(
            "run {tag} {label} device=/dev/x block=4096 write=0 depth={depth} batch=1 refill=0 polled=0 requests=9 ns=5 \
             iops={iops} errors=0 unpolled=0 samples=9 mean_ns={p50_ns} p50_ns={p50_ns} p99_ns=7 most_ns=8"
        )
    }

    #[test]
    fn reports_become_figures_of_loads_and_watches() {
        let mut results = Results::of(&report("0", "fnull", 64, 100, 5)).expect("a report");
        results.take(&report("1", "fnull", 64, 30, 4)).expect("a report");
        assert_eq!(results.loads.median(&Load::reads(FIP, 64), |figures| figures.iops), Some(65.0));
        results.take("cpu idle guest=0.25 fipseed=1.5").expect("a report");
        assert_eq!((results.percent("idle", "fipseed"), results.percent("idle", "none")), (Some(1.5), None));
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
        assert_eq!(results.loads.iter().count(), 0);
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
        assert_eq!(results.loads.iter().count(), 0);
        assert_eq!(results.wakes.paired(&"fnull", &"vnull", |ours, theirs| ours / theirs), Some(0.5));
    }
}
