use std::collections::HashMap;

use fipsee_testkit::random::Random;

use super::*;

const PORTS: u64 = 4;

fn own(port: PortNumber) -> Mac {
    let [high, low] = port.to_be_bytes();
    Mac([2, 0, 0, 0, high, low])
}

fn rules(random: &mut Random, port: PortNumber) -> Rules {
    Rules {
        vlans: Vlans::Access(u16::from(random.percent(20))),
        any_source: random.percent(50),
        isolated: random.percent(20),
        mirror: random.percent(10),
        flood_limit: u32::MAX,
        ..Rules::new(own(port))
    }
}

/// Something but a frame.
fn change(switch: &mut Switch, random: &mut Random, port: PortNumber, now_ns: u64) {
    match random.below(6) {
        0 => switch.set_up(port, random.percent(70)),
        1 => switch.set_down(port, random.percent(30)),
        2 => switch.remove(port),
        3 => switch.put(port, rules(random, port)),
        4 => switch.block(port, now_ns),
        _ => switch.join_all(port, random.percent(50)),
    }
}

#[test]
fn what_holds_for_all_frames_between_two_addresses_holds_until_something_changes() {
    let mut compared = 0_u64;
    for seed in 0..200 {
        let random = &mut Random(seed);
        let number = |random: &mut Random| u16::try_from(random.below(PORTS)).expect("small");
        let all = (0..4).map(|port| rules(random, port)).collect();
        let mut switch = Switch::new(all, Learning::default());
        (0..4).for_each(|port| switch.set_up(port, true));
        let (mut now_ns, mut known) = (0, HashMap::new());
        for _ in 0..400 {
            now_ns += random.below(200_000_000);
            let (from, to) = (number(random), number(random));
            if random.percent(6) {
                change(&mut switch, random, from, now_ns);
                continue;
            }
            let header = Header { destination: own(to), source: own(from), tag: None, ether_type: 0x0800 };
            let (mut deliveries, changes) = (Vec::new(), switch.changes());
            let keys = (header.source.key(), header.destination.key());
            let forwarded = switch.forward_between(from, keys, &header, || now_ns, &mut deliveries);
            if let Some(before) = known.get(&(from, to, changes)) {
                compared += 1;
                assert_eq!((forwarded.is_ok(), &deliveries), (true, before), "seed {seed}: {header:?}");
            }
            if forwarded == Ok(true) {
                known.insert((from, to, switch.changes()), deliveries);
            }
        }
    }
    assert!(compared > 3_000, "{compared}");
}
