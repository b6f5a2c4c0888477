//! The configuration of networks: what may be attached to, mistakes, and what a reload does.

use fipsee_net::wire::{MAX_PAIRS, PortInfo};
use fipsee_net::{Error, Port, list};
use fipsee_ring::control::RefusalCode;
use fipsee_testkit::{Daemon, Scratch, child};
use serde_json::json;

use super::{all_sent, attach, frame, lan, mac, next, options, stat, with_file};

/// checks: R-10.2-2
#[test]
fn ports_are_listed_with_what_clients_must_know() {
    let daemon = with_file(
        "[[network]]\nname = \"z\"\nmtu = 68\n[[network.port]]\nname = \"p\"\n[[network]]\nname = \"lan\"\n\
         [[network.port]]\nname = \"b\"\nmac = \"02:00:00:00:00:02\"\n[[network.port]]\nname = \"a\"\n",
    );
    let _b = attach(&daemon.socket(), "b");
    let listed = list(&daemon.socket()).expect("a list");
    let shown: Vec<_> = listed.iter().map(|port| (port.name.as_str(), port.mtu, port.in_use)).collect();
    assert_eq!(shown, [("lan/a", 1500, false), ("lan/b", 1500, true), ("z/p", 68, false)]);
    assert_eq!(listed[1].mac, mac(2));
    assert!(listed[0].mac != listed[2].mac && !listed[0].mac.is_group() && listed[0].mac.0[0] == 2, "{listed:?}");
    // Seven more than a page has.
    let ports: String = (0..13).map(|port| format!("[[network.port]]\nname = \"p{port:02}\"\n")).collect();
    let daemon = with_file(&format!("[[network]]\nname = \"lan\"\n{ports}"));
    let names: Vec<String> = list(&daemon.socket()).expect("a list").into_iter().map(|port| port.name).collect();
    assert_eq!(names, (0..13).map(|port| format!("lan/p{port:02}")).collect::<Vec<_>>());
}

/// As another user.
pub(crate) fn client_of_another_user() {
    rustix::thread::set_thread_res_gid(
        rustix::fs::Gid::from_raw(4321),
        rustix::fs::Gid::from_raw(4321),
        rustix::fs::Gid::from_raw(4321),
    )
    .and_then(|()| {
        let uid = rustix::fs::Uid::from_raw(4321);
        rustix::thread::set_thread_res_uid(uid, uid, uid)
    })
    .expect("root may become another user");
    let socket = child::socket();
    let names: Vec<String> = list(&socket).expect("a list").into_iter().map(|port| port.name).collect();
    assert_eq!(names, ["lan/b"]);
    for port in ["a", "nothing"] {
        let refused = Port::attach(&socket, &options(port));
        assert!(
            matches!(&refused, Err(Error::Refused { code: RefusalCode::UnknownName, text }) if text.contains("user 4321")),
            "{refused:?}"
        );
    }
    attach(&socket, "b").detach().expect("detached");
}

/// checks: R-10.1-2, R-10.2-2
#[test]
fn port_is_for_the_users_that_it_names() {
    if !rustix::process::geteuid().is_root() {
        let line = "fipsee-skip: a port of another user: only root can become one\n";
        return std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).expect("standard error is open");
    }
    let daemon = lan(1500, ["allow_uids = [4322]", "allow_uids = [4321]", ""]);
    std::fs::set_permissions(daemon.dir.path("."), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our folder");
    let mut child = child::command_at("client_of_another_user", &daemon.socket());
    assert!(child.status().expect("a process").success(), "see above; {}", daemon.log());
    assert!(daemon.log().contains("does not allow user 4321"), "the log has the reason: {}", daemon.log());
}

