//! Frames of a burst share messages: by the library, and by hand, with messages that are wrong in part.

use fipsee_net::frame::Mac;
use fipsee_net::wire::{
    Filled, FilledPacked, KIND_RECEIVED, KIND_RECEIVED_PACKED, KIND_RETURNED, PackedBuffer, PackedFrame, Post, PostedBuffer,
    Returned, SendPacked, Status,
};
use fipsee_ring::channel::ClientQueue;
use fipsee_ring::handshake::AttachedChannel;

use super::hostile::{POOL_BYTES, answer, by_hand, publish};
use super::{all_sent, assert_nothing, attach, frame, lan, mac, next, stat};

/// All lengths in one burst, with what shares no message between them: they come in their order.
///
/// checks: R-10.3-13, R-10.3-18, R-10.4-10
#[test]
fn burst_of_frames_of_every_length_is_received_in_order() {
    let daemon = lan(9000, ["", "", ""]);
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"));
    let lengths = [14, 15, 55, 56, 57, 60, 64, 65, 200, 1514, 2048, 9014];
    for round in 0..40 {
        let count = 1 + round % 31;
        let sent: Vec<Vec<u8>> = (0..count)
            .map(|index| {
                let length = lengths[(round * 7 + index) % lengths.len()];
                frame(mac(1), mac(2), length, (round * 100 + index) as u64)
            })
            .collect();
        for (index, sent) in sent.iter().enumerate() {
            if index == 3 && round % 2 == 0 {
                a.join(Mac([1, 0, 0x5e, 0, 0, 1])).expect("asked");
            }
            if index % 4 == 1 {
                let mut buffer = a.buffer().expect("a free one");
                buffer.write(0, sent).expect("it fits");
                a.send_buffer(buffer, u32::try_from(sent.len()).expect("small")).expect("staged");
            } else {
                a.stage(sent).expect("staged");
            }
        }
        let unsent = a.unsent();
        a.submit();
        assert!((sent.len()..=sent.len() + 1).contains(&usize::try_from(unsent).expect("few")), "{unsent} of {count}");
        for (index, sent) in sent.iter().enumerate() {
            if round % 3 == 0 {
                let held = loop {
                    if let Some(held) = b.take().expect("the daemon is there") {
                        break held;
                    }
                    std::thread::yield_now();
                };
                assert_eq!(held.to_vec().expect("its bytes"), *sent, "frame {index} of {count}");
            } else {
                assert_eq!(next(&mut b), *sent, "frame {index} of {count}");
            }
        }
        all_sent(&mut a);
    }
    assert_nothing(&mut b);
    assert_eq!(a.refused(), (0, None));
}

/// Frames to one port, to another, and to all, in every order of four, share messages: each comes where it belongs, and nowhere else.
///
/// checks: R-10.3-18
#[test]
fn frames_of_a_message_go_to_a_port_each() {
    let daemon = lan(1500, ["", "", ""]);
    let (mut a, mut others) = (attach(&daemon.socket(), "a"), ["b", "c"].map(|name| attach(&daemon.socket(), name)));
    let to = [mac(2), mac(3), Mac::BROADCAST];
    for order in 0..81 {
        let chosen = [order % 3, order / 3 % 3, order / 9 % 3, order / 27];
        let sent: Vec<Vec<u8>> = (0..).zip(chosen).map(|(seed, to_index)| frame(mac(1), to[to_index], 64, seed)).collect();
        sent.iter().for_each(|frame| a.stage(frame).expect("staged"));
        a.submit();
        for (port, own) in others.iter_mut().zip(to) {
            for frame in sent.iter().filter(|frame| frame[..6] == own.0 || frame[..6] == Mac::BROADCAST.0) {
                assert_eq!(next(port), *frame, "{chosen:?}");
            }
        }
        all_sent(&mut a);
        others.iter_mut().for_each(assert_nothing);
    }
    assert_eq!(a.refused(), (0, None));
}

/// What the next answers on the transmit queue give back, of so many frames, which are one message.
fn given_back(queue: &mut ClientQueue, frames: usize) -> Vec<(u16, Status)> {
    let mut found = Vec::new();
    while found.len() < frames {
        let returned = Returned::of(&answer(queue));
        assert_eq!((returned.kind, returned.reserved), (KIND_RETURNED, 0));
        let entries = &returned.entries[..usize::from(returned.count)];
        found.extend(entries.iter().map(|entry| (entry.tag, Status::from_wire(entry.status).expect("a status"))));
    }
    found
}

/// Frames that the client named `a` has in its memory, each at a multiple of 2048.
fn put(channel: &AttachedChannel, frames: &[Vec<u8>]) {
    for (place, frame) in (0..).step_by(2048).zip(frames) {
        channel.region.write(channel.layout.pool_offset_bytes + place, frame).expect("within the pool");
    }
}

