//! Frames between clients.

use std::collections::HashSet;

use fipsee_net::frame::Mac;
use fipsee_net::wire::Status;
use fipsee_net::{AttachOptions, Error, NetError, Port};
use fipsee_ring::wait::WaitMode;

use serde_json::json;

use super::{all_sent, assert_nothing, attach, frame, lan, lan_at, mac, next, options, stat};

/// To the end of the first bytes, of a small frame, of a buffer, of the MTU, and around them.
const LENGTHS: [usize; 22] =
    [14, 15, 35, 36, 37, 55, 56, 57, 60, 64, 65, 127, 128, 129, 1514, 2047, 2048, 2049, 4096, 4097, 9013, 9014];

/// checks: R-10.3-2, R-10.3-12, R-10.4-1, R-10.4-3
#[test]
fn frames_of_every_length_go_to_and_fro_whatever_the_buffers() {
    let daemon = lan(9000, ["", "", ""]);
    for (buffer_bytes, wait) in [(None, WaitMode::default()), (Some(2048), WaitMode::Sleep), (Some(512), WaitMode::Pause)] {
        let options = |port| AttachOptions { buffer_bytes, wait, ..options(port) };
        let mut a = Port::attach(&daemon.socket(), &options("a")).expect("attached");
        let mut b = Port::attach(&daemon.socket(), &options("b")).expect("attached");
        assert_eq!((a.mac(), b.mac(), a.info().mtu, a.info().max_frame_bytes), (mac(1), mac(2), 9000, 9018));
        for round in 0..10 {
            for (seed, length) in (round * 100..).zip(LENGTHS) {
                let (there, back) = (frame(mac(1), mac(2), length, seed), frame(mac(2), mac(1), length, seed + 50));
                a.send(&there).expect("sent");
                assert_eq!(next(&mut b), there, "{length} bytes");
                b.send(&back).expect("sent");
                assert_eq!(next(&mut a), back, "{length} bytes");
            }
        }
        all_sent(&mut a);
        assert_eq!(a.refused(), (0, None));
        a.detach().expect("detached");
        b.detach().expect("detached");
    }
}

#[test]
fn frame_is_filled_in_place() {
    let daemon = lan(1500, ["", "", ""]);
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"));
    for length in [14, 36, 37, 56, 1514] {
        let sent = frame(mac(1), mac(2), length, 3);
        let mut buffer = a.buffer().expect("a free one");
        buffer.write(0, &sent).expect("it fits");
        a.send_buffer(buffer, u32::try_from(length).expect("small")).expect("sent");
        a.submit();
        assert_eq!(next(&mut b), sent);
    }
    let mut buffer = a.buffer().expect("a free one");
    assert!(buffer.write(1510, &[0; 9]).is_err(), "beyond its end");
    assert!(matches!(a.send_buffer(buffer, 1519), Err(Error::Service(_))));
    // Nothing was lost: all buffers are there.
    all_sent(&mut a);
    let buffers: Vec<_> = (0..64).map(|_| a.buffer().expect("a free one")).collect();
    assert!(matches!(a.buffer(), Err(Error::Full)));
    buffers.into_iter().for_each(|buffer| a.put_back(buffer).expect("its own"));
    a.send(&frame(mac(1), mac(2), 100, 4)).expect("sent");
    next(&mut b);
}

#[test]
fn buffer_goes_back_to_its_own_pair_alone() {
    let daemon = lan(1500, ["", "", ""]);
    let mut pairs = Port::attach_pairs(&daemon.socket(), &AttachOptions { pairs: 2, ..options("a") }).expect("attached");
    let (mut second, mut first) = (pairs.pop().expect("two"), pairs.pop().expect("two"));
    let mut other = attach(&daemon.socket(), "b");
    let is_refused = |outcome| matches!(outcome, Err(Error::Service(NetError::OtherBuffer)));
    for wrong in [&mut second, &mut other] {
        assert!(is_refused(wrong.put_back(first.buffer().expect("a free one"))));
        assert!(is_refused(wrong.send_buffer(first.buffer().expect("a free one"), 60)));
        // It has as many as before, each once.
        let buffers: Vec<_> = (0..64).map(|_| wrong.buffer().expect("a free one")).collect();
        assert!(matches!(wrong.buffer(), Err(Error::Full)));
        buffers.into_iter().for_each(|buffer| wrong.put_back(buffer).expect("its own"));
    }
    let own = first.buffer().expect("a free one");
    first.put_back(own).expect("its own");
}

