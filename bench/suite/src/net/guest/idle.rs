//! Idle CPUs of a virtual machine poll for a while before they are halted, unless its kernel is set not to: a CPU that the hypervisor has
//! halted takes 10 to 15 us to wake.

use std::fs;

/// Of the haltpoll governor of CPU idle times, in nanoseconds.
const LONGEST: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
/// The kernel's default.
const DEFAULT_NS: u64 = 200_000;

/// The kernel's default is set. Dropping it sets what was set before.
pub(super) struct Polling(Option<String>);

impl Polling {
    /// Nothing is set where that governor is not, or polls for as long or longer.
    pub(super) fn begin() -> Result<Self, String> {
        let Ok(text) = fs::read_to_string(LONGEST) else { return Ok(Self(None)) };
        if text.trim().parse::<u64>().is_ok_and(|now_ns| now_ns >= DEFAULT_NS) {
            return Ok(Self(None));
        }
        fs::write(LONGEST, DEFAULT_NS.to_string()).map_err(|error| format!("cannot set {LONGEST}: {error}; run as root"))?;
        Ok(Self(Some(text)))
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = fs::write(LONGEST, before.trim());
        }
    }
}
