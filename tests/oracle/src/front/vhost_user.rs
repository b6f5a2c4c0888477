//! A guest in user space on virtqueues.

use std::collections::HashMap;
use std::path::Path;

use fipsee_block::wire::Status;
use fipsee_testkit::guest::device::{DISCARD, FLUSH, IN, IO_ERROR, OK, OUT, Sent, UNMAP, UNSUPPORTED, WRITE_ZEROES};
use fipsee_testkit::virtqueue::Part;

use super::guest::{Machine, Setup};
use super::{Action, Done, Front, Limits, Piece, Request, Waited};

/// Descriptors of a queue.
const SIZE: u16 = 512;
/// Most pieces of a request, so that many requests fit.
const PIECES: usize = 100;
/// Descriptors of a request beside its pieces: header, status, the range of a discard.
const OVERHEAD: usize = 3;

/// A guest, its requests, and the descriptors that they hold.
pub struct VhostUser {
    machine: Machine,
    limits: Limits,
    /// By queue and head.
    sent: HashMap<(usize, u16), (u64, Sent, usize)>,
    used: Vec<usize>,
}

impl VhostUser {
    pub fn start(socket: &Path, setup: Setup) -> Result<Self, String> {
        let mut machine = Machine::start(socket, SIZE, setup)?;
        let limits = machine.limits(PIECES)?;
        Ok(Self { machine, limits, sent: HashMap::new(), used: vec![0; usize::from(setup.queues)] })
    }

    fn take(&mut self, done: &mut Vec<Done>) {
        for queue in 0..self.used.len() {
            while let Some((head, _)) = self.machine.guest.queues[queue].take() {
                // A chain that is not ours: named so, it is one completion too many.
                let Some((token, sent, descriptors)) = self.sent.remove(&(queue, head)) else {
                    done.push((u64::MAX, 0));
                    continue;
                };
                self.used[queue] -= descriptors;
                // In the words of the block protocol, where there are such.
                let status = match self.machine.guest.status(sent) {
                    OK => Status::Ok as u64,
                    IO_ERROR => Status::IoError as u64,
                    UNSUPPORTED => Status::Unsupported as u64,
                    other => u64::from(other) << 8,
                };
                done.push((token, status));
            }
        }
    }
}

impl Front for VhostUser {
    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn areas(&self) -> Vec<Piece> {
        self.machine.areas()
    }

    fn fill(&mut self, sector: u64, bytes: &[u8]) {
        self.machine.fill(sector, bytes);
    }

    fn copy(&self, sector: u64, into: &mut [u8]) {
        self.machine.copy(sector, into);
    }

    fn has_room(&self, queue: usize, pieces: usize) -> bool {
        self.used[queue] + pieces + OVERHEAD <= usize::from(SIZE)
    }

    fn stage(&mut self, request: &Request<'_>) -> Result<(), String> {
        let is_read = request.action == Action::Read;
        let part = |piece: &(u64, u64)| -> Result<Part, String> {
            let (address, length_bytes) = self.machine.span(*piece);
            Ok((address, u32::try_from(length_bytes).map_err(|error| error.to_string())?, is_read))
        };
        let parts = request.pieces.iter().map(part).collect::<Result<Vec<Part>, _>>()?;
        let (queue, sector) = (request.queue, request.sector);
        let length = u32::try_from(request.count).map_err(|error| error.to_string())?;
        let guest = &mut self.machine.guest;
        let sent = match request.action {
            Action::Read => guest.prepare(queue, IN, sector, &parts),
            Action::Write { .. } => guest.prepare(queue, OUT, sector, &parts),
            Action::Flush => guest.prepare(queue, FLUSH, 0, &[]),
            Action::Discard => guest.prepare_range(queue, DISCARD, sector, length, 0),
            Action::WriteZeroes { unmap, .. } => {
                guest.prepare_range(queue, WRITE_ZEROES, sector, length, if unmap { UNMAP } else { 0 })
            }
        };
        let descriptors = parts.len() + OVERHEAD;
        self.used[queue] += descriptors;
        self.sent.insert((queue, sent.head), (request.token, sent, descriptors));
        Ok(())
    }

    fn publish(&mut self) {
        self.machine.guest.queues.iter_mut().for_each(fipsee_testkit::guest::virtqueue::Virtqueue::publish);
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> Result<Waited, String> {
        if self.machine.guest.queues.iter().any(fipsee_testkit::guest::virtqueue::Virtqueue::is_broken) {
            return Err("the daemon says that a virtqueue is broken".to_owned());
        }
        // In this order: what it answered before it was killed is taken.
        let is_gone = self.machine.guest.frontend.is_hung_up();
        self.take(done);
        if is_gone {
            return Ok(Waited::Gone);
        }
        if done.is_empty() && !self.sent.is_empty() {
            self.machine.sleep();
            self.take(done);
        }
        Ok(Waited::Alive)
    }

    fn reconnect(&mut self) -> Result<(), String> {
        self.machine.reconnect()
    }
}
