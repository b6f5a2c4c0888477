//! Kernel rings for interrupts, made before the process gives up the right to make any.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode};

/// `None`: the process may make rings whenever it needs one.
static SPARE: Mutex<Option<Vec<IoUring>>> = Mutex::new(None);

/// Of io_uring_register(2): that an eventfd hears of completions, and that it does no more.
const REGISTER_EVENTFD: u8 = 4;
const UNREGISTER_EVENTFD: u8 = 5;

fn lock() -> MutexGuard<'static, Option<Vec<IoUring>>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keep `count` rings for the interrupts of virtqueues, or as many as can be had, and make no others from now on. Each can signal an
/// eventfd and nothing else. Without one, an interrupt is signalled with a question whether there is room, and a write.
///
/// Returns how many there are.
pub fn make_spare_rings(count: usize) -> usize {
    let rings: Vec<IoUring> = std::iter::from_fn(|| build().ok()).take(count).collect();
    let count = rings.len();
    *lock() = Some(rings);
    count
}

fn build() -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_r_disabled().build(1)?;
    let mut restrictions = [
        Restriction::sqe_op(opcode::Nop::CODE),
        Restriction::register_op(REGISTER_EVENTFD),
        Restriction::register_op(UNREGISTER_EVENTFD),
    ];
    ring.submitter().register_restrictions(&mut restrictions)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

/// A ring for an eventfd.
pub(super) fn take() -> Option<IoUring> {
    match lock().as_mut() {
        Some(rings) => rings.pop(),
        None => IoUring::new(1).ok(),
    }
}

/// It has no eventfd any more.
pub(super) fn give(ring: IoUring) {
    if let Some(rings) = lock().as_mut() {
        rings.push(ring);
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn ring_for_interrupts_does_nothing_else() {
        let mut ring = build().expect("this machine has io_uring");
        let entries = [opcode::Nop::new().build(), opcode::Close::new(io_uring::types::Fd(-1)).build()];
        let results = entries.map(|entry| {
            // SAFETY: neither request names memory.
            unsafe { ring.submission().push(&entry) }.expect("there is room");
            ring.submit_and_wait(1).expect("submitted");
            ring.completion().next().expect("it has ended").result()
        });
        assert_eq!(results, [0, -Errno::ACCESS.raw_os_error()], "unrestricted, the second would say EBADF");
        let refused = ring.submitter().register_probe(&mut io_uring::Probe::new()).expect_err("not for an eventfd");
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::ACCESS));
    }
}
