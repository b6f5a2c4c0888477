//! The one-way rate of frames of 64 B beside dpdk-testpmd, which forwards between two ports with one core.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fipsee_measure::claim::Claim;
use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::to_f64;
use fipsee_testkit::Scratch;
use fipsee_testkit::process::{Guard, die_with_parent};
use fipsee_topology::bounce;

use super::exchange::SMALLEST;
use super::ports::{self, Pair, Ports};
use crate::daemon::Daemon;
use crate::parts::Part;
use crate::place::on;
use crate::server::find_program;
use crate::table::{FRAMES, Results, Series};
use crate::{Settings, steady};

pub(super) const OURS: &str = "switch, 64 B";
const FLOOR: &str = "one line bounced";
const FLOOR_METRIC: &str = "round_trip_ns";
const DEADLINE: Duration = Duration::from_secs(30);

/// A testpmd that drives both ends, and what forwards between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    name: &'static str,
    /// The devices of a testpmd that forwards; `None`: vhost-user ports of `fipseed` do. `{dir}` is a folder, `{n}` 0 and 1.
    forwards: Option<&'static str>,
    drives: &'static str,
    /// Bursts of 32 frames that circulate, in each direction: the fewest that gave most in a trial.
    bursts: u32,
}

const VHOST: &str = "net_vhost{n},iface={dir}/vhost{n}";
/// As DPDK has it by default: split rings, mergeable buffers, used in order.
const SPLIT: &str = "net_virtio_user{n},path={dir}/vhost{n},mac=02:00:00:00:00:0{n}";

const PEERS: [Peer; 4] = [
    Peer {
        name: "testpmd, memif, 64 B",
        forwards: Some("net_memif{n},role=server,id={n},socket={dir}/memif"),
        drives: "net_memif{n},role=client,id={n},socket={dir}/memif",
        bursts: 16,
    },
    Peer {
        name: "testpmd, vhost, 64 B",
        forwards: Some(VHOST),
        drives: "net_virtio_user{n},path={dir}/vhost{n},packed_vq=1,mrg_rxbuf=0,in_order=1",
        bursts: 4,
    },
    Peer { name: "virtio_user, vhost-user ports of fipseed, 64 B", forwards: None, drives: SPLIT, bursts: 4 },
    Peer { name: "virtio_user, vhost of testpmd, 64 B", forwards: Some(VHOST), drives: SPLIT, bursts: 4 },
];

/// A testpmd that is given commands. It ends with this.
struct Testpmd {
    process: Guard,
    commands: ChildStdin,
    lines: Receiver<String>,
}

impl Testpmd {
    /// Its forwarding thread has the CPU `cpu`, the one that reads commands has `other`.
    fn start(folder: &Scratch, name: &str, devices: &str, (cpu, other): (usize, usize)) -> Result<Self, String> {
        // Line by line, into a pipe.
        let mut command = Command::new(find_program("stdbuf")?);
        command.arg("-oL").arg(find_program("dpdk-testpmd")?).env("RUNTIME_DIRECTORY", &folder.0);
        command.args(["--no-huge", "-m", "256", "--no-pci", "--no-shconf", "--no-telemetry", "--file-prefix", name]);
        command.args(["--lcores", &format!("0@{other},1@{cpu}")]);
        for number in ["0", "1"] {
            command.arg("--vdev").arg(folder.fill(devices).replace("{n}", number));
        }
        command.args(["--", "-i", "--forward-mode=io", "--total-num-mbufs=8192"]);
        // A switch forwards what has the address of the other port.
        command.args(["--eth-peer=0,02:00:00:00:00:01", "--eth-peer=1,02:00:00:00:00:00"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process =
            Guard(die_with_parent(&mut command).spawn().map_err(|error| format!("cannot run dpdk-testpmd: {error}"))?);
        let (commands, output) = process.0.stdin.take().zip(process.0.stdout.take()).ok_or("it has no pipes")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let read = BufReader::new(output).lines().map_while(Result::ok);
            // It reads to the end, so that testpmd never waits for us.
            read.for_each(|line| _ = sender.send(line));
        });
        let mut testpmd = Self { process, commands, lines };
        testpmd.received().map(|_| testpmd)
    }

