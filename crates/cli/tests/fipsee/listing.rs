//! What `fipsee ls`, `info` and `stat` show of disks, to which user, and when clients are gone.

use std::os::unix::process::CommandExt;
use std::process::Command;

use fipsee_testkit::{eventually, is_root, skip};
use serde_json::json;

use crate::program::{FIPSEE, Fipsee, assert_error, assert_success, json, serve, text};

fn words(table: &[u8]) -> Vec<Vec<String>> {
    let table = String::from_utf8_lossy(table).into_owned();
    table.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn ls_and_info_show_paths_kinds_and_users_within_100_columns() {
    let daemon = serve(&["a=delay:1us:file:{dir}/a.img,size=1M,direct=off", "m=memory:1M"]);
    let path = text(&daemon.dir.path("a.img"));
    let answer = json(&daemon.fipsee(&["ls", "--json"]));
    assert_eq!((&answer["disks"][0]["path"], &answer["disks"][0]["kinds"]), (&json!(path), &json!(["delay", "file"])));
    let table = daemon.fipsee(&["ls"]);
    assert_success(&table);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.lines().all(|line| line.len() <= 100), "{table}");
    assert!(table.contains("delay:file  cached") && table.contains("/a.img"), "{table}");
    let info = daemon.fipsee(&["info", "a"]);
    assert_success(&info);
    let info = String::from_utf8_lossy(&info.stdout).into_owned();
    for part in ["delay, around file", &path, "root and the daemon's own", "queues of depth", "of one user"] {
        assert!(info.contains(part), "{part}: {info}");
    }
}

#[test]
fn stat_shows_the_totals_of_a_disk_whose_clients_are_gone() {
    let daemon = serve(&["a=memory:1M"]);
    let mut client = daemon.blocking("a");
    client.write_at(&[1; 4096], 0).expect("written");
    client.read_at(&mut [0; 8192], 0).expect("read");
    drop(client);
    eventually("it is gone", || daemon.attached_count("a") == 0);
    let table = daemon.fipsee(&["stat"]);
    assert_success(&table);
    let words = words(&table.stdout);
    let row = words.iter().find(|row| row.first().is_some_and(|name| name == "a")).expect("a row of the disk");
    assert_eq!(row[1..], ["1", "1", "1", "0", "0", "8", "KiB", "4", "KiB", "-", "-"]);
}

/// As in a container into which only the client socket is mounted.
#[test]
fn without_the_admin_socket_ls_shows_what_the_user_may_attach() {
    let daemon = serve(&["r=memory:3M,block=4096,ro", "a=null:1G"]);
    std::fs::remove_file(fipsee_daemon::admin::admin_path(&daemon.socket())).expect("the socket");
    let table = daemon.fipsee(&["ls"]);
    assert_success(&table);
    let rows = [
        vec!["DISK", "ACCESS", "SIZE", "BLOCK"],
        vec!["a", "read-write", "1", "GiB", "512"],
        vec!["r", "read-only", "3", "MiB", "4096"],
    ];
    assert_eq!(words(&table.stdout), rows);
    let answer = json(&daemon.fipsee(&["ls", "--json"]));
    assert_eq!(answer["for_uid"], rustix::process::geteuid().as_raw());
    let disk = json!({ "disk": "r", "size_bytes": 3 << 20, "block_bytes": 4096, "read_only": true });
    assert_eq!(answer["disks"][1], disk);
}

#[test]
fn another_user_sees_the_disks_that_it_may_use_and_no_more() {
    if !is_root() {
        return skip("run fipsee as another user", "only root can become another user");
    }
    let program = [FIPSEE, "serve", "--log-level=error", "--allow-uid=4000"].map(str::to_owned).to_vec();
    let launch = fipsee_testkit::daemon::Launch {
        program,
        arguments: vec!["--disk=a=null:1M".to_owned()],
        own_group: false,
        ends_with_us: false,
    };
    let daemon = fipsee_testkit::Daemon::launch(fipsee_testkit::Scratch::new(), launch).expect("the daemon listens");
    // Where other users can run it.
    let own = daemon.dir.program("fipsee", FIPSEE);
    let run = |uid: u32, arguments: &[&str]| {
        let mut command = Command::new(&own);
        command.arg("--connect").arg(daemon.socket()).args(arguments).uid(uid).gid(uid).current_dir("/");
        command.output().expect("fipsee runs")
    };
    for (uid, expected) in [(4000, &["DISK", "a"][..]), (4001, &["DISK"])] {
        let table = run(uid, &["ls"]);
        assert_success(&table);
        let names: Vec<String> = words(&table.stdout).into_iter().map(|mut row| row.remove(0)).collect();
        assert_eq!(names, expected, "user {uid}");
        assert_eq!(json(&run(uid, &["ls", "--json"]))["for_uid"], uid);
    }
    for disk in ["a", "b"] {
        let expected = format!("no disk '{disk}' that user 4001 may use; `fipsee ls` lists those");
        assert_error(&run(4001, &["info", disk]), &[&expected]);
    }
    assert_error(&run(4000, &["stat"]), &["no permission to open", "the daemon's user or root"]);
}
