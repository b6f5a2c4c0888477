//! Ports that are devices of the host's network stack, in network namespaces.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};

use fipsee_net::frame::Mac;
use fipsee_net::{Error, Port};
use fipsee_ring::clock;
use fipsee_testkit::netns::Namespace;
use fipsee_testkit::process::{Guard, await_word};
use fipsee_testkit::random::Random;
use fipsee_testkit::stack::Stack;
use fipsee_testkit::{Daemon, Scratch, assert_says, child, eventually};
use serde_json::json;

use super::{attach, mac, next, stat};

/// Of the station behind the process port.
const STATION: [u8; 4] = [10, 9, 0, 2];
const ARP: [u8; 2] = [8, 6];
const IPV4: [u8; 2] = [8, 0];
const ICMP: u8 = 1;

/// Start a daemon in the namespace, whose network `lan` has the ports `a`, `b` and `h`, and `i` if that has keys.
fn start(space: &Namespace, h: &str, i: &str) -> Daemon {
    let port = |name, number, keys| format!("[[network.port]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:0{number}\"\n{keys}\n");
    let mut file =
        format!("[[network]]\nname = \"lan\"\nmtu = 1400\n{}{}{}", port("a", 1, ""), port("b", 4, ""), port("h", 2, h));
    if !i.is_empty() {
        file.push_str(&port("i", 3, i));
    }
    let dir = Scratch::new();
    dir.configure(&file);
    let prefix = space.prefix();
    Daemon::start_in(dir, &prefix.each_ref().map(String::as_str), &["--config", "{dir}/f.toml", "--workers", "1"])
}

/// The answer of the station to a frame: to a question for its address, and to a ping.
fn answer(own: Mac, frame: &[u8]) -> Option<Vec<u8>> {
    let mut answer = frame.to_vec();
    answer[..6].copy_from_slice(&frame[6..12]);
    answer[6..12].copy_from_slice(&own.0);
    if frame[12..14] == ARP && frame[20..22] == [0, 1] && frame[38..42] == STATION {
        answer[21] = 2;
        answer[22..28].copy_from_slice(&own.0);
        answer[28..32].copy_from_slice(&STATION);
        answer[32..42].copy_from_slice(&frame[22..32]);
        return Some(answer);
    }
    if frame[12..14] == IPV4 && frame[23] == ICMP && frame[34] == 8 && frame[30..34] == STATION {
        answer[26..30].copy_from_slice(&frame[30..34]);
        answer[30..34].copy_from_slice(&frame[26..30]);
        answer[34] = 0;
        // The type was 8 and is 0: the sum, in complement, is greater by that (RFC 1624).
        let (sum, carry) = u16::from_be_bytes([frame[36], frame[37]]).overflowing_add(0x0800);
        answer[36..38].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
        return Some(answer);
    }
    None
}

