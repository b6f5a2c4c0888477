//! The checksum of IP, TCP and UDP: the ones' complement of the ones' complement sum of 16-bit words (RFC 1071).
#![deny(clippy::as_conversions)]

/// A sum of words. All pieces but the last have an even length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(
    /// In the byte order of the machine: the sum does not depend on it as long as its bytes are stored as they are.
    u64,
);

impl Sum {
    pub fn of(bytes: &[u8]) -> Self {
        Self::default().plus(bytes)
    }

    #[must_use]
    pub fn plus(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        // Words of 32 bits do as well: what is carried into their upper half is added when the sum is folded.
        let sum = words.iter().fold(0_u64, |sum, word| sum + u64::from(u32::from_ne_bytes(*word)));
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        Self(fold(self.0) + fold(sum) + fold(u32::from_ne_bytes(last).into()))
    }

    #[must_use]
    pub fn plus_number(self, number: u16) -> Self {
        self.plus(&number.to_be_bytes())
    }

    /// The checksum as it is stored.
    pub fn finish(self) -> [u8; 2] {
        let folded = u16::try_from(fold(fold(self.0))).unwrap_or(u16::MAX);
        (!folded).to_ne_bytes()
    }

    /// The checksum of TCP or UDP as it is stored: 0 would say that there is none.
    pub fn finish_never_0(self) -> [u8; 2] {
        match self.finish() {
            [0, 0] => [0xff, 0xff],
            sum => sum,
        }
    }
}

/// The same sum in 16 bits and a few more.
fn fold(sum: u64) -> u64 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum >> 16) + (sum & 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_others() {
        // The example of RFC 1071: the sum is ddf2.
        assert_eq!(Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).finish(), [!0xdd, !0xf2]);
        // A header of IPv4 as it is in textbooks.
        let header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(Sum::of(&header).finish(), [0, 0]);
        assert_eq!(Sum::of(&header[..10]).plus(&header[12..]).finish(), [0xb8, 0x61]);
        assert_eq!(Sum::of(&header).finish_never_0(), [0xff, 0xff]);
        assert_eq!((Sum::of(&[]).finish(), Sum::of(&[1]).finish()), ([0xff, 0xff], [!1, 0xff]));
    }

    /// By the definition: one word after the other.
    fn slowly(bytes: &[u8]) -> u16 {
        let word = |word: &[u8]| u32::from(word[0]) << 8 | word.get(1).copied().map_or(0, u32::from);
        !bytes.chunks(2).map(word).fold(0, |sum, word| {
            let sum = u32::from(sum) + word;
            u16::try_from(sum % 0x1_0000 + sum / 0x1_0000).expect("16 bits")
        })
    }

    #[test]
    fn sum_is_the_same_however_it_is_divided() {
        let mut random = fipsee_testkit::random::Random(1);
        for length in (0..300).chain([65_535]) {
            let mut bytes = vec![0; length];
            random.fill(&mut bytes);
            if length % 3 == 0 {
                bytes.fill(0xff);
            }
            let cut = usize::try_from(random.below(u64::from(u32::try_from(length).expect("small")) + 1)).expect("small") / 2 * 2;
            let sum = Sum::of(&bytes[..cut]).plus(&bytes[cut..]);
            assert_eq!(u16::from_be_bytes(sum.finish()), slowly(&bytes), "{length} bytes, cut at {cut}");
        }
    }
}
