//! Waiting without sleeping.

use fipsee_ring::seqpacket::Seqpacket;

use super::drive::Trouble;
use super::plan::Choices;

/// Empty looks between two yields: far more than a round trip takes, so that a measurement never sees one unless the
/// two sides share a CPU.
const LOOKS_PER_YIELD: u32 = 4096;
/// Yields between two questions to the kernel whether the other side lives.
const YIELDS_PER_LIFE_CHECK: u32 = 16;

/// Between two empty looks.
pub(super) struct Spin<'a> {
    pause: bool,
    one_cpu: bool,
    looks: u32,
    other: &'a Seqpacket,
}

impl<'a> Spin<'a> {
    pub(super) const fn new(choices: &Choices, other: &'a Seqpacket) -> Self {
        Self { pause: choices.pause, one_cpu: choices.one_cpu, looks: 0, other }
    }

    /// Something came.
    #[inline(always)]
    pub(super) const fn reset(&mut self) {
        self.looks = 0;
    }

    /// A look found nothing.
    #[inline(always)]
    pub(super) fn step(&mut self) -> Result<(), Trouble> {
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS_PER_YIELD) || self.one_cpu {
            return self.step_slowly();
        }
        if self.pause {
            core::hint::spin_loop();
        }
        Ok(())
    }

    #[cold]
    fn step_slowly(&mut self) -> Result<(), Trouble> {
        std::thread::yield_now();
        if self.looks >= LOOKS_PER_YIELD * YIELDS_PER_LIFE_CHECK {
            self.looks = 0;
            if self.other.is_hung_up() {
                return Err(Trouble::Gone);
            }
        }
        Ok(())
    }

    /// Look until `found`.
    #[inline(always)]
    pub(super) fn until(&mut self, mut found: impl FnMut() -> bool) -> Result<(), Trouble> {
        while !found() {
            self.step()?;
        }
        self.reset();
        Ok(())
    }
}
