//! Ten thousand connections that say nothing.

use fipsee_ring::seqpacket::Seqpacket;
use fipsee_testkit::raw::connect;
use fipsee_testkit::{CorrectClient, Daemon, eventually, skip};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CROWD: usize = 10_000;

#[test]
fn ten_thousand_silent_connections_hold_no_client_up() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = (CROWD + 1000) as u64;
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum.map(|most| most.max(wanted)) };
    if setrlimit(Resource::Nofile, raised).is_err() {
        return skip("ten thousand connections", "this process may not open so many files: raise ulimit -n");
    }
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--max-clients", "300"]);
    let mut correct_client = CorrectClient::new(&daemon, "a");
    let before = daemon.fd_count();
    let mut silent: Vec<Seqpacket> = Vec::with_capacity(CROWD);
    for count in 0..CROWD {
        silent.push(connect(&daemon));
        if count % 500 == 0 {
            correct_client.check();
        }
    }
    // Those beyond its limit are refused at once, those within it have five seconds.
    eventually("the daemon has let go of all of them", || {
        correct_client.check();
        silent.iter().all(Seqpacket::is_hung_up)
    });
    drop(silent);
    eventually("their descriptors are closed", || daemon.fd_count() == before);
    let lines = daemon.log().lines().count();
    assert!(lines < 2_500, "{lines} lines in the log: 50 a second are allowed");
    drop(CorrectClient::new(&daemon, "a"));
}
