//! What other ports of its network cost a pair that exchanges frames: a thousand that do nothing, and one that misbehaves.
//!
//! One thread drives all of them, the daemon's only worker has the other CPU. A port that misbehaves is compared with a correct one that
//! sends as much: both take time from the pair by being there.

use std::time::{Duration, Instant};

use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::to_f64;
use fipsee_net::frame::Mac;
use fipsee_net::{AttachOptions, Port};

use super::exchange::{BURST, Exchange, SMALLEST, time};
use super::ports::{self, Pair, Ports, attach, frame, stage};
use crate::daemon::Daemon;
use crate::parts::Part;
use crate::place::on;
use crate::table::{FRAMES, P50, Results, Series};
use crate::{Settings, steady};

const IDLE: usize = 1000;
const QUICK_IDLE: usize = 50;
/// Of an idle port: as few as one would have.
const IDLE_DEPTH: u32 = 16;
const IDLE_BUFFER_BYTES: u32 = 1536;

const BESIDE_ONE: &str = "pair beside 1 idle port";
const BESIDE_MANY: &str = "pair beside 1000 idle ports";

/// The part about idle ports.
pub(super) struct Idle {
    daemon: Daemon,
    cpus: Cpus,
    many: usize,
}

impl Idle {
    pub(super) fn is_chosen(settings: &Settings) -> bool {
        [BESIDE_ONE, BESIDE_MANY].iter().any(|name| settings.chooses(name))
    }

    pub(super) fn start(settings: &Settings) -> Result<Self, String> {
        let (cpus, many) = (Cpus::choose(), if settings.quick { QUICK_IDLE } else { IDLE });
        let ports = ["a", "b"].map(str::to_owned).into_iter().chain((0..many).map(idle_port));
        Ok(Self { daemon: ports::daemon(cpus, ports)?, cpus, many })
    }

    fn beside(&self, name: &str, count: usize, settings: &Settings, results: &mut Results) -> Result<(), String> {
        let (socket, seconds) = (self.daemon.socket(), settings.seconds / 2.0);
        let attach_idle = |number: usize| {
            let name = format!("lan/{}", idle_port(number));
            let options = AttachOptions { depth: IDLE_DEPTH, buffer_bytes: Some(IDLE_BUFFER_BYTES), ..AttachOptions::new(&name) };
            Port::attach(&socket, &options).map_err(|error| format!("cannot attach idle port {number}: {error}"))
        };
        on(self.cpus.client, || {
            let _idle = (0..count).map(attach_idle).collect::<Result<Vec<_>, _>>()?;
            let mut pair = Pair::attach(&socket, ["a", "b"], Ports::DEPTH)?;
            results.add(name, FRAMES, pair.rate(SMALLEST, seconds)?);
            time(seconds, || pair.exchange(Exchange::RoundTrip, SMALLEST))?.add_to(results, name, SMALLEST);
            Ok(())
        })
    }
}

fn idle_port(number: usize) -> String {
    format!("idle{number}")
}

impl Part for Idle {
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String> {
        let mut cases = [(BESIDE_ONE, 1), (BESIDE_MANY, self.many)];
        cases.rotate_left(round % 2);
        let mut beside = |(name, count)| steady::measure(results, |results| self.beside(name, count, settings, results));
        cases.into_iter().try_for_each(&mut beside)
    }

    fn print(&self, results: &Results) {
        println!("\n64 B, beside ports that do nothing ({} of them)\n", self.many);
        for name in [BESIDE_ONE, BESIDE_MANY] {
            let [rate, p50] = [FRAMES, P50].map(|metric| results.get(name, metric).map_or(f64::NAN, Series::median));
            println!("{name:<34} {rate:>12.0} frames/s, round trip p50 {p50:>8.0} ns");
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let ratio = |metric| Some(results.get(BESIDE_MANY, metric)?.ratio_to(results.get(BESIDE_ONE, metric)?));
        vec![
            Claim::at_least(0.95, "64 B one way: frames/s beside 1000 idle ports over those beside one", ratio(FRAMES)),
            Claim::at_most(1.05, "64 B round trip: p50 beside 1000 idle ports over that beside one", ratio(P50)),
        ]
    }
}

/// What the port `c` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conduct {
    /// It sends to `d`, which reads.
    Correct,
    /// To addresses that no port has.
    Floods,
    /// With the address of `a`.
    Spoofs,
    Broadcasts,
    /// It sends to `d`, which reads nothing.
    Unread,
}

