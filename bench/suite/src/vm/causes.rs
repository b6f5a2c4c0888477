//! Notifications of each request: doorbells of the guest (an exit each, with hardware virtualization), of its back end, and the
//! interrupts that the guest counted, by cause.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::plan::{QEMU, causes};
use super::{DAEMON, GUEST, PEER};

/// Of one load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Causes {
    pub(super) requests: f64,
    /// Interrupts: of disks, from one CPU to another, of timers.
    pub(super) interrupts: [f64; 3],
    /// Calls of write(2) by the guest, which is as many as it rang doorbells, or more; by its back end.
    pub(super) kicks: f64,
    pub(super) calls: f64,
}

/// By the names of the plan.
#[derive(Debug, Default)]
pub(super) struct All(BTreeMap<String, Causes>);

impl All {
    /// Take `causes NAME LABEL before=A,B,C after=A,B,C NAME=VALUE...`, or `writes NAME ROLE=COUNT...`.
    pub(super) fn take(&mut self, report: &str) -> Result<(), String> {
        let mut words = report.split(' ');
        let (Some(kind @ ("causes" | "writes")), Some(name)) = (words.next(), words.next()) else { return Ok(()) };
        let Some((_, load, _)) = causes().into_iter().find(|(planned, ..)| planned == name) else { return Ok(()) };
        let fields: BTreeMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
        let wrong = |what: &str| format!("'{report}': no {what}");
        let number = |what: &str| fields.get(what).and_then(|value| value.parse::<f64>().ok()).ok_or_else(|| wrong(what));
        let of = self.0.entry(name.to_owned()).or_default();
        if kind == "writes" {
            let back_end = if load.device == QEMU { PEER } else { DAEMON };
            (of.kicks, of.calls) = (number(GUEST)?, number(back_end)?);
            return Ok(());
        }
        let three = |what: &str| -> Result<[f64; 3], String> {
            let values: Option<Vec<f64>> =
                fields.get(what).and_then(|text| text.split(',').map(|word| word.parse().ok()).collect());
            values.and_then(|values| values.try_into().ok()).ok_or_else(|| wrong(what))
        };
        let (before, after) = (three("before")?, three("after")?);
        of.interrupts = [0, 1, 2].map(|index| after[index] - before[index]);
        of.requests = number("requests")?;
        Ok(())
    }

    pub(super) fn get(&self, name: &str) -> Option<&Causes> {
        self.0.get(name).filter(|causes| causes.requests > 0.0)
    }

    pub(super) fn print(&self) {
        println!(
            "{:<44} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "per 1000 requests", "kicks", "calls", "disk irqs", "IPIs", "timer irqs"
        );
        for (name, load, sleeps) in causes() {
            let Some(causes) = self.get(&name) else { continue };
            let [kicks, calls, disks, between, timers] = causes.per_request().map(|count| 1e3 * count);
            let how = if sleeps { ", driver asleep" } else { "" };
            let title = format!("{}, QD{}{how}", load.device.name, load.depth);
            println!("{title:<44} {kicks:>10.2} {calls:>10.2} {disks:>10.2} {between:>10.2} {timers:>10.2}");
        }
        println!();
    }

    pub(super) fn to_json(&self) -> Value {
        let of = |(name, load, asleep): &(String, super::plan::Load, bool)| {
            let causes = self.get(name)?;
            let [kicks, calls, disks, between, timers] = causes.per_request();
            Some(json!({
                "device": load.device.label, "depth": load.depth, "driver_asleep": asleep, "requests": causes.requests,
                "kicks_per_request": kicks, "calls_per_request": calls, "disk_interrupts_per_request": disks,
                "ipis_per_request": between, "timer_interrupts_per_request": timers,
            }))
        };
        causes().iter().filter_map(of).collect()
    }
}

impl Causes {
    /// Kicks, calls, interrupts of disks, between CPUs, of timers.
    pub(super) fn per_request(&self) -> [f64; 5] {
        let [disks, between, timers] = self.interrupts;
        [self.kicks, self.calls, disks, between, timers].map(|count| count / self.requests)
    }

    /// What a disk causes: all but the timer's.
    pub(super) fn notifications(&self) -> f64 {
        self.per_request()[..4].iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_are_differences_over_requests() {
        let mut all = All::default();
        let name = "causes:vnull:1";
        all.take(&format!("causes {name} vnull before=10,4,7 after=110,24,9 device=/dev/x requests=100 errors=0"))
            .expect("a report");
        assert_eq!(all.get("causes:fnull:1"), None);
        all.take(&format!("writes {name} guest=150 fipseed=90 qemu-storage-daemon=5")).expect("a report");
        let causes = all.get(name).expect("it was counted");
        assert_eq!(causes.per_request(), [1.5, 0.9, 1.0, 0.2, 0.02]);
        assert!((causes.notifications() - 3.6).abs() < 1e-9);
        let json = all.to_json();
        assert_eq!(json.as_array().map(Vec::len), Some(1), "only what was counted: {json}");
        let expected = json!({
            "device": "vnull", "depth": 1, "driver_asleep": false, "requests": 100.0, "kicks_per_request": 1.5,
            "calls_per_request": 0.9, "disk_interrupts_per_request": 1.0, "ipis_per_request": 0.2,
            "timer_interrupts_per_request": 0.02,
        });
        assert_eq!(json[0], expected);
        assert!(all.take(&format!("causes {name} vnull before=10 after=110,24,9 requests=100")).is_err());
        assert!(all.take("writes idle guest=1").is_ok(), "another watch");
    }
}