    fn say(&mut self, command: &str) -> Result<(), String> {
        let said = writeln!(self.commands, "{command}").and_then(|()| self.commands.flush());
        said.map_err(|error| format!("dpdk-testpmd takes no command: {error}"))
    }

    /// The next line with these words.
    fn until(&mut self, words: &str) -> Result<String, String> {
        let (begun, mut seen) = (Instant::now(), String::new());
        while let Some(left) = DEADLINE.checked_sub(begun.elapsed()) {
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(words) => return Ok(line),
                Ok(line) => _ = write!(seen, "{line} "),
                Err(_) => break,
            }
        }
        let ended = self.process.0.try_wait().ok().flatten();
        Err(format!("dpdk-testpmd does not print '{words}' ({ended:?}): {seen}"))
    }

    /// Frames that both ports have received.
    fn received(&mut self) -> Result<u64, String> {
        self.say("show port stats all")?;
        let mut sum = 0;
        for _ in 0..2 {
            let line = self.until("RX-packets:")?;
            let count = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
            sum += count.ok_or_else(|| format!("no number in '{line}'"))?;
        }
        Ok(sum)
    }
}

/// What forwards. It ends with this.
enum Forwarder {
    Testpmd(Testpmd),
    Ours { _daemon: Daemon },
}

impl Forwarder {
    fn start(peer: &Peer, folder: &Scratch, cpus: Cpus) -> Result<Self, String> {
        let Some(devices) = peer.forwards else {
            let mut text = "[[network]]\nname = \"lan\"\n".to_owned();
            for number in 0..2 {
                let path = folder.path(&format!("vhost{number}"));
                _ = writeln!(text, "[[network.port]]\nname = \"{number}\"\nmac = \"02:00:00:00:00:0{number}\"");
                _ = writeln!(text, "vhost_user = \"{}\"", path.display());
            }
            let config = folder.file("fipseed.toml", text);
            let more = ["--workers", "1", "--cpus", &cpus.server.to_string(), "--config", &config.to_string_lossy()];
            return Ok(Self::Ours { _daemon: Daemon::start_program(&Daemon::shipped()?, &[], &more)? });
        };
        let mut testpmd = Testpmd::start(folder, "forwards", devices, (cpus.server, cpus.client))?;
        testpmd.say("start")?;
        Ok(Self::Testpmd(testpmd))
    }

    /// Frames so far: what it has received, or what the driver has.
    fn forwarded(&mut self, driver: &mut Testpmd) -> Result<u64, String> {
        match self {
            Self::Testpmd(testpmd) => testpmd.received(),
            Self::Ours { .. } => driver.received(),
        }
    }
}

impl Peer {
    /// Frames per second that one core forwards, in both directions together. All of it is started and ended: both poll.
    fn measure(&self, seconds: f64, cpus: Cpus) -> Result<f64, String> {
        let folder = Scratch::new();
        let mut forwards = Forwarder::start(self, &folder, cpus)?;
        let mut drives = Testpmd::start(&folder, "drives", self.drives, (cpus.client, cpus.server))?;
        drives.say(&format!("start tx_first {}", self.bursts))?;
        // Until the links are up and frames circulate.
        let begun = Instant::now();
        while forwards.forwarded(&mut drives)? < 100_000 {
            if begun.elapsed() > DEADLINE {
                return Err("no frames circulate".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20)); // tidy: allow sleep, another program's start has no event
        }
        let (before, since) = (forwards.forwarded(&mut drives)?, Instant::now());
        std::thread::sleep(Duration::from_secs_f64(seconds)); // tidy: allow sleep, others are measured meanwhile
        let (after, elapsed) = (forwards.forwarded(&mut drives)?, since.elapsed());
        Ok(to_f64(after - before) / elapsed.as_secs_f64())
    }
}

/// The part.
pub(super) struct Forwarding {
    daemon: Daemon,
    cpus: Cpus,
    skips: Vec<(String, String)>,
}