#[test]
fn mistakes_are_named_with_their_place() {
    let port = "[[network.port]]\nname = \"a\"\n";
    for (file, line, text) in [
        ("[network.lan]\n".to_owned(), 1, "write [[network]], in two pairs of brackets"),
        ("[[network]]\nmtu = 1500\n".to_owned(), 1, "the network needs a name"),
        ("[[network]]\nname = \"a/b\"\n".to_owned(), 2, "this name is not possible"),
        ("[[network]]\nname = \"lan\"\n".to_owned(), 1, "it has 0 ports"),
        (format!("[[network]]\nname = \"lan\"\nmtu = 67\n{port}"), 3, "write an integer from 68 to 9000"),
        (format!("[[network]]\nname = \"lan\"\nmtuu = 67\n{port}"), 3, "did you mean 'mtu'?"),
        ("[[network]]\nname = \"lan\"\n[network.port]\nname = \"a\"\n".to_owned(), 3, "write [[network.port]], in two"),
        (format!("[[network]]\nname = \"lan\"\n{port}vlan = 4095\n"), 5, "write an integer from 1 to 4094"),
        (format!("[[network]]\nname = \"lan\"\n{port}trunk = 10\n"), 5, "write brackets around it: [10, 20]"),
        (format!("[[network]]\nname = \"lan\"\n{port}trunk = []\n"), 5, "the port would be in no VLAN"),
        (format!("[[network]]\nname = \"lan\"\n{port}mac = \"1:2\"\n"), 5, "write six bytes"),
        (format!("[[network]]\nname = \"lan\"\n{port}mac = \"01:00:00:00:00:01\"\n"), 5, "no address of one station"),
        (format!("[[network]]\nname = \"lan\"\n{port}spoof = true\n"), 5, "unknown key 'spoof'"),
        (format!("[[network]]\nname = \"lan\"\n{port}tap = \"a/b\"\n"), 5, "cannot be the name of a device"),
        (format!("[[network]]\nname = \"lan\"\n{port}queues = 2\n"), 5, "only a device has queues"),
        (format!("[[network]]\nname = \"lan\"\n{port}{port}"), 6, "port 'a' is defined twice"),
        (
            format!(
                "[[network]]\nname = \"lan\"\n{port}mac = \"02:00:00:00:00:01\"\n[[network.port]]\nname = \"b\"\nmac = \"02:00:00:00:00:01\"\n"
            ),
            8,
            "have the MAC address 02:00:00:00:00:01",
        ),
        (format!("[[network]]\nname = \"lan\"\n{port}[[network]]\nname = \"lan\"\n{port}"), 6, "network 'lan' is defined twice"),
    ] {
        let dir = Scratch::new();
        dir.configure(&file);
        let check = std::process::Command::new(fipsee_testkit::daemon::program())
            .args(["--check-config", "--config"])
            .arg(dir.path("f.toml"))
            .output();
        let check = check.expect("the daemon runs");
        let said = String::from_utf8_lossy(&check.stderr).into_owned();
        assert!(!check.status.success() && said.contains(&format!("line {line},")) && said.contains(text), "{file}: {said}");
    }
}

#[test]
fn reload_leaves_what_clients_know_as_it_is_and_says_so_and_networks_are_dumped() {
    let daemon = lan(
        1500,
        ["vlan = 10", "trunk = [10, 20]\nvlan = 5\nisolated = true", "any_source = true\nmirror = true\nallow_gids = [7]"],
    );
    let dumped = daemon.ask(&json!({ "method": "config.dump" }));
    let dumped = dumped["toml"].as_str().expect("a text").to_owned();
    for key in ["mac = \"02:00:00:00:00:01\"\nvlan = 10\n", "trunk = [10, 20]\nvlan = 5\nisolated = true", "allow_gids = [7]"] {
        assert!(dumped.contains(key), "{key}: {dumped}");
    }
    let outcome = daemon.ask(&json!({ "method": "reload" }));
    assert_eq!(outcome["needs_restart"], json!([]), "{outcome}");
    daemon.dir.configure("[[network]]\nname = \"lan\"\nmtu = 9000\n[[network.port]]\nname = \"a\"\n");
    let outcome = daemon.ask(&json!({ "method": "reload" }));
    assert_eq!(outcome["needs_restart"], json!(["network 'lan'"]), "{outcome}");
    assert_eq!(attach(&daemon.socket(), "a").info(), PortInfo::new(mac(1), 1500, 10, 1));
    let most = fipsee_net::AttachOptions { pairs: MAX_PAIRS + 1, ..options("c") };
    assert_eq!(Port::attach_pairs(&daemon.socket(), &most).expect("attached").len(), usize::from(MAX_PAIRS));
}

const HEAD: &str = "[[network]]\nname = \"lan\"\n";

fn port(name: &str, number: u8, keys: &str) -> String {
    format!("[[network.port]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:0{number}\"\n{keys}\n")
}

#[test]
fn reload_adds_and_removes_ports_and_refuses_to_remove_one_that_is_in_use() {
    let daemon = with_file(&format!("{HEAD}{}{}", port("a", 1, ""), port("b", 2, "")));
    let mut a = attach(&daemon.socket(), "a");
    let configure = |ports: &[String]| daemon.dir.configure(&format!("{HEAD}{}", ports.concat()));
    let names = || list(&daemon.socket()).expect("a list").into_iter().map(|port| port.name).collect::<Vec<_>>();
    configure(&[port("b", 2, ""), port("c", 3, "")]);
    let refused = daemon.admin(&json!({ "method": "reload" }));
    let text = refused["error"].as_str().expect("refused");
    assert!(text.contains("port 'lan/a' is in use") && text.contains("or keep the port"), "{text}");
    assert_eq!(names(), ["lan/a", "lan/b"], "nothing has changed");
    // The number of b is free for c; what is configured of a cannot change.
    configure(&[port("a", 1, "isolated = true"), port("c", 3, "")]);
    let outcome = daemon.ask(&json!({ "method": "reload" }));
    assert_eq!(
        outcome,
        json!({ "added": ["port 'lan/c'"], "removed": ["port 'lan/b'"], "changed": [], "needs_restart": ["port 'lan/a'"] })
    );
    assert_eq!(names(), ["lan/a", "lan/c"]);
    assert!(Port::attach(&daemon.socket(), &options("b")).is_err());
    let mut c = attach(&daemon.socket(), "c");
    for seed in 0..50 {
        let sent = frame(mac(1), mac(3), 700, seed);
        a.send(&sent).expect("sent");
        assert_eq!(next(&mut c), sent);
    }
    a.send(&frame(mac(1), mac(2), 60, 1)).expect("sent");
    all_sent(&mut a);
    assert_eq!((stat(&daemon, "c")["received"].as_u64(), a.refused().0), (Some(50), 0), "the address of b leads nowhere");
}

