//! Messages of a hypervisor during a takeover are read once and answered once; what cannot be handed over stays
//! where it is.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fipsee_block::wire::{KIND_RESIZE, Operation, Status, request_ack_event};
use fipsee_testkit::guest::device::{Guest, IN, OK, OUT, Options};
use fipsee_testkit::guest::frontend::Request;
use fipsee_testkit::guest::load::{GuestLoad, Way};
use fipsee_testkit::guest::machine::{
    Upgraded, detach_request, query, socket_of, start_guest, start_with, transfer, workers_sleep,
};
use fipsee_testkit::guest::ring::Incoming;
use fipsee_testkit::takeover::FakeNew;
use fipsee_testkit::{Daemon, assert_says, eventually, stamp};
use fipsee_virtio::blk::upgrade::wire::{DONE, NO_ATTACHMENT};
use serde_json::json;

/// One round of every message of a hypervisor to a running device.
fn talk(guest: &mut Guest, data: u64, round: u64) {
    let offered = guest.frontend.call(Request::GetFeatures, &[], &[]).expect("an answer").0;
    assert_ne!(offered, [0; 8]);
    let call = rustix::io::fcntl_dupfd_cloexec(&guest.queues[0].call, 3).expect("a descriptor");
    guest.frontend.set_vring_file(Request::SetVringCall, 0, call.as_fd()).expect("confirmed");
    let pieces = guest.ram.pieces.as_slice();
    guest.frontend.set_memory(pieces).expect("confirmed");
    assert_eq!(guest.frontend.call(Request::GetQueueNum, &[], &[]).expect("an answer").0.len(), 8);
    let base = guest.frontend.stop_vring(0).expect("an answer");
    assert_eq!(base, guest.queues[0].base(), "every completion was used");
    guest.start_queue(0).expect("confirmed");
    guest.ram.write(data, &stamp(4096, 1, round));
    assert_eq!(guest.transfer(0, OUT, 8 * (round % 64), (data, 4096)), OK);
    guest.ram.write(data, &[0; 4096]);
    assert_eq!(guest.transfer(0, IN, 8 * (round % 64), (data, 4096)), OK);
    assert_eq!(guest.ram.read(data, 4096), stamp(4096, 1, round));
}

#[test]
fn messages_that_come_meanwhile_are_answered_once() {
    let mut daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M", "--workers", "2"]);
    let load = GuestLoad::start(&daemon, "w", &Options { size: 256, ..Options::default() }, Way::Virtqueue, 16);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let (stop, rounds) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
    let hypervisor_thread = std::thread::spawn(move || {
        let data = guest.ram.allocate(4096, 4096);
        while !stopped.load(Ordering::Relaxed) {
            talk(&mut guest, data, counted.fetch_add(1, Ordering::Relaxed));
        }
        assert!(guest.frontend.is_silent(), "an answer too many");
    });
    for _ in 0..10 {
        let before = rounds.load(Ordering::Relaxed);
        eventually("the hypervisor is answered", || {
            assert!(!hypervisor_thread.is_finished(), "the hypervisor gave up; see above");
            rounds.load(Ordering::Relaxed) > before + 3
        });
        load.await_progress();
        daemon.take_over();
    }
    stop.store(true, Ordering::Relaxed);
    hypervisor_thread.join().expect("each message had its answer");
    load.finish();
}

#[test]
fn upgrade_requests_that_come_meanwhile_are_answered_once() {
    let mut daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M", "--workers", "2"]);
    let load = GuestLoad::start(&daemon, "w", &Options { size: 256, ..Options::default() }, Way::Ring, 16);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let (stop, answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&answers));
    let guest_thread = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            assert_eq!(guest.ask(0, &query(0)).result, DONE);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    for _ in 0..20 {
        let before = answers.load(Ordering::Relaxed);
        eventually("an upgrade request is answered", || {
            assert!(!guest_thread.is_finished(), "an upgrade request was not answered; see above");
            answers.load(Ordering::Relaxed) > before + 3
        });
        daemon.take_over();
    }
    stop.store(true, Ordering::Relaxed);
    guest_thread.join().expect("each upgrade request had its answer");
    load.finish();
}

