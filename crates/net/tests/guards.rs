//! What a switch keeps from and for its ports: groups, loops, and ports that are down.

use std::collections::VecDeque;

use fipsee_net::frame::{Header, Mac, Tagging};
use fipsee_net::switch::{Delivery, DetectionFrame, Learning, Link, PortNumber, Rules, Switch, Vlans};
use fipsee_net::wire::{MAX_GROUPS, Status};

const SECOND: u64 = 1_000_000_000;
const GROUP: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);
const OTHER_GROUP: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);

fn own(port: PortNumber) -> Mac {
    Mac([2, 0, 0, 0, 0, u8::try_from(port).expect("few")])
}

/// Three ports, of which the last two may send with any address, all attached.
fn three() -> Switch {
    let rules = (0..3).map(|port| Rules { any_source: port > 0, flood_limit: 1_000_000, ..Rules::new(own(port)) });
    let mut switch = Switch::new(rules.collect(), Learning::default());
    (0..3).for_each(|port| switch.set_up(port, true));
    switch
}

fn sent(
    switch: &mut Switch,
    from: PortNumber,
    (source, destination): (Mac, Mac),
    now_ns: u64,
) -> Result<Vec<PortNumber>, Status> {
    let (mut to, header) = (Vec::new(), Header { destination, source, tag: None, ether_type: 0x0800 });
    switch.forward(from, &header, now_ns, &mut to).map(|()| to.into_iter().map(|(port, _)| port).collect())
}

/// checks: R-10.7-6, R-10.9-1, R-10.9-2, R-10.9-3
#[test]
fn port_that_names_groups_gets_these_and_broadcasts_alone() {
    let mut switch = three();
    let to = |switch: &mut Switch, group| sent(switch, 0, (own(0), group), 0).expect("sent");
    assert_eq!((to(&mut switch, GROUP), switch.groups(1)), (vec![1, 2], None));
    switch.join(1, OTHER_GROUP, true).expect("there is room");
    assert_eq!(
        [to(&mut switch, GROUP), to(&mut switch, OTHER_GROUP), to(&mut switch, Mac::BROADCAST)],
        [vec![2], vec![1, 2], vec![1, 2]]
    );
    switch.join(1, GROUP, true).expect("there is room");
    switch.join(1, GROUP, true).expect("it is there");
    assert_eq!((to(&mut switch, GROUP), switch.groups(1).map(<[Mac]>::len)), (vec![1, 2], Some(2)));
    switch.join(1, OTHER_GROUP, false).expect("it is there");
    switch.join(1, OTHER_GROUP, false).expect("it is not there");
    assert_eq!((to(&mut switch, OTHER_GROUP), to(&mut switch, GROUP)), (vec![2], vec![1, 2]));
    switch.join(1, GROUP, false).expect("it is there");
    assert_eq!((to(&mut switch, GROUP), to(&mut switch, Mac::BROADCAST)), (vec![2], vec![1, 2]), "none is named");
    switch.join_all(1, true);
    assert_eq!(to(&mut switch, GROUP), vec![1, 2]);
    switch.join_all(1, false);
    assert_eq!((to(&mut switch, GROUP), to(&mut switch, Mac::BROADCAST)), (vec![2], vec![1, 2]));
    for wrong in [own(1), Mac::BROADCAST] {
        assert_eq!(switch.join(1, wrong, true), Err(Status::Invalid));
    }
    for number in 0..MAX_GROUPS {
        let group = Mac([0x33, 0x33, 0, 0, 1, u8::try_from(number).expect("few")]);
        switch.join(1, group, true).expect("there is room");
    }
    assert_eq!(switch.join(1, GROUP, true), Err(Status::Limited));
    switch.set_up(1, false);
    switch.set_up(1, true);
    assert_eq!(to(&mut switch, GROUP), vec![1, 2], "forgotten with the client");
}

#[test]
fn port_of_all_groups_gets_them_whatever_it_names() {
    let mut switch = Switch::new(vec![Rules::new(own(0)), Rules { allmulti: true, ..Rules::new(own(1)) }], Learning::default());
    (0..2).for_each(|port| switch.set_up(port, true));
    switch.join(1, OTHER_GROUP, true).expect("there is room");
    assert_eq!(sent(&mut switch, 0, (own(0), GROUP), 0), Ok(vec![1]));
}

