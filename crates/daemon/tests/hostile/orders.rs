//! Every order of messages on the control socket, three long: what the protocol's table forbids is refused, what it allows is
//! answered.

use std::os::fd::AsFd;

use fipsee_ring::control::{Control, FEATURE_LIST, Page, Refusal, RefusalCode, VERSION};
use fipsee_testkit::raw::{BOTH, attach_message, connect, sealed_memory};
use fipsee_testkit::{CorrectClient, Daemon, TIMEOUT, eventually};
use rustix::fs::SealFlags;

/// What a connection is, by the table of docs/protocol.md section 4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connected,
    Greeted,
    Attached { registered: bool },
    Closed,
}

/// What must come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Kind(u8),
    Refused,
    RefusedAndClosed,
}

fn messages() -> Vec<Control> {
    vec![
        Control::Hello { version_min: VERSION, version_max: VERSION, features: FEATURE_LIST },
        attach_message("a", 1, 4, 0),
        Control::Register { region: 1, access: BOTH, length_bytes: 4096 },
        Control::Unregister { region: 1 },
        Control::Detach,
        Control::Detached,
        Control::Registered { region: 1 },
        Control::Unregistered { region: 1 },
        Control::Welcome { version: 1, max_queues: 1, max_depth: 1, features: 0, max_pool_bytes: 0 },
        Control::Attached { queue_count: 1, region_bytes: 4096, service_info: [0; 64] },
        Control::Refused(Refusal { code: RefusalCode::Busy, text: "no".to_owned() }),
        Control::List { service: 1, after: String::new() },
        Control::Listed(Page::default()),
    ]
}

fn kind(message: &Control) -> u8 {
    message.encode()[4]
}

/// The table.
fn step(state: State, message: &Control) -> (Answer, State) {
    match (state, message) {
        (State::Connected, Control::Hello { .. }) => (Answer::Kind(2), State::Greeted),
        (State::Greeted, Control::List { .. }) => (Answer::Kind(13), State::Greeted),
        (State::Greeted, Control::Attach(_)) => (Answer::Kind(4), State::Attached { registered: false }),
        (State::Attached { registered: false }, Control::Register { .. }) => {
            (Answer::Kind(7), State::Attached { registered: true })
        }
        (State::Attached { registered: true }, Control::Register { .. }) => (Answer::Refused, state),
        (State::Attached { registered: true }, Control::Unregister { .. }) => {
            (Answer::Kind(9), State::Attached { registered: false })
        }
        (State::Attached { registered: false }, Control::Unregister { .. }) => (Answer::Refused, state),
        (State::Attached { .. }, Control::Detach) => (Answer::Kind(11), State::Closed),
        _ => (Answer::RefusedAndClosed, State::Closed),
    }
}

fn walk(daemon: &Daemon, order: &[&Control]) {
    let control = connect(daemon);
    let memory = sealed_memory(4096, SealFlags::SHRINK);
    let mut state = State::Connected;
    for message in order {
        let descriptors = [memory.as_fd()];
        let with = if matches!(message, Control::Register { .. }) { &descriptors[..] } else { &[] };
        control.send(&message.encode(), with).expect("sent");
        let packet = control.receive(TIMEOUT).unwrap_or_else(|error| panic!("no answer to {message:?} of {order:?}: {error}"));
        let answer = Control::decode(&packet.bytes).expect("the daemon says what it may");
        let (expected, next) = step(state, message);
        let is_refused = matches!(answer, Control::Refused(_));
        match expected {
            Answer::Kind(number) => assert_eq!(kind(&answer), number, "{answer:?} to {message:?} of {order:?}"),
            Answer::Refused | Answer::RefusedAndClosed => assert!(is_refused, "{answer:?} to {message:?} of {order:?}"),
        }
        state = next;
        if state == State::Closed {
            let end = control.receive(TIMEOUT).expect_err("closed");
            assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof, "{message:?} of {order:?}");
            return;
        }
    }
}

/// checks: R-4.3-1, R-4.3-4
#[test]
fn every_order_of_three_messages_is_answered_as_the_table_says() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--disk", "w=memory:1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let before = daemon.fd_count();
    let all = messages();
    for first in &all {
        for second in &all {
            for third in &all {
                walk(&daemon, &[first, second, third]);
            }
        }
        correct_client.check();
    }
    // Behind an attachment, three more.
    let (hello, attach) = (&all[0], &all[1]);
    for first in &all {
        for second in &all {
            walk(&daemon, &[hello, attach, first, second]);
        }
    }
    correct_client.check();
    eventually("no client is attached", || daemon.attached_count("a") == 0);
    eventually("every descriptor is closed", || daemon.fd_count() == before);
}
