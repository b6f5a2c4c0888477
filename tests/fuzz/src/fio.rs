//! The fio engine's checks: `c/fuzz.h`.

use std::ffi::{c_char, c_int};

use fipsee_ring::Message;

/// Requests that the queue of [`reap`] can have outstanding.
pub(crate) const DEPTH: u32 = 8;

/// Bytes of an error's text.
const TEXT_BYTES: usize = 640;

// SAFETY: the signatures are those of c/fuzz.h, which build.rs compiles into this crate.
unsafe extern "C" {
    fn fuzz_answer(bytes: *const u8, length_bytes: usize, kind: u16, descriptor_count: u32, text: *mut c_char) -> c_int;
    fn fuzz_region(region: *mut u8, region_bytes: u64) -> c_int;
    fn fuzz_info(bytes: *const u8) -> c_int;
    #[cfg(test)]
    fn fuzz_store(stores: u32, message: *const Message, stamp: u32, into: *mut Message) -> c_int;
    fn fuzz_reap(
        messages: *const Message,
        message_count: u32,
        request_count: u32,
        into: *mut u32,
        into_count: *mut u32,
        sector_count: *mut u64,
    ) -> c_int;
}

/// Is this packet the answer of `kind`? If not, an errno and why.
pub(crate) fn answer(bytes: &[u8], kind: u16, descriptor_count: u32) -> Result<(), (i32, Vec<u8>)> {
    assert!(bytes.len() <= 513 && descriptor_count <= 129, "what a packet may have");
    let mut text = [0_u8; TEXT_BYTES];
    // SAFETY: the lengths were checked; the text has the 640 bytes that C may write.
    let number = unsafe { fuzz_answer(bytes.as_ptr(), bytes.len(), kind, descriptor_count, text.as_mut_ptr().cast()) };
    if number == 0 {
        return Ok(());
    }
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(TEXT_BYTES);
    Err((number, text[..end].to_vec()))
}

/// Does the engine take the region that begins there?
///
/// # Safety
/// `region` is valid for `region_bytes`, at least 128.
pub(crate) unsafe fn takes_region(region: *mut u8, region_bytes: u64) -> bool {
    // SAFETY: by the caller.
    unsafe { fuzz_region(region, region_bytes) == 1 }
}

/// Does the engine take this description of a disk?
pub(crate) fn takes_info(bytes: &[u8; 64]) -> bool {
    // SAFETY: 64 bytes of any alignment.
    unsafe { fuzz_info(bytes.as_ptr()) == 1 }
}

/// What the engine makes of a daemon's messages after `request_count` requests: tags and statuses in order, the newest size, and
/// whether it found a fault.
pub(crate) fn reap(messages: &[Message], request_count: u32) -> (Vec<(u16, u16)>, u64, bool) {
    assert!(messages.len() <= 4 * DEPTH as usize && request_count <= DEPTH, "what the rings hold");
    let (mut finished, mut count, mut sector_count) = ([0; DEPTH as usize], 0, 0);
    let message_count = u32::try_from(messages.len()).unwrap_or(0);
    // SAFETY: the lengths were checked; no more can finish than the depth.
    let outcome = unsafe {
        fuzz_reap(messages.as_ptr(), message_count, request_count, finished.as_mut_ptr(), &raw mut count, &raw mut sector_count)
    };
    assert!(outcome == 0 || outcome == 1, "the rings are refused");
    let halves = |word: &u32| (u16::try_from(word >> 16).unwrap_or(0), u16::try_from(word & 0xffff).unwrap_or(0));
    (finished[..count as usize].iter().map(halves).collect(), sector_count, outcome == 1)
}

#[cfg(test)]
mod tests {
    use fipsee_ring::cpu::{self, StoreVariant};

    use super::*;

    #[test]
    fn engine_stores_every_message_whole_by_the_stores_that_this_cpu_has() {
        let message = Message::from_payload(&std::array::from_fn(|index| u8::try_from(index).expect("below 60") ^ 0xa5));
        let variants = [StoreVariant::Portable, StoreVariant::Wide16, StoreVariant::Split32, StoreVariant::Wide64];
        for (number, variant) in (0..).zip(variants) {
            let mut slot = Message::ZERO;
            // SAFETY: two messages of ours.
            let stored = unsafe { fuzz_store(number, &message, 0x1234_5678, &raw mut slot) };
            let has = variant != StoreVariant::Portable && variant.or_best_below(cpu::features().store) == variant;
            assert_eq!(stored, i32::from(has), "C and Rust know the same of this CPU: {variant:?}");
            if has {
                assert_eq!(slot.to_bytes()[..60], message.to_bytes()[..60], "{variant:?}");
                assert_eq!(slot.to_bytes()[60..], 0x1234_5678_u32.to_le_bytes(), "{variant:?}");
            }
        }
        let mut slot = Message::ZERO;
        // SAFETY: as above.
        let unknown = unsafe { fuzz_store(7, &message, 1, &raw mut slot) };
        assert_eq!(unknown, 0, "no such stores");
    }
}
