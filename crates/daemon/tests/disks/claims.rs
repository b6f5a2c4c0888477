//! A sole writer claims a disk: other writers are kept out until its last request is finished.

use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Claim, Disk, Error, ReconnectPolicy};
use fipsee_block::wire::{ATTACH_IGNORE_CLAIM, ATTACH_READ_ONLY, ATTACH_SOLE_WRITER, FEATURE_SOLE_WRITER, Status};
use fipsee_ring::control::{Control, Refusal, RefusalCode, VERSION, Wanted};
use fipsee_ring::seqpacket::Seqpacket;
use fipsee_testkit::raw::{attach_message, connect, receive, receive_refusal, say};
use fipsee_testkit::{Daemon, Scratch, TIMEOUT, assert_says, child, eventually, finish_one, refusal_of, stamp};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

fn with(disk: &str, claim: Claim) -> AttachOptions {
    AttachOptions { claim, ..Daemon::options(disk) }
}

fn reader(disk: &str) -> AttachOptions {
    AttachOptions { read_only: true, ..Daemon::options(disk) }
}

fn info(daemon: &Daemon, disk: &str) -> Value {
    daemon.admin(&json!({ "method": "disk.info", "disk": disk }))
}

/// For each client in order of attachment: is it the sole writer?
fn sole_writers(daemon: &Daemon, disk: &str) -> Vec<bool> {
    let info = info(daemon, disk);
    let clients = info["clients"].as_array().expect("a list").iter();
    clients.map(|client| client["sole_writer"].as_bool().expect("a Boolean")).collect()
}

fn is_refused_to(daemon: &Daemon, options: &AttachOptions) -> String {
    refusal_of(daemon.attach(options), RefusalCode::Busy)
}

/// checks: R-4.5-10, R-4.5-12
#[test]
fn a_sole_writer_keeps_other_writers_out_and_not_readers() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--disk", "b=memory:1M"]);
    let (disk, queues) = daemon.attach(&with("a", Claim::SoleWriter)).expect("attached");
    let pid = std::process::id().to_string();
    for claim in [Claim::None, Claim::SoleWriter] {
        let text = is_refused_to(&daemon, &with("a", claim));
        assert_says(&text, &["disk 'a'", &pid, "is its sole writer", "end that first", "read-only", "--force", "shared = true"]);
    }
    let mut beside = daemon.blocking_as(&reader("a"));
    beside.read_at(&mut [0; 512], 0).expect("readers come and go");
    // A reader claims nothing, whatever it asks for.
    drop(daemon.attach(&AttachOptions { claim: Claim::SoleWriter, ..reader("a") }).expect("attached"));
    drop(daemon.attach(&with("b", Claim::SoleWriter)).expect("a claim concerns one disk"));
    eventually("one client reads beside the claim", || sole_writers(&daemon, "a") == [true, false]);
    assert_eq!(info(&daemon, "a")["claimed"], true);
    disk.detach(queues).expect("in order");
    assert_eq!(info(&daemon, "a")["claimed"], false);
    drop(daemon.attach(&with("a", Claim::None)).expect("the claim ended with its holder"));
}

/// checks: R-4.5-10
#[test]
fn a_claim_is_refused_while_another_client_may_write() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let first = daemon.attach(&with("a", Claim::None)).expect("attached");
    let second = daemon.attach(&with("a", Claim::None)).expect("a client without a claim shares");
    let text = is_refused_to(&daemon, &with("a", Claim::SoleWriter));
    assert_says(&text, &["disk 'a'", &std::process::id().to_string(), "may write it, too", "end that first"]);
    first.0.detach(first.1).expect("in order");
    is_refused_to(&daemon, &with("a", Claim::SoleWriter));
    second.0.detach(second.1).expect("in order");
    drop(daemon.attach(&with("a", Claim::SoleWriter)).expect("no other client is attached"));
}

/// checks: R-4.5-11
#[test]
fn client_that_ignores_claims_writes_beside_one_and_keeps_the_next_out() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let holder = daemon.attach(&with("a", Claim::SoleWriter)).expect("attached");
    let mut beside = daemon.blocking_as(&with("a", Claim::Ignore));
    beside.write_at(&stamp(4096, 1, 1), 0).expect("written");
    assert_eq!(sole_writers(&daemon, "a"), [true, false]);
    holder.0.detach(holder.1).expect("in order");
    assert_says(&is_refused_to(&daemon, &with("a", Claim::SoleWriter)), &["may write it, too"]);
    drop(daemon.attach(&with("a", Claim::None)).expect("it claims nothing itself"));
}

