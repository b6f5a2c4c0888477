//! The machine code of this program is read by `tests/wait_encodings.rs`: the waiting instructions, each alone in a function that
//! the compiler can neither inline nor rename.

use fipsee_ring::AtomicU32;
use fipsee_ring::wait::instructions::{Monitorx, Waitpkg};

/// UMONITOR.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn fipsee_probe_umonitor(waitpkg: Waitpkg, word: &AtomicU32) {
    waitpkg.umonitor(word);
}

/// UMWAIT.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn fipsee_probe_umwait(waitpkg: Waitpkg, deadline_ticks: u64) {
    waitpkg.umwait(deadline_ticks);
}

/// TPAUSE.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn fipsee_probe_tpause(waitpkg: Waitpkg, deadline_ticks: u64) {
    waitpkg.tpause(deadline_ticks);
}

/// MONITORX.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn fipsee_probe_monitorx(monitorx: Monitorx, word: &AtomicU32) {
    monitorx.monitorx(word);
}

/// MWAITX.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn fipsee_probe_mwaitx(monitorx: Monitorx, ticks: u32) {
    monitorx.mwaitx(ticks);
}

fn main() {
    let line: fn(Waitpkg, &AtomicU32) = fipsee_probe_umonitor;
    let deadlines: [fn(Waitpkg, u64); 2] = [fipsee_probe_umwait, fipsee_probe_tpause];
    std::hint::black_box((line, deadlines));
    let line: fn(Monitorx, &AtomicU32) = fipsee_probe_monitorx;
    let ticks: fn(Monitorx, u32) = fipsee_probe_mwaitx;
    std::hint::black_box((line, ticks));
    println!("this program is disassembled, not run: cargo test -p fipsee-ring --test ring wait_encodings");
}
