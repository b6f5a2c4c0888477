//! What the client sends, byte by byte, and when it rings, sleeps and ends.

use std::sync::atomic::Ordering;

use fipsee_block::client::{Disk, DiskError, Error, Queue, default_socket_path};
use fipsee_block::wire::Status;
use fipsee_testkit::bytes::*;
use fipsee_testkit::faulty::script::{COLD, MockAttachment, Script, completion, handshake, play};
use fipsee_testkit::is_root;

use super::faults::options;

/// A client with one queue, and `daemon` at the other end of it.
fn with_client<T: Send + 'static>(
    script: Script,
    client: impl FnOnce(Disk, Queue),
    daemon: impl FnOnce(MockAttachment) -> T + Send + 'static,
) -> T {
    let depth = u32_at(&script.region, 104);
    let (dir, daemon) = play(move |control| daemon(handshake(control, &script).expect("attached")));
    let (disk, mut queues) = Disk::attach(&dir.path("s"), &options(depth)).expect("attached");
    client(disk, queues.pop().expect("one queue"));
    daemon.join().expect("no panic")
}

fn finish(queue: &mut Queue) -> Vec<Status> {
    let mut statuses = Vec::new();
    queue.submit();
    while queue.outstanding() > 0 {
        queue.wait(&mut |completion| statuses.push(completion.status)).expect("connected");
    }
    statuses
}

/// checks: R-1-1, R-4.2-1
#[test]
fn control_messages_are_as_laid_out() {
    let (dir, daemon) = play(|control| {
        // It asks for advice about its rings, and for nothing about workers.
        assert_eq!(control.receive().expect("HELLO").bytes, hello(1, 1, 4));
        control.send(&Script::new(8, 0).welcome, &[]);
        let wanted = Wanted { depth: 8, pool_bytes: 4096, flags: 3, ..Wanted::disk("a") };
        assert_eq!(control.receive().expect("ATTACH").bytes, attach(&wanted));
    });
    let mut options = options(8);
    (options.read_only, options.exclusive) = (true, true);
    assert!(matches!(Disk::attach(&dir.path("s"), &options), Err(Error::Disconnected)));
    daemon.join().expect("no panic");
    let (dir, daemon) = play(|control| assert_eq!(control.receive().expect("HELLO").bytes, hello(1, 1, 5), "and about workers"));
    options.ask_worker_cpu = true;
    assert!(matches!(Disk::attach(&dir.path("s"), &options), Err(Error::Disconnected)));
    daemon.join().expect("no panic");
    let client = |disk: Disk, queue: Queue| {
        let memory = disk.create_memory(8192).expect("registered");
        disk.unregister(&memory).expect("unregistered");
        disk.detach(vec![queue]).expect("detached");
    };
    with_client(Script::new(8, 0x1f), client, |attached| {
        let register_packet = attached.control.receive().expect("REGISTER");
        assert_eq!((register_packet.bytes, register_packet.files.len()), (register(1, 3, 8192), 1));
        attached.control.send(&about_region(REGISTERED, 1), &[]);
        assert_eq!(attached.control.receive().expect("UNREGISTER").bytes, about_region(UNREGISTER, 1));
        attached.control.send(&about_region(UNREGISTERED, 1), &[]);
        assert_eq!(attached.control.receive().expect("DETACH").bytes, control(DETACH, 12));
        attached.control.send(&control(DETACHED, 12), &[]);
    });
}

/// A daemon that shuts down closes by itself: what came too late is never answered.
#[test]
fn detaching_says_when_something_that_was_published_is_not_answered() {
    for answered in [1, 2] {
        let client = move |disk: Disk, mut queue: Queue| {
            (0..2).for_each(|token| queue.flush(token).expect("room"));
            queue.submit();
            queue.flush(2).expect("room"); // Never published: no answer is due.
            match disk.detach(vec![queue]) {
                Ok(()) => assert_eq!(answered, 2),
                Err(error) => assert!(answered == 1 && matches!(error, Error::Disconnected), "{answered}: {error}"),
            }
        };
        with_client(Script::new(8, 0x1f), client, move |mut attached| {
            for _ in 0..answered {
                let request = attached.take();
                attached.answer(u16::from_le_bytes([request[4], request[5]]), 0);
            }
            attached.control.send(&control(DETACHED, 12), &[]);
            assert_eq!(attached.control.receive().expect("DETACH").bytes, control(DETACH, 12));
        });
    }
}