/// checks: R-10.3-13, R-10.4-2, R-10.4-4
#[test]
fn flood_is_received_in_order_or_dropped_and_counted() {
    const FRAMES: u64 = 20_000;
    let daemon = lan(1500, ["", "", ""]);
    let (mut a, mut b) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"));
    let numbered = |number: u64| {
        let mut sent = frame(mac(1), mac(2), 60 + usize::try_from(number % 300).expect("small"), number);
        sent[14..22].copy_from_slice(&number.to_le_bytes());
        sent
    };
    let (mut received, mut last, mut found) = (0, None, Vec::new());
    let mut take = |b: &mut Port| {
        while b.receive(&mut found).expect("the daemon is there") {
            let number = u64::from_le_bytes(found[14..22].try_into().expect("8 bytes"));
            assert!(last.is_none_or(|last| number > last), "{number} after {last:?}");
            assert_eq!(found, numbered(number));
            (received, last) = (received + 1, Some(number));
        }
        received
    };
    for number in 0..FRAMES {
        while let Err(error) = a.stage(&numbered(number)) {
            assert!(matches!(error, Error::Full), "{error}");
            std::thread::yield_now();
        }
        // Now and then the receiver is late.
        if number % 16 == 15 {
            a.submit();
        }
        if number % 500 < 250 {
            take(&mut b);
        }
    }
    all_sent(&mut a);
    let received = take(&mut b);
    let (of_a, of_b) = (stat(&daemon, "a"), stat(&daemon, "b"));
    assert_eq!((of_a["sent"].as_u64(), of_b["received"].as_u64()), (Some(FRAMES), Some(received)), "{of_a} {of_b}");
    assert_eq!(of_b["dropped"].as_u64(), Some(FRAMES - received), "{of_b}");
    assert!(received > 64 && received < FRAMES, "{received}: the test must have both");
}

/// checks: R-10.4-4, R-10.7-1
#[test]
fn port_that_posts_nothing_drops_at_its_own_cost() {
    let daemon = lan(1500, ["", "", ""]);
    let (mut a, mut c) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "c"));
    let _deaf = Port::attach(&daemon.socket(), &AttachOptions { posted: Some(0), ..options("b") }).expect("attached");
    for seed in 0..200 {
        a.send(&frame(mac(1), mac(2), 700, seed)).expect("sent");
        all_sent(&mut a);
        let sent = frame(mac(1), if seed % 2 == 0 { Mac::BROADCAST } else { mac(3) }, 700, seed);
        a.send(&sent).expect("sent");
        assert_eq!(next(&mut c), sent);
    }
    assert_nothing(&mut a);
    let of_b = stat(&daemon, "b");
    assert_eq!((of_b["received"].as_u64(), of_b["dropped"].as_u64()), (Some(0), Some(300)), "{of_b}");
    assert_eq!(stat(&daemon, "c")["dropped"], 0);
    assert_eq!(a.refused(), (0, None));
}

