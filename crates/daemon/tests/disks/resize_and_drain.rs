//! A disk in use changes its size, and the daemon ends in order.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use fipsee_block::client::{AttachOptions, Blocking, Error, Event, Queue};
use fipsee_block::wire::{KIND_RESIZE, Operation, SECTOR_SHIFT, Segment, Status, request_ack_event, request_one_segment};
use fipsee_ring::control::Control;
use fipsee_testkit::raw::{RawClient, attach_message};
use fipsee_testkit::{Daemon, assert_says, bytes_of, eventually, finish_all, finish_one, stamp};
use serde_json::{Value, json};

fn resize(daemon: &Daemon, disk: &str, size_bytes: u64) -> Value {
    daemon.admin(&json!({ "method": "disk.resize", "disk": disk, "size_bytes": size_bytes }))
}

/// Resize to a smaller size, with `shrink`.
fn shrink(daemon: &Daemon, disk: &str, size_bytes: u64, force: bool) -> Value {
    daemon.admin(&json!({ "method": "disk.resize", "disk": disk, "size_bytes": size_bytes, "shrink": true, "force": force }))
}

/// Reap until an event arrives.
fn next_event(queue: &mut Queue) -> Event {
    let mut event = None;
    eventually("an event", || {
        queue.reap(&mut |_| {}).expect("a correct daemon");
        event = queue.next_event();
        event.is_some()
    });
    event.expect("just seen")
}

#[test]
fn resize_reaches_the_client_and_the_new_range_is_usable() {
    let daemon = Daemon::start(&["--disk", "m=memory:8M,max=64M", "--disk", "f=file:{dir}/disk,size=8M"]);
    for name in ["m", "f"] {
        let (disk, mut queue) = daemon.client(&Daemon::options(name));
        let buffer = disk.allocate(4096).expect("a pool");
        let (old_end, new_bytes) = (8 << 20 >> SECTOR_SHIFT, 32 << 20);
        queue.write(old_end, buffer.segment(0, 4096), false, 1).expect("room");
        assert_eq!(finish_one(&mut queue), Status::OutOfRange, "{name}: before");
        assert_eq!(resize(&daemon, name, new_bytes)["size_bytes"], new_bytes);
        assert_eq!(next_event(&mut queue), Event::Resized { sector_count: new_bytes >> SECTOR_SHIFT });
        assert_eq!(disk.info().size_bytes(), new_bytes);
        let data = stamp(4096, 1, 1);
        buffer.fill(0, &data);
        queue.write((new_bytes >> SECTOR_SHIFT) - 8, buffer.segment(0, 4096), true, 1).expect("room");
        // The acknowledgement of the event may be among the requests waited for, and is not reported.
        assert_eq!(finish_one(&mut queue), Status::Ok, "{name}: after");
        buffer.fill(0, &[0; 4096]);
        queue.read((new_bytes >> SECTOR_SHIFT) - 8, buffer.segment(0, 4096), 1).expect("room");
        assert_eq!(finish_one(&mut queue), Status::Ok);
        assert!(bytes_of(&buffer) == data, "{name}");
        assert_eq!(shrink(&daemon, name, 4 << 20, true)["size_bytes"], 4 << 20);
        assert_eq!(next_event(&mut queue), Event::Resized { sector_count: 4 << 20 >> SECTOR_SHIFT });
        queue.read(old_end - 8, buffer.segment(0, 4096), 1).expect("room");
        assert_eq!(finish_one(&mut queue), Status::OutOfRange, "{name}: smaller again");
    }
}

#[test]
fn a_disk_loses_its_end_only_when_that_is_said_and_while_it_is_used_only_by_force() {
    let daemon = Daemon::start(&["--disk", "m=memory:8M,max=64M", "--disk", "f=file:{dir}/disk,size=8M"]);
    let end = stamp(4096, 3, 3);
    for name in ["m", "f"] {
        let mut client = daemon.blocking(name);
        client.write_at(&end, (8 << 20) - 4096).expect("written");
        client.flush().expect("flushed");
        let pid = std::process::id().to_string();
        let said = resize(&daemon, name, (8 << 20) - 512)["error"].as_str().expect("refused").to_owned();
        assert_says(&said, &["has 8388608 bytes", "its last 512 bytes would be lost", &pid, "--shrink", "--force"]);
        let said = shrink(&daemon, name, 4 << 20, false)["error"].as_str().expect("refused").to_owned();
        assert_says(&said, &["its last 4194304 bytes would be lost", &pid, "add --force"]);
        assert!(!said.contains("--shrink"), "{said}");
        let forced = json!({ "method": "disk.resize", "disk": name, "size_bytes": 4 << 20, "force": true });
        assert_says(daemon.admin(&forced)["error"].as_str().expect("refused"), &["add --shrink"]);
        let mut bytes = vec![0; 4096];
        client.read_at(&mut bytes, (8 << 20) - 4096).expect("nothing changed");
        assert!(bytes == end, "{name}");
        drop(client);
        eventually("no client uses it", || daemon.attached_count(name) == 0);
        let said = resize(&daemon, name, 4 << 20)["error"].as_str().expect("refused").to_owned();
        assert!(said.contains("add --shrink") && !said.contains("--force"), "{said}");
        assert_eq!(shrink(&daemon, name, 4 << 20, false)["size_bytes"], 4 << 20, "intended, and no client is attached");
        // The same size or a larger one needs no flag.
        assert_eq!(resize(&daemon, name, 4 << 20)["size_bytes"], 4 << 20);
        assert_eq!(resize(&daemon, name, 8 << 20)["size_bytes"], 8 << 20);
    }
}

