//! The switch alone: what it learns, forgets and refuses, and what holds whatever is sent.

use std::time::Duration;

use fipsee_net::frame::{Header, Mac, ShortHead, Tagging};
use fipsee_net::switch::{Delivery, Learning, PortNumber, Rules, Switch, Vlans};
use fipsee_net::wire::Status;
use fipsee_testkit::random::Random;

const SECOND: u64 = 1_000_000_000;

/// The address of a port.
fn own(port: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, port])
}

/// An address that is no port's.
fn other(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 1, number])
}

fn plain(source: Mac, destination: Mac) -> Header {
    Header { destination, source, tag: None, ether_type: 0x0800 }
}

fn up(rules: Vec<Rules>, learning: Learning) -> Switch {
    let ports = u16::try_from(rules.len()).expect("few ports");
    let mut switch = Switch::new(rules, learning);
    (0..ports).for_each(|port| switch.set_up(port, true));
    switch
}

/// Ports with these changes to the usual rules.
fn with(changes: &[&dyn Fn(&mut Rules)]) -> Switch {
    let rules = (0..).zip(changes).map(|(port, change)| {
        let mut rules = Rules::new(own(port));
        change(&mut rules);
        rules
    });
    up(rules.collect(), Learning::default())
}

fn any(rules: &mut Rules) {
    rules.any_source = true;
}

fn usual(_: &mut Rules) {}

fn sent_at(switch: &mut Switch, from: PortNumber, header: Header, now_ns: u64) -> Result<Vec<PortNumber>, Status> {
    let mut to = Vec::new();
    switch.forward(from, &header, now_ns, &mut to).map(|()| to.into_iter().map(|(port, _)| port).collect())
}

fn sent(switch: &mut Switch, from: PortNumber, header: Header) -> Result<Vec<PortNumber>, Status> {
    sent_at(switch, from, header, 0)
}

#[test]
fn frames_to_a_port_go_there_alone_and_broadcasts_to_all() {
    let mut switch = with(&[&usual, &usual, &usual]);
    assert_eq!(sent(&mut switch, 0, plain(own(0), own(2))), Ok(vec![2]));
    assert_eq!(sent(&mut switch, 1, plain(own(1), Mac::BROADCAST)), Ok(vec![0, 2]));
    assert_eq!(sent(&mut switch, 1, plain(own(1), Mac([1, 0, 0x5e, 0, 0, 1]))), Ok(vec![0, 2]));
    assert_eq!(sent(&mut switch, 0, plain(own(0), own(0))), Ok(vec![]), "to itself");
    assert_eq!(sent(&mut switch, 0, plain(own(0), other(1))), Ok(vec![]), "no port can have this address");
    switch.set_up(2, false);
    assert_eq!(sent(&mut switch, 0, plain(own(0), own(2))), Ok(vec![]));
    assert_eq!(sent(&mut switch, 0, plain(own(0), Mac::BROADCAST)), Ok(vec![1]));
}

#[test]
fn addresses_of_others_and_of_groups_are_no_source() {
    let mut switch = with(&[&usual, &usual, &any]);
    for (from, source) in [(0, own(1)), (0, other(1)), (2, own(1)), (2, Mac::BROADCAST), (0, Mac([3, 0, 0, 0, 0, 0]))] {
        assert_eq!(sent(&mut switch, from, plain(source, own(1))), Err(Status::WrongSource), "{source} from {from}");
    }
    assert_eq!(sent(&mut switch, 2, plain(other(1), own(1))), Ok(vec![1]));
    assert_eq!(switch.learned(), 1, "what was refused is not learned");
}

#[test]
fn addresses_are_learned_move_age_and_go_with_their_port() {
    let learning = Learning { ageing: Duration::from_secs(10), ..Learning::default() };
    let mut rules: Vec<Rules> = (0..4).map(|port| Rules::new(own(port))).collect();
    rules[1..].iter_mut().for_each(any);
    let mut switch = up(rules, learning);
    let to_it = plain(own(0), other(1));
    assert_eq!(sent(&mut switch, 0, to_it), Ok(vec![1, 2, 3]), "unknown: those that may have it");
    sent(&mut switch, 2, plain(other(1), own(0))).expect("sent");
    assert_eq!(sent(&mut switch, 0, to_it), Ok(vec![2]));
    sent_at(&mut switch, 3, plain(other(1), own(0)), SECOND).expect("sent");
    assert_eq!((sent(&mut switch, 0, to_it), switch.moved_and_not_learned()), (Ok(vec![3]), (1, 0)));
    assert_eq!(sent_at(&mut switch, 0, to_it, 11 * SECOND), Ok(vec![3]), "not older than ten seconds");
    assert_eq!(sent_at(&mut switch, 0, to_it, 11 * SECOND + 1), Ok(vec![1, 2, 3]));
    sent_at(&mut switch, 3, plain(other(1), own(0)), 12 * SECOND).expect("sent");
    assert_eq!(sent_at(&mut switch, 0, to_it, 12 * SECOND), Ok(vec![3]));
    switch.set_up(3, false);
    assert_eq!((sent_at(&mut switch, 0, to_it, 12 * SECOND), switch.learned()), (Ok(vec![1, 2]), 0));
}