/// checks: R-10.1-5, R-10.3-13, R-10.4-9
#[test]
fn frames_of_a_flow_come_by_one_pair() {
    let daemon = lan(1500, ["any_source = true", "", ""]);
    let mut a = attach(&daemon.socket(), "a");
    let mut pairs = Port::attach_pairs(&daemon.socket(), &AttachOptions { pairs: 4, ..options("b") }).expect("attached");
    assert_eq!(pairs.len(), 4);
    let mut used = [0; 4];
    for flow in 0..32 {
        let sent: Vec<Vec<u8>> = (0..8).map(|seed| frame(Mac([2, 0, 0, 0, 1, flow]), mac(2), 200, seed)).collect();
        sent.iter().for_each(|frame| a.send(frame).expect("sent"));
        all_sent(&mut a);
        let (mut found, mut by) = (Vec::new(), Vec::new());
        for (index, pair) in pairs.iter_mut().enumerate() {
            let mut frame = Vec::new();
            while pair.receive(&mut frame).expect("the daemon is there") {
                found.push(frame.clone());
                by.push(index);
            }
        }
        assert_eq!(found, sent, "in order, by {by:?}");
        assert!(by.iter().all(|pair| *pair == by[0]), "one flow by several pairs: {by:?}");
        used[by[0]] += 1;
    }
    assert!(used.iter().filter(|flows| **flows > 0).count() >= 3, "{used:?}");
    // Each pair sends, too.
    for (seed, pair) in (0..).zip(&mut pairs) {
        let sent = frame(mac(2), mac(1), 100, seed);
        pair.send(&sent).expect("sent");
        assert_eq!(next(&mut a), sent);
    }
}