#[test]
fn half_a_message_stays_with_the_daemon_that_read_it() {
    let mut daemon = start_with(&["--disk", "d=memory:8M", "--disk", "w=memory:8M"]);
    let load = GuestLoad::start(&daemon, "w", &Options { size: 256, ..Options::default() }, Way::Ring, 16);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let data = guest.ram.allocate(4096, 4096);
    let wanted = Request::GetFeatures as u32;
    let message = [wanted.to_le_bytes(), 1_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat();
    for cut in [1, 11] {
        let mut socket: UnixStream = guest.frontend.connection().try_clone().expect("a descriptor");
        socket.write_all(&message[..cut]).expect("room");
        // If it has not been read yet, it is handed over.
        if let Err(text) = daemon.try_take_over(&["--takeover-wait-ms", "100"]) {
            assert_says(&text, &["the virtual machine of 'd'", "in the middle of a message", "try again"]);
        }
        load.await_progress();
        assert_eq!(guest.transfer(0, IN, 0, (data, 4096)), OK, "its queues are served all the time");
        socket.write_all(&message[cut..]).expect("room");
        assert_eq!(guest.frontend.answer(Request::GetFeatures).expect("one answer").len(), 8);
        assert!(guest.frontend.is_silent(), "an answer too many");
        daemon.take_over();
        load.await_progress();
        talk(&mut guest, data, 1);
    }
    load.finish();
}

/// checks: R-9.4-3
#[test]
fn sleepers_wake_each_other_across_daemons() {
    let mut daemon = start_with(&["--disk", "d=memory:8M,max=64M", "--wait", "sleep"]);
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, event_index: true, ..Options::default() });
    let mut up = Upgraded::attach(&mut guest, &[1], 8);
    let data = guest.ram.allocate(4096, 4096);
    for round in 0..5_u64 {
        up.rings[0].hold_pending(up.attachment, &mut guest);
        eventually("the old worker sleeps", || workers_sleep(&daemon));
        daemon.take_over();
        eventually("the new worker sleeps", || workers_sleep(&daemon));
        guest.ram.write(data, &stamp(4096, 2, round));
        assert_eq!(guest.transfer(0, OUT, 8, (data, 4096)), OK);
        assert_eq!(transfer(&mut guest, &mut up, 0, Operation::Read, 8, (data, 4096)), Status::Ok);
        assert_eq!(guest.ram.read(data, 4096), stamp(4096, 2, round));
        // A pending doorbell request of the old daemon rings in the new one.
        up.rings[0].hold_pending(up.attachment, &mut guest);
        eventually("the doorbell request is pending", || workers_sleep(&daemon));
        daemon.take_over();
        let size_bytes = (16 + round) << 20;
        daemon.admin(&json!({ "method": "disk.resize", "disk": "d", "size_bytes": size_bytes }));
        assert_eq!(up.rings[0].wait(up.attachment, &mut guest), [Incoming::Resized(size_bytes / 512)]);
        let acknowledgement = request_ack_event(6, KIND_RESIZE);
        up.rings[0].submit(&[acknowledgement], &guest.queues[1]);
        assert_eq!(up.rings[0].wait(up.attachment, &mut guest), [Incoming::Answer(6, 0)]);
    }
    // The attachment is the same: its number is known, and it can be detached.
    assert_eq!(guest.ask(0, &query(up.attachment)).result, DONE);
    assert_eq!(guest.ask(0, &detach_request(up.attachment)).result, DONE);
    assert_eq!(guest.ask(0, &query(up.attachment)).result, NO_ATTACHMENT);
    let again = Upgraded::attach(&mut guest, &[1], 8);
    assert_ne!(again.attachment, up.attachment);
}

#[test]
fn queue_that_broke_stays_broken_and_others_go_on() {
    let mut daemon = start_with(&["--disk", "d=memory:8M"]);
    let mut guest = start_guest(&daemon, "d", &Options { queues: 2, ..Options::default() });
    guest.queues[0].make_available(60_000);
    guest.queues[0].publish();
    eventually("the queue broke", || guest.queues[0].is_broken());
    daemon.take_over();
    let data = guest.ram.allocate(4096, 4096);
    assert_eq!(guest.transfer(1, IN, 0, (data, 4096)), OK);
    // It is not served, until it is reset.
    let sent = guest.submit(0, IN, 0, &[(data, 4096, true)]);
    assert_eq!(guest.transfer(1, IN, 0, (data, 4096)), OK);
    assert!(!guest.queues[0].is_done(sent.head), "a broken queue answers");
}

