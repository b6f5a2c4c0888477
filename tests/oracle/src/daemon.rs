//! The daemon under test: this program itself, or another binary.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use fipsee_daemon::config::Arguments;
use fipsee_testkit::daemon::Launch;
use fipsee_testkit::{Daemon, Scratch};
use serde_json::{Value, json};

use crate::interrupt;

/// What should happen soon has failed after so long.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Be a daemon with that command line, for the process that started this one.
pub fn serve(arguments: Vec<OsString>) -> Result<(), String> {
    die_with_parent();
    let all = std::iter::once(OsString::from("fipseed")).chain(arguments);
    fipsee_daemon::start(Arguments::parse_from(all))
}

/// A campaign that is itself killed leaves nothing behind.
pub fn die_with_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

/// The command line of a program whose hidden command `daemon` is one.
pub fn own(program: &Path) -> Vec<String> {
    vec![program.to_string_lossy().into_owned(), "daemon".to_owned()]
}

/// Serve `spec` as `d`, with sockets and log in `folder`.
pub fn start(program: Vec<String>, folder: &Path, spec: &str) -> Result<Daemon, String> {
    let arguments = ["--disk", &format!("d={spec}"), "--vhost-user", "d={dir}/v", "--workers", "1..2"];
    let arguments = arguments.map(str::to_owned).to_vec();
    // A SIGINT from the terminal is for us, and we end it.
    let launch = Launch { program, arguments, own_group: true, ends_with_us: false };
    let mut daemon = Daemon::begin(Scratch::existing(folder), launch)?;
    daemon.await_ready(&mut interrupt::check)?;
    Ok(daemon)
}

/// Where it listens for a hypervisor.
pub fn vm_socket(daemon: &Daemon) -> PathBuf {
    daemon.dir.path("v")
}

/// Ask the admin socket for a new size, a smaller one, too.
pub fn resize(daemon: &Daemon, sector_count: u64) -> Result<(), String> {
    let size_bytes = sector_count * 512;
    ask(daemon, &json!({ "method": "disk.resize", "disk": "d", "size_bytes": size_bytes, "shrink": true, "force": true }))
}

/// Have the disk's queues go to the second worker, or back, and wait until all are there and at least one is.
pub fn move_queues(daemon: &Daemon, to_second: bool) -> Result<(), String> {
    ask(daemon, &json!({ "method": "disk.set", "disk": "d", "dedicated": to_second }))?;
    let (has, has_not) = if to_second { (1, 0) } else { (0, 1) };
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let answer = daemon.try_admin(&json!({ "method": "workers" })).map_err(|error| format!("the admin socket: {error}"))?;
        let queues = |worker: usize| answer["workers"][worker]["queues"].as_u64();
        if queues(has) > Some(0) && queues(has_not) == Some(0) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("queues do not move within {TIMEOUT:?}: {answer}"));
        }
        // tidy: allow sleep, nothing notifies when a queue has moved
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ask(daemon: &Daemon, request: &Value) -> Result<(), String> {
    let answer = daemon.try_admin(request).map_err(|error| format!("the admin socket: {error}"))?;
    answer.get("error").and_then(Value::as_str).map_or(Ok(()), |refusal| Err(refusal.to_owned()))
}
