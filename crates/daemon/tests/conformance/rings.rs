//! Section 2, and what sections 5 and 6 say of rings: positions, stamps, flow, doorbells, the daemon's end.

use std::sync::atomic::Ordering;

use fipsee_testkit::bytes::*;
use fipsee_testkit::{CorrectClient, Daemon};
use rustix::process::Signal;

use super::client::{Client, entries};

fn daemon(wait: &str) -> (Daemon, CorrectClient) {
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--disk", "w=memory:1M", "--workers", "1", "--wait", wait]);
    let correct_client = CorrectClient::new(&daemon, "w");
    (daemon, correct_client)
}

/// checks: R-2.1-1, R-2.1-2, R-2.3-1, R-2.3-2, R-2.3-3, R-5.5-1, R-2-2
#[test]
fn positions_start_where_the_table_says_and_go_round_with_a_new_stamp_each_lap() {
    let (daemon, _correct_client) = daemon("adaptive");
    for depth in [1, 2, 3, 64] {
        let mut client = Client::attach(&daemon, &Wanted { depth, ..Wanted::disk("a") });
        let slots = client.queues[0].requests.slots;
        for tag in 0..u16::try_from(10 * slots + 3).expect("small") {
            let here = client.queues[0].requests;
            assert_eq!(client.ask(&transfer(READ, tag, 0, (0, 1, 0))), 0, "depth {depth}, request {tag}");
            let slot = client.memory.read(here.slot(), 64);
            assert_eq!(slot[..60], transfer(READ, tag, 0, (0, 1, 0)), "the reader writes only the stamp");
            assert_eq!(u32_at(&slot, 60), here.stamp);
        }
        assert!(client.queues[0].requests.stamp >= 10 && client.queues[0].completions.stamp >= 4);
        assert!(client.try_message_on(0).is_none(), "each is answered once");
        for cold in [client.queues[0].cold, client.queues[0].cold + 128] {
            assert_eq!(client.memory.word(cold).load(Ordering::SeqCst), 0, "`released` is not used");
        }
    }
}

/// checks: R-2.1-3, R-2.2-3, R-2.2-4
#[test]
fn messages_are_taken_in_order_and_only_with_the_stamp_of_their_lap() {
    let (daemon, mut correct_client) = daemon("adaptive");
    let mut client = Client::attach(&daemon, &Wanted { queues: 2, ..Wanted::disk("a") });
    assert_eq!(client.ask(&transfer(READ, 1, 0, (0, 1, 0))), 0);
    let here = client.queues[0].requests;
    let wake = |client: &mut Client| {
        // One worker: an answer on its other queue, asked for after the message was published, shows that the worker has looked.
        must_ring(&client.memory, client.queues[0].cold);
        rustix::io::write(&client.queues[0].daemon_doorbell, &1_u64.to_ne_bytes()).expect("an eventfd");
        for tag in 0..50 {
            assert_eq!(client.ask_on(1, &transfer(READ, tag, 0, (0, 1, 0))), 0);
        }
    };
    for wrong in [0, here.stamp + 1, here.stamp.wrapping_sub(1), here.stamp + 2, u32::MAX] {
        client.memory.write(here.slot(), &transfer(READ, 9, 0, (0, 1, 0)));
        client.memory.word(here.slot() + 60).store(wrong, Ordering::Release);
        wake(&mut client);
        assert!(client.try_message_on(0).is_none(), "stamp {wrong} where {} is due", here.stamp);
    }
    // The second message is published before the first: none is taken, then both are.
    client.memory.word(here.slot() + 60).store(0, Ordering::Release);
    let mut second = here;
    second.advance();
    second.publish(&client.memory, &transfer(READ, 11, 0, (0, 1, 0)));
    wake(&mut client);
    assert!(client.try_message_on(0).is_none(), "a position is skipped");
    client.publish(&transfer(READ, 10, 0, (0, 1, 0)));
    assert_eq!([client.completion(), client.completion()], [(10, 0), (11, 0)]);
    correct_client.check();
}

