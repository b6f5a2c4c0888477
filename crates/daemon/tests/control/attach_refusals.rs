//! The clients that the daemon refuses to attach, and its reasons; attached clients are not affected.

use std::time::Instant;

use fipsee_block::client::{AttachOptions, Disk, Error};
use fipsee_ring::control::{Control, RefusalCode, Wanted};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_testkit::raw::{HELLO, RawClient, assert_closed, connect, receive, receive_refusal, say};
use fipsee_testkit::{CorrectClient, Daemon, Scratch, as_user, assert_says, eventually, finish_one, is_root, refusal_of, skip};

#[test]
fn unknown_disk_is_refused_without_the_names_there_are() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--disk", "b=null:1G"]);
    let mut correct_client = CorrectClient::new(&daemon, "a");
    let text = refusal_of(daemon.attach(&Daemon::options("c")), RefusalCode::UnknownName);
    let uid = rustix::process::geteuid().as_raw();
    assert_eq!(text, format!("no disk 'c' that user {uid} may use; `fipsee ls` lists those"));
    for name in ["", &"x".repeat(65)] {
        let text = refusal_of(daemon.attach(&Daemon::options(name)), RefusalCode::UnknownName);
        assert_says(&text, &["a name has 1 to 64"]);
    }
    correct_client.check();
}

#[test]
fn absent_daemon_is_distinguished_from_a_dead_one() {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    daemon.kill_9();
    let dead = daemon.attach(&Daemon::options("a")).expect_err("no daemon listens").to_string();
    assert_says(&dead, &["the socket is there but nothing listens; start fipseed"]);
    std::fs::remove_file(daemon.socket()).expect("the stale socket");
    let absent = daemon.attach(&Daemon::options("a")).expect_err("no daemon listens").to_string();
    assert_says(&absent, &["there is no such socket", "--connect or FIPSEE_SOCKET"]);
}

fn attach_as(daemon: &Daemon, id: u32, options: &AttachOptions) -> Result<(), Error> {
    let (socket, options) = (daemon.socket(), options.clone());
    as_user(id, &[], move || Disk::attach(&socket, &options).map(drop))
}

/// checks: R-4.1-3, R-4.3-7
#[test]
fn user_who_is_not_on_the_list_is_refused_and_those_on_it_attach() {
    if !is_root() {
        return skip("attach as other users", "only root can become another user");
    }
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--allow-uid", "4001", "--allow-gid", "4002"]);
    let mut correct_client = CorrectClient::new(&daemon, "a");
    let options = Daemon::options("a");
    // That the disk exists is said to the administrator alone.
    for name in ["a", "b"] {
        let text = refusal_of(attach_as(&daemon, 4000, &Daemon::options(name)), RefusalCode::UnknownName);
        assert_eq!(text, format!("no disk '{name}' that user 4000 may use; `fipsee ls` lists those"));
    }
    let log = || daemon.log();
    eventually("the reason is logged", || log().contains("disk 'a' is not for user 4000 (group 4000)"));
    assert_says(&log(), &["allow_uids or allow_gids", "no disk 'b' that user 4000 may use"]);
    for id in [4001, 4002] {
        attach_as(&daemon, id, &options).unwrap_or_else(|error| panic!("user {id}: {error}"));
    }
    correct_client.check();
    eventually("only the correct client is attached", || daemon.attached_count("a") == 1);
}

#[test]
fn configured_list_opens_a_disk_to_everyone_it_names() {
    if !is_root() {
        return skip("attach as other users", "only root can become another user");
    }
    let dir = Scratch::new();
    let toml =
        "[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\nallow_everyone = true\n[[disk]]\nname = \"b\"\nspec = \"memory:1M\"\n";
    std::fs::write(dir.path("fip.toml"), toml).expect("a file");
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/fip.toml"]);
    attach_as(&daemon, 4000, &Daemon::options("a")).expect("everyone may");
    refusal_of(attach_as(&daemon, 4000, &Daemon::options("b")), RefusalCode::UnknownName);
}

#[test]
fn version_range_without_ours_is_refused_with_both_versions() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "a");
    let control = connect(&daemon);
    say(&control, &Control::Hello { version_min: 2, version_max: 3, features: 0 }, &[]);
    let text = receive_refusal(&control, RefusalCode::Version);
    assert_says(&text, &["versions 2 to 3", "speaks 1", "upgrade the older"]);
    assert_closed(&control);
    correct_client.check();
}

#[test]
fn exclusive_disk_takes_one_client_at_a_time() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M,exclusive"]);
    let mut holder = CorrectClient::new(&daemon, "a");
    let text = refusal_of(daemon.attach(&Daemon::options("a")), RefusalCode::Busy);
    let pid = std::process::id().to_string();
    assert_says(&text, &["disk 'a' is in use exclusively by process", &pid, "end that first"]);
    holder.check();
    drop(holder);
    eventually("the disk is free again", || daemon.attach(&Daemon::options("a")).is_ok());
}

