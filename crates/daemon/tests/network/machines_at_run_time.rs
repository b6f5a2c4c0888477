//! Ports of virtual machines that come and go, and are taken down and up, while the daemon runs.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use fipsee_net::Port;
use fipsee_testkit::guest::net::{NetGuest, NetOptions};
use fipsee_testkit::packets::is_readable;
use fipsee_testkit::{Daemon, TIMEOUT, assert_says, eventually};
use serde_json::json;

use super::machines::{MTU, exchange, exchange_with, path, start};
use super::{all_sent, assert_nothing, attach, frame, lan_at, mac, options, stat, with_file};

/// Does the machine see a cable in its port?
fn is_up(machine: &mut NetGuest) -> bool {
    let [.., low, high] = machine.frontend.config::<8>().expect("the daemon is there");
    u16::from_le_bytes([low, high]) == 1
}

#[test]
fn machine_is_told_that_its_port_is_down_and_up() {
    /// CONFIG_CHANGE_MSG: request 2 of version 1, without a body and without an answer.
    const CHANGED: [u8; 12] = [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    let daemon = lan_at(1, MTU, ["", "vhost_user = \"{dir}/b.vm\"", "down = true\nvhost_user = \"{dir}/c.vm\""]);
    let set = |port: &str, down: bool| daemon.ask(&json!({ "method": "net.set", "port": port, "down": down }));
    let mut a = attach(&daemon.socket(), "a");
    let (mut b, mut c) = (start(&daemon, "b", &NetOptions::default()), start(&daemon, "c", &NetOptions::default()));
    assert_eq!((is_up(&mut b), is_up(&mut c)), (true, false), "as it is configured");
    let mut channel = b.frontend.open_channel().expect("it is taken");
    for round in 0..5 {
        for down in [true, false] {
            // The second time nothing changes.
            set("lan/b", down);
            set("lan/b", down);
            assert_eq!(is_up(&mut b), !down);
            let mut said = [0; 12];
            channel.read_exact(&mut said).expect("a message");
            assert_eq!(said, CHANGED);
            assert!(!is_readable(&channel, Duration::ZERO), "one message for one change");
            if down {
                a.send(&frame(mac(1), mac(2), 100, 1)).expect("sent");
                all_sent(&mut a);
                b.send(0, &frame(mac(2), mac(1), 100, 1));
                b.wait_sent(0);
                assert_eq!(b.receive(0), None);
                assert_nothing(&mut a);
            } else {
                exchange(&mut a, &mut b, 100, round);
            }
        }
    }
    // Without a channel it is seen by the next look.
    set("lan/c", false);
    assert!(is_up(&mut c));
    exchange_with(&mut a, (&mut c, 3), 100, 1);
}

#[test]
fn port_of_a_machine_comes_and_goes_while_the_daemon_runs() {
    let mut daemon = lan_at(1, MTU, ["", "vhost_user = \"{dir}/b.vm\"", ""]);
    let mut a = attach(&daemon.socket(), "a");
    let at = daemon.dir.path("d.vm");
    let add = |daemon: &Daemon, name: &str, at: &Path| {
        daemon.admin(
            &json!({ "method": "net.attach", "network": "lan", "port": name, "mac": mac(4).to_string(), "vhost_user": at }),
        )
    };
    let detach = |daemon: &Daemon, port: &str| daemon.admin(&json!({ "method": "net.detach", "port": port }));
    let descriptors = daemon.fd_count();
    for (answer, text) in [
        (add(&daemon, "d", Path::new("d.vm")), "d.vm is no absolute path"),
        (add(&daemon, "d", &path(&daemon, "b")), "is the vhost-user socket of port 'lan/b' already; choose another path"),
        (add(&daemon, "a", &at), "port 'lan/a' is there already"),
        (add(&daemon, "d", &daemon.dir.path("f.toml")), "exists and is not a socket"),
    ] {
        let said = answer["error"].as_str().unwrap_or_else(|| panic!("{text}: {answer}"));
        assert!(said.contains(text) && !at.exists(), "{text}: {said}");
    }
    for seed in 0..3 {
        assert_eq!(add(&daemon, "d", &at)["vhost_user"], json!(at));
        let mut d = NetGuest::start(&at, &NetOptions::default()).expect("it is served");
        exchange_with(&mut a, (&mut d, 4), 100, seed);
        let refused = Port::attach(&daemon.socket(), &options("d")).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("is for the virtual machine at its vhost-user socket"), "{refused}");
        let said = detach(&daemon, "lan/d").to_string();
        assert!(said.contains("port 'lan/d' is in use"), "{said}");
        let said = daemon.admin(&json!({ "method": "disk.detach", "vhost_user": at })).to_string();
        assert!(said.contains("fipsee net detach lan/d removes both"), "{said}");
        exchange_with(&mut a, (&mut d, 4), 100, seed);
        if seed == 2 {
            daemon.ask(&json!({ "method": "reload" }));
            daemon.take_over();
            assert!(is_readable(d.frontend.socket(), TIMEOUT));
            d.reconnect().expect("the next daemon is there");
            exchange_with(&mut a, (&mut d, 4), 100, seed);
        }
        drop(d);
        eventually("the machine is gone", || stat(&daemon, "d").get("holder").is_none());
        assert_eq!(detach(&daemon, "lan/d")["vhost_user"], json!(at));
        assert!(!at.exists());
        assert!(seed == 2 || daemon.fd_count() == descriptors);
    }
    // Also one that is configured, which stays away.
    detach(&daemon, "lan/b");
    assert!(!path(&daemon, "b").exists());
    daemon.ask(&json!({ "method": "reload" }));
    daemon.take_over();
    assert!(!path(&daemon, "b").exists());
}

