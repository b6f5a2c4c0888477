//! The addresses that were learned: bounded in all and for each port, so that one port cannot take the places of others.

use std::collections::HashMap;

use super::{Learning, PortNumber};
use crate::frame::Mac;

/// VLAN and address.
type Key = (u16, Mac);

/// When a table is full, it is searched for what has aged at most this often: a search looks at all of it.
const SWEEP_NS: u64 = 1_000_000_000;
/// An address that is back at a port so soon after it left it is part of a loop, perhaps.
const BACK_NS: u64 = 1_000_000_000;

#[derive(Debug)]
struct Entry {
    port: PortNumber,
    /// The port from which it moved there, and when.
    moved: Option<(PortNumber, u64)>,
    seen_ns: u64,
}

#[derive(Debug)]
pub(super) struct Table {
    learning: Learning,
    ageing_ns: u64,
    /// The standard library's hash has a secret: no client can choose addresses that collide.
    entries: HashMap<Key, Entry>,
    of_port: Vec<usize>,
    swept_ns: Option<u64>,
    pub(super) moved: u64,
    pub(super) not_learned: u64,
}

impl Table {
    pub(super) fn new(learning: Learning, ports: usize) -> Self {
        let ageing_ns = u64::try_from(learning.ageing.as_nanos()).unwrap_or(u64::MAX);
        // All of it now: a worker that serves allocates nothing.
        let entries = HashMap::with_capacity(learning.max_macs);
        Self { learning, ageing_ns, entries, of_port: vec![0; ports], swept_ns: None, moved: 0, not_learned: 0 }
    }

    /// There is one more port, behind the last.
    pub(super) fn add_port(&mut self) {
        self.of_port.push(0);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn find(&self, key: Key, now_ns: u64) -> Option<PortNumber> {
        let entry = self.entries.get(&key)?;
        (!is_old(entry, now_ns, self.ageing_ns)).then_some(entry.port)
    }

    /// `true`: the address has just left this port for another one, and is back: as if frames went in a circle.
    pub(super) fn learn(&mut self, key: Key, port: PortNumber, now_ns: u64) -> bool {
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.port == port
        {
            entry.seen_ns = now_ns;
            return false;
        }
        let was = self.entries.get(&key).map(|entry| (entry.port, entry.moved));
        if !self.has_room(port, was.is_some(), now_ns) {
            self.not_learned += 1;
            return false;
        }
        let moved = was.map(|(from, _)| (from, now_ns));
        // Sweeping may have removed it.
        if let Some(old) = self.entries.insert(key, Entry { port, moved, seen_ns: now_ns }) {
            self.of_port[usize::from(old.port)] -= 1;
            self.moved += 1;
        }
        self.of_port[usize::from(port)] += 1;
        was.and_then(|(_, moved)| moved).is_some_and(|(from, at_ns)| from == port && now_ns.saturating_sub(at_ns) < BACK_NS)
    }

    /// `replaces`: the address has a place.
    fn has_room(&mut self, port: PortNumber, replaces: bool, now_ns: u64) -> bool {
        let is_full = |table: &Self| {
            let of_all = !replaces && table.entries.len() >= table.learning.max_macs;
            of_all || table.of_port[usize::from(port)] >= table.learning.max_macs_per_port
        };
        if is_full(self) && self.swept_ns.is_none_or(|swept_ns| now_ns.saturating_sub(swept_ns) >= SWEEP_NS) {
            self.swept_ns = Some(now_ns);
            self.remove(|entry, ageing_ns| is_old(entry, now_ns, ageing_ns));
        }
        !is_full(self)
    }

    pub(super) fn forget(&mut self, port: PortNumber) {
        if self.of_port.get(usize::from(port)).is_some_and(|learned| *learned > 0) {
            self.remove(|entry, _| entry.port == port);
        }
    }

    /// Looks at all of the table.
    fn remove(&mut self, is_to_go: impl Fn(&Entry, u64) -> bool) {
        let (of_port, ageing_ns) = (&mut self.of_port, self.ageing_ns);
        self.entries.retain(|_, entry| {
            let goes = is_to_go(entry, ageing_ns);
            if goes {
                of_port[usize::from(entry.port)] -= 1;
            }
            !goes
        });
    }
}

fn is_old(entry: &Entry, now_ns: u64, ageing_ns: u64) -> bool {
    now_ns.saturating_sub(entry.seen_ns) > ageing_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_port_has_learned_is_forgotten_with_it_and_nothing_else() {
        let mut table = Table::new(Learning { max_macs: 6, max_macs_per_port: 3, ..Learning::default() }, 3);
        let key = |port: u8, number: u8| (0, Mac([2, 0, 0, 0, port, number]));
        for round in 0..4 {
            for number in 0..3 {
                table.learn(key(0, number), 0, round);
                table.learn(key(1, number), 1, round);
            }
            table.forget(2);
            table.forget(u16::MAX);
            assert_eq!(table.len(), 6, "a port that has learned nothing takes nothing with it");
            table.forget(1);
            table.forget(1);
            assert_eq!((table.len(), table.find(key(1, 0), round), table.find(key(0, 0), round)), (3, None, Some(0)));
            // Its places are free again, all of them.
        }
        assert_eq!(table.not_learned, 0);
    }
}
