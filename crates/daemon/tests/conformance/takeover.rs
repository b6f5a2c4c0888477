//! Section 4.8: a takeover is invisible to clients.

use fipsee_testkit::Daemon;
use fipsee_testkit::bytes::*;
use rustix::fs::SealFlags;
use serde_json::json;

use super::client::{Client, greeted};

/// checks: R-4.8-1, R-4.8-2, R-4.8-3, R-5.8-3
#[test]
fn rings_memory_events_and_identity_go_on_with_the_next_daemon() {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M,max=16M"]);
    let mut client = Client::attach(&daemon, &Wanted { queues: 2, depth: 8, flags: 2, ..Wanted::disk("a") });
    let identity = client.info()[40..56].to_vec();
    let file = memory_file(4096, SealFlags::SHRINK);
    let mapped = Mapped::new(&file, 4096);
    assert_eq!(client.register(7, 3, 4096, &file).kind(), REGISTERED);
    let resize = |daemon: &Daemon, bytes: u64| {
        assert_eq!(daemon.admin(&json!({ "method": "disk.resize", "disk": "a", "size_bytes": bytes }))["size_bytes"], bytes);
    };
    resize(&daemon, 2 << 20);
    for round in 0..3_u8 {
        mapped.write(0, &[round + 1; 512]);
        for tag in 0..8 {
            client.publish(&transfer(WRITE, tag, 8 * u64::from(tag), (0, 1, 7)));
        }
        daemon.take_over();
        if round == 0 {
            let event = client.message_on(1);
            assert_eq!((event[1], u64_at(&event, 8)), (1, 4096));
            // Not acknowledged: the next size waits for that in the next daemon as well.
            resize(&daemon, 4 << 20);
        }
        let mut answers = Vec::new();
        while answers.len() < 8 {
            let message = client.message_on(0);
            if message[1] == 0 {
                answers.extend(super::client::entries(&message));
            }
        }
        answers.sort_unstable();
        assert!(answers.iter().copied().eq((0..8).map(|tag| (tag, 0))), "{answers:?}");
        for tag in 0..8 {
            assert_eq!(client.ask(&transfer(READ, tag, 8 * u64::from(tag), (1, 1, 7))), 0);
            assert_eq!(mapped.read(512, 512), [round + 1; 512]);
        }
        // ATTACH asked for exclusive use.
        let control = greeted(&daemon);
        control.send(&attach(&Wanted::disk("a")), &[]);
        control.assert_refused(5, "beside an exclusive client");
    }
    client.publish_on(1, &ack_event(1, 1));
    let (first, second) = (client.message_on(1), client.message_on(1));
    let event = if first[1] == 1 { first } else { second };
    assert_eq!(u64_at(&event, 8), 8192, "the size that waited");
    assert_eq!(client.ask(&request((GET_INFO, 1, 0), 1, 0, &segment((0, 1, 0)), 0)), 0);
    assert_eq!(client.pool(40, 16), identity, "the same disk");
    assert_eq!(client.control.ask(&about_region(UNREGISTER, 7), &[]).bytes, about_region(UNREGISTERED, 7));
    assert_eq!(client.control.ask(&control(DETACH, 12), &[]).kind(), DETACHED);
}

/// checks: R-5.8-2, R-5.8-3
#[test]
fn identity_is_of_the_content_and_survives_a_restart_if_that_does() {
    let mut daemon = Daemon::start(&["--disk", "m=memory:1M", "--disk", "f=file:{dir}/disk,size=1M", "--disk", "n=null:1M"]);
    let identities = |daemon: &Daemon| {
        ["m", "f", "n"].map(|disk| {
            let two = [(); 2].map(|()| Client::attach(daemon, &Wanted::disk(disk)).info()[40..56].to_vec());
            assert_eq!(two[0], two[1], "{disk}: two attachments");
            two[0].clone()
        })
    };
    let before = identities(&daemon);
    assert!(before[0] != before[1] && before[1] != before[2]);
    daemon.kill_9();
    daemon.restart();
    let after = identities(&daemon);
    assert_ne!(before[0], after[0], "a memory disk is a new one");
    assert_eq!(before[1..], after[1..]);
}