/// checks: R-10.3-2, R-10.3-6, R-10.3-7, R-10.3-8, R-10.3-9, R-10.3-10, R-10.3-18
#[test]
fn wrong_frame_of_a_message_is_refused_alone() {
    let daemon = lan(1500, ["", "", ""]);
    let mut b = attach(&daemon.socket(), "b");
    let mut channel = by_hand(&daemon.socket(), "lan/a");
    let pool = u32::try_from(POOL_BYTES).expect("small");
    let tagged = |length| {
        let mut tagged = frame(mac(1), mac(2), length, 3);
        tagged[12..14].copy_from_slice(&[0x81, 0]);
        tagged
    };
    let good = frame(mac(1), mac(2), 100, 1);
    let last = frame(mac(1), mac(2), 1514, 2);
    let others = [tagged(100), frame(mac(3), mac(2), 60, 4), frame(mac(1), mac(2), 1516, 5)];
    put(&channel, &[&[good.clone(), last.clone()][..], &others].concat());
    let at = |place: u32, length_bytes: u16| PackedFrame { tag: 8, length_bytes, offset_bytes: place };
    let wrong = [
        (at(0, 0), Status::TooShort),
        (at(0, 13), Status::TooShort),
        (at(u32::MAX, 13), Status::TooShort),
        (at(2 * 2048, 17), Status::TooShort),
        (at(2 * 2048, 100), Status::WrongVlan),
        (at(3 * 2048, 60), Status::WrongSource),
        (at(4 * 2048, 1515), Status::TooLong),
        (at(0, u16::MAX), Status::TooLong),
        (at(pool - 63, 64), Status::BadMemory),
        (at(pool, 14), Status::BadMemory),
        (at(u32::MAX, u16::MAX), Status::BadMemory),
    ];
    for (wrong, expected) in wrong {
        let frames = [
            PackedFrame { tag: 7, length_bytes: 100, offset_bytes: 0 },
            wrong,
            PackedFrame { tag: 9, length_bytes: 1514, offset_bytes: 2048 },
        ];
        publish(&mut channel.queues[0], &SendPacked::new(0, &frames).to_message());
        let found = given_back(&mut channel.queues[0], 3);
        assert_eq!(found, [(7, Status::Ok), (8, expected), (9, Status::Ok)], "{wrong:?}");
        assert_eq!((next(&mut b), next(&mut b)), (good.clone(), last.clone()), "{wrong:?}");
        assert_nothing(&mut b);
    }
    let of_a = stat(&daemon, "a");
    assert_eq!((of_a["sent"].as_u64(), of_a["refused"]["bad_memory"].as_u64()), (Some(22), Some(3)), "{of_a}");
}

/// checks: R-10.3-18, R-10.3-19
#[test]
fn wrong_counts_and_memory_and_tags_that_are_there_twice_are_answered() {
    let daemon = lan(1500, ["", "", ""]);
    let mut b = attach(&daemon.socket(), "b");
    let mut channel = by_hand(&daemon.socket(), "lan/a");
    let sent = frame(mac(1), mac(2), 64, 1);
    put(&channel, std::slice::from_ref(&sent));
    let frames = [PackedFrame { tag: 7, length_bytes: 64, offset_bytes: 0 }; 7];
    let queue = &mut channel.queues[0];
    for count in [0, 8, 14, 255] {
        publish(queue, &SendPacked { count, ..SendPacked::new(0, &frames) }.to_message());
        assert_eq!(given_back(queue, 1), [(7, Status::Invalid)], "a count of {count}");
        assert_nothing(&mut b);
    }
    for memory in [1, u16::MAX] {
        publish(queue, &SendPacked::new(memory, &frames[..2]).to_message());
        assert_eq!(given_back(queue, 2), [(7, Status::BadMemory); 2]);
        assert_nothing(&mut b);
    }
    publish(queue, &SendPacked::new(0, &frames).to_message());
    assert_eq!(given_back(queue, 7), [(7, Status::Ok); 7]);
    (0..7).for_each(|_| assert_eq!(next(&mut b), sent));
    assert_nothing(&mut b);
}

/// A client by hand sees by which messages frames come.
///
/// checks: R-10.4-10, R-10.4-2
#[test]
fn burst_comes_by_one_message_and_a_frame_that_fits_no_buffer_between() {
    let daemon = lan(1500, ["", "", ""]);
    let mut b = attach(&daemon.socket(), "b");
    let mut channel = by_hand(&daemon.socket(), "lan/a");
    let receive = &mut channel.queues[1];
    let buffer = |tag: u16| PostedBuffer { tag, memory: 0, offset_bytes: 1024 * u32::from(tag), length_bytes: 1024 };
    for tag in (0..12).step_by(4) {
        let post = Post::new(&[0, 1, 2, 3].map(|more| buffer(tag + more))).to_message();
        receive.requests.publish_several(&post, 4).expect("a free slot");
    }
    let lengths = [64, 30, 1024, 1500, 100, 56, 900];
    let sent: Vec<Vec<u8>> = (0..).zip(lengths).map(|(seed, length)| frame(mac(2), mac(1), length, seed)).collect();
    sent.iter().for_each(|frame| b.stage(frame).expect("staged"));
    b.submit();
    let first = FilledPacked::of(&answer(receive));
    let expected = [(0, 64), (1, 30), (2, 1024)].map(|(tag, length_bytes)| PackedBuffer { tag, length_bytes });
    assert_eq!((first.kind, first.named()), (KIND_RECEIVED_PACKED, Some(&expected[..])));
    let long = Filled::of(&answer(receive));
    assert_eq!((long.kind, long.count, long.length_bytes, &long.tags[..2]), (KIND_RECEIVED, 2, 1500, &[3, 4][..]));
    let rest = FilledPacked::of(&answer(receive));
    let expected = [(5, 100), (6, 56), (7, 900)].map(|(tag, length_bytes)| PackedBuffer { tag, length_bytes });
    assert_eq!((rest.kind, rest.named()), (KIND_RECEIVED_PACKED, Some(&expected[..])));
    for (place, sent) in [0, 1, 2, 3, 5, 6, 7].into_iter().zip(&sent) {
        let mut found = vec![0; sent.len()];
        channel.region.read(channel.layout.pool_offset_bytes + 1024 * place, &mut found).expect("within the pool");
        assert_eq!(found, *sent);
    }
}
