//! The structures of the header, field by field; `crates/capi/abi/abi.txt` pins both sides to the same places.

use std::ffi::{CStr, OsStr, c_char};
use std::mem::{MaybeUninit, size_of};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use fipsee_block::client::transfer::BOUNCE_BYTES;
use fipsee_block::client::{AttachOptions, Claim, ReconnectPolicy, default_socket_path};
use fipsee_ring::wait::WaitMode;
use rustix::io::Errno;

use crate::failure::{Failure, null};

/// `struct fipsee_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Options {
    pub(crate) size_bytes: usize,
    pub(crate) socket_path: *const c_char,
    pub(crate) disk: *const c_char,
    pub(crate) queue_count: u32,
    pub(crate) depth: u32,
    pub(crate) pool_bytes: u64,
    pub(crate) wait: u32,
    pub(crate) flags: u32,
    pub(crate) look_ns: u64,
    pub(crate) reconnect_ns: u64,
    pub(crate) notify: *const c_char,
}

/// `struct fipsee_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Info {
    pub(crate) size_bytes: usize,
    pub(crate) capacity_bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) optimal_bytes: u32,
    pub(crate) max_transfer_bytes: u32,
    pub(crate) max_segments: u32,
    pub(crate) max_range_bytes: u64,
    pub(crate) capabilities: u32,
    pub(crate) queue_count: u32,
    pub(crate) identity: [u8; 16],
}

/// `struct fipsee_result`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) token: u64,
    pub(crate) result: i32,
    pub(crate) status: u32,
}

/// `struct fipsee_listed_disk`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ListedDisk {
    pub(crate) size_bytes: usize,
    pub(crate) name: *const c_char,
    pub(crate) capacity_bytes: u64,
    pub(crate) block_bytes: u32,
    pub(crate) flags: u32,
}

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) base: *mut u8,
    pub(crate) length_bytes: usize,
}

const OPEN_READ_ONLY: u32 = 1;
const OPEN_EXCLUSIVE: u32 = 2;
const OPEN_SOLE_WRITER: u32 = 4;
const OPEN_IGNORE_CLAIM: u32 = 8;

/// A table for a request of many pieces, as the pool allocates them.
const TABLE_BYTES: u64 = 4096;

/// The options of `fipsee_open`, checked.
pub(crate) struct Wanted {
    pub(crate) socket: PathBuf,
    pub(crate) attach: AttachOptions,
    pub(crate) reconnect: Option<ReconnectPolicy>,
}