#[test]
fn one_port_cannot_take_the_places_of_others() {
    let learning = Learning { max_macs: 6, max_macs_per_port: 4, ageing: Duration::from_secs(10) };
    let mut rules: Vec<Rules> = (0..3).map(|port| Rules::new(own(port))).collect();
    rules.iter_mut().for_each(any);
    let mut switch = up(rules, learning);
    for number in 0..100 {
        sent(&mut switch, 0, plain(other(number), own(1))).expect("sent all the same");
    }
    assert_eq!((switch.learned(), switch.moved_and_not_learned()), (4, (0, 96)));
    sent(&mut switch, 1, plain(other(200), own(0))).expect("sent");
    assert_eq!(sent(&mut switch, 2, plain(own(2), other(200))), Ok(vec![1]), "there is a place for another port");
    sent(&mut switch, 1, plain(other(201), own(0))).expect("sent");
    sent(&mut switch, 1, plain(other(202), own(0))).expect("sent");
    assert_eq!(switch.learned(), 6, "full");
    // An address that is known keeps its place, and a port without places takes none from others.
    sent(&mut switch, 0, plain(other(200), own(1))).expect("sent");
    assert_eq!(sent(&mut switch, 2, plain(own(2), other(200))), Ok(vec![1]));
    // What has aged makes room.
    sent_at(&mut switch, 2, plain(other(210), own(0)), 20 * SECOND).expect("sent");
    assert_eq!((switch.learned(), sent_at(&mut switch, 0, plain(own(0), other(210)), 20 * SECOND)), (1, Ok(vec![2])));
}

#[test]
fn isolated_ports_see_the_others_only_and_a_mirror_sees_all() {
    let isolated = |rules: &mut Rules| rules.isolated = true;
    let mirror = |rules: &mut Rules| rules.mirror = true;
    let mut switch = with(&[&isolated, &isolated, &usual, &mirror]);
    assert_eq!(sent(&mut switch, 0, plain(own(0), own(1))), Ok(vec![3]));
    assert_eq!(sent(&mut switch, 0, plain(own(0), own(2))), Ok(vec![2, 3]));
    assert_eq!(sent(&mut switch, 2, plain(own(2), own(1))), Ok(vec![1, 3]));
    assert_eq!(sent(&mut switch, 0, plain(own(0), Mac::BROADCAST)), Ok(vec![2, 3]), "once");
    assert_eq!(sent(&mut switch, 3, plain(own(3), own(1))), Ok(vec![1]));
}

#[test]
fn broadcasts_and_unknown_addresses_have_a_limit_and_the_rest_has_none() {
    let limited = |rules: &mut Rules| rules.flood_limit = 100;
    let mut switch = with(&[&limited, &any]);
    let mut count = |header: Header, now_ns| (0..1000).filter(|_| sent_at(&mut switch, 0, header, now_ns).is_ok()).count();
    assert_eq!(count(plain(own(0), Mac::BROADCAST), 0), 10);
    assert_eq!(count(plain(own(0), other(1)), 0), 0, "one limit for both");
    assert_eq!(count(plain(own(0), own(1)), 0), 1000);
    assert_eq!(count(plain(own(0), other(1)), SECOND), 10);
    assert_eq!(sent(&mut switch, 1, plain(own(1), Mac::BROADCAST)), Ok(vec![0]), "of each port its own");
}

fn trunk(tagged: &[u16], native: Option<u16>) -> impl Fn(&mut Rules) {
    let tagged = tagged.to_vec();
    move |rules| rules.vlans = Vlans::Trunk { tagged: tagged.clone(), native }
}