/// checks: R-4.5-12, R-4.5-15
#[test]
fn on_shared_and_on_read_only_disks_claims_refuse_no_client() {
    let dir = Scratch::new();
    let text = "[[disk]]\nname = \"t\"\nspec = \"memory:1M\"\nshared = true\n";
    std::fs::write(dir.path("f.toml"), text).expect("a file");
    let disks = ["--disk", "s=memory:1M,shared", "--disk", "r=memory:1M,ro"];
    let daemon = Daemon::start_in(dir, &[], &[&["--config", "{dir}/f.toml"][..], &disks].concat());
    for (disk, shared) in [("t", true), ("s", true), ("r", false)] {
        let claims = [Claim::SoleWriter, Claim::SoleWriter, Claim::None];
        let all = claims.map(|claim| daemon.attach(&with(disk, claim)).expect("attached"));
        assert_eq!(sole_writers(&daemon, disk), [false; 3], "{disk}");
        let described = info(&daemon, disk);
        assert_eq!((&described["shared"], &described["claimed"]), (&json!(shared), &json!(false)), "{disk}");
        drop(all);
    }
}

/// checks: R-4.3-6
#[test]
fn claims_need_their_feature_and_contradictions_are_malformed() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let ask = |features, flags| {
        let control = connect(&daemon);
        say(&control, &Control::Hello { version_min: VERSION, version_max: VERSION, features }, &[]);
        assert!(matches!(receive(&control).0, Control::Welcome { features: given, .. } if given == features));
        say(&control, &attach_message("a", 1, 4, flags), &[]);
        control
    };
    for flags in [ATTACH_SOLE_WRITER, ATTACH_IGNORE_CLAIM] {
        assert_says(&receive_refusal(&ask(0, flags), RefusalCode::Malformed), &["unknown service or flag"]);
        let attached = ask(FEATURE_SOLE_WRITER, flags | ATTACH_READ_ONLY);
        assert!(matches!(receive(&attached).0, Control::Attached { .. }));
    }
    let both = ask(FEATURE_SOLE_WRITER, ATTACH_SOLE_WRITER | ATTACH_IGNORE_CLAIM);
    assert_says(&receive_refusal(&both, RefusalCode::Malformed), &["claims the disk and ignores claims"]);
    assert_says(&receive_refusal(&ask(FEATURE_SOLE_WRITER, 16), RefusalCode::Malformed), &["unknown service or flag"]);
}

/// What a client does with a daemon that has no features: the flags of its ATTACH, or its error.
fn at_an_old_daemon(claim: Claim) -> (Option<u32>, Error) {
    let dir = Scratch::new();
    let listener = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    );
    let listener = listener.expect("a socket");
    let address = rustix::net::SocketAddrUnix::new(dir.path("s")).expect("a short path");
    rustix::net::bind(&listener, &address).expect("bound");
    rustix::net::listen(&listener, 1).expect("listening");
    let daemon = std::thread::spawn(move || {
        let control = Seqpacket::from_fd(rustix::net::accept(&listener).expect("a client"));
        receive(&control);
        let (max_queues, max_depth, max_pool_bytes) = (1, 64, 1 << 20);
        say(&control, &Control::Welcome { version: VERSION, max_queues, max_depth, features: 0, max_pool_bytes }, &[]);
        let packet = control.receive(TIMEOUT).ok()?;
        let Ok(Control::Attach(Wanted { flags, .. })) = Control::decode(&packet.bytes) else { panic!("no ATTACH") };
        say(&control, &Control::Refused(Refusal { code: RefusalCode::Limit, text: "that is enough".to_owned() }), &[]);
        Some(flags)
    });
    let error = Disk::attach(&dir.path("s"), &with("a", claim)).expect_err("this daemon refuses");
    (daemon.join().expect("the script ran to its end"), error)
}

#[test]
fn a_daemon_that_knows_no_claims_is_not_asked_for_one() {
    let (flags, error) = at_an_old_daemon(Claim::SoleWriter);
    assert!(flags.is_none() && matches!(error, Error::Unsupported(_)), "{error}");
    assert_says(&error.to_string(), &["sole writer", "older than this program", "upgrade it"]);
    // A client without a claim has nothing to be ignored.
    assert_eq!(at_an_old_daemon(Claim::Ignore).0, Some(0));
    assert_eq!(at_an_old_daemon(Claim::None).0, Some(0));
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).expect("a time since boot")
}

/// As a process of its own: claim the disk, write its first block, print when that began, and wait to be killed.
pub(crate) fn client_that_claims_and_writes() {
    let (disk, mut queues) = Disk::attach(&child::socket(), &with("d", Claim::SoleWriter)).expect("attached");
    let buffer = disk.allocate(4096).expect("a pool");
    buffer.fill(0, &stamp(4096, 5, 5));
    let before_ns = now_ns();
    queues[0].write(0, buffer.segment(0, 4096), false, 1).expect("room");
    queues[0].submit();
    writeln!(std::io::stdout(), "\nwriting since {before_ns}").expect("standard output");
    loop {
        std::thread::park();
    }
}