/// Copy and check the caller's options.
///
/// # Safety
/// `options` is null or leads to as many bytes as its first field says; its strings are null or end in a zero byte.
pub(crate) unsafe fn read(options: *const Options) -> Result<Wanted, Failure> {
    const FEWEST_BYTES: usize = std::mem::offset_of!(Options, queue_count);
    // SAFETY: promised by the caller; numbers and pointers, for which every pattern of bits is a value.
    let options = unsafe { copy::<Options>(options, FEWEST_BYTES, "call fipsee_options_init first") }?;
    // SAFETY: promised by the caller.
    let name = unsafe { text(options.disk) }.ok_or_else(|| null("options->disk, the name of the disk,"))?;
    let name = name.to_str().map_err(|_| Failure::invalid("options->disk is no UTF-8; fipsee ls shows the disks' names"))?;
    // SAFETY: promised by the caller.
    let socket = unsafe { text(options.socket_path) };
    let socket = socket.map_or_else(default_socket_path, |path| OsStr::from_bytes(path.to_bytes()).into());
    let mut attach = AttachOptions::new(name);
    let queue_count = options.queue_count.max(1);
    attach.queue_count = u16::try_from(queue_count)
        .map_err(|_| Failure::invalid(format!("options->queue_count is {queue_count}; ask for at most 65535")))?;
    if options.depth != 0 {
        attach.depth = options.depth;
    }
    let per_queue_bytes = u64::from(attach.depth.min(4096)) * TABLE_BYTES + BOUNCE_BYTES;
    attach.pool_bytes = if options.pool_bytes == 0 { u64::from(queue_count) * per_queue_bytes } else { options.pool_bytes };
    attach.wait = wait_mode(options.wait)?;
    if options.flags & !(OPEN_READ_ONLY | OPEN_EXCLUSIVE | OPEN_SOLE_WRITER | OPEN_IGNORE_CLAIM) != 0 {
        let text = format!(
            "options->flags is {:#x}, this library knows FIPSEE_OPEN_READ_ONLY, _EXCLUSIVE, _SOLE_WRITER and _IGNORE_CLAIM",
            options.flags
        );
        return Err(Failure::invalid(text));
    }
    attach.claim = match (options.flags & OPEN_SOLE_WRITER != 0, options.flags & OPEN_IGNORE_CLAIM != 0) {
        (false, false) => Claim::None,
        (true, false) => Claim::SoleWriter,
        (false, true) => Claim::Ignore,
        (true, true) => {
            let text = "options->flags has FIPSEE_OPEN_SOLE_WRITER and FIPSEE_OPEN_IGNORE_CLAIM; give one of them";
            return Err(Failure::invalid(text));
        }
    };
    attach.read_only = options.flags & OPEN_READ_ONLY != 0;
    attach.exclusive = options.flags & OPEN_EXCLUSIVE != 0;
    if options.look_ns != 0 {
        attach.look = Duration::from_nanos(options.look_ns);
    }
    // SAFETY: promised by the caller.
    if let Some(notify) = unsafe { text(options.notify) } {
        let policy = notify.to_string_lossy().parse();
        attach.notify = Some(policy.map_err(|text: String| Failure::invalid(format!("options->notify: {text}")))?);
    }
    let reconnect = (options.reconnect_ns != 0).then(|| ReconnectPolicy::within(Duration::from_nanos(options.reconnect_ns)));
    if reconnect.is_some() && queue_count > 1 {
        return Err(Failure::invalid("options->reconnect_ns works with one queue; with more, call fipsee_reconnect"));
    }
    Ok(Wanted { socket, attach, reconnect })
}

/// One of `FIPSEE_WAIT_*`.
pub(crate) fn wait_mode(wait: u32) -> Result<WaitMode, Failure> {
    match wait {
        0 => Ok(WaitMode::Adaptive),
        1 => Ok(WaitMode::Pause),
        2 => Ok(WaitMode::Sleep),
        3 => Ok(WaitMode::Spin),
        4 => Ok(WaitMode::Yield),
        5 => Ok(WaitMode::Umwait),
        6 => Ok(WaitMode::Tpause),
        7 => Ok(WaitMode::Monitorx),
        other => Err(Failure::invalid(format!("options->wait is {other}; use one of FIPSEE_WAIT_*"))),
    }
}

/// Copy a structure that begins with its size, as far as the caller's version has it; the rest is 0.
///
/// # Safety
/// `options` is null or leads to as many bytes as its first field says; every pattern of bits is a value of `T`.
pub(crate) unsafe fn copy<T: Copy>(options: *const T, fewest_bytes: usize, advice: &str) -> Result<T, Failure> {
    if options.is_null() {
        return Err(null("options"));
    }
    // SAFETY: the caller promised that the structure is as long as it says, so its first field is there.
    let given_bytes = unsafe { options.cast::<usize>().read() };
    if given_bytes < fewest_bytes {
        return Err(Failure::invalid(format!("options->size_bytes is {given_bytes}; {advice}")));
    }
    let mut known = MaybeUninit::<T>::zeroed();
    let known_bytes = given_bytes.min(size_of::<T>());
    // SAFETY: both sides are at least so long, and ours is not the caller's.
    unsafe { std::ptr::copy_nonoverlapping(options.cast::<u8>(), known.as_mut_ptr().cast::<u8>(), known_bytes) };
    for offset in known_bytes..given_bytes {
        // SAFETY: inside what the caller promised.
        if unsafe { options.cast::<u8>().wrapping_add(offset).read() } != 0 {
            let text = "options holds fields that this version of the library does not know; install a newer libfipsee";
            return Err(Failure::new(Errno::TOOBIG, text));
        }
    }
    // SAFETY: every pattern of bits is a value, as promised; all of them were set.
    Ok(unsafe { known.assume_init() })
}