/// A datagram of UDP, or a fragment of one: addresses, ports, and the rest at random.
fn udp(ports: [u8; 2], is_ipv6: bool, fragment: u8, length: usize) -> Vec<u8> {
    let mut packet = frame(mac(1), mac(2), length, length as u64);
    let ports = [20, ports[0], 0, ports[1]];
    if is_ipv6 {
        packet[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        packet[20] = 17;
        packet[22..54].copy_from_slice(&[[0xfd, 0, 0, 0, 0, 0, 0, 1]; 4].concat());
        packet[54..58].copy_from_slice(&ports);
    } else {
        packet[12..15].copy_from_slice(&[8, 0, 0x45]);
        packet[20..24].copy_from_slice(&[fragment, 0, 64, 17]);
        packet[26..38].copy_from_slice(&[&[10, 9, 0, 1, 10, 9, 0, 2][..], &ports].concat());
    }
    packet
}

/// Frames in a message, with their first bytes in it, and in bursts are copied in different parts before the daemon chooses.
///
/// checks: R-10.4-9
#[test]
fn connection_comes_by_one_pair_however_its_frames_are_sent_and_several_by_several() {
    let daemon = lan(1500, ["", "", ""]);
    let mut a = attach(&daemon.socket(), "a");
    let mut pairs = Port::attach_pairs(&daemon.socket(), &AttachOptions { pairs: 4, ..options("b") }).expect("attached");
    let mut pair_of = |make: &dyn Fn(usize) -> Vec<u8>| {
        [58, 58, 1200].iter().for_each(|length| a.send(&make(*length)).expect("sent"));
        all_sent(&mut a);
        (0..9).for_each(|more| a.stage(&make(60 + 100 * more)).expect("staged"));
        a.submit();
        all_sent(&mut a);
        let mut counts = pairs.iter_mut().map(|pair| {
            let mut found = Vec::new();
            std::iter::from_fn(|| pair.receive(&mut found).expect("the daemon is there").then_some(())).count()
        });
        let counts: [usize; 4] = std::array::from_fn(|_| counts.next().expect("four"));
        counts.iter().position(|count| *count == 12).unwrap_or_else(|| panic!("one flow by several pairs: {counts:?}"))
    };
    for is_ipv6 in [false, true] {
        let used: HashSet<_> = (0..16).map(|port| pair_of(&|length| udp([port, 7], is_ipv6, 0, length))).collect();
        assert!(used.len() >= 3, "connections between two hosts, IPv6 {is_ipv6}: {used:?}");
    }
    // The first fragment of a datagram has ports, the others have anything there.
    let by = pair_of(&|length| udp([1, 7], false, 0x20, length));
    assert!((0..16).all(|other| pair_of(&|length| udp([other, 8], false, 0x20 - other, length)) == by));
}

/// checks: R-10.7-1, R-10.7-2, R-10.7-3
#[test]
fn tags_are_put_and_removed_and_strangers_are_learned() {
    let daemon = lan(1500, ["vlan = 10", "trunk = [10, 20]\nany_source = true", "vlan = 10\nany_source = true"]);
    let (mut a, mut b, mut c) = (attach(&daemon.socket(), "a"), attach(&daemon.socket(), "b"), attach(&daemon.socket(), "c"));
    assert_eq!((a.info().vlan, b.info().vlan), (10, 0));
    let tagged = |frame: &[u8], vlan: u8| [&frame[..12], &[0x81, 0, 0, vlan], &frame[12..]].concat();
    for length in [14, 36, 52, 53, 56, 57, 60, 61, 1514] {
        let plain = frame(mac(1), mac(2), length, 1);
        a.send(&plain).expect("sent");
        assert_eq!(next(&mut b), tagged(&plain, 10), "{length} bytes");
        let back = frame(mac(2), mac(1), length, 2);
        b.send(&tagged(&back, 10)).expect("sent");
        assert_eq!(next(&mut a), back, "{length} bytes");
    }
    // A station behind a port that may have others: unknown, then learned.
    let stranger = Mac([2, 0, 0, 0, 9, 9]);
    let to_it = frame(mac(1), stranger, 100, 3);
    a.send(&to_it).expect("sent");
    assert_eq!((next(&mut b), next(&mut c)), (tagged(&to_it, 10), to_it.clone()));
    c.send(&frame(stranger, mac(1), 100, 4)).expect("sent");
    next(&mut a);
    a.send(&to_it).expect("sent");
    assert_eq!(next(&mut c), to_it);
    assert_nothing(&mut b);
    // Another VLAN.
    b.send(&tagged(&frame(mac(2), Mac::BROADCAST, 100, 5), 20)).expect("sent");
    all_sent(&mut b);
    assert_nothing(&mut a);
    b.send(&tagged(&frame(mac(2), Mac::BROADCAST, 100, 5), 30)).expect("sent");
    all_sent(&mut b);
    assert_eq!(b.refused(), (1, Some(Status::WrongVlan)));
}

/// The runtime balances its workers by moving queues: those of a network stay together.
#[test]
fn ports_of_a_network_stay_at_one_of_several_workers() {
    let daemon = lan_at(3, 1500, ["", "", ""]);
    let sleepy = |port| AttachOptions { wait: WaitMode::Sleep, ..options(port) };
    let port = |name| Port::attach(&daemon.socket(), &sleepy(name)).expect("attached");
    let (mut a, mut b, mut c) = (port("a"), port("b"), port("c"));
    std::thread::scope(|scope| {
        // Each of three sends to the next and receives of the one before; none waits for its own frame.
        for (number, port) in (1..=3_u8).zip([&mut a, &mut b, &mut c]) {
            scope.spawn(move || {
                let (to, from) = (number % 3 + 1, (number + 1) % 3 + 1);
                for seed in 0..3000 {
                    let length = 60 + usize::try_from(seed % 700).expect("small");
                    port.send(&frame(mac(number), mac(to), length, seed)).expect("sent");
                    assert_eq!(next(port), frame(mac(from), mac(number), length, seed), "frame {seed}");
                }
            });
        }
    });
    for name in ["a", "b", "c"] {
        let port = stat(&daemon, name);
        assert_eq!(
            (port["sent"].as_u64(), port["received"].as_u64(), port["dropped"].as_u64()),
            (Some(3000), Some(3000), Some(0))
        );
    }
    let stat = daemon.admin(&json!({ "method": "stat" }));
    let queues = stat["workers"].as_array().into_iter().flatten().map(|worker| worker["queues"].as_u64().unwrap_or_default());
    let mut queues: Vec<u64> = queues.collect();
    queues.sort_unstable();
    assert_eq!(queues, [0, 0, 6], "{stat}");
}
