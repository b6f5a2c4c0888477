//! Notifications of each request: doorbells of the guest (an exit each, with hardware virtualization), of its back end, and the
//! interrupts that the guest counted, by cause.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::exits::Exits;
use super::plan::{Cause, Condition, QEMU, causes};
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
    /// In QEMU.
    pub(super) exits: Exits,
}

/// By the names of the plan.
#[derive(Debug, Default)]
pub(super) struct All(BTreeMap<String, Causes>);

impl All {
    /// Take `causes NAME LABEL before=A,B,C after=A,B,C NAME=VALUE...`, `exits NAME CAUSE=COUNT...` or `writes NAME ROLE=COUNT...`.
    pub(super) fn take(&mut self, report: &str) -> Result<(), String> {
        let mut words = report.split(' ');
        let (Some(kind @ ("causes" | "exits" | "writes")), Some(name)) = (words.next(), words.next()) else { return Ok(()) };
        let Some(Cause { load, .. }) = causes().into_iter().find(|cause| cause.name == name) else { return Ok(()) };
        let fields: BTreeMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
        let wrong = |what: &str| format!("'{report}': no {what}");
        let number = |what: &str| fields.get(what).and_then(|value| value.parse::<f64>().ok()).ok_or_else(|| wrong(what));
        let of = self.0.entry(name.to_owned()).or_default();
        if kind == "writes" {
            let back_end = if load.device == QEMU { PEER } else { DAEMON };
            (of.kicks, of.calls) = (number(GUEST)?, number(back_end)?);
            return Ok(());
        }
        of.exits.take(&fields);
        if kind == "exits" {
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
        for cause in causes() {
            let Some(causes) = self.get(&cause.name) else { continue };
            let [kicks, calls, disks, between, timers] = causes.per_request().map(|count| 1e3 * count);
            let title = title(&cause);
            println!("{title:<44} {kicks:>10.2} {calls:>10.2} {disks:>10.2} {between:>10.2} {timers:>10.2}");
        }
        println!();
        self.print_exits();
    }

    fn print_exits(&self) {
        let mut is_first = true;
        for (title, causes) in causes().iter().filter_map(|cause| Some((title(cause), self.get(&cause.name)?))) {
            let Some(columns) = causes.exits.columns(causes.interrupts, causes.requests) else { continue };
            if is_first {
                println!("exits per 1000 requests, by cause");
                is_first = false;
            }
            let words: Vec<String> =
                columns.iter().map(|(cause, count)| format!("{} {count:.2}", cause.replace('_', " "))).collect();
            println!("{title:<44} {}", words.join(", "));
        }
        if !is_first {
            println!();
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let of = |Cause { name, load, condition }: &Cause| {
            let causes = self.get(name)?;
            let [kicks, calls, disks, between, timers] = causes.per_request();
            Some(json!({
                "device": load.device.label, "depth": load.depth, "driver_asleep": *condition == Condition::Asleep,
                "one_cpu": *condition == Condition::OneCpu, "requests": causes.requests,
                "kicks_per_request": kicks, "calls_per_request": calls, "disk_interrupts_per_request": disks,
                "ipis_per_request": between, "timer_interrupts_per_request": timers,
                "exits_per_request": causes.exits.to_json(causes.interrupts, causes.requests),
            }))
        };
        causes().iter().filter_map(of).collect()
    }
}

fn title(Cause { load, condition, .. }: &Cause) -> String {
    format!("{}, QD{}{}", load.device.name, load.depth, condition.words()[1])
}

impl Causes {
    /// Kicks, calls, interrupts of disks, between CPUs, of timers.
    pub(super) fn per_request(&self) -> [f64; 5] {
        let [disks, between, timers] = self.interrupts;
        // QEMU writes its trace, too.
        let kicks = self.exits.doorbells().unwrap_or(self.kicks);
        [kicks, self.calls, disks, between, timers].map(|count| count / self.requests)
    }

    /// What a disk causes: all but the timer's.
    pub(super) fn notifications(&self) -> f64 {
        self.per_request()[..4].iter().sum()
    }

    /// Of each request, if they were counted: all but the timer's.
    pub(super) fn exits(&self) -> Option<f64> {
        Some(self.exits.but_of_timer(self.interrupts)? / self.requests)
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
            "device": "vnull", "depth": 1, "driver_asleep": false, "one_cpu": false, "requests": 100.0, "kicks_per_request": 1.5,
            "calls_per_request": 0.9, "disk_interrupts_per_request": 1.0, "ipis_per_request": 0.2,
            "timer_interrupts_per_request": 0.02, "exits_per_request": null,
        });
        assert_eq!(json[0], expected);
        assert!(all.take(&format!("causes {name} vnull before=10 after=110,24,9 requests=100")).is_err());
        assert!(all.take("writes idle guest=1").is_ok(), "another watch");
    }

    #[test]
    fn exits_are_those_of_both_sides_but_the_timers_own() {
        let mut all = All::default();
        let name = "causes:vnull:1";
        let interrupts = "before=10,4,7 after=110,24,27";
        all.take(&format!("causes {name} vnull {interrupts} doorbells=90 halts=80 requests=100")).expect("a report");
        all.take(&format!("writes {name} guest=5000 fipseed=90 qemu-storage-daemon=5")).expect("a report");
        let of_guest = all.get(name).expect("it was counted");
        assert_eq!((of_guest.exits(), of_guest.per_request()[0]), (None, 0.9), "QEMU's own writes are no doorbells");
        all.take(&format!("exits {name} ends_of_interrupt=140 ipis=20 timer=21 controller=1 devices=2")).expect("a report");
        // 100 + 20 + 20 interrupts came; 20 of them, their ends, and 21 accesses were the timer's.
        let expected = 90.0 + 80.0 + 120.0 + 20.0 + 1.0 + 2.0 + 100.0 + 20.0;
        let exits = all.get(name).and_then(Causes::exits).expect("both sides reported");
        assert!((exits - expected / 100.0).abs() < 1e-9, "{exits}");
        let json = &all.to_json()[0]["exits_per_request"];
        assert_eq!(
            (&json["doorbells"], &json["timer"], &json["disk_interrupts"]),
            (&json!(0.9), &json!(0.21), &json!(1.0)),
            "{json}"
        );
    }
}