/// checks: R-5.1-1, R-2.1-1, R-2.1-2
#[test]
fn requests_hold_zero_in_all_that_they_do_not_use() {
    let client = |disk: Disk, mut queue: Queue| {
        let buffer = disk.allocate(1024).expect("a pool");
        let piece = buffer.segment(0, 512);
        for round in 0..3 {
            queue.read(3, piece, round).expect("room");
            assert_eq!(finish(&mut queue), [Status::Ok]);
            queue.write(4, piece, true, round).expect("room");
            assert_eq!(finish(&mut queue), [Status::Ok]);
            queue.write_vectored(5, &[piece, piece], false, round).expect("room");
            assert_eq!(finish(&mut queue), [Status::Ok]);
            queue.flush(round).expect("room");
            assert_eq!(finish(&mut queue), [Status::Ok]);
            queue.discard(6, 7, round).expect("room");
            assert_eq!(finish(&mut queue), [Status::Ok]);
            queue.write_zeroes(8, 9, true, true, round).expect("room");
            assert_eq!(finish(&mut queue), [Status::Ok]);
            queue.get_info(piece, round).expect("room");
            assert_eq!(finish(&mut queue), [Status::Ok]);
        }
    };
    with_client(Script::new(8, 0x1f), client, |mut attached| {
        let piece = segment((0, 1, 0));
        for _ in 0..3 {
            for expected in [
                request((READ, 1, 0), 0, 3, &piece, 0),
                request((WRITE, 1, 1), 0, 4, &piece, 0),
                request((WRITE, 2, 0), 0, 5, &piece.repeat(2), 0),
                flush(0),
                request((DISCARD, 0, 0), 0, 6, &[7], 0),
                request((ZERO, 0, 3), 0, 8, &[9], 0),
                request((GET_INFO, 1, 0), 0, 0, &piece, 0),
            ] {
                let mut found = attached.take();
                let tag = u16_at(&found, 4);
                found[4..6].fill(0);
                assert_eq!(found, expected);
                attached.answer(tag, 0);
            }
        }
    });
}

/// checks: R-5-1, R-2.3-1
#[test]
fn no_more_requests_are_outstanding_than_the_depth_with_tags_of_their_own() {
    let client = |_disk: Disk, mut queue: Queue| {
        for token in 0..4 {
            queue.flush(token).expect("room");
        }
        assert!(queue.flush(4).is_err(), "the depth is 4");
        assert_eq!(finish(&mut queue).len(), 4);
    };
    with_client(Script::new(4, 0x1f), client, |mut attached| {
        let mut tags: Vec<(u16, u16)> = (0..4).map(|_| (u16_at(&attached.take(), 4), 0)).collect();
        assert!(attached.requests.take(&attached.memory).is_none(), "a fifth");
        attached.publish(&completion(&tags));
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), 4, "unique");
    });
}

/// checks: R-5.9-1, R-5.9-2
#[test]
fn requests_are_packed_for_a_daemon_that_takes_them_and_for_no_other() {
    for capabilities in [0x1f, 0x3f] {
        let client = |disk: Disk, mut queue: Queue| {
            let buffer = disk.allocate(512).expect("a pool");
            for token in 0..3 {
                queue.read(token, buffer.segment(0, 512), token).expect("room");
            }
            assert_eq!(finish(&mut queue).len(), 3);
        };
        with_client(Script::new(8, capabilities), client, move |mut attached| {
            let first = attached.take();
            if capabilities & 32 != 0 {
                assert_eq!(first[..4], [8, 3, 0, 0], "three reads in a message");
                let tags = [u16_at(&first, 4), u16_at(&first, 6), u16_at(&first, 56)];
                attached.publish(&completion(&tags.map(|tag| (tag, 0))));
                return;
            }
            for message in [first, attached.take(), attached.take()] {
                assert_eq!(message[..4], [READ, 1, 0, 0], "a message each");
                attached.answer(u16_at(&message, 4), 0);
            }
        });
    }
}

/// checks: R-5.2-5
#[test]
fn no_request_has_more_segments_than_the_disk_takes() {
    let client = |disk: Disk, mut queue: Queue| {
        let buffer = disk.allocate(512).expect("a pool");
        let four = vec![buffer.segment(0, 512); 4];
        let refused = queue.read_vectored(0, &[four.clone(), four.clone()].concat(), 1);
        assert!(matches!(refused, Err(Error::Service(DiskError::Request(Status::TooLong)))), "{refused:?}");
        let refused = queue.read_vectored(0, &[four[0]; 5], 1);
        assert!(matches!(refused, Err(Error::Service(DiskError::Request(Status::TooLong)))), "{refused:?}");
        queue.read_vectored(0, &four, 1).expect("as many as it takes");
        assert_eq!(finish(&mut queue), [Status::Ok]);
    };
    let mut script = Script::new(8, 0x1f);
    script.attached[24 + 32..24 + 36].copy_from_slice(&4_u32.to_le_bytes());
    with_client(script, client, |mut attached| {
        let found = attached.take();
        assert_eq!(found[..2], [READ, 4], "nothing was sent before");
        attached.answer(u16_at(&found, 4), 0);
    });
}