#[test]
fn vlans_are_apart_and_tags_are_put_and_removed() {
    let access = |vlan| move |rules: &mut Rules| rules.vlans = Vlans::Access(vlan);
    let mut switch = with(&[&access(10), &access(10), &access(20), &trunk(&[10, 20], None), &trunk(&[20], Some(10))]);
    let mut forward = |from, tag, destination| {
        let mut to: Vec<Delivery> = Vec::new();
        let source = own(u8::try_from(from).expect("few"));
        switch.forward(from, &Header { destination, source, tag, ether_type: 0x0800 }, 0, &mut to).map(|()| to)
    };
    let (as_it_is, remove) = (Tagging::AsItIs, Tagging::Remove);
    assert_eq!(forward(0, None, Mac::BROADCAST), Ok(vec![(1, as_it_is), (3, Tagging::Put(10)), (4, as_it_is)]));
    assert_eq!(forward(3, Some(10), Mac::BROADCAST), Ok(vec![(0, remove), (1, remove), (4, remove)]));
    assert_eq!(forward(3, Some(20), Mac::BROADCAST), Ok(vec![(2, remove), (4, as_it_is)]));
    assert_eq!(forward(4, None, Mac::BROADCAST), Ok(vec![(0, as_it_is), (1, as_it_is), (3, Tagging::Put(10))]));
    assert_eq!(forward(4, Some(0), own(0)), Ok(vec![(0, remove)]), "a priority alone");
    assert_eq!(forward(0, None, own(2)), Ok(vec![]), "a port of another VLAN");
    for (from, tag) in [(0, Some(10)), (0, Some(20)), (3, None), (3, Some(30)), (4, Some(10)), (0, Some(0))] {
        assert_eq!(forward(from, tag, own(1)), Err(Status::WrongVlan), "tag {tag:?} from {from}");
    }
}

#[test]
fn second_tag_is_taken_by_no_port_and_a_tag_of_another_kind_by_those_without_vlans() {
    let mut switch = with(&[&usual, &|rules| rules.vlans = Vlans::Access(10), &trunk(&[10, 20], Some(5)), &trunk(&[10], None)]);
    let mut forward = |from: u8, tag, ether_type| {
        let header = Header { destination: Mac::BROADCAST, source: own(from), tag, ether_type };
        switch.forward(from.into(), &header, 0, &mut Vec::new())
    };
    for ether_type in [0x8100, 0x88a8, 0x9100] {
        for (from, tag) in [(0, Some(0)), (2, Some(10)), (2, Some(0)), (3, Some(10)), (1, None), (2, None)] {
            assert_eq!(forward(from, tag, ether_type), Err(Status::WrongVlan), "{ether_type:x} behind {tag:?} from {from}");
        }
    }
    assert_eq!(forward(0, None, 0x88a8), Ok(()), "no VLAN is left");
    assert_eq!((forward(1, None, 0x86dd), forward(2, Some(10), 0x86dd), forward(2, Some(0), 0x0806)), (Ok(()), Ok(()), Ok(())));
}

/// A port as it may be configured.
fn random_rules(random: &mut Random, port: u8) -> Rules {
    let vlan = |random: &mut Random| u16::try_from(random.below(4)).expect("small");
    let vlans = match random.percent(60) {
        true => Vlans::Access(vlan(random)),
        false => {
            let tagged = (0..random.below(4)).map(|_| 1 + vlan(random) % 3).collect();
            Vlans::Trunk { tagged, native: random.percent(50).then(|| vlan(random)) }
        }
    };
    Rules {
        vlans,
        any_source: random.percent(50),
        isolated: random.percent(30),
        mirror: random.percent(10),
        flood_limit: 1_000_000_000,
        ..Rules::new(own(port))
    }
}

fn is_member(rules: &Rules, vlan: u16) -> bool {
    match &rules.vlans {
        Vlans::Access(own) => *own == vlan,
        Vlans::Trunk { tagged, native } => *native == Some(vlan) || tagged.contains(&vlan),
    }
}

/// The VLAN of a frame with this tag at this port, by what the rules say in the documents.
fn vlan_at(rules: &Rules, tag: Option<u16>) -> Option<u16> {
    match (&rules.vlans, tag) {
        (Vlans::Access(own), None) => Some(*own),
        (Vlans::Access(_), Some(_)) => None,
        (Vlans::Trunk { native, .. }, None | Some(0)) => *native,
        (Vlans::Trunk { tagged, .. }, Some(vlan)) => tagged.contains(&vlan).then_some(vlan),
    }
}

/// The frame as bytes: what the switch would be given, and what leaves.
fn bytes(header: &Header) -> Vec<u8> {
    let tag = header.tag.map(|tag| [&[0x81, 0][..], &tag.to_be_bytes()].concat()).unwrap_or_default();
    [&header.destination.0[..], &header.source.0, &tag, &[8, 0, 1, 2, 3]].concat()
}

