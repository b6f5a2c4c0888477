//! The process at the other end of a Unix socket, as it was when it connected: its number, its user, its groups.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Most groups a process can have (NGROUPS_MAX).
const MAX_GROUPS: usize = 65536;
/// Enough for nearly all users.
const USUAL_GROUPS: usize = 64;

/// Number, user and primary group (SO_PEERCRED). Not by rustix, whose process number cannot be 0, which is what the kernel gives
/// for a process in a PID namespace that this one does not see.
pub(super) fn process(socket: &impl AsFd) -> io::Result<libc::ucred> {
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the kernel writes at most `length` bytes to the structure, which is that long, and how many they are to `length`; any
    // bytes are numbers; both outlive the call; the descriptor is open as long as `socket` is borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(found) } else { Err(io::Error::last_os_error()) }
}

/// The supplementary groups that the peer of a Unix socket had when it connected (SO_PEERGROUPS, Linux 4.13). None if the kernel
/// does not say: then they do not count.
pub(super) fn groups(socket: &impl AsFd) -> Vec<u32> {
    let mut groups = vec![0_u32; USUAL_GROUPS];
    for _ in 0..2 {
        let room = groups.len() * size_of::<u32>();
        let mut length = libc::socklen_t::try_from(room).unwrap_or(0);
        // SAFETY: the kernel writes at most `length` bytes to the buffer, which is that long, and how many they are to `length`;
        // any bytes are numbers; both outlive the call; the descriptor is open as long as `socket` is borrowed.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = usize::try_from(length).unwrap_or(0) / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return groups;
        }
        // There are more, and `length` says how much room they need. They never change: a second time is enough.
        if io::Error::last_os_error().raw_os_error() != Some(libc::ERANGE) || count > MAX_GROUPS {
            break;
        }
        groups.resize(count, 0);
    }
    Vec::new()
}