/// checks: R-2.4-4, R-2.4-5, R-2.4-6, R-4.5-5
#[test]
fn the_client_rings_once_for_each_arming_and_never_without_one() {
    let client = |_disk: Disk, mut queue: Queue| {
        for token in 0..40 {
            queue.flush(token).expect("room");
            assert_eq!(finish(&mut queue), [Status::Ok]);
        }
    };
    with_client(Script::new(8, 0x1f), client, |mut attached| {
        let mut tag = u16_at(&attached.take(), 4);
        for number in 1..40 {
            let armed = number % 4 == 0;
            attached.memory.word(COLD + 4).store(u32::from(armed), Ordering::SeqCst);
            attached.answer(tag, 0);
            tag = u16_at(&attached.take(), 4);
            if armed {
                await_ring(&attached.daemon_doorbell);
                assert_eq!(attached.memory.word(COLD + 4).load(Ordering::SeqCst), 0, "the writer clears the flag");
            }
        }
        attached.answer(tag, 0);
        let mut counter = [0; 8];
        rustix::io::read(&attached.daemon_doorbell, &mut counter).expect("it was rung");
        assert_eq!(u64::from_ne_bytes(counter), 9, "the integer 1 for each arming");
    });
}

/// checks: R-4.5-7, R-4.5-8, R-4.3-19, R-2.4-2
#[test]
fn a_client_that_sleeps_takes_rings_without_cause_and_learns_of_the_end_by_its_doorbell() {
    let client = |_disk: Disk, mut queue: Queue| {
        for token in 0..2 {
            queue.flush(token).expect("room");
        }
        let mut statuses = Vec::new();
        while statuses.is_empty() {
            queue.wait(&mut |completion| statuses.push(completion.status)).expect("an answer that was published before the end");
        }
        let ended = queue.wait(&mut |completion| statuses.push(completion.status));
        assert!(matches!(ended, Err(Error::Disconnected)), "{ended:?}");
        assert_eq!(statuses, [Status::Ok]);
    };
    with_client(Script::new(8, 0x1f), client, |mut attached| {
        let tag = u16_at(&attached.take(), 4);
        attached.take();
        attached.await_sleeping_client();
        for _ in 0..200 {
            // A doorbell that is full is already ringing.
            let _ = rustix::net::send(&attached.doorbell, &[7; 8], rustix::net::SendFlags::NOSIGNAL);
        }
        attached.await_sleeping_client();
        // The answer, and then the end, without a ring for it; the control socket stays open until the client closes its own.
        attached.completions.publish(&attached.memory, &completion(&[(tag, 0)]));
        let MockAttachment { control, memory, doorbell, .. } = attached;
        drop(doorbell);
        assert!(control.receive().is_none(), "the client closes as well");
        drop(memory);
    });
}

/// checks: R-4.3-19, R-6-8
#[test]
fn an_end_that_is_announced_on_the_control_socket_alone_is_found_by_a_client_that_looks() {
    for last in [control(DETACHED, 12), with(control(REFUSED, 420), 12, &[2])] {
        let client = |disk: Disk, mut queue: Queue| {
            queue.flush(1).expect("room");
            assert_eq!(finish(&mut queue), [Status::Ok], "published before the end");
            let refused = disk.create_memory(4096);
            assert!(matches!(refused, Err(Error::Disconnected | Error::Refused { .. })), "{refused:?}");
        };
        with_client(Script::new(8, 0x1f), client, move |mut attached| {
            let tag = u16_at(&attached.take(), 4);
            attached.control.send(&last, &[]);
            attached.answer(tag, 0);
            while attached.control.receive().is_some() {}
        });
    }
}

/// As a process of its own, with the environment of its parent's choice.
pub(crate) fn print_the_default_socket() {
    println!("socket: {}.", default_socket_path().display());
}

/// checks: R-4.1-2
#[test]
fn the_default_socket_is_where_the_document_says() {
    let scratch = fipsee_testkit::Scratch::new();
    std::fs::create_dir(scratch.path("fipsee")).expect("a folder");
    std::fs::write(scratch.path("fipsee/fipsee.sock"), "").expect("a file");
    let base = scratch.0.to_string_lossy().into_owned();
    let own = if is_root() { "/run/fipsee/fipsee.sock".to_owned() } else { format!("{base}/fipsee/fipsee.sock") };
    for (named, base, expected) in [
        (Some("/a/b"), Some(base.as_str()), "/a/b"),
        (Some("/a/b"), None, "/a/b"),
        (None, Some(base.as_str()), own.as_str()),
        (None, Some("/nowhere"), "/run/fipsee/fipsee.sock"),
        (None, None, "/run/fipsee/fipsee.sock"),
    ] {
        let mut command = fipsee_testkit::child::command("print_the_default_socket");
        command.env_remove("FIPSEE_SOCKET").env_remove("XDG_RUNTIME_DIR");
        command.envs(named.map(|path| ("FIPSEE_SOCKET", path))).envs(base.map(|path| ("XDG_RUNTIME_DIR", path)));
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&format!("socket: {expected}.")), "{named:?}, {base:?}: {text}");
    }
}
