//! How mechanisms that poll wait.

/// Empty looks between two yields: some hundred microseconds, far more than a message takes, so that a measurement sees
/// none unless the two sides share a CPU or something else runs there.
const LOOKS_PER_YIELD: u32 = 4096;

/// Counts empty looks. Every mechanism that polls pauses between two looks, as its documentation and Intel's manual advise.
#[derive(Debug, Default)]
pub struct SpinBackoff {
    looks: u32,
}

impl SpinBackoff {
    /// Nothing was there, or no room: pause before the next look.
    #[inline(always)]
    pub fn pause(&mut self) {
        core::hint::spin_loop();
        self.look_again();
    }

    /// As `pause`, without the PAUSE: after a look that was long itself.
    #[inline(always)]
    pub fn look_again(&mut self) {
        self.looks += 1;
        if self.looks == LOOKS_PER_YIELD {
            self.looks = 0;
            rest();
        }
    }
}

#[cold]
fn rest() {
    std::thread::yield_now();
}
