//! The groups of the peer of a Unix socket, beside its primary one.

use std::os::fd::{AsFd, AsRawFd};

/// Most groups a process can have (NGROUPS_MAX).
const MAX_GROUPS: usize = 65536;
/// Enough for nearly all users.
const USUAL_GROUPS: usize = 64;

/// The supplementary groups that the peer of a Unix socket had when it connected (SO_PEERGROUPS, Linux 4.13). None if the kernel
/// does not say: then they do not count.
pub(super) fn of_peer(socket: &impl AsFd) -> Vec<u32> {
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
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::ERANGE) || count > MAX_GROUPS {
            break;
        }
        groups.resize(count, 0);
    }
    Vec::new()
}
