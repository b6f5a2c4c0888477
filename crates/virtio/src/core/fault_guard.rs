//! Guards mapped memory of a peer against truncation.
//!
//! Guest memory is often a file that is not sealed, and any process that holds it can truncate it: our next access beyond its new
//! end raises SIGBUS. This handler maps zeroed memory of our own in place of the missing part and marks the mapping as broken, so
//! that the access succeeds and the queue stops at its next check. Faults at other addresses go to the previous SIGBUS handler.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// Mappings of peers' memory in this process at most.
const CAPACITY: usize = 4096;
/// Start of an entry that covers nothing.
const NOWHERE: usize = usize::MAX;

struct Entry {
    taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    page_bytes: AtomicUsize,
    broken: AtomicBool,
}

/// Read by the signal handler, so without locks. An entry covers nothing while it is changed. A handler that reads a changing
/// entry uses it only if the start is the same before and after; then the end is that of a mapping which did start there while
/// the handler's own mapping existed, and so does not reach into it.
static ENTRIES: [Entry; CAPACITY] = [const {
    Entry {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(NOWHERE),
        end: AtomicUsize::new(0),
        page_bytes: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
    }
}; CAPACITY];

/// Faults in any mapping so far: by one load a queue learns that it must check its own.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// The previous SIGBUS action, set before our handler is.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Faults of guarded memory in this process so far.
#[inline(always)]
pub(crate) fn fault_count() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

/// A mapping whose faults do not end the process, until this is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    index: usize,
}

impl Guard {
    /// Guard the shared mapping of `length_bytes` at `start`, which consists of pages of `page_bytes`.
    ///
    /// The mapping stays until after the guard is dropped.
    pub(crate) fn new(start: NonNull<u8>, length_bytes: usize, page_bytes: usize) -> io::Result<Self> {
        install()?;
        let free = ENTRIES
            .iter()
            .position(|entry| entry.taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        let Some(index) = free else {
            return Err(io::Error::other(format!(
                "{CAPACITY} pieces of guests' memory are mapped, the most this process can guard; attach fewer machines, or give \
                 them fewer memory slots"
            )));
        };
        let entry = &ENTRIES[index];
        let start = start.addr().get();
        entry.broken.store(false, Ordering::Relaxed);
        entry.page_bytes.store(page_bytes, Ordering::Relaxed);
        entry.end.store(start + length_bytes, Ordering::Relaxed);
        entry.start.store(start, Ordering::Release);
        Ok(Self { index })
    }

    /// Was a part of it missing when it was accessed?
    pub(crate) fn is_broken(&self) -> bool {
        ENTRIES[self.index].broken.load(Ordering::Acquire)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let entry = &ENTRIES[self.index];
        entry.start.store(NOWHERE, Ordering::Release);
        entry.taken.store(false, Ordering::Release);
    }
}

fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let result = INSTALLED.get_or_init(|| {
        let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(0);
        // SAFETY: all zeroes are a valid value of this plain structure.
        let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only queries; `previous` is valid for writing.
        if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) } != 0 {
            return Err(errno());
        }
        let _ = PREVIOUS.set(previous);
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the handler does only what a signal handler may: atomics, mmap, sigaction, raise.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(errno());
        }
        Ok(())
    });
    result.map_err(|errno| {
        io::Error::other(format!("no handler of SIGBUS can be installed ({})", io::Error::from_raw_os_error(errno)))
    })
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid structure to a handler with SA_SIGINFO.
    let what = unsafe { *info };
    // SAFETY: of a fault (code above 0) the field is the address; otherwise it is not used.
    let address = unsafe { what.si_addr() }.addr();
    if what.si_code <= 0 || !cover(address) {
        pass_on(signal, info, context, what.si_code > 0);
    }
}

/// Map zeroes at `address`, up to the end of its mapping, if it is in a guarded one.
fn cover(address: usize) -> bool {
    for entry in &ENTRIES {
        let start = entry.start.load(Ordering::Acquire);
        let end = entry.end.load(Ordering::Acquire);
        if address < start || address >= end || entry.start.load(Ordering::Acquire) != start {
            continue;
        }
        entry.broken.store(true, Ordering::Release);
        FAULTS.fetch_add(1, Ordering::Release);
        let page = entry.page_bytes.load(Ordering::Relaxed).max(1);
        let from = address - (address - start) % page;
        let place = std::ptr::without_provenance_mut(from);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let how = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: replaces a part of a mapping of ours, which is reached by raw pointers only and which the thread that faulted
        // keeps mapped; a file that ends before `address` has nothing from there to the mapping's end either.
        return unsafe { rustix::mm::mmap_anonymous(place, end - from, access, how) }.is_ok();
    }
    false
}

fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void, is_fault: bool) {
    let Some(previous) = PREVIOUS.get() else { return };
    match previous.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zeroes are a valid value of this plain structure: the default action.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: both are allowed in a handler. A fault happens again on return, and then ends the process as it would have.
            unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
            if !is_fault {
                // SAFETY: as above; the signal is blocked until this handler returns.
                unsafe { libc::raise(signal) };
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the kernel would have called it in this way.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void) = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: as above.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
