//! Interrupting the guest: through an eventfd that the hypervisor shares with us.
//!
//! A process that holds an eventfd can fill it and make it blocking at any moment; a plain write would then block the worker, and
//! every other guest it serves, for ever. The kernel itself signals an eventfd without ever waiting, so it is asked to: a request
//! that does nothing goes through an io_uring of the descriptor's own, which reports its completion there. User-mode Linux hands
//! over a socket, which can be written to without waiting, as can a pipe. The rings are made before confinement forbids it.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

/// As an offset: the current file position, or no file position.
const NOWHERE: u64 = u64::MAX;

/// An eventfd, pipe or socket of the hypervisor's, to be signalled.
pub(crate) struct Interrupt {
    fd: OwnedFd,
    /// None for a pipe or socket, and where no io_uring can be had.
    ring: Option<IoUring>,
}

impl core::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Interrupt").field("fd", &self.fd).field("has_ring", &self.ring.is_some()).finish()
    }
}

impl Interrupt {
    pub(crate) fn new(name: &str, fd: OwnedFd) -> Result<Self, String> {
        let refused =
            |errno: Errno| format!("the {name} descriptor cannot be used ({errno}); hand over an eventfd, a pipe or a socket");
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(refused)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(refused)?;
        let stat = rustix::fs::fstat(&fd).map_err(refused)?;
        let is_stream = matches!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo | FileType::Socket);
        let mut ring = if is_stream { None } else { take_ring() };
        if let Some(Err(error)) = ring.as_ref().map(|ring| ring.submitter().register_eventfd(fd.as_raw_fd())) {
            ring.take().into_iter().for_each(give_ring);
            return Err(refused(Errno::from_io_error(&error).unwrap_or(Errno::INVAL)));
        }
        Ok(Self { fd, ring })
    }

    /// Never blocks. A full eventfd is already signalled.
    #[cold]
    pub(crate) fn raise(&mut self) {
        if !self.signal() {
            self.write();
        }
    }

    fn signal(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        // No room: an entry that the kernel has not yet taken serves as well.
        // SAFETY: the request names no memory and no file.
        let _ = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
        let submitted = ring.submit().is_ok_and(|count| count > 0);
        // Reaped, so that there is room for the next.
        ring.completion().for_each(drop);
        submitted
    }

    /// Where the kernel cannot guarantee not to wait, poll first; a process that fills the eventfd between poll and write blocks
    /// the worker.
    fn write(&self) {
        let signal = 1_u64.to_ne_bytes();
        let written = rustix::io::pwritev2(&self.fd, &[IoSlice::new(&signal)], NOWHERE, ReadWriteFlags::NOWAIT);
        if !matches!(written, Err(Errno::OPNOTSUPP | Errno::NOSYS)) {
            return;
        }
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) && fds[0].revents().contains(PollFlags::OUT) {
            let _ = rustix::io::write(&self.fd, &signal);
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        if let Some(ring) = self.ring.take()
            && ring.submitter().unregister_eventfd().is_ok()
        {
            give_ring(ring);
        }
    }
}

/// `None`: the process may make rings at any time.
static SPARE: Mutex<Option<Vec<IoUring>>> = Mutex::new(None);

/// Of io_uring_register(2): register an eventfd for completions, and restrict the ring to that.
const REGISTER_EVENTFD: u8 = 4;
const UNREGISTER_EVENTFD: u8 = 5;

fn spare() -> MutexGuard<'static, Option<Vec<IoUring>>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keep `count` rings for the interrupts of virtqueues, or as many as can be had, and make no others from now on. Each can signal
/// an eventfd and nothing else. Without one, an interrupt is signalled by a poll for room and a write.
///
/// Returns how many there are.
pub fn make_spare_rings(count: usize) -> usize {
    let rings: Vec<IoUring> = std::iter::from_fn(|| build_ring().ok()).take(count).collect();
    let count = rings.len();
    *spare() = Some(rings);
    count
}

