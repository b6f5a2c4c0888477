//! A port in a program's event loop: nothing here waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll;

use super::Port;
use crate::error::Error;

impl Port {
    /// A descriptor that becomes readable when a frame came, when a transmit buffer is free again that [`arm`](Self::arm) found missing,
    /// and when the daemon is gone. It is so after `arm` alone, and sometimes without cause. After [`reconnect`](Self::reconnect) there
    /// is another.
    ///
    /// # Errors
    /// No descriptor or memory is left.
    pub fn descriptor(&mut self) -> Result<BorrowedFd<'_>, Error> {
        if self.descriptor.is_none() {
            let made = || -> io::Result<_> {
                let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                for waiter in [&self.receive, &self.transmit] {
                    epoll::add(&both, &waiter.queue.our_doorbell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
                }
                Ok(both)
            };
            let made = made().map_err(|source| Error::Io { context: "make a descriptor of a port", source })?;
            self.descriptor = Some(made);
        }
        self.descriptor.as_ref().map(AsFd::as_fd).ok_or(Error::Disconnected)
    }

    /// Publish what was staged and ask to have the [`descriptor`](Self::descriptor) made readable by the next frame; without a free
    /// transmit buffer, also by one that is given back. `true`: something came meanwhile, so look before waiting.
    ///
    /// # Errors
    /// The daemon broke the protocol.
    #[must_use = "waiting while work remains loses a wake-up"]
    pub fn arm(&mut self) -> Result<bool, Error> {
        self.submit();
        self.post(true);
        let was_full = self.free.is_empty();
        self.reap()?;
        let mut remains = self.receive.queue.completions.arm_and_work_remains() || !self.unpacked.is_empty();
        // A caller that found none free before would wait for what has just come.
        remains |= was_full && !self.free.is_empty();
        if self.free.is_empty() && self.transmit.queue.completions.arm_and_work_remains() {
            self.reap()?;
            remains = true;
        }
        Ok(remains)
    }

    /// The wait is over, or was given up: silence the descriptor.
    ///
    /// # Errors
    /// [`Error::Disconnected`] when the daemon is gone and no frame is left to receive.
    pub fn woken(&mut self) -> Result<(), Error> {
        // Frames may be there when nothing more can be sent: the receive queue says when it is over.
        let _: Result<(), Error> = self.transmit.woken();
        let woken = self.receive.woken();
        if self.unpacked.is_empty() { woken } else { Ok(()) }
    }
}
