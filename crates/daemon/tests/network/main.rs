//! Networks through a real daemon: frames between clients, the ends of clients and daemons, clients that break the rules, and the configuration.

mod administered;
mod c_client;
mod configured;
mod endings;
mod exchange;
mod faults;
mod hostile;
mod limits;
mod load;
mod machines;
mod machines_at_run_time;
mod malformed;
mod offloads;
mod packed;
mod passed;
mod placed;
mod port;
mod shares;
mod ssh;
mod tap;
mod tap_long;
mod testpmd;

use std::path::Path;

use fipsee_net::frame::Mac;
use fipsee_net::{AttachOptions, Port};
use fipsee_ring::clock;
use fipsee_testkit::random::Random;
use fipsee_testkit::{Daemon, Scratch, TIMEOUT};
use serde_json::{Value, json};

fipsee_testkit::children! {
    "port_that_floods_until_it_is_killed" => endings::port_that_floods_until_it_is_killed,
    "client_of_another_user" => configured::client_of_another_user,
    "tap_tcp_server" => tap::tcp_server,
    "tap_tcp_client" => tap::tcp_client,
}

/// A network `lan` with the ports `a`, `b` and `c`, whose keys are these, and no disk.
fn lan(mtu: u16, keys: [&str; 3]) -> Daemon {
    lan_at(1, mtu, keys)
}

/// Likewise, with so many workers.
fn lan_at(workers: usize, mtu: u16, keys: [&str; 3]) -> Daemon {
    let mut file = format!("[[network]]\nname = \"lan\"\nmtu = {mtu}\n");
    for (number, (name, keys)) in (1..).zip(["a", "b", "c"].into_iter().zip(keys)) {
        file.push_str(&format!("[[network.port]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:0{number}\"\n{keys}\n"));
    }
    start(&file, workers)
}

fn with_file(file: &str) -> Daemon {
    start(file, 1)
}

fn start(file: &str, workers: usize) -> Daemon {
    let dir = Scratch::new();
    dir.configure(file);
    Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml", "--workers", &workers.to_string()])
}

fn options(port: &str) -> AttachOptions {
    AttachOptions { depth: 64, ..AttachOptions::new(&format!("lan/{port}")) }
}

fn attach(socket: &Path, port: &str) -> Port {
    Port::attach(socket, &options(port)).unwrap_or_else(|error| panic!("port {port}: {error}"))
}

fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

/// A frame of so many bytes, whose contents `seed` determines.
fn frame(source: Mac, destination: Mac, length: usize, seed: u64) -> Vec<u8> {
    let mut frame = [&destination.0[..], &source.0, &[0x88, 0xb5]].concat();
    frame.resize(length.max(14), 0);
    Random(seed).fill(&mut frame[14..]);
    frame
}

/// The next frame that comes.
#[track_caller]
fn next(port: &mut Port) -> Vec<u8> {
    let (mut frame, deadline) = (Vec::new(), clock::ticks() + clock::duration_to_ticks(TIMEOUT));
    assert!(port.wait(Some(deadline), &mut frame).expect("the daemon is there"), "no frame within {TIMEOUT:?}");
    frame
}

/// All that was sent was given back.
#[track_caller]
fn all_sent(port: &mut Port) {
    let deadline = clock::ticks() + clock::duration_to_ticks(TIMEOUT);
    assert!(port.wait_sent(Some(deadline)).expect("the daemon is there"), "not given back within {TIMEOUT:?}");
}

/// No frame is there. All that was sent before has been given back, so all of it has been delivered.
#[track_caller]
fn assert_nothing(port: &mut Port) {
    let mut frame = Vec::new();
    assert!(!port.receive(&mut frame).expect("the daemon is there"), "a frame of {} bytes", frame.len());
}

/// What `stat` says of a port.
fn stat(daemon: &Daemon, port: &str) -> Value {
    let stat = daemon.admin(&json!({ "method": "stat" }));
    let ports = stat["networks"][0]["ports"].as_array().cloned().unwrap_or_default();
    ports.into_iter().find(|found| found["port"] == port).unwrap_or_else(|| panic!("no port {port} in {stat}"))
}