fn build_ring() -> io::Result<IoUring> {
    let ring = IoUring::builder().setup_r_disabled().build(1)?;
    let mut restrictions = [
        Restriction::sqe_op(opcode::Nop::CODE),
        Restriction::register_op(REGISTER_EVENTFD),
        Restriction::register_op(UNREGISTER_EVENTFD),
    ];
    ring.submitter().register_restrictions(&mut restrictions)?;
    ring.submitter().register_enable_rings()?;
    Ok(ring)
}

fn take_ring() -> Option<IoUring> {
    match spare().as_mut() {
        Some(rings) => rings.pop(),
        None => IoUring::new(1).ok(),
    }
}

/// It no longer has an eventfd.
fn give_ring(ring: IoUring) {
    if let Some(rings) = spare().as_mut() {
        rings.push(ring);
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::EventfdFlags;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn eventfd() -> OwnedFd {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd")
    }

    #[test]
    fn it_signals_with_and_without_io_uring_and_a_full_one_does_not_block() {
        for has_ring in [true, false] {
            let fd = eventfd();
            let mut interrupt = Interrupt::new("call", fd.try_clone().expect("a descriptor")).expect("an eventfd");
            assert!(interrupt.ring.is_some(), "this machine has io_uring");
            if !has_ring {
                interrupt.ring = None;
            }
            let mut count = [0; 8];
            for raised in [1, 3, 1000] {
                for _ in 0..raised {
                    interrupt.raise();
                }
                rustix::io::read(&fd, &mut count).expect("it was signalled");
                assert_eq!(u64::from_ne_bytes(count), raised);
            }
            rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).expect("fill it");
            rustix::fs::fcntl_setfl(&fd, OFlags::RDWR).expect("make it blocking");
            interrupt.raise();
        }
    }

    #[test]
    fn a_pipe_or_socket_is_written_to_and_a_full_one_does_not_block() {
        let socket = SocketFlags::CLOEXEC;
        let pairs = [
            rustix::pipe::pipe().expect("a pipe"),
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, socket, None).expect("a socket"),
        ];
        for (reader, writer) in pairs {
            let mut interrupt = Interrupt::new("call", writer.try_clone().expect("a descriptor")).expect("it can be used");
            for _ in 0..3 {
                interrupt.raise();
            }
            let mut bytes = [0; 64];
            assert_eq!(rustix::io::read(&reader, &mut bytes), Ok(24));
            while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
            let flags = rustix::fs::fcntl_getfl(&writer).expect("flags");
            rustix::fs::fcntl_setfl(&writer, flags - OFlags::NONBLOCK).expect("make it blocking");
            interrupt.raise();
            drop(reader);
            interrupt.raise();
        }
    }

    #[test]
    fn a_descriptor_other_than_an_eventfd_is_refused() {
        let reader = rustix::fs::memfd_create("no-eventfd", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let text = Interrupt::new("call", reader).map(|_| ()).expect_err("no eventfd");
        assert!(text.contains("hand over an eventfd"), "{text}");
    }
    #[test]
    fn ring_for_interrupts_does_nothing_else() {
        let mut ring = build_ring().expect("this machine has io_uring");
        let entries = [opcode::Nop::new().build(), opcode::Close::new(io_uring::types::Fd(-1)).build()];
        let results = entries.map(|entry| {
            // SAFETY: neither request names memory.
            unsafe { ring.submission().push(&entry) }.expect("there is room");
            ring.submit_and_wait(1).expect("submitted");
            ring.completion().next().expect("it has ended").result()
        });
        assert_eq!(results, [0, -Errno::ACCESS.raw_os_error()], "unrestricted, the second would say EBADF");
        let refused = ring.submitter().register_probe(&mut io_uring::Probe::new()).expect_err("not for an eventfd");
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::ACCESS));
    }
}