impl Forwarding {
    pub(super) fn is_chosen(settings: &Settings) -> bool {
        settings.chooses(OURS) || PEERS.iter().any(|peer| settings.chooses(peer.name))
    }

    pub(super) fn start() -> Result<Self, String> {
        let cpus = Cpus::choose();
        Ok(Self { daemon: ports::daemon(cpus, ["a", "b"].map(str::to_owned))?, cpus, skips: Vec::new() })
    }

    fn skip(&mut self, name: &str, reason: String) {
        if self.skips.iter().all(|(known, _)| known != name) {
            self.skips.push((name.to_owned(), reason));
        }
    }
}

impl Part for Forwarding {
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String> {
        for place in 0..=PEERS.len() {
            let index = (place + round) % (PEERS.len() + 1);
            match PEERS.get(index) {
                None if settings.chooses(OURS) => steady::measure(results, |results| {
                    if let Some(ns) = self.cpus.pair().and_then(|pair| bounce::round_trip_ns(pair, Duration::from_millis(50))) {
                        results.add(FLOOR, FLOOR_METRIC, ns);
                    }
                    let socket = self.daemon.socket();
                    let seconds = settings.seconds;
                    let rate = on(self.cpus.client, || Pair::attach(&socket, ["a", "b"], Ports::DEPTH)?.rate(SMALLEST, seconds))?;
                    results.add(OURS, FRAMES, rate);
                    Ok(())
                })?,
                Some(peer) if settings.chooses(peer.name) && self.skips.iter().all(|(known, _)| known != peer.name) => {
                    let measure = |results: &mut Results| {
                        let rate = peer.measure(settings.seconds, self.cpus)?;
                        results.add(peer.name, FRAMES, rate);
                        Ok(())
                    };
                    if let Err(reason) = steady::measure(results, measure) {
                        self.skip(peer.name, reason);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn print(&self, results: &Results) {
        println!("\nFrames of 64 B per second that one core forwards\n");
        for name in [OURS].into_iter().chain(PEERS.iter().map(|peer| peer.name)) {
            if let Some(series) = results.get(name, FRAMES) {
                println!("{name:<34} median {:>12.0}, best {:>12.0}", series.median(), series.best());
            }
        }
        if let Some(floor) = results.get(FLOOR, FLOOR_METRIC) {
            println!("{FLOOR:<34} median {:>9.1} ns", floor.median());
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let ours = results.get(OURS, FRAMES);
        let over = |peer: &Peer| Some(ours?.ratio_to(results.get(peer.name, FRAMES)?));
        let [memif, vhost, ..] = PEERS.each_ref().map(over);
        let [.., port, back_end] = PEERS.each_ref().map(|peer| results.get(peer.name, FRAMES));
        let driven = port.zip(back_end).map(|(port, back_end)| port.ratio_to(back_end));
        let near = ours.zip(results.get(FLOOR, FLOOR_METRIC)).map(|(ours, floor)| near_median(ours, floor));
        vec![
            Claim::at_least(1.0, "64 B one way: frames/s over testpmd's by vhost", vhost),
            Claim::at_least(1.5, "64 B one way: frames/s over testpmd's by vhost (goal)", vhost),
            Claim::at_least(1.0, "64 B one way: frames/s over testpmd's by memif", memif),
            Claim::at_least(1.0, "64 B: frames/s of two virtio_user ports at vhost-user ports, over at testpmd's vhost", driven),
            Claim::at_least(5e6, "64 B one way: frames/s, median of the rounds in which the CPUs were near", near),
        ]
    }

    fn skips(&self) -> &[(String, String)] {
        &self.skips
    }
}

/// Of the rounds in either state of the machine; NaN: the CPUs were near in none.
fn near_median(ours: &Series, floor: &Series) -> f64 {
    let [ours, floor] = [ours, floor].map(|series| series.values.iter().chain(&series.other_values));
    let near = ours.zip(floor).filter(|(_, floor)| **floor < steady::NEAR_NS);
    fipsee_measure::statistics::median(near.map(|(rate, _)| *rate).collect()).unwrap_or(f64::NAN)
}
