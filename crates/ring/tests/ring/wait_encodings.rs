//! The waiting instructions as bytes: what the manuals say, not what an assembler makes. Most CPUs that this is tested on
//! have none of them, so a wrong one would be noticed nowhere else.

/// `/6` in a ModRM byte that names register number `register`.
const fn modrm_6(register: u8) -> u8 {
    0b11 << 6 | 6 << 3 | register
}

const RAX: u8 = 0;
const ECX: u8 = 1;

/// Functions of the example, and the instruction that is in each exactly once. Intel SDM vol. 2: UMONITOR r64 is F3 0F AE /6,
/// UMWAIT r32 is F2 0F AE /6, TPAUSE r32 is 66 0F AE /6. AMD APM vol. 3: MONITORX is 0F 01 FA, MWAITX is 0F 01 FB.
const ENCODINGS: [(&str, &[u8]); 5] = [
    ("fipsee_probe_umonitor", &[0xf3, 0x0f, 0xae, modrm_6(RAX)]),
    ("fipsee_probe_umwait", &[0xf2, 0x0f, 0xae, modrm_6(ECX)]),
    ("fipsee_probe_tpause", &[0x66, 0x0f, 0xae, modrm_6(ECX)]),
    ("fipsee_probe_monitorx", &[0x0f, 0x01, 0xfa]),
    ("fipsee_probe_mwaitx", &[0x0f, 0x01, 0xfb]),
];

/// The bytes of each instruction in a listing of objdump.
fn instructions(listing: &str) -> Vec<Vec<u8>> {
    let bytes = |line: &str| {
        let raw = line.split('\t').nth(1)?;
        Some(raw.split_whitespace().filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect())
    };
    listing.lines().filter_map(bytes).collect()
}

#[test]
fn waiting_instructions_are_the_bytes_that_the_manuals_name() {
    if crate::machine_code::is_objdump_missing() {
        return crate::common::skip("encodings of the waiting instructions", "objdump is missing; install binutils");
    }
    let program = crate::machine_code::build_example("wait_probe");
    for (function, encoding) in ENCODINGS {
        let listing = crate::machine_code::disassemble(&program, function, &["--show-raw-insn", "--insn-width=16"]);
        let count = instructions(&listing).iter().filter(|bytes| *bytes == encoding).count();
        assert_eq!(count, 1, "{function} should hold {encoding:02x?} once:\n{listing}");
    }
}