/// checks: R-10.3-16
#[test]
fn port_that_is_down_neither_sends_nor_gets_frames() {
    let mut switch = three();
    switch.set_down(2, true);
    assert_eq!((switch.link(2), switch.link(1)), (Link::Down, Link::Up));
    assert_eq!(sent(&mut switch, 2, (own(2), own(0)), 0), Err(Status::Down));
    assert_eq!(sent(&mut switch, 0, (own(0), own(2)), 0), Ok(vec![]));
    assert_eq!(sent(&mut switch, 0, (own(0), Mac::BROADCAST), 0), Ok(vec![1]));
    // A client that comes meanwhile does not take it up.
    switch.set_up(2, false);
    switch.set_up(2, true);
    assert_eq!(sent(&mut switch, 2, (own(2), own(0)), 0), Err(Status::Down));
    switch.set_down(2, false);
    assert_eq!(
        (sent(&mut switch, 2, (own(2), own(0)), 0), sent(&mut switch, 0, (own(0), own(2)), 0)),
        (Ok(vec![0]), Ok(vec![2]))
    );
    switch.set_up(2, false);
    switch.set_down(2, false);
    assert_eq!(sent(&mut switch, 0, (own(0), own(2)), 0), Ok(vec![]), "without a client it gets none");
}

/// A station that is connected to the clients of two ports sends a broadcast, and what leaves at one of them comes in at the other, as in a cable
/// between them. How many frames went around before it ended by itself.
fn storm(switch: &mut Switch, start_ns: u64) -> u64 {
    let station = Header { destination: Mac::BROADCAST, source: Mac([2, 0, 0, 0, 9, 9]), tag: None, ether_type: 0x0800 };
    let (mut at, mut frames, mut now_ns) = (VecDeque::from([(1, station), (2, station)]), 0, start_ns);
    while let Some((from, header)) = at.pop_front() {
        frames += 1;
        now_ns += 1000;
        let mut to = Vec::new();
        let verdict = switch.forward(from, &header, now_ns, &mut to);
        assert!(matches!(verdict, Ok(()) | Err(Status::Down | Status::WrongSource)), "{verdict:?}");
        at.extend(to.into_iter().filter(|(port, _)| *port > 0).map(|(port, _)| (3 - port, header)));
        at.extend(switch.take_detection_frame().map(|sent| (3 - sent.to.0, header_of(&sent))));
        assert!(frames < 100_000, "it does not end");
    }
    frames
}

fn header_of(sent: &DetectionFrame) -> Header {
    Header::of(&sent.frame).expect("a header")
}

/// checks: R-10.7-7
#[test]
fn loop_of_two_ports_is_cut_for_a_time() {
    let mut switch = three();
    let frames = storm(&mut switch, 0);
    let blocked: Vec<PortNumber> = (0..3).filter(|port| switch.link(*port) == Link::Blocked).collect();
    assert_eq!((blocked.len(), switch.take_blocked().as_slice()), (1, &blocked[..]), "after {frames} frames");
    assert!((100..200).contains(&frames), "{frames}");
    assert_eq!(switch.take_detection_frame(), None, "once");
    assert_eq!(switch.take_blocked(), None, "once");
    let other = 3 - blocked[0];
    assert_eq!(sent(&mut switch, 0, (own(0), Mac::BROADCAST), SECOND), Ok(vec![other]));
    assert_eq!(sent(&mut switch, blocked[0], (own(blocked[0]), own(0)), SECOND), Err(Status::Down));
    // It is tried again, and the loop is still there, or it is not.
    assert_eq!(sent(&mut switch, blocked[0], (own(blocked[0]), own(0)), 11 * SECOND), Ok(vec![0]));
    assert!(storm(&mut switch, 12 * SECOND) < 200 && (0..3).any(|port| switch.link(port) == Link::Blocked));
    assert_eq!(sent(&mut switch, 0, (own(0), Mac::BROADCAST), 30 * SECOND), Ok(vec![1, 2]));
}

#[test]
fn stations_that_move_are_no_loop() {
    let mut switch = three();
    let station = |number: u64| Mac([2, 0, 0, 0, 1, u8::try_from(number).expect("few")]);
    // 200 of them move at once, and back a second later; one moves to and fro for a while.
    for (now_ns, from) in [(0, 1), (SECOND / 2, 2), (2 * SECOND, 1)] {
        (0..200).for_each(|number| drop(sent(&mut switch, from, (station(number), own(0)), now_ns).expect("sent")));
    }
    for round in 0..40 {
        let from = if round % 2 == 0 { 1 } else { 2 };
        sent(&mut switch, from, (station(1), own(0)), 3 * SECOND + round * SECOND / 40).expect("sent");
    }
    assert!((0..3).all(|port| switch.link(port) == Link::Up));
}

