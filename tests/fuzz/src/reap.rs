//! Messages on a completion ring, read by both clients: Rust's and the fio engine's must agree.

use std::cell::RefCell;

use fipsee_block::client::{AttachOptions, Disk, Error};
use fipsee_block::wire::{self, BlockInfo, Status};
use fipsee_interop::golden;
use fipsee_interop::messages::completions;
use fipsee_ring::Message;
use fipsee_ring::ring::{Cursor, Writer};
use fipsee_ring::tuning::Tuning;

use crate::channel::TestChannel;
use crate::fio::{self, DEPTH};
use crate::take;

const INFO: BlockInfo = BlockInfo {
    first_sector: 0,
    sector_count: 1000,
    block_bytes: 512,
    optimal_bytes: 4096,
    max_transfer_bytes: 1 << 20,
    max_range_sectors: 4096,
    max_segments: 256,
    capabilities: 31,
    identity: [0; 16],
};

thread_local! {
    static CHANNEL: RefCell<TestChannel> = RefCell::new(TestChannel::new(DEPTH, 0));
}

/// A byte says how many requests are outstanding and how many messages come, of 60 bytes each.
pub(crate) fn one(mut bytes: &[u8]) {
    let [choice] = take(&mut bytes);
    // With one outstanding, pacing would make the outcome depend on the clock.
    let request_count = 2 + u32::from(choice) % (DEPTH - 1);
    let messages: Vec<Message> = (0..1 + (choice >> 4) % 6).map(|_| Message::from_payload(&take(&mut bytes))).collect();
    let rust = CHANNEL.with_borrow(|channel| reap(channel, &messages, request_count));
    let (finished, sector_count, is_faulty) = fio::reap(&messages, request_count);
    let sector_count = if sector_count == 0 { INFO.sector_count } else { sector_count };
    assert_eq!(rust, (finished, sector_count, is_faulty), "Rust, the engine, of {messages:x?}");
    assert!(rust.0.len() <= request_count as usize, "more finished than were begun");
}

fn reap(channel: &TestChannel, messages: &[Message], request_count: u32) -> (Vec<(u16, u16)>, u64, bool) {
    channel.clear();
    let attached = channel.attached(INFO.to_bytes());
    let (disk, mut queues) = Disk::over(attached, &AttachOptions::new("fuzz")).expect("a good channel");
    let queue = &mut queues[0];
    for token in 0..request_count {
        queue.flush(token.into()).expect("room");
    }
    queue.submit();
    let geometry = &channel.layout.queues[0];
    let ring = geometry.completion_ring(&channel.region, &Tuning::default()).expect("a good ring");
    Writer::new(ring, Cursor::at_start(geometry.completion_start), &Tuning::default()).publish_all(messages);
    let mut finished = Vec::new();
    // Tags are given in the order of the tokens.
    let outcome = queue.reap(&mut |completion| {
        finished.push((u16::try_from(completion.token).expect("small"), completion.status.to_wire()));
    });
    let is_faulty = match outcome {
        Ok(_) => false,
        Err(Error::Fault(_)) => true,
        Err(other) => panic!("neither correct nor a fault: {other}"),
    };
    (finished, disk.info().sector_count, is_faulty)
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let first = completions(&[(0, Status::Ok), (1, Status::IoError)]);
    let events = [wire::event(wire::KIND_RESIZE, 77), wire::event(wire::KIND_DETACH, 0), first];
    let bytes = |message: &Message| message.to_bytes()[..60].to_vec();
    let mut all = vec![[vec![0x20], events.iter().flat_map(bytes).collect()].concat()];
    let incoming = |name: &str| name.starts_with("completion-") || name.starts_with("event-");
    all.extend(golden::examples().into_iter().filter(|(name, _)| incoming(name)).map(|(_, bytes)| [&[0][..], &bytes].concat()));
    all
}
