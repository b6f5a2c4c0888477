//! What a daemon says to the client of a port: its description, and messages on both completion rings. Whatever they say, the client takes
//! frames that fit its buffers alone, and each buffer back once, or finds a fault.

use std::cell::RefCell;
use std::path::Path;

use fipsee_interop::golden;
use fipsee_net::frame::Mac;
use fipsee_net::wire::{
    KIND_RECEIVED_COMPRESSED, MAX_PACKED_RECEIVED, PROFILE, PackedBuffer, PortInfo, Returned, Status, max_offloaded_bytes,
};
use fipsee_net::{AttachOptions, Error, Port};
use fipsee_ring::Message;
use fipsee_ring::ring::{Cursor, Writer};
use fipsee_ring::tuning::Tuning;
use fipsee_ring::wait::WaitMode;

use crate::channel::TestChannel;
use crate::take;

const DEPTH: u32 = 8;
const MTU: u16 = 500;
const MOST_MESSAGES: usize = 12;

thread_local! {
    static CHANNEL: RefCell<TestChannel> = RefCell::new(TestChannel::of(&PROFILE, 2, DEPTH, 32 << 10));
}

/// The description of a port.
pub(crate) fn one_info(mut bytes: &[u8]) {
    let (info, [asked]) = (take(&mut bytes), take(&mut bytes));
    let Ok(parsed) = PortInfo::from_bytes(&info, asked.into()) else { return };
    assert_eq!(parsed.to_bytes(), info, "nothing of it is ignored");
    assert!(info[0] & 1 == 0 && (68..=9000).contains(&parsed.mtu) && parsed.offloads & !u32::from(asked) == 0);
    assert_eq!(parsed.max_frame_bytes, max_offloaded_bytes(parsed.mtu, parsed.offloads));
    assert!(parsed.vlan <= 4094 && (1..=8).contains(&parsed.pairs) && info[20..] == [0; 44]);
}

pub(crate) fn info_seeds() -> Vec<Vec<u8>> {
    let info = |mtu, vlan, pairs, offloads| {
        let info = PortInfo::new(Mac([2, 0, 0, 0, 0, 1]), mtu, vlan, pairs).with_offloads(offloads).to_bytes();
        [&info[..], &[31]].concat()
    };
    vec![info(1500, 0, 1, 0), info(68, 10, 2, 1), info(9000, 4094, 8, 31), info(MTU, 1, 1, 3)]
}

/// A byte says how many frames were sent and how long receive buffers are; each message is a byte that says which ring, and 60.
pub(crate) fn one(mut bytes: &[u8]) {
    let [choice] = take(&mut bytes);
    CHANNEL.with_borrow(|channel| {
        channel.clear();
        let info = PortInfo::new(Mac([2, 0, 0, 0, 0, 1]), MTU, 0, 1).to_bytes();
        let buffer_bytes = [None, Some(64), Some(128), Some(400)][usize::from(choice >> 6)];
        let options = AttachOptions { depth: DEPTH, buffer_bytes, wait: WaitMode::Sleep, ..AttachOptions::new("lan/a") };
        let mut port =
            Port::over(channel.attached(info), Path::new("none"), &options).expect("a good channel").pop().expect("one pair");
        let sent = u64::from(choice % 8);
        (0..sent).for_each(|number| port.stage(&vec![2; if number % 2 == 0 { 40 } else { 300 }]).expect("there is room"));
        port.submit();
        let mut writers = [0, 1].map(|queue| {
            let geometry = &channel.layout.queues[queue];
            let ring = geometry.completion_ring(&channel.region, &Tuning::default()).expect("a good ring");
            Writer::new(ring, Cursor::at_start(geometry.completion_start), &Tuning::default())
        });
        let mut count = 0;
        while !bytes.is_empty() && count < MOST_MESSAGES {
            let [ring] = take(&mut bytes);
            writers[usize::from(ring & 1)].publish(&Message::from_payload(&take(&mut bytes)));
            count += 1;
        }
        take_all(&mut port, sent);
    });
}

fn take_all(port: &mut Port, sent: u64) {
    match port.reap() {
        Ok(given_back) => assert!(given_back <= sent && port.unsent() == u32::try_from(sent - given_back).expect("few")),
        Err(Error::Fault(_)) => {}
        Err(other) => panic!("neither correct nor a fault: {other}"),
    }
    let (mut frame, mut looks) = (Vec::new(), 0);
    loop {
        looks += 1;
        assert!(looks <= (MAX_PACKED_RECEIVED + 1) * MOST_MESSAGES, "more than was published");
        match port.receive(&mut frame) {
            Ok(true) => assert!((14..=usize::from(MTU) + 18).contains(&frame.len()), "a frame of {} bytes", frame.len()),
            // Of a buffer that the daemon did not take.
            Err(Error::Service(_)) => {}
            Ok(false) => return,
            Err(Error::Fault(_)) => return,
            Err(other) => panic!("neither correct nor a fault: {other}"),
        }
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let payload = |message: Message| message.to_bytes()[..60].to_vec();
    let returned = payload(Returned::new(&[(0, Status::Ok), (1, Status::WrongSource), (2, Status::Ok)]).to_message());
    let refused = payload(Returned::new(&[(3, Status::BadMemory)]).to_message());
    let mut all: Vec<Vec<u8>> = vec![[&[3, 0][..], &returned, &[1], &refused].concat()];
    for (_, bytes) in golden::examples().into_iter().filter(|(name, bytes)| name.starts_with("frame-") && bytes.len() == 60) {
        for choice in [0x03, 0x43, 0x83] {
            all.push([&[choice, 1][..], &bytes, &[0], &bytes].concat());
        }
    }
    // A small frame, and one in two buffers of 400 bytes.
    let mut filled = fipsee_net::wire::Filled::new(500, &[0, 1]).to_message();
    all.push([&[0xc0, 1][..], &payload(filled)].concat());
    filled = fipsee_net::wire::Filled::new(100, &[0]).to_message();
    let several = fipsee_net::wire::FilledPacked::new(&[0, 1, 2].map(|tag| PackedBuffer { tag, length_bytes: 64 })).to_message();
    all.push([&[0x00, 1][..], &payload(several), &[1], &payload(filled)].concat());
    let small = fipsee_net::wire::Small::new(2, 1, &[2; 30]).to_message();
    all.push([&[0x00, 1][..], &payload(filled), &[1], &payload(small)].concat());
    // Without addresses, behind one with them.
    let compressed = fipsee_net::wire::compressed(KIND_RECEIVED_COMPRESSED, 2, &[3; 64]);
    all.push([&[0x00, 1][..], &payload(small), &[1], &payload(compressed)].concat());
    all
}
