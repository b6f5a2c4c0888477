//! Ways of the kernel: `bench/c/net_peers.c` and `net_ways.c`, compiled when they are needed.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use fipsee_measure::cpus::Cpus;
use fipsee_testkit::Scratch;
use fipsee_testkit::netns::Namespace;
use fipsee_testkit::process::{Guard, die_with_parent};

use super::exchange::{Exchange, Measured};
use super::paths::Way;
use crate::server::find_program;

const SOURCE: &str = "bench/c/net_peers.c";
const WAYS: &str = "bench/c/net_ways.c";

/// The program, in a folder that goes with it.
pub(super) struct Program {
    path: PathBuf,
    _folder: Scratch,
}

impl Program {
    pub(super) fn build() -> Result<Self, String> {
        let folder = Scratch::new();
        let path = folder.path("net-peers");
        let mut compile = Command::new("cc");
        compile.args(["-std=gnu11", "-O2", "-pthread", SOURCE, WAYS, "-o"]).arg(&path);
        let output = compile.output().map_err(|error| format!("cannot run cc: {error}; install gcc"))?;
        if !output.status.success() {
            return Err(format!("cannot compile {SOURCE}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(Self { path, _folder: folder })
    }

    /// A way of this name, whose ends have `threads` threads.
    pub(super) fn open(&self, way: &'static str, threads: usize) -> Result<Box<dyn Way>, String> {
        find_program("ip")?;
        Ok(Box::new(Kernel::start(Command::new(&self.path), way, threads)?))
    }

    /// Two devices of a network namespace, `fa` and `fb`, one thread for both.
    pub(super) fn open_devices(&self, space: &Namespace) -> Result<Kernel, String> {
        Kernel::start(space.command(&self.path.to_string_lossy()), "devices", 1)
    }
}

/// A running program. It waits for orders while others are measured, and ends with this.
pub(super) struct Kernel {
    child: Guard,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    threads: usize,
}

impl Kernel {
    fn start(mut command: Command, way: &str, threads: usize) -> Result<Self, String> {
        command.arg(way).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Guard(die_with_parent(&mut command).spawn().map_err(|error| format!("cannot run {SOURCE}: {error}"))?);
        let ends = child.0.stdin.take().zip(child.0.stdout.take());
        let (orders, answers) = ends.map(|(orders, answers)| (orders, BufReader::new(answers))).ok_or("it has no pipes")?;
        let mut kernel = Self { child, orders, answers, threads };
        match kernel.answer()?.as_str() {
            "ready" => Ok(kernel),
            other => Err(format!("{SOURCE} printed '{other}' instead of 'ready'")),
        }
    }

    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(1..) => Ok(line.trim().to_owned()),
            _ => {
                let mut text = String::new();
                let _ = self.child.0.stderr.take().map(|errors| BufReader::new(errors).read_line(&mut text));
                Err(text.trim().to_owned())
            }
        }
    }
}

impl Way for Kernel {
    fn takes(&self, exchange: Exchange) -> bool {
        // Two threads do not know when the other one has something.
        self.threads == 1 || exchange != Exchange::OneWay
    }

    fn measure(&mut self, exchange: Exchange, bytes: usize, seconds: f64, cpus: Cpus) -> Result<Measured, String> {
        let (word, threads, ms) = (exchange.word(), self.threads, (seconds * 1e3).ceil());
        let order = format!("{word} {bytes} {ms} {threads} {} {}\n", cpus.client, cpus.server);
        let sent = self.orders.write_all(order.as_bytes()).and_then(|()| self.orders.flush());
        sent.map_err(|error| format!("{SOURCE} takes no order: {error}"))?;
        let line = self.answer()?;
        let numbers: Vec<f64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [rate] if exchange == Exchange::Rate => Ok(Measured::Rate(rate)),
            [p50_ns, best_ns] if exchange != Exchange::Rate => Ok(Measured::Times { p50_ns, best_ns }),
            _ => Err(format!("{SOURCE} printed '{line}'")),
        }
    }
}
