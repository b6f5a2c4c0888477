//! What this CPU can do, asked once.

use std::sync::LazyLock;

/// How a 64-byte message is put into its slot so that no reader sees the stamp before the payload.
///
/// No architecture guarantees a 64-byte store to be atomic, so the wide store is used only on CPU models with a data
/// path of 64 bytes; elsewhere the stamp goes last (docs/decisions/0002-store-variants.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreVariant {
    /// One 64-byte AVX-512 store, on CPU models that make it visible at once.
    Wide64,
    /// Two quarters in one store of 32 bytes, then two of 16, the stamp in the last: only the last must be atomic, and each
    /// aligned 16-byte store is (below). From a register of AVX-512VL, which leaves the state of older code alone.
    Split32,
    /// Four 16-byte stores in order, the stamp in the last: CPUs with AVX guarantee that each is atomic
    /// (Intel SDM vol. 3 section 9.1.1; AMD APM vol. 2 section 7.3.2), and x86 keeps stores in order.
    Wide16,
    /// Eight-byte stores, then a release store of the word with the stamp: correct everywhere.
    #[default]
    Portable,
}

impl StoreVariant {
    /// This variant, or `best` if a CPU with that best variant lacks it.
    #[must_use]
    pub fn or_best_below(self, best: Self) -> Self {
        self.max(best) // The variants are in falling order of what they require of a CPU.
    }
}

/// What this CPU has that chooses code paths.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuFeatures {
    /// The most demanding store variant that this CPU has; which is the fastest, [`Tuning`](crate::tuning::Tuning) says.
    pub store: StoreVariant,
    /// Can it push a line out of its own cache towards the others' (CLDEMOTE)?
    pub has_demote: bool,
    pub vendor: [u8; 12],
    /// Display family, as CPUID leaf 1 composes it; 0 off x86-64.
    pub family: u32,
    /// Display model; 0 off x86-64.
    pub model: u32,
    /// UMONITOR, UMWAIT and TPAUSE (CPUID leaf 7, ECX bit 5).
    pub has_waitpkg: bool,
    /// MONITORX and MWAITX (CPUID leaf 8000_0001, ECX bit 29).
    pub has_monitorx: bool,
    /// The time-stamp counter runs at one rate, always (CPUID leaf 8000_0007, EDX bit 8): times of two CPUs may be compared.
    pub has_invariant_tsc: bool,
}

pub fn features() -> CpuFeatures {
    static FEATURES: LazyLock<CpuFeatures> = LazyLock::new(detect);
    *FEATURES
}

/// A hint that the line at `address` will be read soon.
#[inline(always)]
pub fn prefetch_for_read(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint that cannot fault, whatever the address.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// A hint that the line at `address` will be written soon.
#[inline(always)]
pub fn prefetch_for_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint that cannot fault, whatever the address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}

/// Does this machine run on a single CPU? `false` when that cannot be found out.
pub fn is_only_one() -> bool {
    static ONLINE: LazyLock<String> =
        LazyLock::new(|| std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default());
    ONLINE.trim().parse::<u32>().is_ok()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn detect() -> CpuFeatures {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    let leaf0 = __cpuid(0);
    // A leaf beyond the last answers with the last one's bits.
    let leaf7_ecx = if leaf0.eax >= 7 { __cpuid_count(7, 0).ecx } else { 0 };
    let last_extended = __cpuid(0x8000_0000).eax;
    let extended = |leaf: u32| (last_extended >= leaf).then(|| __cpuid(leaf));
    let mut vendor = [0_u8; 12];
    for (chunk, register) in vendor.as_chunks_mut::<4>().0.iter_mut().zip([leaf0.ebx, leaf0.edx, leaf0.ecx]) {
        *chunk = register.to_le_bytes();
    }
    let signature = __cpuid(1).eax;
    let (base_family, extended_family) = (signature >> 8 & 0xf, signature >> 20 & 0xff);
    let family = if base_family == 0xf { base_family + extended_family } else { base_family };
    let model = (signature >> 4 & 0xf) | (signature >> 16 & 0xf) << 4;
    // Without VL (Xeon Phi) the variant below it would be lacking, and every variant implies those below.
    let has_avx512 = std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512vl");
    let store = if has_avx512 && wide_store_is_atomic(&vendor, family, model) {
        StoreVariant::Wide64
    } else if std::arch::is_x86_feature_detected!("avx512vl") {
        StoreVariant::Split32
    } else if std::arch::is_x86_feature_detected!("avx") {
        StoreVariant::Wide16
    } else {
        StoreVariant::Portable
    };
    CpuFeatures {
        store,
        // ECX bit 25 is CLDEMOTE (Intel SDM vol. 2, CPUID).
        has_demote: leaf7_ecx >> 25 & 1 != 0,
        vendor,
        family,
        model,
        has_waitpkg: leaf7_ecx >> 5 & 1 != 0,
        has_monitorx: extended(0x8000_0001).is_some_and(|leaf| leaf.ecx >> 29 & 1 != 0),
        has_invariant_tsc: extended(0x8000_0007).is_some_and(|leaf| leaf.edx >> 8 & 1 != 0),
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn detect() -> CpuFeatures {
    // There is no such counter: `clock` uses the system clock.
    CpuFeatures { vendor: *b"other       ", has_invariant_tsc: false, ..CpuFeatures::default() }
}

/// Does an aligned 64-byte store of this model reach the cache as one? Intel: every core with AVX-512 has a 64-byte
/// store path. AMD: Zen 5 server (model 00h-1Fh) and desktop (40h-4Fh) have; Zen 4 and mobile Zen 5 split it in two.
fn wide_store_is_atomic(vendor: &[u8; 12], family: u32, model: u32) -> bool {
    match vendor {
        b"GenuineIntel" => family == 6,
        b"AuthenticAMD" => family == 0x1a && matches!(model, 0x00..=0x1f | 0x40..=0x4f),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_full_width_models_get_the_wide_store() {
        assert!(wide_store_is_atomic(b"GenuineIntel", 6, 143)); // Sapphire Rapids
        assert!(wide_store_is_atomic(b"AuthenticAMD", 0x1a, 2)); // Zen 5 server
        assert!(!wide_store_is_atomic(b"AuthenticAMD", 0x1a, 0x24)); // Zen 5 mobile
        assert!(!wide_store_is_atomic(b"AuthenticAMD", 0x19, 0x11)); // Zen 4
        assert!(!wide_store_is_atomic(b"CentaurHauls", 7, 0));
    }
}