#[test]
fn port_that_was_removed_by_a_reload_comes_back_as_it_is_configured() {
    let daemon = with_file(&format!("{HEAD}{}{}", port("a", 1, ""), port("b", 2, "")));
    daemon.ask(&json!({ "method": "net.set", "port": "lan/b", "down": true }));
    let reload = |ports: &[String]| {
        daemon.dir.configure(&format!("{HEAD}{}", ports.concat()));
        daemon.ask(&json!({ "method": "reload" }))
    };
    reload(&[port("a", 1, ""), port("b", 2, "")]);
    assert_eq!(stat(&daemon, "b")["link"], "down", "what was set stays");
    reload(&[port("a", 1, "")]);
    reload(&[port("a", 1, ""), port("b", 2, "")]);
    assert_eq!(stat(&daemon, "b")["link"], "up");
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"));
    b.send(&frame(mac(2), mac(1), 100, 1)).expect("sent");
    assert_eq!(next(&mut a), frame(mac(2), mac(1), 100, 1));
    let dumped = daemon.ask(&json!({ "method": "config.dump" }));
    assert!(!dumped["toml"].as_str().is_some_and(|toml| toml.contains("down = true")), "{dumped}");
}

#[test]
fn ports_come_and_go_by_the_admin_socket_and_outlast_reload_and_takeover() {
    let mut daemon = with_file(&format!("{HEAD}{}{}", port("a", 1, ""), port("b", 2, "")));
    let mut a = attach(&daemon.socket(), "a");
    let add = |daemon: &Daemon, name: &str, mac: &str| {
        daemon.admin(&json!({ "method": "net.attach", "network": "lan", "port": name, "mac": mac, "allow_uids": [7] }))
    };
    assert_eq!(add(&daemon, "c", "02:00:00:00:00:03")["port"], "lan/c");
    daemon.ask(&json!({ "method": "net.detach", "port": "lan/b" }));
    for (answer, text) in [
        (add(&daemon, "c", "02:00:00:00:00:05"), "port 'lan/c' is there already"),
        (add(&daemon, "d", "02:00:00:00:00:03"), "port 'lan/c' has the MAC address 02:00:00:00:00:03"),
        (add(&daemon, "d", "03:00:00:00:00:03"), "is no address of one station"),
        (add(&daemon, "d/e", "02:00:00:00:00:04"), "this name is not possible"),
        (
            daemon.admin(&json!({ "method": "net.attach", "network": "wan", "port": "c" })),
            "no network 'wan' here; there are: lan",
        ),
        (
            daemon.admin(&json!({ "method": "net.attach", "network": "lan", "port": "d", "device_queues": 1 })),
            "0 descriptors came",
        ),
        (daemon.admin(&json!({ "method": "net.detach", "port": "lan/b" })), "no port 'lan/b' here"),
        (daemon.admin(&json!({ "method": "net.detach", "port": "lan/a" })), "port 'lan/a' is in use"),
    ] {
        let said = answer["error"].as_str().unwrap_or_else(|| panic!("{text}: {answer}"));
        assert!(said.contains(text), "{text}: {said}");
    }
    daemon.ask(&json!({ "method": "reload" }));
    daemon.take_over();
    let dumped = daemon.ask(&json!({ "method": "config.dump" }));
    let dumped = dumped["toml"].as_str().expect("a text");
    assert!(dumped.contains("# added at run time\n[[network.port]]\nname = \"c\"") && !dumped.contains("\"b\""), "{dumped}");
    let mut c = attach(&daemon.socket(), "c");
    let sent = frame(mac(1), mac(3), 700, 9);
    a.send(&sent).expect("sent");
    assert_eq!(next(&mut c), sent);
    c.detach().expect("detached");
    daemon.ask(&json!({ "method": "net.detach", "port": "lan/c" }));
    // A restart forgets all of it.
    a.detach().expect("detached");
    daemon.kill_9();
    daemon.restart();
    let names: Vec<String> = list(&daemon.socket()).expect("a list").into_iter().map(|port| port.name).collect();
    assert_eq!(names, ["lan/a", "lan/b"]);
}
