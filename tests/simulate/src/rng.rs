//! Random numbers that a seed determines.

/// SplitMix64: one addition and a few multiplications per number, and any seed will do.
#[derive(Clone, Debug)]
pub struct Rng(u64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Rng {
    /// The numbers of one purpose: those of another do not change with how many are taken here.
    pub fn new(seed: u64, purpose: u64) -> Self {
        let mut rng = Self(seed ^ purpose.wrapping_mul(0xd134_2543_de82_ef95));
        // Seeds that differ in one bit are to begin far apart.
        Self(rng.next() ^ seed.rotate_left(32))
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of 0 to `limit - 1`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let wide = u128::from(self.next()) * (limit as u128);
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// Likewise, for small numbers.
    pub fn small(&mut self, limit: u16) -> u32 {
        u32::try_from(self.below(limit.into())).unwrap_or(0)
    }

    /// True in so many of 100 cases.
    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}