#[test]
fn exclusive_attachment_excludes_both_ways() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let exclusive = AttachOptions { exclusive: true, ..Daemon::options("a") };
    let mut sharer = CorrectClient::new(&daemon, "a");
    let text = refusal_of(daemon.attach(&exclusive), RefusalCode::Busy);
    assert_says(&text, &["in use and exclusive use was asked for by process", "end that first"]);
    sharer.check();
    drop(sharer);
    let (mut disk, mut queue) = (None, None);
    eventually("exclusive use is granted to the only client", || {
        let Ok((given, mut queues)) = daemon.attach(&exclusive) else { return false };
        (disk, queue) = (Some(given), queues.pop());
        true
    });
    refusal_of(daemon.attach(&Daemon::options("a")), RefusalCode::Busy);
    refusal_of(daemon.attach(&exclusive), RefusalCode::Busy);
    let mut queue = queue.expect("one queue");
    queue.flush(1).expect("room");
    assert_eq!(finish_one(&mut queue), fipsee_block::wire::Status::Ok);
}

/// checks: R-4.1-8, R-4.3-13
#[test]
fn clients_beyond_the_limit_are_refused_and_those_within_it_work() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--max-clients", "2"]);
    let mut correct_clients = [CorrectClient::new(&daemon, "a"), CorrectClient::new(&daemon, "a")];
    // Many times, because the client sends HELLO while the daemon closes, and the reason must arrive all the same.
    for _ in 0..500 {
        let text = refusal_of(daemon.attach(&Daemon::options("a")), RefusalCode::Limit);
        assert_says(&text, &["its limit of 2 clients", "raise max_clients"]);
    }
    correct_clients.iter_mut().for_each(CorrectClient::check);
}

/// checks: R-4.3-13
#[test]
fn clients_beyond_the_limit_of_open_files_are_refused_and_those_within_it_work() {
    let prefix = ["sh", "-c", "ulimit -n 160; exec \"$@\"", "sh"];
    let daemon = Daemon::start_in(Scratch::new(), &prefix, &["--disk", "a=memory:16M"]);
    let mut correct_clients = Vec::new();
    let text = loop {
        match CorrectClient::try_new(&daemon, "a") {
            Ok(correct_client) => correct_clients.push(correct_client),
            refused => break refusal_of(refused, RefusalCode::Limit),
        }
        assert!(correct_clients.len() < 160, "the limit does not bind");
    };
    assert_says(&text, &["160 files", "ulimit -n", "LimitNOFILE=", "detach clients"]);
    assert!(correct_clients.len() > 10, "only {} clients fit", correct_clients.len());
    correct_clients.iter_mut().for_each(CorrectClient::check);
    let silent: Vec<Seqpacket> = (0..200).map(|_| connect(&daemon)).collect();
    correct_clients.iter_mut().for_each(CorrectClient::check);
    drop(silent);
    let count = correct_clients.len();
    drop(correct_clients);
    eventually("all descriptors are back", || daemon.attached_count("a") == 0);
    let again: Vec<CorrectClient> = (0..count).map(|_| CorrectClient::new(&daemon, "a")).collect();
    assert_eq!(again.len(), count);
}

/// checks: R-4.3-15
#[test]
fn silent_clients_are_dropped_and_others_do_not_notice() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "a");
    let before = daemon.fd_count();
    let started = Instant::now();
    let silent = connect(&daemon);
    let greeted = connect(&daemon);
    say(&greeted, &HELLO, &[]);
    assert!(matches!(receive(&greeted).0, Control::Welcome { .. }));
    for control in [&silent, &greeted] {
        correct_client.check();
        let text = receive_refusal(control, RefusalCode::Malformed);
        assert_says(&text, &["nothing was said within 5 s", "greet and attach right after connecting"]);
        assert_closed(control);
    }
    assert!(started.elapsed().as_secs() >= 5, "dropped too early");
    correct_client.check();
    eventually("their descriptors are closed", || daemon.fd_count() == before);
}

#[test]
fn daemon_caps_what_a_client_asks_for() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let wanted = Control::Attach(Wanted {
        service: 1,
        queue_count: u16::MAX,
        depth: u32::MAX,
        flags: 0,
        pool_bytes: u64::MAX,
        name: "a".to_owned(),
    });
    let client = RawClient::attach(&daemon, &wanted);
    assert_eq!(client.queues.len(), 16);
    assert!(client.layout.queues.iter().all(|queue| queue.depth == 256));
    assert_eq!(client.layout.pool_bytes, 64 << 20);
}