/// A client that sends with the addresses of stations behind another port gets frames for these, as it may, and no port is blocked.
///
/// checks: R-10.7-7
#[test]
fn client_has_no_port_of_another_blocked() {
    let (mut switch, mut detecting, mut now_ns) = (three(), Vec::new(), 0);
    let station = |number: u64| Mac([2, 0, 0, 0, 9, u8::try_from(number % 7).expect("few")]);
    for (number, from) in (0..1000).flat_map(|number| [(number, 1), (number, 2)]) {
        now_ns += 10_000;
        let sent = sent(&mut switch, from, (station(number), Mac::BROADCAST), now_ns);
        assert_eq!(sent, Ok(vec![0, 3 - from]), "a frame of port {from}");
        detecting.extend(switch.take_detection_frame());
    }
    let found: Vec<(Delivery, Header)> = detecting.iter().map(|sent| (sent.to, header_of(sent))).collect();
    let detection_frame = |port| Header { destination: Mac::BROADCAST, source: own(port), tag: None, ether_type: 0x9000 };
    let expected = |port| ((port, Tagging::AsItIs), detection_frame(port));
    assert!(found.contains(&expected(1)) && found.contains(&expected(2)), "{found:?}");
    assert!(found.iter().all(|sent| *sent == expected(1) || *sent == expected(2)) && found.len() < 50, "{}", found.len());
    // What could be taken for the frame that has left through port 1 is not sent by port 0, and has port 2 itself blocked.
    let mut forward = |from, header: Header, now_ns| switch.forward(from, &header, now_ns, &mut Vec::new());
    assert_eq!(forward(0, detection_frame(1), now_ns), Err(Status::WrongSource));
    assert_eq!(forward(2, Header { destination: own(0), ..detection_frame(1) }, now_ns), Err(Status::WrongSource));
    assert_eq!(forward(2, Header { ether_type: 0x0800, ..detection_frame(1) }, now_ns), Err(Status::WrongSource));
    assert_eq!(forward(2, detection_frame(1), now_ns + 2 * SECOND), Err(Status::WrongSource), "too late");
    assert_eq!(forward(2, detection_frame(1), now_ns), Err(Status::Down));
    assert_eq!([0, 1, 2].map(|port| switch.link(port)), [Link::Up, Link::Up, Link::Blocked]);
}

#[test]
fn detection_frame_has_the_tag_of_the_vlan_in_which_addresses_come_back() {
    let trunk = || Vlans::Trunk { tagged: vec![10, 20], native: Some(30) };
    let rules = |port| Rules { any_source: true, vlans: trunk(), flood_limit: 1_000_000, ..Rules::new(own(port)) };
    for (vlan, tagging) in [(Some(20), Tagging::Put(20)), (None, Tagging::AsItIs)] {
        let mut switch = Switch::new(vec![rules(0), rules(1)], Learning::default());
        (0..2).for_each(|port| switch.set_up(port, true));
        let (source, destination) = (Mac([2, 0, 0, 0, 9, 9]), Mac::BROADCAST);
        let header = Header { destination, source, tag: vlan, ether_type: 0x0800 };
        let mut sent = None;
        for number in 0..200 {
            switch.forward(u16::from(number % 2 == 1), &header, number, &mut Vec::new()).expect("sent");
            sent = sent.or_else(|| switch.take_detection_frame());
        }
        assert_eq!(sent.expect("addresses came back").to.1, tagging);
    }
}

/// checks: R-10.3-15, R-10.7-5
#[test]
fn port_with_ip_addresses_is_looked_at() {
    let rules = vec![Rules { ips: vec!["192.0.2.1".parse().expect("an address")], ..Rules::new(own(0)) }, Rules::new(own(1))];
    let switch = Switch::new(rules, Learning::default());
    let header = Header { destination: own(1), source: own(0), tag: None, ether_type: 0x0800 };
    let packet = |last| [&[0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, last][..], &[192, 0, 2, 9]].concat();
    assert!(switch.may_send(0, &header, &packet(1)) && !switch.may_send(0, &header, &packet(2)));
    assert!(switch.may_send(1, &header, &packet(2)), "without ips: any");
}