impl Conduct {
    const ALL: [Self; 5] = [Self::Correct, Self::Floods, Self::Spoofs, Self::Broadcasts, Self::Unread];

    const fn name(self) -> &'static str {
        match self {
            Self::Correct => "pair beside a correct port",
            Self::Floods => "pair beside a port that floods",
            Self::Spoofs => "pair beside a port that spoofs",
            Self::Broadcasts => "pair beside a port that broadcasts",
            Self::Unread => "pair beside a port that never reads",
        }
    }

    fn frame(self, ports: &Neighbours, victim: &Pair) -> Vec<u8> {
        let [c, d] = [&ports.sender, &ports.receiver].map(Port::mac);
        match self {
            Self::Correct | Self::Unread => frame(c, d),
            Self::Floods => frame(c, Mac([2, 0, 0, 9, 9, 9])),
            Self::Spoofs => frame(victim.ends[0].mac(), d),
            Self::Broadcasts => frame(c, Mac::BROADCAST),
        }
    }
}

struct Neighbours {
    sender: Port,
    receiver: Port,
    receive_buffer: Vec<u8>,
}

impl Neighbours {
    /// As much as there is room for.
    fn turn(&mut self, frame: &[u8], reads: bool) -> Result<(), String> {
        let mut staged = 0;
        while staged < BURST && stage(&mut self.sender, frame)? {
            staged += 1;
        }
        self.sender.submit();
        let mut left = if reads { 2 * BURST } else { 0 };
        while left > 0 && self.receiver.receive(&mut self.receive_buffer).map_err(|error| error.to_string())? {
            left -= 1;
        }
        Ok(())
    }
}

/// The part about ports that misbehave.
pub(super) struct Misbehaviour {
    daemon: Daemon,
    cpus: Cpus,
}

impl Misbehaviour {
    pub(super) fn is_chosen(settings: &Settings) -> bool {
        Conduct::ALL.iter().any(|conduct| settings.chooses(conduct.name()))
    }

    pub(super) fn start() -> Result<Self, String> {
        let cpus = Cpus::choose();
        Ok(Self { daemon: ports::daemon(cpus, ["a", "b", "c", "d"].map(str::to_owned))?, cpus })
    }

    /// Frames per second of the pair.
    fn beside(&self, conduct: Conduct, seconds: f64) -> Result<f64, String> {
        let socket = self.daemon.socket();
        on(self.cpus.client, || {
            let mut victim = Pair::attach(&socket, ["a", "b"], Ports::DEPTH)?;
            let [sender, receiver] = [attach(&socket, "c", Ports::DEPTH)?, attach(&socket, "d", Ports::DEPTH)?];
            let mut others = Neighbours { sender, receiver, receive_buffer: Vec::new() };
            let frame = &conduct.frame(&others, &victim)[..SMALLEST];
            let (begun, mut bytes) = (Instant::now(), 0);
            while begun.elapsed() < Duration::from_secs_f64(seconds) {
                for _ in 0..16 {
                    bytes += victim.turn(SMALLEST)?;
                    others.turn(frame, conduct != Conduct::Unread)?;
                }
            }
            Ok(to_f64(bytes) / to_f64(SMALLEST as u64) / begun.elapsed().as_secs_f64())
        })
    }
}

impl Part for Misbehaviour {
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String> {
        for place in 0..Conduct::ALL.len() {
            let conduct = Conduct::ALL[(place + round) % Conduct::ALL.len()];
            if settings.chooses(conduct.name()) {
                steady::measure(results, |results| {
                    results.add(conduct.name(), FRAMES, self.beside(conduct, settings.seconds / 2.0)?);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    fn print(&self, results: &Results) {
        println!("\n64 B, frames/s of a pair beside another port\n");
        for conduct in Conduct::ALL {
            if let Some(series) = results.get(conduct.name(), FRAMES) {
                println!("{:<40} {:>12.0}", conduct.name(), series.median());
            }
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let correct = results.get(Conduct::Correct.name(), FRAMES);
        let ratios = Conduct::ALL[1..].iter().map(|conduct| {
            let beside = results.get(conduct.name(), FRAMES).zip(correct).map(|(beside, correct)| beside.ratio_to(correct));
            (conduct.name().to_owned(), beside)
        });
        vec![Claim::all_at_least(
            0.95,
            "64 B one way: frames/s of a pair beside one that misbehaves, over beside a correct one",
            ratios,
        )]
    }
}
