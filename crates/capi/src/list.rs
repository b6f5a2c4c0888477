//! Listing the disks that this user may open.

use std::ffi::{CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use fipsee_block::client::{self, default_socket_path};

use crate::failure::{guarded, null};
use crate::options::{self, ListedDisk};

const LISTED_READ_ONLY: u32 = 1;

/// `struct fipsee_disk_list`.
pub(crate) struct DiskList {
    disks: Vec<(CString, client::ListedDisk)>,
    /// The one that is taken next.
    next: usize,
}

/// See the header.
///
/// # Safety
/// `socket_path` is null or ends in a zero byte; `list` is null or valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_list_open(socket_path: *const c_char, list: *mut *mut DiskList) -> c_int {
    guarded(|| {
        if list.is_null() {
            return Err(null("list"));
        }
        // SAFETY: promised by the caller.
        let socket = unsafe { options::text(socket_path) };
        let socket = socket.map_or_else(default_socket_path, |path| OsStr::from_bytes(path.to_bytes()).into());
        // A name has no zero byte: it would have ended there.
        let named = |disk: client::ListedDisk| (CString::new(disk.name.as_str()).unwrap_or_default(), disk);
        let disks = client::list(&socket)?.into_iter().map(named).collect();
        let open = Box::into_raw(Box::new(DiskList { disks, next: 0 }));
        // SAFETY: not null, the rest was promised.
        unsafe { list.write(open) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// `list` is null or open, and no other thread uses it; `disk` is null or leads to as many bytes as its first field says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_list_next(list: *mut DiskList, disk: *mut ListedDisk) -> c_int {
    guarded(|| {
        // SAFETY: promised by the caller.
        let list = unsafe { list.as_mut() }.ok_or_else(|| null("list"))?;
        let Some((name, listed)) = list.disks.get(list.next) else { return Ok(0) };
        let found = ListedDisk {
            size_bytes: 0,
            name: name.as_ptr(),
            capacity_bytes: listed.size_bytes,
            block_bytes: listed.block_bytes,
            flags: if listed.read_only { LISTED_READ_ONLY } else { 0 },
        };
        // SAFETY: promised by the caller.
        unsafe { found.give(disk) }?;
        list.next += 1;
        Ok(1)
    })
}

/// See the header.
///
/// # Safety
/// `list` is null or open, and nothing of it is still in use.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_list_close(list: *mut DiskList) {
    if !list.is_null() {
        // SAFETY: it came from a box in `fipsee_list_open`, and it is the caller's to give.
        drop(unsafe { Box::from_raw(list) });
    }
}
