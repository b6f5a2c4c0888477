//! Frames of 9000 B through the switch, beside a loop that copies as much.

use std::path::Path;
use std::time::{Duration, Instant};

use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::to_f64;
use fipsee_net::{Error, Frame, Port};
use fipsee_ring::clock;
use fipsee_ring::region::Region;

use super::exchange::BURST;
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
const LINE_BYTES: usize = 64;
/// Longer than this no frame is waited for.
const TIMEOUT: Duration = Duration::from_secs(20);

const IN_PLACE: &str = "frames of 9000 B, in place";
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
        [IN_PLACE, COPIED, MEMCPY].iter().any(|name| settings.chooses(name))
    }

    pub(super) fn start() -> Result<Self, String> {
        let cpus = Cpus::choose();
        let region =
            || Region::create("bench", BYTES as u64 * u64::from(DEPTH)).map_err(|error| format!("cannot create memory: {error}"));
        Ok(Self { daemon: ports::daemon(cpus, ["a", "b"].map(str::to_owned))?, cpus, from: region()?, to: region()? })
    }
}

/// Two ports, whose frames were written where they are sent from once, and are looked at where they come.
struct InPlace {
    sender: Port,
    receiver: Port,
    first: [u8; LINE_BYTES],
    frames: Vec<Frame>,
}

impl InPlace {
    fn attach(socket: &Path) -> Result<Self, String> {
        let (mut sender, receiver) = (ports::attach(socket, "a", DEPTH)?, ports::attach(socket, "b", DEPTH)?);
        let frame = ports::frame(sender.mac(), receiver.mac());
        let first = frame.first_chunk().copied().ok_or("a frame is longer than a line")?;
        let mut buffers = Vec::new();
        loop {
            match sender.buffer() {
                Ok(mut buffer) => {
                    buffer.write(0, &frame[..BYTES]).map_err(|error| error.to_string())?;
                    buffers.push(buffer);
                }
                Err(Error::Full) => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        for buffer in buffers {
            sender.put_back(buffer).map_err(|error| error.to_string())?;
        }
        Ok(Self { sender, receiver, first, frames: Vec::with_capacity(2 * BURST) })
    }

    /// Send what there is room for, and look at what has come: bytes.
    fn turn(&mut self) -> Result<u64, Error> {
        let Self { sender, receiver, first, frames, .. } = self;
        let length_bytes = u32::try_from(BYTES).unwrap_or(u32::MAX);
        for _ in 0..BURST {
            match sender.buffer() {
                Ok(buffer) => sender.send_buffer(buffer, length_bytes)?,
                Err(Error::Full) => break,
                Err(error) => return Err(error),
            }
        }
        sender.submit();
        receiver.take_batch(frames, 2 * BURST)?;
        let mut received = 0;
        for frame in frames.drain(..) {
            let mut line = [0; LINE_BYTES];
            frame.read(0, &mut line)?;
            if line == *first {
                received += u64::from(frame.length_bytes());
            }
        }
        Ok(received)
    }

    /// Bytes per second.
    fn rate(&mut self, seconds: f64) -> Result<f64, String> {
        let (begun, mut received) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_secs_f64(seconds) {
            received += self.turn().map_err(|error| error.to_string())?;
        }
        let rate = to_f64(received) / begun.elapsed().as_secs_f64();
        let sent = self.sender.wait_sent(Some(clock::ticks() + clock::duration_to_ticks(TIMEOUT)));
        if sent.map_err(|error| error.to_string())? { Ok(rate) } else { Err("frames were not given back".to_owned()) }
    }
}

impl Part for Copies {
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String> {
        let (seconds, socket) = (settings.seconds / 2.0, self.daemon.socket());
        let mut names = [IN_PLACE, COPIED, MEMCPY];
        names.rotate_left(round % 3);
        for name in names.into_iter().filter(|name| settings.chooses(name)) {
            steady::measure(results, |results| {
                let rate = match name {
                    MEMCPY => on(self.cpus.server, || {
                        memcpy::run(&self.from, &self.to, BYTES as u64, DEPTH.into(), Duration::from_secs_f64(seconds))
                    }),
                    COPIED => on(self.cpus.client, || {
                        let rate = Pair::attach(&socket, ["a", "b"], DEPTH)?.rate(BYTES, seconds)?;
                        Ok(rate * to_f64(BYTES as u64))
                    }),
                    _ => on(self.cpus.client, || InPlace::attach(&socket)?.rate(seconds)),
                };
                results.add(name, BANDWIDTH, rate?);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn print(&self, results: &Results) {
        println!("\nBandwidth\n");
        for name in [IN_PLACE, COPIED, MEMCPY] {
            if let Some(series) = results.get(name, BANDWIDTH) {
                println!("{name:<40} {:>8.2} GB/s", series.median() / 1e9);
            }
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let ratio = results.get(IN_PLACE, BANDWIDTH).zip(results.get(MEMCPY, BANDWIDTH)).map(|(ours, copy)| ours.ratio_to(copy));
        vec![Claim::at_least(0.6, "9000 B one way, in place: bytes/s over those that one core copies", ratio)]
    }
}