#[test]
fn second_resize_waits_for_the_acknowledgement_and_carries_the_newest_size() {
    let daemon = Daemon::start(&["--disk", "m=memory:8M,max=64M"]);
    let mut client = RawClient::attach(&daemon, &attach_message("m", 1, 4, 0));
    let resized = |message: fipsee_ring::Message| {
        assert_eq!(message.word(0), 1 | u64::from(KIND_RESIZE) << 8, "a resize event");
        message.word(1) << SECTOR_SHIFT
    };
    let set_mebibytes = |size: u64| assert_eq!(resize(&daemon, "m", size << 20)["size_bytes"], size << 20);
    set_mebibytes(16);
    // Only then the others: a worker that finds several at once reports the last.
    assert_eq!(resized(client.next_completion()), 16 << 20);
    [24, 32, 40].into_iter().for_each(set_mebibytes);
    // Messages stay in order: the next one is the answer to this request, not another event.
    let piece = RawClient::pool(0, 512);
    let last = (40 << 20 >> SECTOR_SHIFT) - 1;
    // The worker may take the read before it receives the last size.
    eventually("the last size is in force", || {
        client.ask(&request_one_segment(Operation::Read, 0, 3, last, piece)) == Status::Ok
    });
    client.publish(&request_ack_event(7, KIND_RESIZE));
    let (first, second) = (client.next_completion(), client.next_completion());
    client.queues[0].requests.answered();
    let is_event = |message: &fipsee_ring::Message| message.word(0) >> 8 & 0xff == u64::from(KIND_RESIZE);
    let (event, answer) = if is_event(&first) { (first, second) } else { (second, first) };
    assert_eq!(resized(event), 40 << 20, "the sizes in between are not reported");
    assert_eq!(answer.word(0) >> 32, 7, "the acknowledgement is completed");
    assert_eq!(client.ask(&request_ack_event(8, KIND_RESIZE)), Status::Ok);
    assert_eq!(client.ask(&request_ack_event(9, KIND_RESIZE)), Status::Invalid, "nothing is left to acknowledge");
}

#[test]
fn transfer_goes_on_when_the_acknowledgement_of_an_event_takes_the_only_place_of_the_queue() {
    let daemon = Daemon::start(&["--disk", "m=memory:8M,max=64M"]);
    let options = AttachOptions { depth: 1, ..Daemon::options("m") };
    let mut disk = Blocking::attach(&daemon.socket(), &options).expect("attached");
    for round in 0..50 {
        assert_eq!(resize(&daemon, "m", (9 + round) << 20)["size_bytes"], (9 + round) << 20);
        let data = stamp(600 << 10, round, 1);
        disk.write_at(&data, 4096).expect("written");
        let mut back = vec![0; data.len()];
        disk.read_at(&mut back, 4096).expect("read");
        assert!(back == data, "after resize {round}");
    }
}

#[test]
fn impossible_sizes_are_refused_and_nothing_changes() {
    let daemon = Daemon::start(&["--disk", "m=memory:8M", "--disk", "n=null:1G", "--disk", "r=memory:1M,ro"]);
    let (disk, mut queue) = daemon.client(&Daemon::options("m"));
    for (name, size_bytes, pieces) in [
        ("m", 0, ["size 0 is 0", "choose one that is"]),
        ("m", 1000, ["no multiple of the logical block size 512", "choose one that is"]),
        ("m", 1 << 30, ["can grow to 8388608 bytes", "max=1073741824"]),
        ("x", 512, ["no disk 'x' here", "there are: m, n, r"]),
    ] {
        let answer = resize(&daemon, name, size_bytes);
        assert_says(answer["error"].as_str().unwrap_or_default(), &pieces);
    }
    assert_eq!(disk.info().size_bytes(), 8 << 20);
    queue.flush(1).expect("room");
    assert_eq!(finish_one(&mut queue), Status::Ok);
    assert!(queue.next_event().is_none());
}

