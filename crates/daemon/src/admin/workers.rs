//! The workers, and how many of them are in use.

use std::sync::atomic::Ordering;

use fipsee_ring::clock;
use fipsee_serve::Pool;
use fipsee_serve::governor::{Mode, NotAMode};
use serde_json::{Value, json};

use super::Admin;
use crate::worker::{WorkerHandle, cpu_time};

impl Admin {
    pub(super) fn describe_workers(&self) -> Value {
        let workers: Vec<_> =
            self.workers.iter().enumerate().map(|(index, worker)| self.describe_worker(index, worker)).collect();
        json!({ "mode": self.scaling.mode().to_string(), "workers": workers })
    }

    fn describe_worker(&self, index: usize, worker: &WorkerHandle) -> Value {
        let counters = &worker.counters;
        let owner = self.scaling.dedicated_to(index);
        let (busy_ticks, measured_ticks) = self.scaling.busy_ticks(index);
        json!({
            "worker": index,
            "cpu": worker.place().cpu,
            "state": match counters.pool.number() {
                _ if owner.is_some() => "dedicated",
                Pool::SHARED => "in use",
                _ => "unused",
            },
            "disk": owner.as_deref().and_then(|owner| owner.strip_prefix("disk:")),
            "dedicated_to": owner,
            "queues": counters.queues.load(Ordering::Relaxed),
            "sleeps": counters.sleeps.load(Ordering::Relaxed),
            "cpu_time_ns": cpu_time(worker).and_then(|time| u64::try_from(time.as_nanos()).ok()),
            "busy_ns": clock::ticks_to_ns(busy_ticks),
            "measured_ns": clock::ticks_to_ns(measured_ticks),
            "queues_measured_ns": clock::ticks_to_ns(self.scaling.queues_measured_ticks(index)),
        })
    }

    pub(super) fn set_workers(&mut self, text: &str) -> Result<Value, String> {
        let mode: Mode =
            text.parse().map_err(|wrong: NotAMode| format!("'{text}' is not a number of workers; {wrong}, or off"))?;
        let started = self.workers.len();
        let is_possible = |count: usize| (1..=started).contains(&count);
        match mode {
            Mode::Fixed(count) if !is_possible(count) => return Err(too_many(text, started)),
            Mode::Auto { least, most } if mode != Mode::AUTO && !(is_possible(least) && is_possible(most)) => {
                return Err(too_many(text, started));
            }
            _ => {}
        }
        self.overlay.set_workers(mode);
        self.scaling.set_mode(mode);
        tracing::info!(workers = %mode, "the number of workers was set");
        Ok(self.describe_workers())
    }
}

fn too_many(text: &str, started: usize) -> String {
    format!(
        "{text} workers; this daemon has started {started}, so use 1 to {started}, or start it with more (--workers, workers): \
         a confined daemon starts no others"
    )
}