/// checks: R-2.3-4
#[test]
fn a_writer_that_laps_its_reader_silences_its_own_ring_and_nothing_else() {
    let (daemon, mut correct_client) = daemon("adaptive");
    let mut client = Client::attach(&daemon, &Wanted { queues: 2, depth: 2, ..Wanted::disk("a") });
    assert_eq!(client.queues[0].requests.slots, 2);
    assert_eq!(client.ask(&flush(1)), 0);
    // While the daemon is stopped, a whole lap and one more message.
    daemon.freeze();
    for tag in 2..5 {
        client.publish(&transfer(READ, tag, 0, (0, 1, 0)));
    }
    daemon.signal(Signal::CONT);
    for tag in 0..3 {
        assert_eq!(client.ask_on(1, &transfer(READ, tag, 0, (0, 1, 0))), 0, "another queue of the same client");
        client.publish(&transfer(READ, 100 + tag, 0, (0, 1, 0)));
    }
    assert!(client.try_message_on(0).is_none(), "messages that were lapped are answered");
    correct_client.check();
    assert_eq!(client.control.ask(&control(DETACH, 12), &[]).kind(), DETACHED, "the control socket is open");
    assert!(client.try_message_on(0).is_none());
}

/// checks: R-2.3-1, R-5-1
#[test]
fn answers_out_of_order_free_slots_all_the_same() {
    let daemon = Daemon::start(&["--disk", "a=delay:0ms+5ms,seed=7:memory:1M"]);
    // The ring has as many slots as the depth: a slot is reused while an older request is in flight.
    let depth = 4_u16;
    let mut client = Client::attach(&daemon, &Wanted { depth: depth.into(), ..Wanted::disk("a") });
    assert_eq!(client.queues[0].requests.slots, u32::from(depth));
    let (mut outstanding, mut overtaken) = (std::collections::BTreeMap::new(), 0);
    for number in 0..400_u16 {
        while outstanding.len() == usize::from(depth) {
            let (tag, status) = client.completion();
            assert_eq!(status, 0);
            let published: u16 = outstanding.remove(&tag).expect("an answer to an outstanding request");
            overtaken += u32::from(outstanding.values().any(|other| *other < published));
        }
        let tag = (0..depth).find(|tag| !outstanding.contains_key(tag)).expect("a free tag");
        client.publish(&transfer(READ, tag, 0, (0, 1, 0)));
        outstanding.insert(tag, number);
    }
    assert!(overtaken > 0, "no answer came out of order");
    while !outstanding.is_empty() {
        assert!(outstanding.remove(&client.completion().0).is_some());
    }
}

/// checks: R-2.4-4, R-2.4-5, R-2.4-6, R-4.5-6
#[test]
fn the_daemon_rings_once_for_each_arming_and_never_without_one() {
    let (daemon, _correct_client) = daemon("adaptive");
    let mut client = Client::attach(&daemon, &Wanted::disk("a"));
    for tag in 0..200 {
        assert_eq!(client.ask(&transfer(READ, tag, 0, (0, 1, 0))), 0);
    }
    for value in [1, 7, u32::MAX] {
        client.arm(0, value);
        assert_eq!(client.ask(&transfer(READ, 1, 0, (0, 1, 0))), 0);
        await_ring(&client.queues[0].doorbell);
        for tag in 0..200 {
            assert_eq!(client.ask(&transfer(READ, tag, 0, (0, 1, 0))), 0);
        }
        let flag = client.queues[0].cold + 128 + 4;
        assert_eq!(client.memory.word(flag).load(Ordering::SeqCst), 0, "the writer clears the flag");
        let (lengths, ended) = rings(&client.queues[0].doorbell);
        assert!(lengths.len() == 1 && lengths[0] > 0 && !ended, "armed once with {value}: {lengths:?}, end {ended}");
    }
}

/// checks: R-2.4-1, R-2.4-3
#[test]
fn a_daemon_that_sleeps_is_woken_by_the_doorbell_whenever_it_asked_for_it() {
    let (daemon, _correct_client) = daemon("sleep");
    let mut client = Client::attach(&daemon, &Wanted::disk("a"));
    for tag in 0..2000 {
        // Every second time the daemon surely sleeps; otherwise it may be about to.
        if tag % 2 == 0 {
            client.await_sleeping_daemon(0);
        }
        assert_eq!(client.ask(&transfer(READ, tag, 0, (0, 1, 0))), 0);
    }
}

