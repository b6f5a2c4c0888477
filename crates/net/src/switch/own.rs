//! The ports' own addresses.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::PortNumber;
use crate::frame::Mac;

/// Which port has an address. An administrator chooses them: without a secret, which costs more than the rest of a look, clients can make no two of them
/// collide.
#[derive(Debug, Default)]
pub(super) struct Own(HashMap<u64, PortNumber, BuildHasherDefault<Mixer>>);

impl Own {
    /// By its [key](Mac::key).
    #[inline(always)]
    pub(super) fn get(&self, key: u64) -> Option<PortNumber> {
        self.0.get(&key).copied()
    }

    /// Give it to a port, unless another one has it: which port has it now.
    pub(super) fn give(&mut self, mac: Mac, port: PortNumber) -> PortNumber {
        *self.0.entry(mac.key()).or_insert(port)
    }

    /// The port has none any more.
    pub(super) fn remove(&mut self, port: PortNumber) {
        self.0.retain(|_, owner| *owner != port);
    }
}

/// Hashes one word.
#[derive(Debug, Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let word = self.0 ^ word;
        let high = (u128::from(word) * u128::from(ODD)) >> u64::BITS;
        // The table uses the lowest bits and the highest. Only both halves of the product together have reached all of them.
        self.0 = word.wrapping_mul(ODD) ^ u64::try_from(high).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn first_port_with_an_address_has_it_until_it_goes() {
        let (mut own, mac) = (Own::default(), Mac([2, 0, 0, 0, 0, 1]));
        assert_eq!((own.give(mac, 3), own.give(mac, 4), own.get(mac.key())), (3, 3, Some(3)));
        own.remove(4);
        assert_eq!(own.get(mac.key()), Some(3));
        own.remove(3);
        assert_eq!((own.get(mac.key()), own.give(mac, 4)), (None, 4));
    }

    #[test]
    fn addresses_as_administrators_choose_them_are_spread() {
        let numbered = (0..4096_u16).map(u16::to_be_bytes);
        let last = numbered.clone().map(|[high, low]| Mac([2, 0, 0, 0, high, low]));
        let vendors = numbered.map(|[high, low]| Mac([2, high, low, 0, 0, 1]));
        for macs in [last.collect::<Vec<_>>(), vendors.collect()] {
            let hashes: Vec<u64> = macs.iter().map(|mac| BuildHasherDefault::<Mixer>::default().hash_one(mac.key())).collect();
            // At random there are 4096 * (1 - 1/e), or 2589, and all.
            let places: HashSet<u64> = hashes.iter().map(|hash| hash & 0xfff).collect();
            let marks: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            assert!(places.len() > 1500 && marks.len() == 128, "{} places, {} marks", places.len(), marks.len());
        }
    }
}
