//! Random numbers that are the same in every run.

/// xorshift64*.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub const fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub const fn below(&mut self, limit: u64) -> u64 {
        (self.number() >> 16) % limit
    }

    pub fn index(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("a length fits 64 bits");
        usize::try_from(self.below(limit)).expect("it is below a usize")
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// The low bytes of the next number.
    pub const fn bytes(&mut self) -> [u8; 8] {
        self.number().to_le_bytes()
    }

    pub const fn half(&mut self) -> u16 {
        let [a, b, ..] = self.bytes();
        u16::from_le_bytes([a, b])
    }

    pub const fn word(&mut self) -> u32 {
        let [_, _, a, b, c, d, ..] = self.bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }

    /// Change one to three bytes or bits of `bytes`, mostly to values at the edge.
    pub fn mutate(&mut self, bytes: &mut [u8]) {
        for _ in 0..=self.below(3) {
            let at = self.index(bytes.len());
            bytes[at] = match self.below(4) {
                0 => bytes[at] ^ (1 << self.below(8)),
                1 => self.pick(&[0, 1, 2, 5, 6, 7, 8, 0x7f, 0x80, 0xfe, 0xff]),
                2 => bytes[at].wrapping_add(1),
                _ => self.bytes()[0],
            };
        }
    }
}