#[test]
fn hang_up_at_any_step_changes_nothing_for_guests() {
    let daemon = start_with(&["--disk", "d=memory:8M", "--disk", "e=memory:8M"]);
    let options = Options { size: 256, ..Options::default() };
    let loads =
        [GuestLoad::start(&daemon, "d", &options, Way::Virtqueue, 32), GuestLoad::start(&daemon, "e", &options, Way::Ring, 32)];
    let (mut steps, mut had_everything) = (0, false);
    while !had_everything {
        steps += 1;
        let fake = FakeNew::connect(&daemon);
        let mut held = Vec::new();
        for _ in 0..steps {
            let Some((packet, descriptors)) = fake.receive() else { break };
            held.push(descriptors);
            match packet["packet"].as_str() {
                Some("prepare") => fake.send(b"{\"packet\":\"prepared\"}"),
                Some("end") => {
                    had_everything = true;
                    break;
                }
                _ => {}
            }
        }
        drop(fake);
        loads.iter().for_each(GuestLoad::await_progress);
    }
    let mut daemon = daemon;
    daemon.take_over();
    loads.iter().for_each(GuestLoad::await_progress);
    loads.into_iter().for_each(|load| assert!(load.finish() > 0));
}

#[test]
fn daemon_that_is_killed_after_a_takeover_leaves_what_the_next_one_needs() {
    let mut daemon = start_with(&["--disk", "d=file:{dir}/f,size=8M,block=4096"]);
    let mut guest = start_guest(&daemon, "d", &Options::default());
    let data = guest.ram.allocate(16 * 4096, 4096);
    for round in 0..4 {
        let mut up = Upgraded::attach(&mut guest, &[0], 4);
        // Taken and not answered, by this daemon or the next, so that requests in flight do not start at the used ring's index.
        if round % 2 == 0 {
            up.rings[0].hold_pending(up.attachment, &mut guest);
            assert_eq!(guest.transfer(0, IN, 0, (data, 4096)), OK);
        }
        daemon.take_over();
        up.rings[0].hold_pending(up.attachment, &mut guest);
        assert_eq!(guest.transfer(0, IN, 0, (data, 4096)), OK);
        let mut sent = Vec::new();
        for number in 0..16 {
            let place = data + 4096 * number;
            guest.ram.write(place, &stamp(4096, number, round));
            sent.push(guest.submit(0, OUT, 8 * number, &[(place, 4096, false)]));
        }
        daemon.kill_9();
        daemon.restart();
        eventually("the daemon takes the hypervisor again", || guest.reconnect().is_ok());
        for one in sent {
            assert_eq!(guest.wait(one), OK, "finished by one of the two");
        }
        assert_eq!(up.rings[0].wait_for_doorbell(&mut guest), fipsee_testkit::guest::ring::Woken::Ended, "it was not forgotten");
        let buffer = guest.ram.allocate(4096, 4096);
        for number in 0..16 {
            assert_eq!(guest.transfer(0, IN, 8 * number, (buffer, 4096)), OK);
            assert_eq!(guest.ram.read(buffer, 4096), stamp(4096, number, round));
        }
        assert_eq!(guest.queues[0].outstanding(), 0);
    }
}

#[test]
fn hypervisor_that_waits_to_be_accepted_is_accepted_by_the_new_daemon() {
    let mut daemon: Daemon = start_with(&["--disk", "d=memory:8M"]);
    let first = start_guest(&daemon, "d", &Options::default());
    // One hypervisor at a time: this one waits in the backlog of the listening socket.
    let waiting = UnixStream::connect(socket_of(&daemon, "d")).expect("it listens");
    daemon.take_over();
    drop(waiting);
    drop(first);
    let mut next = start_guest(&daemon, "d", &Options::default());
    let data = next.ram.allocate(4096, 4096);
    assert_eq!(next.transfer(0, IN, 0, (data, 4096)), OK);
}
