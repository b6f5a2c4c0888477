//! Listing the ports that this user may open.

use std::ffi::{CString, c_char, c_int};

use fipsee_net::ListedPortInfo;

use super::options::{ListedPort, socket};
use crate::failure::{guarded, null};

const PORT_IN_USE: u32 = 1;

/// `struct fipsee_port_list`.
pub(crate) struct PortList {
    ports: Vec<(CString, ListedPortInfo)>,
    /// The one that is taken next.
    next: usize,
}

/// See the header.
///
/// # Safety
/// `socket_path` is null or ends in a zero byte; `list` is null or valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_port_list_open(socket_path: *const c_char, list: *mut *mut PortList) -> c_int {
    guarded(|| {
        if list.is_null() {
            return Err(null("list"));
        }
        // SAFETY: promised by the caller.
        let socket = unsafe { socket(socket_path) };
        // A name has no zero byte: it would have ended there.
        let named = |port: ListedPortInfo| (CString::new(port.name.as_str()).unwrap_or_default(), port);
        let ports = fipsee_net::list(&socket)?.into_iter().map(named).collect();
        // SAFETY: not null, the rest was promised.
        unsafe { list.write(Box::into_raw(Box::new(PortList { ports, next: 0 }))) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// `list` is null or open, and no other thread uses it; `port` is null or leads to as many bytes as its first field says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_port_list_next(list: *mut PortList, port: *mut ListedPort) -> c_int {
    guarded(|| {
        // SAFETY: promised by the caller.
        let list = unsafe { list.as_mut() }.ok_or_else(|| null("list"))?;
        let Some((name, ListedPortInfo { mac, mtu, in_use, .. })) = list.ports.get(list.next) else { return Ok(0) };
        let flags = if *in_use { PORT_IN_USE } else { 0 };
        let found = ListedPort { size_bytes: 0, name: name.as_ptr(), mac: mac.0, mtu: *mtu, flags, reserved: 0 };
        // SAFETY: promised by the caller.
        unsafe { found.give(port) }?;
        list.next += 1;
        Ok(1)
    })
}

/// See the header.
///
/// # Safety
/// `list` is null or open, and nothing of it is still in use.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_port_list_close(list: *mut PortList) {
    if !list.is_null() {
        // SAFETY: it came from a box in `fipsee_port_list_open`, and it is the caller's to give.
        drop(unsafe { Box::from_raw(list) });
    }
}
