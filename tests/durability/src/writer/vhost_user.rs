//! By a guest in user space: a virtqueue, and the inflight area that lets the next daemon repeat what the last one left.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use fipsee_block::wire::SECTOR_BYTES;
use fipsee_testkit::guest::device::{FLUSH, Guest, IN, OUT, Options, Sent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Port, Request, SLOT_BYTES, SLOTS, Waited};
use crate::record::Action;

/// How long a daemon may be away.
const RETURN_WITHIN: Duration = Duration::from_secs(60);

/// A guest.
pub struct VhostUser {
    guest: Guest,
    data: u64,
    sent: HashMap<u16, (u64, Sent)>,
}

impl VhostUser {
    /// Start a guest at the socket of a disk.
    ///
    /// # Errors
    /// As the back end says it.
    pub fn start(socket: &Path) -> Result<Self, String> {
        let begun = Instant::now();
        // One hypervisor at a time: the daemon may not have noticed the end of the last.
        let guest = loop {
            match Guest::start(socket, &Options::default()) {
                Ok(guest) => break guest,
                Err(error) if begun.elapsed() > RETURN_WITHIN => return Err(format!("the guest does not start: {error}")),
                Err(_) => std::thread::sleep(Duration::from_millis(1)), // tests wait for a socket by asking again
            }
        };
        let data = guest.ram.allocate(SLOTS as u64 * SLOT_BYTES, 4096);
        Ok(Self { guest, data, sent: HashMap::new() })
    }

    fn place(&self, slot: usize) -> u64 {
        self.data + slot as u64 * SLOT_BYTES
    }

    fn take(&mut self, done: &mut Vec<(u64, u64)>) {
        while let Some((head, _)) = self.guest.queues[0].take() {
            // A chain that is not ours: named so, it is one completion too many.
            let answer = self.sent.remove(&head);
            done.push(answer.map_or((u64::MAX, 0), |(token, sent)| (token, self.guest.status(sent).into())));
        }
    }
}

impl Port for VhostUser {
    const HAS_FUA: bool = false;

    fn fill(&mut self, slot: usize, bytes: &[u8]) {
        self.guest.ram.write(self.place(slot), bytes);
    }

    fn content(&mut self, slot: usize, length_bytes: usize) -> Vec<u8> {
        self.guest.ram.read(self.place(slot), length_bytes)
    }

    fn submit(&mut self, request: Request) -> Result<(), String> {
        let bytes = u32::try_from(request.count * SECTOR_BYTES).map_err(|error| error.to_string())?;
        let (place, sector) = (self.place(request.slot), request.sector);
        let sent = match request.action {
            Action::Flush => self.guest.submit(0, FLUSH, 0, &[]),
            Action::Read => self.guest.submit(0, IN, sector, &[(place, bytes, true)]),
            Action::Write | Action::WriteDurably => self.guest.submit(0, OUT, sector, &[(place, bytes, false)]),
        };
        self.sent.insert(sent.head, (request.token, sent));
        Ok(())
    }

    fn wait(&mut self, done: &mut Vec<(u64, u64)>) -> Result<Waited, String> {
        if self.guest.queues[0].is_broken() {
            return Err("the daemon says that the virtqueue is broken".to_owned());
        }
        // In this order: what it answered before it died is taken.
        let is_gone = self.guest.frontend.is_hung_up();
        self.take(done);
        if is_gone {
            return Ok(Waited::Gone);
        }
        if done.is_empty() {
            let (interrupt, socket) = (self.guest.queues[0].interrupt(), self.guest.frontend.socket());
            let mut fds =
                [PollFd::from_borrowed_fd(interrupt, PollFlags::IN), PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
            let timeout = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            let _ = poll(&mut fds, Some(&timeout));
            if fds[0].revents().contains(PollFlags::IN) {
                let _ = rustix::io::read(interrupt, &mut [0_u8; 8][..]);
            }
        }
        Ok(Waited::Alive)
    }

    fn reconnect(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while let Err(error) = self.guest.reconnect() {
            if begun.elapsed() > RETURN_WITHIN {
                return Err(format!("the daemon does not come back: {error}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}
