//! Upgrade requests are given to the owner of the server, and are answered at once or later.

mod common;

use common::driver::DATA;
use common::ram::END;
use common::{IN, IOERR, OK, Options, Ram, Rig, Segment, UNSUPP, memory_disk, readable, writable};
use fipsee_block::disk::MemoryDisk;
use fipsee_virtio::blk::server::{QuestionToken, TakenQuestion};
use fipsee_virtio::blk::upgrade::wire::REQUEST_TYPE;

fn rig() -> Rig<MemoryDisk> {
    Rig::with(memory_disk(), &Options::default(), Ram::new(), |setup| setup.takes_questions = true)
}

/// Offer a question and have it taken; its head and itself.
fn ask(rig: &mut Rig<MemoryDisk>, sector: u64, data: &[Segment]) -> (u16, TakenQuestion) {
    let head = rig.driver.request(REQUEST_TYPE, sector, data);
    rig.driver.offer(head);
    rig.run();
    let question = rig.server.next_question().expect("it was asked");
    assert!(!rig.server.has_question());
    (head, question)
}

#[test]
fn where_nobody_answers_questions_the_request_is_unknown() {
    let mut rig = Rig::new(memory_disk(), &Options::default());
    assert_eq!(rig.request(REQUEST_TYPE, 0, &[readable(DATA, 64), writable(DATA, 64)]), (UNSUPP, 0));
}

#[test]
fn a_question_is_copied_whole_and_answered_at_once() {
    let mut rig = rig();
    for (length, cut) in [(64, 64), (64, 1), (128, 100), (64 + 64 * 64, 65), (10, 5)] {
        let question: Vec<u8> = (0..length).map(|byte: u32| byte.to_le_bytes()[0] | 1).collect();
        rig.driver.ram.write(DATA, &question);
        rig.driver.ram.write(DATA + 8192, &[0; 80]);
        let reply = [writable(DATA + 8192, 3), writable(DATA + 8192 + 3, 61)];
        let data = [readable(DATA, cut), readable(DATA + u64::from(cut), length - cut), reply[0], reply[1]];
        let (head, asked) = ask(&mut rig, 0, &data);
        assert!(asked.is_plain && asked.bytes == question, "{length} bytes");
        assert!(rig.server.answer_question(asked.token, &[0xab; 64]));
        rig.server.flush();
        assert_eq!((rig.driver.take_used(), rig.driver.status(head)), (Some((head, 65)), OK), "{length} bytes");
        assert_eq!(rig.driver.ram.read(DATA + 8192, 65), [&[0xab; 64][..], &[0]].concat());
    }
    let (_, asked) = ask(&mut rig, 9, &[readable(DATA, 64), writable(DATA + 8192, 64)]);
    assert!(!asked.is_plain, "a sector was given");
}

#[test]
fn questions_that_cannot_be_answered_are_errors() {
    let mut rig = rig();
    for (what, data) in [
        ("no room for the reply", vec![readable(DATA, 64), writable(DATA, 63)]),
        ("no reply", vec![readable(DATA, 64)]),
        ("too long", vec![readable(DATA, 64 + 64 * 64 + 1), writable(DATA, 64)]),
        ("a question outside memory", vec![readable(END, 64), writable(DATA, 64)]),
    ] {
        assert_eq!(rig.request(REQUEST_TYPE, 0, &data).0, IOERR, "{what}");
        assert!(!rig.server.has_question(), "{what}");
    }
    rig.driver.ram.write(DATA, &[1]);
    let (head, asked) = ask(&mut rig, 0, &[readable(DATA, 64), writable(END, 64)]);
    assert!(rig.server.answer_question(asked.token, &[0xab; 64]));
    rig.server.flush();
    assert!(rig.driver.take_used().is_some());
    assert_eq!(rig.driver.status(head), IOERR, "the reply goes nowhere");
    assert_eq!(rig.request(IN, 0, &[writable(DATA, 512)]).0, OK);
}

/// Park a question; its head and token.
fn park(rig: &mut Rig<MemoryDisk>) -> (u16, QuestionToken) {
    let (head, asked) = ask(rig, 0, &[readable(DATA, 64), writable(DATA + 8192, 64)]);
    (head, asked.token)
}

#[test]
fn a_parked_question_waits_beside_other_requests_and_is_answered_once() {
    let mut rig = rig();
    let (head, token) = park(&mut rig);
    assert_eq!((rig.server.unanswered(), rig.server.in_flight(), rig.driver.take_used()), (1, 0, None));
    assert_eq!(rig.request(IN, 0, &[writable(DATA, 512)]).0, OK);
    assert!(rig.server.answer_question(token, &[3; 64]));
    rig.server.flush();
    assert_eq!(rig.driver.take_used(), Some((head, 65)));
    assert_eq!((rig.driver.status(head), rig.driver.ram.read(DATA + 8192, 64)), (OK, vec![3; 64]));
    assert!(!rig.server.answer_question(token, &[4; 64]), "it was answered");
    // The same head asks again: the old token is not its.
    let (again, other) = park(&mut rig);
    assert_eq!(again, head);
    assert!(!rig.server.answer_question(token, &[4; 64]));
    assert!(rig.server.answer_question(other, &[5; 64]));
    rig.server.flush();
    assert_eq!(rig.driver.take_used(), Some((head, 65)));
}

#[test]
fn a_parked_question_survives_another_memory_table_and_does_not_hold_up_the_end() {
    let mut rig = rig();
    let (head, token) = park(&mut rig);
    let memory = rig.driver.ram.map_again();
    let (descriptors, available, used) = (rig.driver.descriptors, rig.driver.available, rig.driver.used);
    rig.server.set_memory(memory, descriptors, available, used).expect("the same rings");
    assert!(rig.server.answer_question(token, &[6; 64]));
    rig.server.flush();
    assert_eq!(rig.driver.take_used(), Some((head, 65)));
    assert_eq!(rig.driver.ram.read(DATA + 8192, 64), [6; 64]);
    let (_, _) = park(&mut rig);
    assert_eq!(rig.server.in_flight(), 0, "so it can be stopped");
    assert_eq!(rig.server.stop(), 2);
}

#[test]
fn memory_without_the_rings_is_refused_and_the_old_one_goes_on() {
    let mut rig = rig();
    let other = Ram::of(vec![common::ram::region(END + 4096, 1 << 20, 0)]);
    let (descriptors, available, used) = (rig.driver.descriptors, rig.driver.available, rig.driver.used);
    let text = rig.server.set_memory(other.memory(), descriptors, available, used).expect_err("no rings there");
    assert!(text.contains("descriptor table"), "{text}");
    assert_eq!(rig.request(IN, 0, &[writable(DATA, 512)]).0, OK);
}
