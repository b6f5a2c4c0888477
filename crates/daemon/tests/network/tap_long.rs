//! The long form of what `tap` does for a moment: `cargo xtask endure net --minutes N`.

use std::process::Stdio;
use std::thread;

use fipsee_net::{Error, Port};
use fipsee_testkit::netns::Namespace;
use fipsee_testkit::process::{Guard, await_word};

use super::tap::{child_in, two_stacks};
use super::{attach, frame, mac, stat};

/// Keep the network's worker busy, until the daemon ends.
fn flood(mut port: Port, from: u8, to: u8) {
    let long = frame(mac(from), mac(to), 1400, 1);
    loop {
        match port.stage(&long) {
            Ok(()) => {}
            Err(Error::Full) => {
                port.submit();
                match port.reap() {
                    Ok(_) => thread::yield_now(),
                    Err(_) => return,
                }
            }
            Err(_) => return,
        }
    }
}

/// The longest time between two answers, in seconds, of the output of `ping -D`.
fn longest_gap(said: &str) -> f64 {
    let times: Vec<f64> = said.lines().filter_map(|line| line.strip_prefix('[')?.split_once(']')?.0.parse().ok()).collect();
    times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
}

#[test]
#[ignore = "minutes; cargo xtask endure net"]
fn stacks_reach_each_other_for_minutes_while_other_ports_are_at_full_load() {
    let minutes: u32 = std::env::var("FIPSEE_ENDURE_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let seconds = minutes * 60;
    let Some(spaces) = Namespace::several::<2>("minutes over TAP devices", &["iperf3", "ping"]) else { return };
    let daemon = two_stacks(&spaces);
    // It floods a port that takes nothing, and one that is not there.
    for (name, from, to) in [("a", 1, 4), ("b", 4, 1)] {
        let port = attach(&daemon.socket(), name);
        thread::spawn(move || flood(port, from, to));
    }
    let [first, second] = &spaces;
    let mut server = second.command("iperf3");
    let mut server = Guard(server.args(["-s", "-1", "--forceflush"]).stdout(Stdio::piped()).spawn().expect("iperf3"));
    await_word(&mut server.0, "listening");
    let mut compared = child_in(second, "tap_tcp_server");
    await_word(&mut compared.0, "listens");
    let mut client = child_in(first, "tap_tcp_client");
    let pings = (seconds * 20).to_string();
    let mut ping = first.command("ping");
    // Into a file: with a pipe that is full it would wait, and be taken for a gap.
    let answers = daemon.dir.file("answers", "");
    let output = std::fs::File::options().append(true).open(&answers).expect("a file");
    ping.args(["-n", "-D", "-i", "0.05", "-c", &pings, "-p", "5a3c", "10.9.0.2"]).stdout(output);
    let mut ping = ping.spawn().expect("ping");
    let result = first.run(&format!("iperf3 -c 10.9.0.2 -t {seconds} -i 1 --json"));
    assert!(ping.wait().expect("a child").success(), "ping got no answers");
    let said = std::fs::read_to_string(&answers).expect("a file");
    drop(client.0.stdin.take());
    let is_unchanged = client.0.wait().expect("a child").success();
    let result: serde_json::Value = serde_json::from_str(&result).expect("JSON");
    let intervals = result["intervals"].as_array().cloned().unwrap_or_default();
    let silent = intervals.iter().filter(|interval| interval["sum"]["bytes"] == 0).count();
    let (gap, sent) = (longest_gap(&said), stat(&daemon, "a")["sent"].as_u64());
    let summary = said.lines().find(|line| line.contains("packets transmitted")).unwrap_or_default();
    println!(
        "{minutes} minutes: iperf3 {} bits/s, {silent} of {} seconds without a byte; ping: {summary}, longest gap {gap:.3} s; \
         port a sent {sent:?} frames; log: {}",
        result["end"]["sum_received"]["bits_per_second"],
        intervals.len(),
        daemon.log()
    );
    assert!(is_unchanged && !said.contains("wrong data"), "what came back was changed");
    assert!(silent == 0 && gap < 1.0, "a gap of a second or more"); // tidy: allow time, that is what is looked for
}
