//! The instructions that wait for a write to a line or for a time: UMONITOR, UMWAIT and TPAUSE (Intel SDM vol. 2, WAITPKG),
//! MONITORX and MWAITX (AMD APM vol. 3). The registers are fixed, so that `tests/wait_encodings.rs` can compare whole encodings.
//!
//! All of them may end early, for an interrupt or any other reason, and the operating system may shorten UMWAIT and TPAUSE
//! (IA32_UMWAIT_CONTROL; the carry flag then says so). The caller looks again after each in any case, so the flag is not read.

use crate::cpu;
use crate::sync::AtomicU32;

/// UMWAIT and TPAUSE, bit 0 of the operand: the state C0.1, which is left fastest. C0.2 saves more and takes longer to
/// leave (SDM vol. 2, UMWAIT).
const STATE_C0_1: u32 = 1;
/// MWAITX, EAX bits 7:4: stay in C0, which is left fastest (APM vol. 3, MWAITX).
const HINT_C0: u32 = 0xf0;
/// MWAITX, ECX bit 1: end after EBX ticks (APM vol. 3, MWAITX).
const TIMER: u32 = 1 << 1;

/// What of these may be executed here.
#[derive(Clone, Copy, Debug, Default)]
pub struct Instructions {
    /// UMONITOR, UMWAIT, TPAUSE.
    pub waitpkg: Option<Waitpkg>,
    /// MONITORX, MWAITX.
    pub monitorx: Option<Monitorx>,
}

impl Instructions {
    /// What the CPU has.
    pub fn detect() -> Self {
        let cpu = cpu::features();
        let (waitpkg, monitorx) = (Waitpkg(()), Monitorx(()));
        Self { waitpkg: cpu.has_waitpkg.then_some(waitpkg), monitorx: cpu.has_monitorx.then_some(monitorx) }
    }
}

/// Proof that UMONITOR, UMWAIT and TPAUSE may be executed.
#[derive(Clone, Copy, Debug)]
pub struct Waitpkg(());

impl Waitpkg {
    /// The proof without a look at the CPU, for tests that carry the instructions out themselves.
    ///
    /// # Safety
    /// The CPU has WAITPKG, or a handler of SIGILL does what the instructions do.
    pub const unsafe fn assume() -> Self {
        Self(())
    }

    /// Watch the line of `word` for writes. Ordered like a load.
    #[inline(always)]
    pub fn umonitor(self, word: &AtomicU32) {
        // SAFETY: * the CPU has it, by construction of self; * it reads no more than a byte at an address that a
        // reference keeps valid; * memory is declared touched, so no load is moved across it.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            core::arch::asm!("umonitor rax", in("rax") word, options(nostack, preserves_flags));
        }
    }

    /// Wait until the watched line was written since [`umonitor`](Self::umonitor), or the time-stamp counter reached
    /// `deadline_ticks`.
    #[inline(always)]
    pub fn umwait(self, deadline_ticks: u64) {
        // SAFETY: the CPU has it, by construction of self; it changes the flags, which are not declared preserved.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            core::arch::asm!("umwait ecx", in("ecx") STATE_C0_1, in("rax") deadline_ticks, in("rdx") deadline_ticks >> 32, options(nostack));
        }
    }

    /// Wait until the time-stamp counter reached `deadline_ticks`.
    #[inline(always)]
    pub fn tpause(self, deadline_ticks: u64) {
        // SAFETY: as for UMWAIT.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            core::arch::asm!("tpause ecx", in("ecx") STATE_C0_1, in("rax") deadline_ticks, in("rdx") deadline_ticks >> 32, options(nostack));
        }
    }
}

/// Proof that MONITORX and MWAITX may be executed.
#[derive(Clone, Copy, Debug)]
pub struct Monitorx(());

impl Monitorx {
    /// The proof without a look at the CPU, for tests that carry the instructions out themselves.
    ///
    /// # Safety
    /// The CPU has MONITORX, or a handler of SIGILL does what the instructions do.
    pub const unsafe fn assume() -> Self {
        Self(())
    }

    /// Watch the line of `word` for writes. Ordered like a load.
    #[inline(always)]
    pub fn monitorx(self, word: &AtomicU32) {
        // SAFETY: as for UMONITOR; ECX and EDX, its extensions and hints, are 0, which asks for none.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            core::arch::asm!("monitorx", in("rax") word, in("ecx") 0, in("edx") 0, options(nostack, preserves_flags));
        }
    }

    /// Wait until the watched line was written since [`monitorx`](Self::monitorx), or `ticks` of the time-stamp counter
    /// have passed.
    #[inline(always)]
    pub fn mwaitx(self, ticks: u32) {
        // SAFETY: the CPU has it, by construction of self. RBX, which the compiler keeps for itself, is given back.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            core::arch::asm!(
                "xchg rbx, {ticks}",
                "mwaitx",
                "xchg rbx, {ticks}",
                ticks = inout(reg) u64::from(ticks) => _,
                in("eax") HINT_C0,
                in("ecx") TIMER,
                options(nostack, preserves_flags),
            );
        }
    }
}