/// checks: R-4.5-14, R-4.5-16
#[test]
fn a_killed_holders_claim_ends_with_its_last_request() {
    const DELAY: Duration = Duration::from_secs(7);
    let daemon = Daemon::start(&["--disk", "d=delay:7s:file:{dir}/f,size=1M"]);
    let mut child = child::command_at("client_that_claims_and_writes", &daemon.socket()).spawn().expect("a process");
    let mut lines = BufReader::new(child.stdout.take().expect("its output is piped")).lines();
    let began_ns: u64 = lines
        .find_map(|line| line.expect("a pipe").strip_prefix("writing since ").map(|number| number.parse().expect("a number")))
        .expect("it writes");
    eventually("the daemon has taken the write", || {
        let stat = daemon.admin(&json!({ "method": "stat" }));
        stat["queues"][0]["visits"].as_u64().is_some_and(|visits| visits > 0)
    });
    child.kill().expect("killed");
    child.wait().expect("awaited");
    // A client that wants the disk is kept waiting, though not for ever.
    let text = is_refused_to(&daemon, &with("d", Claim::None));
    assert_says(&text, &["which is gone while its last requests are not finished", "try again in a moment"]);
    let (disk, queues) = daemon.attach(&with("d", Claim::SoleWriter)).expect("the claim ends while it waits");
    let held_ns = now_ns() - began_ns;
    assert!(u128::from(held_ns) >= DELAY.as_nanos(), "a request was in flight when the claim ended: {held_ns} ns");
    assert!(std::fs::read(daemon.dir.path("f")).expect("a file")[..4096] == stamp(4096, 5, 5), "it was finished");
    disk.detach(queues).expect("in order");
}

/// checks: R-4.5-16, R-4.3-4
#[test]
fn client_with_a_pending_attach_sends_nothing_and_may_leave() {
    let daemon = Daemon::start(&["--disk", "d=delay:1s:memory:1M"]);
    let (disk, mut queue) = daemon.client(&with("d", Claim::SoleWriter));
    let buffer = disk.allocate(4096).expect("a pool");
    queue.write(0, buffer.segment(0, 4096), false, 1).expect("room");
    queue.submit();
    eventually("the daemon has taken the write", || {
        let stat = daemon.admin(&json!({ "method": "stat" }));
        stat["queues"][0]["visits"].as_u64().is_some_and(|visits| visits > 0)
    });
    drop((disk, queue, buffer));
    let waiting = || {
        let control = connect(&daemon);
        say(&control, &fipsee_testkit::raw::HELLO, &[]);
        assert!(matches!(receive(&control).0, Control::Welcome { .. }));
        say(&control, &attach_message("d", 1, 4, 0), &[]);
        control
    };
    let [leaves, waits, talks] = [waiting(), waiting(), waiting()];
    drop(leaves);
    say(&talks, &attach_message("d", 1, 4, 0), &[]);
    let text = receive_refusal(&talks, RefusalCode::Malformed);
    assert_says(&text, &["a message came before ATTACH was answered"]);
    assert!(matches!(receive(&waits).0, Control::Attached { .. }), "ATTACH waited until the last request was finished");
    eventually("only that client is attached", || daemon.attached_count("d") == 1);
}

/// checks: R-4.8-3
#[test]
fn a_claim_goes_over_to_the_daemon_that_takes_over_and_is_made_again_at_one_that_restarts() {
    let mut daemon = Daemon::start(&["--disk", "f=file:{dir}/f,size=1M"]);
    let (disk, mut queues) = daemon.attach(&with("f", Claim::SoleWriter)).expect("attached");
    let beside = daemon.attach(&with("f", Claim::Ignore)).expect("attached");
    for _ in 0..2 {
        daemon.take_over();
        assert_eq!(sole_writers(&daemon, "f"), [true, false]);
        assert_says(&is_refused_to(&daemon, &with("f", Claim::None)), &["is its sole writer"]);
    }
    beside.0.detach(beside.1).expect("in order");
    daemon.kill_9();
    daemon.restart();
    disk.reconnect(&mut queues, &ReconnectPolicy::within(TIMEOUT), &mut |_| {}).expect("the daemon is back");
    assert_says(&is_refused_to(&daemon, &with("f", Claim::None)), &["is its sole writer"]);
    let buffer = disk.allocate(4096).expect("a pool");
    queues[0].write(0, buffer.segment(0, 4096), false, 1).expect("room");
    assert_eq!(finish_one(&mut queues[0]), Status::Ok);
}

#[test]
fn reconnecting_client_waits_until_it_may_claim_again() {
    let mut daemon = Daemon::start(&["--disk", "f=file:{dir}/f,size=1M"]);
    let (disk, mut queues) = daemon.attach(&with("f", Claim::SoleWriter)).expect("attached");
    daemon.kill_9();
    daemon.restart();
    let mut other = Some(daemon.attach(&with("f", Claim::None)).expect("it is the first"));
    let began = Instant::now();
    disk.reconnect(&mut queues, &ReconnectPolicy::within(TIMEOUT), &mut |event| {
        if let fipsee_block::client::ReconnectEvent::AttemptFailed { error, .. } = event {
            assert!(matches!(error, Error::Refused { code: RefusalCode::Busy, .. }), "{error}");
            other = None;
        }
    })
    .unwrap_or_else(|error| panic!("after {:?}: {error}", began.elapsed()));
    assert!(other.is_none(), "the claim was refused first");
    assert_eq!(sole_writers(&daemon, "f"), [true]);
}
