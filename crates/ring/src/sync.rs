//! The one file that names atomics: loom's under `--cfg loom`, the machine's otherwise.
#![allow(clippy::disallowed_types)]

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Is the algorithm to make this mistake, which the models must notice? Asked once of the environment, and only under the model
/// checker: a build of its own for each mistake would take longer than all models.
#[inline(always)]
pub(crate) fn known_bad(_name: &str) -> bool {
    #[cfg(loom)]
    {
        static ASKED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
        ASKED.get_or_init(|| std::env::var("FIPSEE_KNOWN_BAD").ok()).as_deref() == Some(_name)
    }
    #[cfg(not(loom))]
    false
}

/// Order every earlier store before every later load of this thread, as seen by all processors.
///
/// On x86-64 a locked operation on the stack does this in about a third of the time of `mfence`
/// (docs/memory-order.md, "The full fence").
#[inline(always)]
pub fn full_fence() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(all(not(loom), target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: the operand is in the red zone of this thread's own stack, and OR with zero leaves whatever is there unchanged.
        // The flags are declared clobbered by the absence of `preserves_flags`; memory by that of `nomem`.
        unsafe { core::arch::asm!("lock or dword ptr [rsp - 64], 0") };
    }
    #[cfg(all(not(loom), any(not(target_arch = "x86_64"), miri)))]
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// As [`full_fence`], by an operation on `word` that leaves its value as it is and brings its line into this CPU's cache, owned.
///
/// On x86-64 a locked OR of zero, in assembly: a compiler may turn the atomic operation into a fence and a load, which leave the
/// line where it is.
#[inline(always)]
pub(crate) fn full_fence_at(word: &AtomicU32) {
    #[cfg(all(not(loom), target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: the reference makes the word valid and aligned for atomic access, which this is; OR with zero leaves its value.
        // Flags and memory are clobbered by the absence of `preserves_flags` and `nomem`; nothing is pushed (`nostack`).
        unsafe { core::arch::asm!("lock or dword ptr [{word}], 0", word = in(reg) word.as_ptr(), options(nostack)) };
    }
    #[cfg(any(loom, not(target_arch = "x86_64"), miri))]
    {
        word.fetch_or(0, Ordering::Relaxed);
        full_fence();
    }
}