/// Answer at the port until `end`.
fn station<'a>(scope: &'a thread::Scope<'a, '_>, mut port: Port, end: &'a AtomicBool) -> ScopedJoinHandle<'a, Port> {
    scope.spawn(move || {
        let mut frame = Vec::new();
        while !end.load(Ordering::Acquire) {
            let soon = clock::ticks() + clock::ticks_per_second() / 100;
            if !port.wait(Some(soon), &mut frame).expect("the daemon is there") {
                continue;
            }
            if let Some(answer) = answer(port.mac(), &frame) {
                match port.send(&answer) {
                    Ok(()) | Err(Error::Full) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        port
    })
}

/// Ends it also after a panic.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The station answers at the port while `act` runs.
fn with_station(port: Port, act: impl FnOnce()) -> Port {
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        let station = station(scope, port, &end);
        let ends = Ends(&end);
        act();
        drop(ends);
        station.join().expect("it answers")
    })
}

#[test]
fn host_pings_a_process_whatever_the_length() {
    let Some([space]) = Namespace::several("ping over a TAP device", &["ping"]) else { return };
    let daemon = start(&space, "tap = \"fip0\"\nqueues = 2", "");
    let link = space.run("ip -details link show dev fip0");
    assert_says(&link, &["mtu 1400", "02:00:00:00:00:02", "UP", "multi_queue", "vnet_hdr"]);
    space.run("ip address add 10.9.0.1/24 dev fip0");
    let port = attach(&daemon.socket(), "a");
    let dropped = || ["h", "a"].map(|port| stat(&daemon, port)["dropped"].clone());
    let before = dropped();
    let port = with_station(port, || {
        for (bytes, count) in [(0, 5), (1, 5), (14, 5), (15, 5), (56, 200), (1372, 200)] {
            // It compares what comes back with what it has sent. Without -w it would give the last answer up after twice the longest round
            // trip so far.
            let said = space.run(&format!("ping -n -f -c {count} -w 60 -s {bytes} -p 5a3c 10.9.0.2"));
            assert!(said.contains(&format!("{count} received")) && !said.contains("wrong data"), "{said}");
        }
    });
    let (of_h, of_a) = (stat(&daemon, "h"), stat(&daemon, "a"));
    assert!(
        of_h["device"] == "fip0"
            && of_h["sent"].as_u64() >= Some(420)
            && of_a["sent"].as_u64() >= Some(420)
            && dropped() == before,
        "{of_h} {of_a}"
    );
    let refused = Port::attach(&daemon.socket(), &super::options("h"));
    assert!(
        matches!(&refused, Err(Error::Refused { text, .. }) if text.contains("is the device 'fip0' of the host")),
        "{refused:?}"
    );
    port.detach().expect("detached");
}

/// The kernel sends a flow by the queue by which the daemon has last given it a frame of that flow: both queues are used there only if the daemon
/// uses both, too.
#[test]
fn both_queues_of_a_device_carry_flows_in_both_directions() {
    let Some([space]) = Namespace::several("a TAP device with two queues", &["tc"]) else { return };
    let daemon = start(&space, "tap = \"fip0\"\nqueues = 2", "");
    let mut a = attach(&daemon.socket(), "a");
    let stack = Stack::new(&space, "fip0", (mac(2).0, mac(1).0));
    let before: [u64; 2] = stack.sent_by_queue();
    let port = std::cell::RefCell::new(&mut a);
    stack.exchange(16, |frame| port.borrow_mut().send(frame).expect("sent"), || next(&mut port.borrow_mut()));
    let now: [u64; 2] = stack.sent_by_queue();
    let by_queue = [now[0] - before[0], now[1] - before[1]];
    // Of sixteen flows at least two by each.
    assert!(by_queue.iter().all(|frames| *frames >= 16), "{by_queue:?}");
    let of_h = stat(&daemon, "h");
    assert!(of_h["received"].as_u64() >= Some(128) && of_h["sent"].as_u64() >= Some(by_queue.iter().sum()), "{of_h}");
    assert_eq!((&of_h["dropped"], &stat(&daemon, "a")["dropped"]), (&json!(0), &json!(0)));
}

/// A server that sends back what comes, for one client.
pub(crate) fn tcp_server() {
    let listener = TcpListener::bind("10.9.0.2:7").expect("the address");
    println!("listens");
    let (stream, _) = listener.accept().expect("a client");
    std::io::copy(&mut &stream, &mut &stream).expect("all of it");
}

/// Its client, which compares what it gets back, again and again until its standard input ends.
pub(crate) fn tcp_client() {
    let stream = TcpStream::connect("10.9.0.2:7").expect("the server is there");
    let end = AtomicBool::new(false);
    let mut sent = vec![0; 1 << 20];
    Random(7).fill(&mut sent);
    let mut found = vec![0; sent.len()];
    thread::scope(|scope| {
        scope.spawn(|| {
            std::io::stdin().read_to_end(&mut Vec::new()).expect("it ends");
            end.store(true, Ordering::Release);
        });
        while !end.load(Ordering::Acquire) {
            sent.rotate_left(1);
            thread::scope(|scope| {
                scope.spawn(|| (&stream).write_all(&sent).expect("all is sent"));
                (&stream).read_exact(&mut found).expect("all comes back");
            });
            assert!(found == sent, "it came back changed");
        }
    });
}

pub(crate) fn child_in(space: &Namespace, name: &str) -> Guard {
    let prefix = space.prefix();
    let mut command = child::command_through(&prefix.each_ref().map(String::as_str), name);
    Guard(command.stdin(Stdio::piped()).spawn().expect("a child"))
}

/// Two stacks, each with a device of the same daemon; the second is in another namespace.
pub(crate) fn two_stacks([first, second]: &[Namespace; 2]) -> Daemon {
    let daemon = start(first, "tap = \"fip0\"", "tap = \"fip1\"");
    first.give("fip1", second, "10.9.0.2/24");
    first.up("fip0", "10.9.0.1/24");
    daemon
}

#[test]
fn stacks_of_two_namespaces_exchange_tcp_through_the_switch() {
    let Some(spaces) = Namespace::several::<2>("TCP between two TAP devices", &[]) else { return };
    let mut daemon = two_stacks(&spaces);
    let mut server = child_in(&spaces[1], "tap_tcp_server");
    await_word(&mut server.0, "listens");
    let mut client = child_in(&spaces[0], "tap_tcp_client");
    for _ in 0..2 {
        // The second time it goes on in the new daemon.
        eventually("some is sent", || stat(&daemon, "h")["sent_bytes"].as_u64() > Some(4 << 20));
        daemon.take_over();
    }
    drop(client.0.stdin.take());
    assert!(client.0.wait().expect("a child").success(), "see above; {}", daemon.log());
}

#[test]
fn device_that_is_deleted_takes_its_port_down_and_nothing_else() {
    let Some([space]) = Namespace::several("a TAP device that is deleted", &[]) else { return };
    let mut daemon = start(&space, "tap = \"fip0\"", "tap = \"fip1\"");
    let mut a = attach(&daemon.socket(), "a");
    let before = daemon.fd_count();
    space.run("ip link del fip0");
    eventually("it is logged", || daemon.log().contains("the device is gone, and the port is down"));
    assert_says(&daemon.log(), &["port=\"lan/h\"", "device=\"fip0\""]);
    eventually("its descriptor is closed", || daemon.fd_count() < before);
    // Frames still go to the other device, and come from its stack.
    space.up("fip1", "10.9.0.1/24");
    a.send(
        &[&Mac::BROADCAST.0[..], &mac(1).0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &mac(1).0, &STATION, &[0; 6], &[10, 9, 0, 1]]
            .concat(),
    )
    .expect("sent");
    loop {
        let frame = next(&mut a);
        if frame[12..14] == ARP && frame[20..22] == [0, 2] {
            assert_eq!((&frame[..6], &frame[22..28], &frame[28..32]), (&mac(1).0[..], &mac(3).0[..], &[10, 9, 0, 1][..]));
            break;
        }
    }
    // After the end of the daemon no device of its own is left, and the next one makes them.
    daemon.kill_9();
    eventually("they go with it", || space.try_run("ip link show dev fip1").is_err());
    daemon.restart();
    for device in ["fip0", "fip1"] {
        assert_says(&space.run(&format!("ip link show dev {device}")), &["UP"]);
    }
}

#[test]
fn interface_has_no_carrier_while_its_port_is_down() {
    let Some([space]) = Namespace::several("the carrier of a TAP device", &[]) else { return };
    let mut daemon = start(&space, "tap = \"fip0\"\nqueues = 2\ndown = true", "");
    let has_carrier = || space.run("ip link show dev fip0").contains("LOWER_UP");
    let set = |daemon: &Daemon, down: bool| daemon.ask(&json!({ "method": "net.set", "port": "lan/h", "down": down }));
    // The daemon takes connections before it serves its ports.
    eventually("there is none, as it is configured", || !has_carrier());
    for _ in 0..2 {
        set(&daemon, false);
        assert!(has_carrier());
        set(&daemon, true);
        assert!(!has_carrier());
    }
    daemon.take_over();
    assert!(!has_carrier(), "in the next daemon, too");
    set(&daemon, false);
    daemon.take_over();
    assert!(has_carrier());
}

#[test]
fn device_that_was_there_is_used_and_stays() {
    let Some([space]) = Namespace::several("a TAP device that was there", &[]) else { return };
    space.run("ip tuntap add dev fip0 mode tap");
    let mut daemon = start(&space, "tap = \"fip0\"", "");
    assert_says(&space.run("ip link show dev fip0"), &["mtu 1400", "02:00:00:00:00:02", "state DOWN"]);
    daemon.signal_term();
    assert!(daemon.await_exit().success());
    space.run("ip link show dev fip0");
    space.run("ip link del fip0");
    space.run("ip tuntap add dev fip0 mode tun");
    let prefix = space.prefix();
    let text = fipsee_testkit::refused_in(&daemon.dir, &prefix.each_ref().map(String::as_str), &["--config", "{dir}/f.toml"]);
    assert_says(&text, &["port 'lan/h'", "device 'fip0'", "it is no TAP device of one queue"]);
}

/// With programs that know nothing of us; what the one stack leaves to others is carried to the other, in long frames.
#[test]
fn tcp_of_iperf3_is_carried_in_long_frames_as_tcpdump_sees_them() {
    let Some(spaces) = Namespace::several::<2>("iperf3 between two TAP devices", &["iperf3", "tcpdump"]) else { return };
    let _daemon = two_stacks(&spaces);
    let [first, second] = &spaces;
    let mut server = second.command("iperf3");
    let mut server = Guard(server.args(["-s", "-1", "--forceflush"]).stdout(Stdio::piped()).spawn().expect("iperf3"));
    await_word(&mut server.0, "listening");
    let mut seen = second.command("sh");
    seen.args(["-c", "exec tcpdump -i fip1 -nn -c 300 -Q in tcp 2>&1"]).stdout(Stdio::piped());
    let mut seen = seen.spawn().expect("tcpdump");
    await_word(&mut seen, "listening on");
    let result = first.run("iperf3 -c 10.9.0.2 -n 128M --json");
    let result: serde_json::Value = serde_json::from_str(&result).expect("JSON");
    // What the receiver had when the sender had sent all.
    assert!(result["end"]["sum_received"]["bytes"].as_u64() > Some(64 << 20), "{result}");
    let seen = seen.wait_with_output().expect("tcpdump");
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    let length = |line: &str| line.rsplit_once("length ")?.1.split(&[' ', ':'][..]).next()?.parse::<u32>().ok();
    assert!(seen.lines().filter_map(length).any(|bytes| bytes > 4000), "{seen}");
}