#[test]
fn reload_adds_and_removes_ports_of_machines_or_changes_nothing() {
    let port = |name: &str, number: u8, keys: &str| {
        format!("[[network.port]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:0{number}\"\n{keys}\n")
    };
    let file = |ports: &[String]| format!("[[network]]\nname = \"lan\"\n{}{}", port("a", 1, ""), ports.concat());
    let daemon = with_file(&file(&[]));
    let mut a = attach(&daemon.socket(), "a");
    let (of_b, of_c) = (port("b", 2, "vhost_user = \"{dir}/b.vm\""), port("c", 3, "vhost_user = \"{dir}/f.toml\""));
    let reload = |ports: &[String]| {
        daemon.dir.configure(&file(ports));
        daemon.admin(&json!({ "method": "reload" }))
    };
    let refused = reload(&[of_b.clone(), of_c]).to_string();
    assert!(refused.contains("exists and is not a socket") && !path(&daemon, "b").exists(), "{refused}");
    for seed in 0..2 {
        assert_eq!(reload(std::slice::from_ref(&of_b))["added"], json!(["port 'lan/b'"]));
        let mut b = start(&daemon, "b", &NetOptions::default());
        exchange(&mut a, &mut b, 100, seed);
        let refused = reload(&[]).to_string();
        assert!(refused.contains("port 'lan/b' is in use") && refused.contains("or keep the port"), "{refused}");
        exchange(&mut a, &mut b, 200, seed);
        drop(b);
        eventually("the machine is gone", || stat(&daemon, "b").get("holder").is_none());
        assert_eq!(reload(&[])["removed"], json!(["port 'lan/b'"]));
        assert!(!path(&daemon, "b").exists());
    }
}

#[test]
fn takeover_is_refused_while_a_port_of_a_machine_is_new_and_a_reload_helps() {
    let mut daemon = lan_at(1, MTU, ["", "", ""]);
    let mut file = std::fs::read_to_string(daemon.dir.path("f.toml")).expect("the configuration");
    file.push_str("[[network.port]]\nname = \"d\"\nmac = \"02:00:00:00:00:04\"\nvhost_user = \"{dir}/d.vm\"\n");
    daemon.dir.configure(&file);
    let refused = daemon.try_take_over(&[]).expect_err("it has no such socket");
    assert_says(&refused, &["does not serve port 'lan/d' at", "d.vm", "fipsee reload, or net attach"]);
    daemon.ask(&json!({ "method": "reload" }));
    daemon.take_over();
    let mut a = attach(&daemon.socket(), "a");
    exchange_with(&mut a, (&mut start(&daemon, "d", &NetOptions::default()), 4), 100, 1);
}
