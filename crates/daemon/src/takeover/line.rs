//! The connection between the two daemons of a takeover: packets of JSON with descriptors, whole or absent.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use fipsee_ring::seqpacket::{Packet, Seqpacket};
use fipsee_serve::session::MAX_PART_FILES;
use fipsee_serve::takeover::{Giving, GivingStep, LineError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::wire::{AnswerPacket, HandoverPacket};

/// Longest packet: a queue with a full histogram has a third of it.
const MAX_PACKET_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Line(pub(super) Seqpacket);

impl Line {
    pub(crate) fn pair() -> std::io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(Seqpacket::from_fd(ours)), theirs))
    }

    pub(crate) fn send(
        &self,
        packet: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), LineError> {
        let bytes = serde_json::to_vec(packet).map_err(|error| LineError::Wrong(format!("cannot be encoded: {error}")))?;
        if bytes.len() > MAX_PACKET_BYTES || descriptors.len() > MAX_PART_FILES {
            let text = format!("{} bytes and {} descriptors do not fit a packet", bytes.len(), descriptors.len());
            return Err(LineError::Wrong(text));
        }
        loop {
            let Err(error) = self.0.send(&bytes, descriptors) else { return Ok(()) };
            match Errno::from_io_error(&error) {
                Some(Errno::INTR) => {}
                // Too many descriptors in transit: fewer once some were received. There is no event for that.
                Some(Errno::TOOMANYREFS) => self.await_event(PollFlags::RDHUP, deadline.min(soon()))?,
                Some(Errno::AGAIN) => self.await_event(PollFlags::OUT, deadline)?,
                Some(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(LineError::Ended),
                _ => return Err(LineError::Wrong(error.to_string())),
            }
            if Instant::now() >= deadline {
                return Err(LineError::TimedOut);
            }
        }
    }

    pub(crate) fn receive<T: DeserializeOwned>(&self, deadline: Instant) -> Result<(T, Vec<OwnedFd>), LineError> {
        loop {
            if let Some(received) = self.try_receive()? {
                return Ok(received);
            }
            if Instant::now() >= deadline {
                return Err(LineError::TimedOut);
            }
            self.await_event(PollFlags::IN, deadline)?;
        }
    }

    pub(crate) fn try_receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>, LineError> {
        let wrong = |error: std::io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => LineError::Ended,
            _ => LineError::Wrong(error.to_string()),
        };
        let received = self.0.try_receive_within(MAX_PACKET_BYTES).map_err(wrong)?;
        let Some(Packet { bytes, descriptors }) = received else { return Ok(None) };
        let packet = serde_json::from_slice(&bytes).map_err(|error| LineError::Wrong(format!("cannot be parsed: {error}")))?;
        Ok(Some((packet, descriptors)))
    }

    /// Carry out the steps of the giving side that need only the line; returns the next other step.
    ///
    /// When it withdraws, the kernel decides, once: what the other side sends comes before the shutdown, and is received here, or
    /// after it, and fails.
    pub(crate) fn carry_out(&self, giving: &mut Giving, mut step: GivingStep, deadline: Instant) -> GivingStep {
        loop {
            let received = match &step {
                GivingStep::Receive => self.receive::<AnswerPacket>(deadline),
                GivingStep::Withdraw => {
                    let _ = rustix::net::shutdown(&self.0, Shutdown::Read);
                    self.try_receive().and_then(|packet| packet.ok_or(LineError::TimedOut))
                }
                GivingStep::Resume(reason) => {
                    let _ = self.send(&HandoverPacket::Refused { reason: reason.clone() }, &[], Instant::now());
                    return step;
                }
                _ => return step,
            };
            step = giving.received(received.map(|(AnswerPacket(answer), _)| answer));
        }
    }

    /// Wait until the other end is closed, at most until `deadline`.
    pub(crate) fn await_end(&self, deadline: Instant) {
        while Instant::now() < deadline && matches!(self.try_receive::<serde_json::Value>(), Ok(_) | Err(LineError::Wrong(_))) {
            if self.await_event(PollFlags::IN, deadline).is_err() {
                return;
            }
        }
    }

    fn await_event(&self, event: PollFlags, deadline: Instant) -> Result<(), LineError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|error| LineError::Wrong(error.to_string()))?;
        match rustix::event::poll(&mut [PollFd::new(&self.0, event)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(LineError::Wrong(error.to_string())),
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn soon() -> Instant {
    Instant::now() + std::time::Duration::from_millis(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use fipsee_serve::takeover::Answer;

    use super::*;

    fn now() -> Instant {
        Instant::now()
    }

    /// Everything was sent, and no answer came in time: does the other daemon serve?
    fn is_taken(old: &Line) -> bool {
        let (mut giving, _) = Giving::begin();
        let _ = (giving.done(Ok(())), giving.received(Ok(Answer::Prepared {})));
        let _ = (giving.done(Ok(())), giving.done(Ok(())), giving.done(Ok(())));
        let step = giving.received(Err(LineError::TimedOut));
        old.carry_out(&mut giving, step, now()) == GivingStep::Leave
    }

    #[test]
    fn exactly_one_daemon_serves_in_every_order_of_events() {
        for round in 0..2000 {
            let (old, new) = Line::pair().expect("descriptors");
            let new = Line(Seqpacket::from_fd(new));
            let start = Barrier::new(2);
            let (taken, sent) = std::thread::scope(|scope| {
                let sender = scope.spawn(|| {
                    // Packets before it change nothing.
                    new.send(&"garbage", &[], now()).expect("room");
                    start.wait();
                    (0..round % 64).for_each(|_| std::hint::spin_loop());
                    new.send(&AnswerPacket(Answer::Taken {}), &[], now()).is_ok()
                });
                start.wait();
                (is_taken(&old), sender.join().expect("it does not panic"))
            });
            assert_eq!(taken, sent, "both would serve, or neither");
            let answer = new.try_receive::<HandoverPacket>().ok().flatten();
            assert_eq!(matches!(answer, Some((HandoverPacket::Refused { .. }, _))), !sent, "the answer to the other daemon");
        }
    }
}