/// checks: R-2.4-2, R-4.5-5, R-6-5, R-6-7
#[test]
fn doorbells_and_flags_without_cause_harm_no_other_client() {
    let (daemon, mut correct_client) = daemon("sleep");
    let mut client = Client::attach(&daemon, &Wanted::disk("a"));
    for tag in 0..500_u16 {
        rustix::io::write(&client.queues[0].daemon_doorbell, &1_u64.to_ne_bytes()).expect("room in the counter");
        let (cold, value) = (client.queues[0].cold, u32::from(tag));
        client.memory.word(cold + 128 + 4).store(value, Ordering::SeqCst);
        client.publish(&transfer(READ, tag, 0, (0, 1, 0)));
        // A flag that the client clears costs it its own wake-up; the doorbell makes up for that.
        client.memory.word(cold + 4).store(0, Ordering::SeqCst);
        rustix::io::write(&client.queues[0].daemon_doorbell, &1_u64.to_ne_bytes()).expect("room in the counter");
        assert_eq!(client.completion(), (tag, 0));
    }
    // The counter holds every ring of the client: the daemon read none.
    let mut counter = [0; 8];
    rustix::io::read(&client.queues[0].daemon_doorbell, &mut counter).expect("an eventfd that was rung");
    assert!(u64::from_ne_bytes(counter) >= 1000, "the daemon reads its doorbell");
    // The daemon does not wait for the client to empty its doorbell.
    for tag in 0..1000 {
        client.arm(0, 1);
        assert_eq!(client.ask(&flush(tag)), 0);
    }
    // A counter filled with values other than 1 costs the client its wake-ups, and no other client.
    let _ = rustix::io::read(&client.queues[0].daemon_doorbell, &mut counter);
    rustix::io::write(&client.queues[0].daemon_doorbell, &(u64::MAX - 1).to_ne_bytes()).expect("an empty counter");
    client.publish(&flush(1));
    correct_client.check();
    assert_eq!(client.control.ask(&control(DETACH, 12), &[]).kind(), DETACHED);
}

/// checks: R-2.5-1, R-2.5-2, R-2.6-1
#[test]
fn a_hold_beyond_its_bound_is_not_granted() {
    let (daemon, mut correct_client) = daemon("poll");
    let mut client = Client::attach(&daemon, &Wanted { depth: 1, ..Wanted::disk("a") });
    client.memory.word(client.queues[0].cold + 128 + 8).store(u32::MAX, Ordering::SeqCst);
    // If it were granted, each call would take four seconds. Choices of any value are followed or not: all answers come.
    for tag in 0..1000_u16 {
        let choices = u32::from(tag).wrapping_mul(0x9e37_79b1);
        client.memory.word(client.queues[0].cold + 128 + 12).store(choices, Ordering::SeqCst);
        assert_eq!(client.ask(&transfer(READ, tag, 0, (0, 1, 0))), 0);
    }
    correct_client.check();
}

/// checks: R-5.1-3, R-5.5-2
#[test]
fn requests_of_the_same_tag_are_each_answered_and_nothing_waits_for_a_full_message() {
    let (daemon, _correct_client) = daemon("adaptive");
    let mut client = Client::attach(&daemon, &Wanted { depth: 64, ..Wanted::disk("a") });
    client.fill(0, &[1; 512]);
    client.fill(512, &[2; 512]);
    for (sector, offset) in [(0, 0), (1, 1)] {
        client.publish(&transfer(WRITE, 77, sector, (offset, 1, 0)));
    }
    assert_eq!([client.completion(), client.completion()], [(77, 0), (77, 0)]);
    assert_eq!(client.ask(&transfer(READ, 1, 0, (2, 2, 0))), 0);
    assert_eq!(client.pool(1024, 1024), [[1; 512], [2; 512]].concat());
    // 64 at once come in messages of at most 14.
    for tag in 0..64 {
        client.publish(&transfer(READ, tag, 0, (0, 1, 0)));
    }
    let mut tags: Vec<u16> = Vec::new();
    while tags.len() < 64 {
        tags.extend(entries(&client.message_on(0)).iter().map(|(tag, status)| if *status == 0 { *tag } else { u16::MAX }));
    }
    tags.sort_unstable();
    assert!(tags.iter().copied().eq(0..64), "{tags:?}");
}
