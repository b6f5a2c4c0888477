//! Exits of each request, by cause: what the guest's processors did that hardware virtualization leaves to the hypervisor.
//! Counted in QEMU, which translates instructions and so has no exits: the same instructions would be some.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// By the guest: doorbells, halts. By QEMU: accesses to the registers of the interrupt controller and to other devices.
const CAUSES: [&str; 7] = ["doorbells", "halts", "ends_of_interrupt", "ipis", "timer", "controller", "devices"];

/// Of one load, in the order of [`CAUSES`]; what was not reported is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Exits([Option<f64>; CAUSES.len()]);

impl Exits {
    /// Take `CAUSE=COUNT...` of one side.
    pub(super) fn take(&mut self, fields: &BTreeMap<&str, &str>) {
        for (count, cause) in self.0.iter_mut().zip(CAUSES) {
            *count = fields.get(cause).and_then(|text| text.parse().ok()).or(*count);
        }
    }

    pub(super) fn doorbells(&self) -> Option<f64> {
        self.0[0]
    }

    /// Of all causes, if both sides reported, with the interrupts that came meanwhile: one that comes while the guest runs is an exit, too.
    fn all(&self, interrupts: [f64; 3]) -> Option<Vec<(&'static str, f64)>> {
        let counts: Option<Vec<_>> = CAUSES.into_iter().zip(self.0).map(|(cause, count)| Some((cause, count?))).collect();
        let interrupts =
            [("disk_interrupts", interrupts[0]), ("ipis_received", interrupts[1]), ("timer_interrupts", interrupts[2])];
        counts.map(|counts| counts.into_iter().chain(interrupts).collect())
    }

    /// All but what the guest's timer causes: its registers, its interrupts and their ends.
    pub(super) fn but_of_timer(&self, interrupts: [f64; 3]) -> Option<f64> {
        let all: BTreeMap<_, _> = self.all(interrupts)?.into_iter().collect();
        Some(
            all.values().sum::<f64>()
                - all["timer"]
                - all["timer_interrupts"]
                - all["timer_interrupts"].min(all["ends_of_interrupt"]),
        )
    }

    /// Names of columns, and for each a number per thousand requests.
    pub(super) fn columns(&self, interrupts: [f64; 3], requests: f64) -> Option<Vec<(&'static str, f64)>> {
        let per_thousand = |(cause, count): (&'static str, f64)| (cause, 1e3 * count / requests);
        Some(self.all(interrupts)?.into_iter().map(per_thousand).collect())
    }

    pub(super) fn to_json(self, interrupts: [f64; 3], requests: f64) -> Value {
        let counts = self.all(interrupts).map(|all| all.into_iter().map(|(cause, count)| (cause, json!(count / requests))));
        counts.map_or(Value::Null, |counts| counts.map(|(cause, count)| (cause.to_owned(), count)).collect())
    }
}
