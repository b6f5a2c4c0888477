//! The long form of what `tap` does for a moment: `cargo xtask endure net --minutes N`.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use fipsee_net::{Error, Port};
use fipsee_testkit::Daemon;
use fipsee_testkit::daemon::works_for;
use fipsee_testkit::netns::Namespace;
use fipsee_testkit::process::{Guard, await_word, die_with_parent};
use serde_json::Value;

use super::ssh::{self, Server, Streamed};
use super::tap::{Ends, child_in, two_stacks};
use super::{attach, frame, mac, stat};

const DEFAULT_MINUTES: u32 = 10;
/// In seconds.
const LONGEST_GAP: f64 = 1.0;
/// Each gap of [`LONGEST_GAP`] has a whole one.
const INTERVAL: f64 = LONGEST_GAP / 2.0;
/// In frames per second, of one of the ports at full load: some percent of what it sends on the slowest machine so far.
const LEAST_LOAD: u64 = 10_000;

/// Keep the network's worker busy by frames from each port to the other, until the daemon ends.
fn flood(mut ports: [Port; 2]) {
    let frames = [frame(mac(1), mac(4), 1400, 1), frame(mac(4), mac(1), 1400, 1)];
    let mut found = Vec::new();
    let mut pass = || -> Result<(), Error> {
        for (port, frame) in ports.iter_mut().zip(&frames) {
            while port.receive(&mut found)? {}
            port.reap()?;
            loop {
                match port.stage(frame) {
                    Ok(()) => {}
                    Err(Error::Full) => break,
                    Err(error) => return Err(error),
                }
            }
            port.submit();
        }
        Ok(())
    };
    while pass().is_ok() {
        thread::yield_now();
    }
}

/// While it lives, the kernel divides a CPU between threads, not between sessions first. sshd makes a session of its own, and on Linux 6.18 such a
/// session is at times ready for seconds and gets no CPU.
struct WithoutAutogroups(Child);

impl WithoutAutogroups {
    fn new() -> Option<Self> {
        const SETTING: &str = "/proc/sys/kernel/sched_autogroup_enabled";
        if !Path::new(SETTING).exists() {
            return None;
        }
        // A process of its own has the setting as it was back also after this one was killed.
        let script = "before=$(cat $1) && echo 0 >$1 && echo set && cat && echo $before >$1";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", SETTING]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut restores = command.spawn().expect("sh");
        await_word(&mut restores, "set");
        Some(Self(restores))
    }
}

impl Drop for WithoutAutogroups {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The longest time between two answers, in seconds, of the output of `ping -D`.
fn longest_gap(said: &str) -> f64 {
    let times: Vec<f64> = said.lines().filter_map(|line| line.strip_prefix('[')?.split_once(']')?.0.parse().ok()).collect();
    times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
}

/// Twenty pings per second, whose answers go into a file: with a pipe that is full it would wait, and be taken for a gap.
fn ping(from: &Namespace, seconds: u32, answers: &Path) -> Child {
    let mut ping = from.command("ping");
    let output = std::fs::File::options().append(true).open(answers).expect("a file");
    ping.args(["-n", "-D", "-i", "0.05", "-c", &(seconds * 20).to_string(), "-p", "5a3c", "10.9.0.2"]).stdout(output);
    die_with_parent(&mut ping).spawn().expect("ping")
}

struct Endured {
    iperf3: Value,
    pings: String,
    /// The stream of the child that compares.
    is_unchanged: bool,
    ssh: Streamed,
}

/// All of it at once, from the first to the second.
fn endure([first, second]: &[Namespace; 2], daemon: &Daemon, seconds: u32) -> Endured {
    let mut server = second.command("iperf3");
    let mut server = Guard(server.args(["-s", "-1", "--forceflush"]).stdout(Stdio::piped()).spawn().expect("iperf3"));
    await_word(&mut server.0, "listening");
    let mut compared = child_in(second, "tap_tcp_server");
    await_word(&mut compared.0, "listens");
    let mut client = child_in(first, "tap_tcp_client");
    let shell = Server::start(second, "10.9.0.2");
    let answers = daemon.dir.file("answers", "");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ends = Ends(&over);
        let stream = scope.spawn(|| shell.exchange(first, &over));
        let mut ping = ping(first, seconds, &answers);
        let iperf3 = first.run(&format!("iperf3 -c 10.9.0.2 -t {seconds} -i {INTERVAL} --json"));
        assert!(ping.wait().expect("a child").success(), "ping got no answers");
        drop(client.0.stdin.take());
        let is_unchanged = client.0.wait().expect("a child").success();
        drop(ends);
        let ssh = stream.join().expect("see above");
        let pings = std::fs::read_to_string(&answers).expect("a file");
        Endured { iperf3: serde_json::from_str(&iperf3).expect("JSON"), pings, is_unchanged, ssh }
    })
}

#[test]
#[ignore = "minutes; cargo xtask endure net"]
fn stacks_reach_each_other_for_minutes_while_other_ports_are_at_full_load() {
    let minutes = std::env::var("FIPSEE_ENDURE_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_MINUTES);
    let programs = ["iperf3", "ping"].into_iter().chain(ssh::PROGRAMS).collect::<Vec<_>>();
    let Some(spaces) = Namespace::several::<2>("minutes over TAP devices", &programs) else { return };
    let daemon = two_stacks(&spaces);
    let _threads = WithoutAutogroups::new();
    works_for(Duration::from_secs(minutes.into()) * 60);
    let ports = ["a", "b"].map(|name| attach(&daemon.socket(), name));
    let load = thread::spawn(|| flood(ports));
    let Endured { iperf3, pings, is_unchanged, ssh } = endure(&spaces, &daemon, minutes * 60);
    let intervals = iperf3["intervals"].as_array().cloned().unwrap_or_default();
    let silent = intervals.iter().filter(|interval| interval["sum"]["bytes"] == 0).count();
    let (gap, sent) = (longest_gap(&pings), stat(&daemon, "a")["sent"].as_u64().expect("a count"));
    let ssh_gap = ssh.longest.as_secs_f64();
    let summary = pings.lines().find(|line| line.contains("packets transmitted")).unwrap_or_default();
    println!(
        "{minutes} minutes: iperf3 {} bits/s, {silent} of {} intervals without a byte; ping: {summary}, longest gap {gap:.3} s; \
         ssh: {} blocks of 16 KiB there and back, longest gap {ssh_gap:.3} s; port a sent {sent} frames; log: {}",
        iperf3["end"]["sum_received"]["bits_per_second"],
        intervals.len(),
        ssh.blocks,
        daemon.log()
    );
    assert!(
        !load.is_finished() && sent > u64::from(minutes) * 60 * LEAST_LOAD,
        "the other ports were not at full load: {sent} frames"
    );
    assert!(is_unchanged && !pings.contains("wrong data"), "what came back was changed");
    // tidy: allow time, that is what is looked for
    assert!(silent == 0 && gap < LONGEST_GAP && ssh_gap < LONGEST_GAP, "a gap of a second or more");
}
