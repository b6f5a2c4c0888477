//! A maximum rate of notifications, and what it leaves of the throughput: requests come at a fixed rate, whatever is answered, and
//! their client sleeps until it is notified.

use std::time::Instant;

use fipsee::load::count_f64;
use fipsee_block::client::Queue;
use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_testkit::Scratch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::crowd::{Shape, attach};
use crate::Settings;
use crate::daemon::Daemon;
use crate::parts::Part;
use crate::place::on;
use crate::table::{RATE, Results, Series};

const NAME: &str = "open loop at half of depth times 1000 notifications/s";
const NOTIFICATIONS: &str = "notifications_per_s";
const OFFERED: &str = "offered_requests_per_s";

const MAX_RATE: u32 = 1000;
const DEPTH: u32 = 64;

/// The client's end, and what it has seen.
struct Sleeper {
    queue: Queue,
    asleep: bool,
    notifications: u64,
    answered: u64,
}

impl Sleeper {
    /// Look at the doorbell, and at nothing else while asleep.
    fn step(&mut self) -> Result<(), String> {
        if self.asleep {
            let mut doorbell = [PollFd::new(&self.queue, PollFlags::IN)];
            let rings = poll(&mut doorbell, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_err(|error| error.to_string())?;
            if rings == 0 {
                return Ok(());
            }
            self.notifications += 1;
            self.queue.woken().map_err(|error| error.to_string())?;
        }
        self.answered += self.queue.reap(&mut |_| {}).map_err(|error| error.to_string())? as u64;
        self.asleep = !self.queue.arm_and_work_remains();
        Ok(())
    }
}

/// The part.
pub(super) struct Notified;

impl Notified {
    pub(super) fn is_chosen(settings: &Settings) -> bool {
        settings.chooses(NAME)
    }
}

fn measure_once(settings: &Settings, results: &mut Results) -> Result<(), String> {
    let configuration = Scratch::new();
    let text = format!("[[disk]]\nname = \"m\"\nkind = \"null\"\nsize = \"1G\"\nnotify = {{ max_rate = {MAX_RATE} }}\n");
    let (path, cpus) = (configuration.file("fipseed.toml", text), Cpus::choose());
    let more = ["--workers", "1", "--cpus", &cpus.server.to_string(), "--config", &path.to_string_lossy()];
    let daemon = Daemon::start_program(&Daemon::shipped()?, &[], &more)?;
    let shape = Shape { queues: 1, depth: DEPTH, bytes: 4096 };
    on(cpus.client, || {
        let (_disk, mut queues, buffer) = attach(&daemon.socket(), rustix::process::geteuid().as_raw(), shape)?;
        let queue = queues.pop().ok_or("no queue")?;
        let mut sleeper = Sleeper { queue, asleep: false, notifications: 0, answered: 0 };
        let offered = f64::from(DEPTH) * f64::from(MAX_RATE) / 2.0;
        let (started, mut sent) = (Instant::now(), 0.0);
        while started.elapsed().as_secs_f64() < settings.seconds {
            // What finds no room is sent later: it counts as offered all the same.
            while sent < started.elapsed().as_secs_f64() * offered && sleeper.queue.free() > 0 {
                let staged = sleeper.queue.read(0, buffer.segment(0, shape.bytes), 0);
                staged.map_err(|_| "a queue with room is full".to_owned())?;
                sent += 1.0;
            }
            sleeper.queue.submit();
            sleeper.step()?;
        }
        let seconds = started.elapsed().as_secs_f64();
        results.add(NAME, RATE, count_f64(sleeper.answered) / seconds);
        results.add(NAME, NOTIFICATIONS, count_f64(sleeper.notifications) / seconds);
        results.add(NAME, OFFERED, offered);
        Ok(())
    })
}

impl Part for Notified {
    fn measure(&mut self, settings: &Settings, _round: usize, results: &mut Results) -> Result<(), String> {
        measure_once(settings, results)
    }

    fn print(&self, results: &Results) {
        let figure = |metric| results.get(NAME, metric).map_or(f64::NAN, Series::median);
        println!(
            "\n{NAME}: {:.0} of {:.0} requests/s, {:.0} notifications/s",
            figure(RATE),
            figure(OFFERED),
            figure(NOTIFICATIONS)
        );
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let median = |metric| results.get(NAME, metric).map(Series::median);
        let share = results.get(NAME, RATE).zip(results.get(NAME, OFFERED)).map(|(rate, offered)| rate.ratio_to(offered));
        vec![
            Claim::at_most(1050.0, "notifications/s that a client sees of at most 1000", median(NOTIFICATIONS)),
            Claim::at_least(0.95, "of the requests of an open loop at half of depth times that rate are answered", share),
        ]
    }
}
