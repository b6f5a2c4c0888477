//! Frames of 9000 B through the switch, beside a loop that copies as much.

use std::time::Duration;

use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::to_f64;
use fipsee_ring::region::Region;

use super::ports::{self, Pair};
use crate::daemon::Daemon;
use crate::memcpy;
use crate::parts::Part;
use crate::place::on;
use crate::table::{BANDWIDTH, Results};
use crate::{Settings, steady};

const BYTES: usize = 9000;
/// Buffers of each direction, so that both fit a second-level cache, on either side.
const DEPTH: u32 = 64;

const COPIED: &str = "frames of 9000 B, copied in and out";
const MEMCPY: &str = "memcpy of 9000 B";

/// The part.
pub(super) struct Copies {
    daemon: Daemon,
    cpus: Cpus,
    from: Region,
    to: Region,
}

impl Copies {
    pub(super) fn are_chosen(settings: &Settings) -> bool {
        [COPIED, MEMCPY].iter().any(|name| settings.chooses(name))
    }

    pub(super) fn start() -> Result<Self, String> {
        let cpus = Cpus::choose();
        let region =
            || Region::create("bench", BYTES as u64 * u64::from(DEPTH)).map_err(|error| format!("cannot create memory: {error}"));
        Ok(Self { daemon: ports::daemon(cpus, ["a", "b"].map(str::to_owned))?, cpus, from: region()?, to: region()? })
    }
}

impl Part for Copies {
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String> {
        let (seconds, socket) = (settings.seconds / 2.0, self.daemon.socket());
        let mut names = [COPIED, MEMCPY];
        names.rotate_left(round % 2);
        for name in names.into_iter().filter(|name| settings.chooses(name)) {
            steady::measure(results, |results| {
                let rate = match name {
                    MEMCPY => on(self.cpus.server, || {
                        memcpy::run(&self.from, &self.to, BYTES as u64, DEPTH.into(), Duration::from_secs_f64(seconds))
                    }),
                    _ => on(self.cpus.client, || {
                        let rate = Pair::attach(&socket, ["a", "b"], DEPTH)?.rate(BYTES, seconds)?;
                        Ok(rate * to_f64(BYTES as u64))
                    }),
                };
                results.add(name, BANDWIDTH, rate?);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn print(&self, results: &Results) {
        println!("\nBandwidth\n");
        for name in [COPIED, MEMCPY] {
            if let Some(series) = results.get(name, BANDWIDTH) {
                println!("{name:<40} {:>8.2} GB/s", series.median() / 1e9);
            }
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let ratio = results.get(COPIED, BANDWIDTH).zip(results.get(MEMCPY, BANDWIDTH)).map(|(ours, copy)| ours.ratio_to(copy));
        vec![Claim::at_least(0.6, "9000 B one way: bytes/s over those that one core copies", ratio)]
    }
}