/// What holds of a frame that was taken: where it goes, and how it looks there.
fn check_deliveries(rules: &[Rules], from: usize, header: &Header, to: &[Delivery]) {
    let vlan = vlan_at(&rules[from], header.tag).expect("it was taken");
    for (index, (number, tagging)) in to.iter().enumerate() {
        let receiver = &rules[usize::from(*number)];
        assert!(usize::from(*number) != from, "back to the sender");
        assert!(to[..index].iter().all(|(other, _)| other != number), "twice to {number}");
        if receiver.mirror && *tagging == Tagging::AsItIs {
            continue;
        }
        assert!(is_member(receiver, vlan), "{number} is not in VLAN {vlan}");
        assert!(!(receiver.isolated && rules[from].isolated), "from one isolated port to another");
        let is_for_it = header.destination.is_group() || header.destination == receiver.mac || receiver.any_source;
        assert!(is_for_it, "{} at {number}", header.destination);
        let left = ShortHead::new(&bytes(header), *tagging);
        let left_header = Header::of(left.bytes()).expect("a header");
        assert_eq!((left_header.destination, left_header.source), (header.destination, header.source));
        assert_eq!(vlan_at(receiver, left_header.tag), Some(vlan), "{tagging:?} of {header:?} at {receiver:?}");
        let rest = |bytes: &[u8], tag: Option<u16>| bytes[if tag.is_some() { 16 } else { 12 }..].to_vec();
        assert_eq!(rest(left.bytes(), left_header.tag), rest(&bytes(header), header.tag));
    }
}

#[test]
fn whatever_is_sent_stays_in_its_vlan_and_comes_once() {
    let (mut taken, mut refused) = (0_u64, 0_u64);
    for seed in 0..200 {
        let mut random = Random(seed);
        let count = 2 + u8::try_from(random.below(5)).expect("small");
        let rules: Vec<Rules> = (0..count).map(|port| random_rules(&mut random, port)).collect();
        let learning = Learning { max_macs: 5, max_macs_per_port: 3, ageing: Duration::from_nanos(50) };
        let mut switch = up(rules.clone(), learning);
        for now_ns in 0..500 {
            let address = |random: &mut Random| match random.below(10) {
                0 => Mac::BROADCAST,
                1..5 => other(u8::try_from(random.below(10)).expect("small")),
                _ => own(u8::try_from(random.below(u64::from(count))).expect("small")),
            };
            let from = random.below(u64::from(count));
            let tag = random.percent(40).then(|| u16::try_from(random.below(4)).expect("small"));
            let (destination, source) = (address(&mut random), address(&mut random));
            let header = Header { destination, source, tag, ether_type: 0x0800 };
            let mut to = Vec::new();
            let from = u16::try_from(from).expect("small");
            let verdict = switch.forward(from, &header, now_ns, &mut to);
            assert!(switch.learned() <= 5);
            match verdict {
                Ok(()) => check_deliveries(&rules, usize::from(from), &header, &to),
                Err(status) => {
                    assert!(to.is_empty(), "refused and delivered");
                    let is_own = header.source == rules[usize::from(from)].mac;
                    assert!(!is_own || status == Status::WrongVlan, "{status:?} of {header:?}");
                }
            }
            *(if verdict.is_ok() { &mut taken } else { &mut refused }) += 1;
        }
    }
    assert!(taken > 10_000 && refused > 10_000, "{taken} taken, {refused} refused");
}

#[test]
fn address_is_its_ports_alone_as_long_as_that_is_there() {
    let mut switch = with(&[&usual, &usual]);
    switch.remove(0);
    assert_eq!(sent(&mut switch, 0, plain(own(0), own(1))), Err(Status::WrongSource), "it was removed");
    switch.put(0, Rules::new(own(5)));
    switch.set_up(0, true);
    assert_eq!(sent(&mut switch, 0, plain(own(0), own(1))), Err(Status::WrongSource), "its number had this address before");
    assert_eq!(sent(&mut switch, 0, plain(own(5), own(1))), Ok(vec![1]));
    switch.put(2, Rules::new(own(1)));
    switch.set_up(2, true);
    assert_eq!(sent(&mut switch, 2, plain(own(1), own(5))), Err(Status::WrongSource), "another port has it");
    assert_eq!(sent(&mut switch, 1, plain(own(1), own(5))), Ok(vec![0]));
}
