//! The configuration of networks: what may be attached to, mistakes, and what a reload does.

use fipsee_net::wire::{MAX_PAIRS, PortInfo};
use fipsee_net::{Error, Port, list};
use fipsee_ring::control::RefusalCode;
use fipsee_testkit::{Scratch, child};
use serde_json::json;

use super::{attach, lan, mac, options, with_file};

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
fn reload_leaves_networks_as_they_are_and_says_so_and_they_are_dumped() {
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
    assert_eq!(outcome["needs_restart"], json!(["network"]), "{outcome}");
    assert_eq!(attach(&daemon.socket(), "a").info(), PortInfo::new(mac(1), 1500, 10, 1));
    let most = fipsee_net::AttachOptions { pairs: MAX_PAIRS + 1, ..options("c") };
    assert_eq!(Port::attach_pairs(&daemon.socket(), &most).expect("attached").len(), usize::from(MAX_PAIRS));
}
