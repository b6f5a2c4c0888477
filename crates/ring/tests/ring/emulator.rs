//! UMONITOR, UMWAIT, TPAUSE, MONITORX and MWAITX on a CPU without them: a handler of SIGILL that decodes the very bytes of the
//! product, takes the operands from the registers and does what the manuals say. It is stricter than a CPU: it
//! knows no interrupts, so a wait ends only by a write or by its deadline, and the deadline can be switched off.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Once, OnceLock};

use fipsee_ring::AtomicU32;
use fipsee_ring::clock;
use fipsee_ring::wait::instructions::{Instructions, Monitorx, Waitpkg};

/// What the emulated instructions have seen since [`reset`].
pub(crate) static ARMED: AtomicU64 = AtomicU64::new(0);
/// Waits for a write.
pub(crate) static WAITED: AtomicU64 = AtomicU64::new(0);
/// Waits for a time.
pub(crate) static PAUSED: AtomicU64 = AtomicU64::new(0);
/// Waits without a watched line: the CPU would not have waited.
pub(crate) static UNARMED: AtomicU64 = AtomicU64::new(0);
/// Operands that mean something else than they should.
pub(crate) static MISUSED: AtomicU64 = AtomicU64::new(0);
/// The furthest deadline, in ticks from when it was given.
pub(crate) static FURTHEST_TICKS: AtomicU64 = AtomicU64::new(0);
/// Waits without a deadline that saw no write for [`LOST_AFTER_S`].
pub(crate) static LOST: AtomicU64 = AtomicU64::new(0);
/// Wait for a write for ever.
pub(crate) static IGNORE_DEADLINES: AtomicBool = AtomicBool::new(false);

const LOST_AFTER_S: u64 = 10;

/// The line that a thread has the CPU watch, and its value then.
type Line = (usize, [u64; 8]);

thread_local! {
    static WATCHED: Cell<Option<Line>> = const { Cell::new(None) };
}

/// Have the instructions carried out from now on; those of the CPU stay the CPU's.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Measured in here and not in the handler: it takes a lock.
        let _ = clock::ticks_per_second();
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_illegal_instruction;
        // SAFETY: all zero is an empty action, and the handler has the signature that SA_SIGINFO asks for.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler calls only what may be called in one: loads, sched_yield, and thread-locals without
        // initialisation.
        let installed = unsafe { libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut()) };
        assert_eq!(installed, 0, "sigaction");
    });
}

/// All of them may be executed.
pub(crate) fn waitpkg() -> Instructions {
    install();
    // SAFETY: the handler is installed.
    Instructions { waitpkg: Some(unsafe { Waitpkg::assume() }), monitorx: None }
}

/// As [`waitpkg`], for those of AMD; none where they raise no signal though CPUID denies them: a hypervisor that hides them from
/// its guests may carry them out itself, as no operation (KVM on AMD, 4 us each).
pub(crate) fn monitorx() -> Option<Instructions> {
    static TRAPS: OnceLock<bool> = OnceLock::new();
    install();
    // SAFETY: the handler is installed.
    let monitorx = unsafe { Monitorx::assume() };
    let traps = *TRAPS.get_or_init(|| {
        let armed = ARMED.load(Ordering::Relaxed);
        monitorx.monitorx(&AtomicU32::new(0));
        ARMED.load(Ordering::Relaxed) > armed
    });
    traps.then_some(Instructions { waitpkg: None, monitorx: Some(monitorx) })
}

/// Reset the counters.
pub(crate) fn reset(ignore_deadlines: bool) {
    for counter in [&ARMED, &WAITED, &PAUSED, &UNARMED, &MISUSED, &FURTHEST_TICKS, &LOST] {
        counter.store(0, Ordering::Relaxed);
    }
    IGNORE_DEADLINES.store(ignore_deadlines, Ordering::Relaxed);
}