#[test]
fn terminated_daemon_answers_everything_published_and_leaves_no_socket() {
    for disk in ["m", "f"] {
        let mut daemon = Daemon::start(&["--disk", "m=memory:64M", "--disk", "f=file:{dir}/disk,size=64M", "--workers", "2"]);
        let (attached, mut queue) = daemon.client(&Daemon::options(disk));
        let buffer = attached.allocate(1 << 20).expect("a pool");
        let data = stamp(1 << 20, 4, 4);
        buffer.fill(0, &data);
        for token in 0..60_u64 {
            queue.write(token << 11, buffer.segment(0, 1 << 20), token.is_multiple_of(8), token).expect("room");
        }
        queue.submit();
        daemon.signal_term();
        let mut tokens: Vec<u64> = Vec::new();
        for completion in finish_all(&mut queue).expect("every request is answered") {
            assert_eq!(completion.status, Status::Ok);
            tokens.push(completion.token);
        }
        tokens.sort_unstable();
        assert!(tokens.iter().copied().eq(0..60), "{disk}: {tokens:?}");
        let status = daemon.await_exit();
        assert!(status.success(), "{disk}: {status}; {}", daemon.log());
        queue.flush(1).expect("room");
        assert!(matches!(finish_all(&mut queue), Err(Error::Disconnected)), "{disk}");
        for left in ["s", "s.admin"] {
            assert!(!daemon.dir.path(left).exists(), "{left} was not removed");
        }
        if disk == "f" {
            let file = std::fs::read(daemon.dir.path("disk")).expect("the disk");
            assert!((0..60).all(|part| file[part << 20..(part + 1) << 20] == data), "the file holds every write");
        }
    }
}

/// Keep the queue full until the daemon is gone; the tokens completed, and the number published.
fn load_until_gone(mut queue: Queue, segment: Segment, send: &mpsc::Sender<()>) -> (Vec<u64>, u64) {
    let (mut answered, mut next) = (Vec::new(), 0_u64);
    loop {
        while queue.free() > 0 {
            queue.write(next % 64 * 8, segment, false, next).expect("room");
            next += 1;
        }
        let waited = queue.wait(&mut |completion| {
            assert_eq!(completion.status, Status::Ok);
            answered.push(completion.token);
        });
        match waited {
            Ok(_) if answered.len() >= 1000 => send.send(()).unwrap_or(()),
            Ok(_) => {}
            Err(Error::Disconnected) => return (answered, next),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn termination_under_load_drains_and_answers_nothing_twice() {
    for disk in ["m", "f"] {
        let mut daemon = Daemon::start(&["--disk", "m=memory:64M", "--disk", "f=file:{dir}/disk,size=64M"]);
        let (attached, queue) = daemon.client(&Daemon::options(disk));
        let buffer = attached.allocate(4096).expect("a pool");
        let segment = buffer.segment(0, 4096);
        let (send, receive) = mpsc::channel();
        let load = std::thread::spawn(move || load_until_gone(queue, segment, &send));
        receive.recv().expect("it runs");
        daemon.signal_term();
        let (mut answered, published) = load.join().expect("no panic");
        assert!(daemon.await_exit().success(), "{}", daemon.log());
        let count = answered.len();
        answered.sort_unstable();
        answered.dedup();
        assert_eq!(answered.len(), count, "{disk}: answered twice");
        // Requests published before the signal were answered; of the last 64 some may have come after the daemon's last visit.
        assert!(answered[count - 64..].iter().all(|token| *token < published), "{disk}");
        let unanswered = published - count as u64;
        assert!(unanswered <= 64, "{disk}: {unanswered} of {published} are unanswered");
        assert!(
            answered.iter().copied().take(count.saturating_sub(128)).eq(0..count.saturating_sub(128) as u64),
            "{disk}: a gap"
        );
    }
}

#[test]
fn client_in_the_handshake_is_notified_that_the_daemon_stops() {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let silent = fipsee_testkit::raw::connect(&daemon);
    let attached = RawClient::attach(&daemon, &attach_message("a", 1, 1, 0));
    // The daemon knows both connections: the second came after the first.
    daemon.signal_term();
    let text = fipsee_testkit::raw::receive_refusal(&silent, fipsee_ring::control::RefusalCode::ShuttingDown);
    assert_says(&text, &["shutting down", "try again when it is back"]);
    assert_eq!(fipsee_testkit::raw::receive(&attached.control).0, Control::Detached);
    fipsee_testkit::raw::assert_closed(&attached.control);
    assert!(daemon.await_exit().success());
}

#[test]
fn admin_connection_that_goes_on_asking_does_not_hold_up_the_end() {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let mut stream = UnixStream::connect(fipsee_daemon::admin::admin_path(&daemon.socket())).expect("an admin socket");
    let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
    let mut ask = move || {
        let mut line = String::new();
        let asked = stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"disk.list\"}\n").is_ok();
        asked && reader.read_line(&mut line).is_ok_and(|length| length > 0) && line.contains("\"disk\":\"a\"")
    };
    assert!(ask(), "it answers");
    daemon.signal_term();
    eventually("the daemon hangs up", || !ask());
    assert!(daemon.await_exit().success());
}
