//! Section 5.6: events and their acknowledgement, at the daemon.

use fipsee_testkit::Daemon;
use fipsee_testkit::bytes::*;
use serde_json::json;

use super::client::{Client, entries};

fn resize(daemon: &Daemon, sectors: u64) {
    let answer = daemon.admin(&json!({ "method": "disk.resize", "disk": "a", "size_bytes": sectors * 512 }));
    assert_eq!(answer["size_bytes"], sectors * 512, "{answer}");
}

/// The size in a resize event; every byte of the event is checked.
#[track_caller]
fn resized(message: &[u8; 60]) -> u64 {
    assert_eq!(message[..8], [1, 1, 0, 0, 0, 0, 0, 0], "the head of an event");
    assert!(message[16..].iter().all(|byte| *byte == 0), "{message:02x?}");
    u64_at(message, 8)
}

/// checks: R-5.6-1, R-5.6-3, R-5.6-4, R-5.6-5, R-5.6-6, R-5.6-7, R-5.3-26
#[test]
fn a_size_is_sent_on_every_queue_and_the_next_one_after_the_acknowledgement() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M,max=16M"]);
    let mut client = Client::attach(&daemon, &Wanted { queues: 2, ..Wanted::disk("a") });
    let last = |sectors: u64| transfer(READ, 3, sectors - 1, (0, 1, 0));
    for queue in 0..2 {
        assert_eq!(client.ask_on(queue, &ack_event(1, 1)), 2, "nothing to acknowledge");
        assert_eq!(client.ask_on(queue, &last(4096)), 6, "not yet");
    }
    for sectors in [4096, 6144, 8192] {
        resize(&daemon, sectors);
    }
    for queue in 0..2 {
        assert_eq!(resized(&client.message_on(queue)), 4096);
        // The newest size is in force once the worker has it; its event waits, so the next message is a completion.
        until("the newest size", || (client.ask_on(queue, &last(8192)) == 0).then_some(()));
        assert_eq!(client.ask_on(queue, &last(8193)), 6);
        assert_eq!(client.ask_on(queue, &request((GET_INFO, 1, 0), 4, 0, &segment((0, 1, 0)), 0)), 0);
        assert_eq!(u64_at(&client.pool(0, 64), 8), 8192);
        for (kind, status) in [(2, 2), (0, 2), (3, 2), (0x0101, 2)] {
            assert_eq!(client.ask_on(queue, &ack_event(5, kind)), status, "event {kind} is not pending");
        }
    }
    // An acknowledgement counts for its own queue only.
    client.publish_on(0, &ack_event(6, 1));
    let (first, second) = (client.message_on(0), client.message_on(0));
    let (event, answer) = if first[1] == 1 { (first, second) } else { (second, first) };
    assert_eq!((resized(&event), entries(&answer)), (8192, vec![(6, 0)]), "the sizes in between are not sent");
    assert!(client.try_message_on(1).is_none(), "the other queue has not acknowledged");
    assert_eq!(client.ask_on(0, &ack_event(7, 1)), 0);
    assert_eq!(client.ask_on(0, &ack_event(8, 1)), 2, "acknowledged already");
    client.publish_on(1, &ack_event(9, 1));
    let (first, second) = (client.message_on(1), client.message_on(1));
    assert_eq!(resized(if first[1] == 1 { &first } else { &second }), 8192);
}

/// checks: R-5.7-1
#[test]
fn client_that_acknowledges_nothing_gets_every_answer() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M,max=16M"]);
    // 2 slots and 4: an event that is not acknowledged leaves one message for each request and one slot to spare.
    let mut client = Client::attach(&daemon, &Wanted { depth: 2, ..Wanted::disk("a") });
    assert_eq!(client.queues[0].completions.slots, 4);
    resize(&daemon, 4096);
    for round in 0..100 {
        resize(&daemon, 4096 + 8 * round);
        for tag in 0..2 {
            client.publish(&flush(tag));
        }
        let mut answers = 0;
        while answers < 2 {
            let message = client.message_on(0);
            answers += if message[1] == 0 { entries(&message).len() } else { 0 };
            assert!(message[1] == 0 || round == 0, "a second event without an acknowledgement");
        }
    }
}