extern "C" fn on_illegal_instruction(_: c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands over the context of the interrupted thread, which is ours until we return.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let register = |number: c_int| registers[usize::try_from(number).unwrap_or(0)].cast_unsigned();
    let place = register(libc::REG_RIP);
    // SAFETY: code follows every instruction of a function that returns.
    let code = unsafe { std::ptr::read_unaligned(place as *const [u8; 4]) };
    let (rax, rbx, rcx, rdx) =
        (register(libc::REG_RAX), register(libc::REG_RBX), register(libc::REG_RCX), register(libc::REG_RDX));
    let low = u64::from(u32::MAX);
    let deadline_ticks = (rdx & low) << 32 | rax & low;
    let length = match code {
        [0xf3, 0x0f, 0xae, 0xf0] => arm(rax, 4),
        [0xf2, 0x0f, 0xae, 0xf1] => wait_for_write(deadline_ticks, rcx & low == 1, 4),
        [0x66, 0x0f, 0xae, 0xf1] => pause(deadline_ticks, rcx & low == 1, 4),
        [0x0f, 0x01, 0xfa, _] => {
            MISUSED.fetch_add(u64::from(rcx & low != 0 || rdx & low != 0), Ordering::Relaxed);
            arm(rax, 3)
        }
        [0x0f, 0x01, 0xfb, _] => wait_for_write(clock::ticks() + (rbx & low), rcx & low == 2 && rax & low == 0xf0, 3),
        // None of ours: returning would come back here for ever.
        // SAFETY: ends the process.
        _ => unsafe { libc::abort() },
    };
    registers[usize::try_from(libc::REG_RIP).unwrap_or(0)] += length;
}

fn arm(address: u64, length: i64) -> i64 {
    let count = ARMED.fetch_add(1, Ordering::Relaxed);
    let line = usize::try_from(address).unwrap_or(0) & !63;
    // Now and then before and after the line is watched, time for a write that must be noticed.
    linger(count % 4);
    WATCHED.set(Some((line, contents(line))));
    linger(count / 4 % 4);
    length
}

/// Delay: none, about a microsecond, or until a peer on the same CPU had its turn.
fn linger(how: u64) {
    match how {
        0 => {}
        1 => {
            let started_ticks = clock::ticks();
            while clock::ticks() - started_ticks < 2000 {
                std::hint::spin_loop();
            }
        }
        _ => give_way(),
    }
}

/// The line as it is now.
fn contents(line: usize) -> [u64; 8] {
    // SAFETY: the address was given to the instruction as one of memory that is mapped, lines are aligned, and every
    // access is atomic.
    std::array::from_fn(|word| unsafe { AtomicU64::from_ptr((line as *mut u64).wrapping_add(word)) }.load(Ordering::Acquire))
}

fn wait_for_write(deadline_ticks: u64, is_well_used: bool, length: i64) -> i64 {
    WAITED.fetch_add(1, Ordering::Relaxed);
    MISUSED.fetch_add(u64::from(!is_well_used), Ordering::Relaxed);
    let Some((line, before)) = WATCHED.take() else {
        UNARMED.fetch_add(1, Ordering::Relaxed);
        return length;
    };
    let started_ticks = clock::ticks();
    FURTHEST_TICKS.fetch_max(deadline_ticks.saturating_sub(started_ticks), Ordering::Relaxed);
    while contents(line) == before {
        let now_ticks = clock::ticks();
        if !IGNORE_DEADLINES.load(Ordering::Relaxed) {
            if now_ticks >= deadline_ticks {
                break;
            }
        } else if now_ticks - started_ticks > LOST_AFTER_S * clock::ticks_per_second() {
            LOST.fetch_add(1, Ordering::Relaxed);
            IGNORE_DEADLINES.store(false, Ordering::Relaxed); // Known now: the rest need not take as long.
        }
        give_way();
    }
    length
}

fn pause(deadline_ticks: u64, is_well_used: bool, length: i64) -> i64 {
    PAUSED.fetch_add(1, Ordering::Relaxed);
    MISUSED.fetch_add(u64::from(!is_well_used), Ordering::Relaxed);
    FURTHEST_TICKS.fetch_max(deadline_ticks.saturating_sub(clock::ticks()), Ordering::Relaxed);
    while clock::ticks() < deadline_ticks {
        std::hint::spin_loop();
    }
    length
}

fn give_way() {
    // SAFETY: a system call without arguments, allowed in a handler.
    unsafe { libc::sched_yield() };
}
