//! A guest in user space on rings in its own memory (docs/protocol.md 9).

use std::path::Path;

use fipsee_block::wire::{
    FLAG_FUA, FLAG_UNMAP, KIND_RESIZE, MAX_INDIRECT_ENTRIES, MAX_INLINE_SEGMENTS, Operation, Segment, request_ack_event,
    request_flush, request_indirect, request_inline, request_range,
};
use fipsee_ring::Message;
use fipsee_testkit::guest::machine::attach_request;
use fipsee_testkit::guest::ring::{GuestRing, Incoming, plan, segment};
use fipsee_virtio::blk::upgrade::wire::DONE;

use super::guest::{Machine, Setup};
use super::{Action, Done, Front, Limits, Piece, Request, Waited};

/// Descriptors of a virtqueue: it only carries doorbell requests.
const SIZE: u16 = 64;
const DEPTH: u16 = 64;
/// The tag of acknowledgements, which no request has.
const ACKNOWLEDGEMENT: u16 = DEPTH;
const TABLE_BYTES: u64 = 8 * MAX_INDIRECT_ENTRIES as u64;

struct Lane {
    ring: GuestRing,
    staged: Vec<Message>,
    /// By tag.
    tokens: Vec<Option<u64>>,
    free: Vec<u16>,
    /// Tables of segments, one for each tag.
    tables: u64,
}

pub struct Rings {
    machine: Machine,
    limits: Limits,
    attachment: u64,
    lanes: Vec<Lane>,
}

impl Rings {
    /// Start a guest at the socket of a disk, and attach its rings.
    pub fn start(socket: &Path, queues: u16, arena_bytes: u64) -> Result<Self, String> {
        let mut machine = Machine::start(socket, SIZE, Setup { queues, arena_bytes, write_cache: true })?;
        let limits = Limits { has_fua: true, ..machine.limits(MAX_INDIRECT_ENTRIES)? };
        // One more than requests, for acknowledgements.
        let entries: Vec<_> = (0..u32::from(queues)).map(|queue| plan(&machine.guest.ram, u32::from(DEPTH) + 1, queue)).collect();
        let reply = machine.guest.ask_bytes(0, &attach_request(&entries));
        if reply.result != DONE {
            return Err(format!("the rings cannot be attached: {reply:?}"));
        }
        let ram = &machine.guest.ram;
        let lane = |(entry, number)| Lane {
            ring: GuestRing::open(ram, entry, number),
            staged: Vec::new(),
            tokens: vec![None; usize::from(DEPTH)],
            free: (0..DEPTH).collect(),
            tables: ram.allocate(TABLE_BYTES * u64::from(DEPTH), 4096),
        };
        let lanes = entries.into_iter().zip(0..).map(lane).collect();
        Ok(Self { limits, attachment: reply.attachment, lanes, machine })
    }

    fn take(&mut self, done: &mut Vec<Done>) -> Result<(), String> {
        let mut outcome = Ok(());
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            let (mut acknowledge, free, tokens) = (false, &mut lane.free, &mut lane.tokens);
            lane.ring.reap_each(&mut |incoming| match incoming {
                Incoming::Answer(ACKNOWLEDGEMENT, 0) => {}
                Incoming::Answer(tag, status) => match tokens.get_mut(usize::from(tag)).and_then(Option::take) {
                    Some(token) => {
                        free.push(tag);
                        done.push((token, status.into()));
                    }
                    None => outcome = Err(format!("queue {number} completed tag {tag}, which is not in flight")),
                },
                Incoming::Resized(_) => acknowledge = true,
                Incoming::Detach => outcome = Err("the daemon took the disk away".to_owned()),
            });
            if acknowledge {
                let message = request_ack_event(ACKNOWLEDGEMENT, KIND_RESIZE);
                lane.ring.submit(&[message], &self.machine.guest.queues[number]);
            }
        }
        outcome
    }

    fn sleep(&mut self) -> Result<(), String> {
        let mut armed = 0;
        for lane in &mut self.lanes {
            if !lane.ring.arm(self.attachment, &mut self.machine.guest) {
                break;
            }
            armed += 1;
        }
        if armed == self.lanes.len() {
            self.machine.sleep();
        }
        for lane in &mut self.lanes[..armed] {
            if lane.ring.disarm(&mut self.machine.guest) {
                return Err("the attachment ended".to_owned());
            }
        }
        Ok(())
    }
}

impl Front for Rings {
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

    fn has_room(&self, queue: usize, _pieces: usize) -> bool {
        !self.lanes[queue].free.is_empty()
    }

    fn stage(&mut self, request: &Request<'_>) -> Result<(), String> {
        let lane = &mut self.lanes[request.queue];
        let tag = lane.free.pop().ok_or("the ring has no room")?;
        lane.tokens[usize::from(tag)] = Some(request.token);
        let spans = request.pieces.iter().map(|piece| self.machine.span(*piece));
        let segments: Vec<Segment> = spans.map(|(address, length_bytes)| segment(address, length_bytes)).collect();
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let (sector, count) = (request.sector, request.count);
        let message = match request.action {
            Action::Flush => request_flush(tag),
            Action::Discard => request_range(Operation::Discard, 0, tag, sector, count),
            Action::WriteZeroes { unmap, fua } => {
                let flags = flag(unmap, FLAG_UNMAP) | flag(fua, FLAG_FUA);
                request_range(Operation::WriteZeroes, flags, tag, sector, count)
            }
            Action::Read | Action::Write { .. } => {
                let (operation, flags) = match request.action {
                    Action::Write { fua } => (Operation::Write, flag(fua, FLAG_FUA)),
                    _ => (Operation::Read, 0),
                };
                if segments.len() <= MAX_INLINE_SEGMENTS {
                    request_inline(operation, flags, tag, sector, &segments)
                } else {
                    let table = lane.tables + TABLE_BYTES * u64::from(tag);
                    let bytes: Vec<u8> = segments.iter().flat_map(|segment| segment.to_word().to_le_bytes()).collect();
                    self.machine.guest.ram.write(table, &bytes);
                    let entries = u32::try_from(segments.len()).map_err(|error| error.to_string())?;
                    request_indirect(operation, flags, tag, sector, segment(table, TABLE_BYTES), entries)
                }
            }
        };
        lane.staged.push(message);
        Ok(())
    }

    fn publish(&mut self) {
        for (lane, virtqueue) in self.lanes.iter_mut().zip(&self.machine.guest.queues) {
            if !lane.staged.is_empty() {
                lane.ring.submit(&lane.staged, virtqueue);
                lane.staged.clear();
            }
        }
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> Result<Waited, String> {
        let is_gone = self.machine.guest.frontend.is_hung_up();
        self.take(done)?;
        if is_gone {
            return Ok(Waited::Gone);
        }
        if done.is_empty() && self.lanes.iter().any(|lane| lane.free.len() < usize::from(DEPTH)) {
            self.sleep()?;
            self.take(done)?;
        }
        Ok(Waited::Alive)
    }

    fn reconnect(&mut self) -> Result<(), String> {
        Err("a guest on rings is not reconnected here".to_owned())
    }
}