/// # Safety
/// `text` is null or ends in a zero byte.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: promised by the caller.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

impl Info {
    /// Copy it to the caller, as far as the caller's version has it.
    ///
    /// # Safety
    /// `to` is null or leads to as many bytes as its first field says.
    pub(crate) unsafe fn give(self, to: *mut Self) -> Result<(), Failure> {
        // SAFETY: promised by the caller; it begins with its size.
        unsafe { give(&self, to, std::mem::offset_of!(Self, block_bytes), ("info", "fipsee_info")) }
    }
}

impl ListedDisk {
    /// As [`Info::give`].
    ///
    /// # Safety
    /// As [`Info::give`].
    pub(crate) unsafe fn give(self, to: *mut Self) -> Result<(), Failure> {
        // SAFETY: promised by the caller; it begins with its size.
        unsafe { give(&self, to, std::mem::offset_of!(Self, capacity_bytes), ("disk", "fipsee_listed_disk")) }
    }
}

/// Copy a structure that begins with its size to the caller, as far as the caller's version has it. `what` and `name` are the
/// header's.
///
/// # Safety
/// `to` is null or leads to as many bytes as its first field says; `T` begins with its size.
pub(crate) unsafe fn give<T: Copy>(
    value: &T,
    to: *mut T,
    fewest_bytes: usize,
    (what, name): (&str, &str),
) -> Result<(), Failure> {
    if to.is_null() {
        return Err(null(what));
    }
    // SAFETY: as in `copy`.
    let given_bytes = unsafe { to.cast::<usize>().read() };
    if given_bytes < fewest_bytes {
        let text = format!("{what}->size_bytes is {given_bytes}; set it to sizeof(struct {name}) first");
        return Err(Failure::invalid(text));
    }
    let known_bytes = given_bytes.min(size_of::<T>());
    // SAFETY: the caller's structure is so long.
    unsafe { to.cast::<u8>().write_bytes(0, given_bytes) };
    // SAFETY: both sides are so long, and they are different objects.
    unsafe { std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), to.cast::<u8>(), known_bytes) };
    // SAFETY: the first field, as above.
    unsafe { to.cast::<usize>().write(known_bytes) };
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A structure as in crates/capi/abi/abi.txt, from Rust's side; tests/acceptance compares the header's.
    macro_rules! layout {
        ($c_name:literal, $type:ty: $($field:ident),+) => {{
            let mut lines = vec![format!("struct {} {}", $c_name, size_of::<$type>())];
            $(lines.push(format!("struct {} {} {}", $c_name, stringify!($field), std::mem::offset_of!($type, $field)));)+
            lines
        }};
    }

    pub(crate) use layout;

    #[test]
    fn structures_have_the_committed_layout() {
        let here = [
            layout!("fipsee_options", Options: size_bytes, socket_path, disk, queue_count, depth, pool_bytes, wait, flags,
                look_ns, reconnect_ns, notify),
            layout!("fipsee_info", Info: size_bytes, capacity_bytes, block_bytes, optimal_bytes, max_transfer_bytes, max_segments,
                max_range_bytes, capabilities, queue_count, identity),
            layout!("fipsee_result", Outcome: token, result, status),
            layout!("fipsee_listed_disk", ListedDisk: size_bytes, name, capacity_bytes, block_bytes, flags),
        ];
        let committed = include_str!("../abi/abi.txt").lines().filter(|line| line.starts_with("struct "));
        let here = [
            here.concat(),
            crate::call_options::layouts().concat(),
            crate::port::layouts().concat(),
            crate::doorbells::layouts().concat(),
        ];
        assert_eq!(here.concat(), committed.collect::<Vec<_>>(), "left: Rust, right: crates/capi/abi/abi.txt");
        assert_eq!((size_of::<Piece>(), std::mem::offset_of!(Piece, length_bytes)), (16, 8));
    }
}
