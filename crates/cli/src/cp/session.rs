//! One attached disk with several large requests in flight.

use std::fmt::Display;
use std::path::Path;

use fipsee::claim;
use fipsee_block::client::{self, AttachOptions, Buffer, Completion, Disk, Queue, ReconnectEvent, ReconnectPolicy};
use fipsee_block::wire::{BlockInfo, CAPABILITY_FLUSH, SECTOR_SHIFT, Status};
use fipsee_ring::ring::Full;

use super::{ALIGN_BYTES, Manner};
use crate::error::Error;

/// Requests in flight: enough for a fast SSD at 1 MiB each.
const LANE_COUNT: u32 = 8;

/// The kind of a lane's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Read,
    Write,
    Zero,
    Flush,
}

impl Work {
    const fn verb(self) -> &'static str {
        match self {
            Self::Read => "reading",
            Self::Write => "writing",
            Self::Zero => "writing zeroes,",
            Self::Flush => "flushing,",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Busy,
    /// A read has completed and its data was not taken yet.
    Arrived,
}

struct Lane {
    buffer: Buffer,
    state: State,
    work: Work,
    offset_bytes: u64,
    length_bytes: u64,
}

/// A disk, one queue, and lanes: a lane is a buffer and at most one request.
pub(super) struct Session {
    name: String,
    disk: Disk,
    queues: Vec<Queue>,
    lanes: Vec<Lane>,
    request_bytes: usize,
    manner: Manner,
}

impl Session {
    pub(super) fn attach(socket: &Path, name: &str, read_only: bool, manner: &Manner) -> Result<Self, Error> {
        let claim = manner.claim;
        let options = AttachOptions { read_only, claim, depth: LANE_COUNT, pool_bytes: 0, ..AttachOptions::new(name) };
        let (disk, queues) = claim::attach(socket, &options, &|note| manner.note(note))?;
        let longest = usize::try_from(disk.info().max_transfer_bytes).unwrap_or(usize::MAX) / ALIGN_BYTES * ALIGN_BYTES;
        let request_bytes = manner.request_bytes.min(longest.max(ALIGN_BYTES));
        let lane_count = queues.first().map_or(0, Queue::depth) as u64;
        let memory = disk.create_memory(lane_count * request_bytes as u64)?;
        let lane = |index: u64| {
            let buffer = memory.buffer(index * request_bytes as u64, request_bytes as u64)?;
            Ok(Lane { buffer, state: State::Idle, work: Work::Read, offset_bytes: 0, length_bytes: 0 })
        };
        let lanes = (0..lane_count).map(lane).collect::<Result<Vec<_>, client::Error>>()?;
        Ok(Self { name: name.to_owned(), disk, queues, lanes, request_bytes, manner: manner.clone() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn note(&self, text: impl Display) {
        self.manner.note(text);
    }

    pub(super) fn info(&self) -> BlockInfo {
        self.disk.info()
    }

    /// Most bytes of one request: the option, or the disk's limit.
    pub(super) const fn request_bytes(&self) -> usize {
        self.request_bytes
    }

    pub(super) const fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// Wait for a lane without a request.
    pub(super) fn idle_lane(&mut self) -> Result<usize, Error> {
        loop {
            if let Some(lane) = self.lanes.iter().position(|lane| lane.state == State::Idle) {
                return Ok(lane);
            }
            self.wait()?;
        }
    }

    /// Publish a request on an idle lane. Data to be written is in its buffer.
    pub(super) fn start(&mut self, index: usize, work: Work, offset_bytes: u64, length_bytes: u64) -> Result<(), Error> {
        let (lane, queue) = (&mut self.lanes[index], &mut self.queues[0]);
        (lane.state, lane.work, lane.offset_bytes, lane.length_bytes) = (State::Busy, work, offset_bytes, length_bytes);
        let (sector, sectors, token) = (offset_bytes >> SECTOR_SHIFT, length_bytes >> SECTOR_SHIFT, index as u64);
        let staged = match work {
            Work::Read => queue.read(sector, lane.buffer.segment(0, length_bytes), token),
            Work::Write => queue.write(sector, lane.buffer.segment(0, length_bytes), false, token),
            Work::Zero => queue.write_zeroes(sector, sectors, true, false, token),
            Work::Flush => queue.flush(token),
        };
        staged.map_err(|Full| client::Error::Full)?;
        queue.submit();
        Ok(())
    }

    pub(super) fn buffer(&self, index: usize) -> &Buffer {
        &self.lanes[index].buffer
    }

    /// Where the first of the requests in flight begins.
    pub(super) fn first_busy_byte(&self) -> Option<u64> {
        self.lanes.iter().filter(|lane| lane.state == State::Busy).map(|lane| lane.offset_bytes).min()
    }

    /// Wait for the read on this lane and take its data.
    pub(super) fn take(&mut self, index: usize, into: &mut Vec<u8>) -> Result<(), Error> {
        while self.lanes[index].state == State::Busy {
            self.wait()?;
        }
        let lane = &mut self.lanes[index];
        into.resize(usize::try_from(lane.length_bytes).unwrap_or(usize::MAX), 0);
        lane.buffer.copy_to(0, into);
        lane.state = State::Idle;
        Ok(())
    }

    /// Make all that is written durable.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if self.info().can(CAPABILITY_FLUSH) {
            self.start(0, Work::Flush, 0, 0)?;
            self.wait_for_all()?;
        }
        Ok(())
    }

    pub(super) fn wait_for_all(&mut self) -> Result<(), Error> {
        while self.lanes.iter().any(|lane| lane.state == State::Busy) {
            self.wait()?;
        }
        Ok(())
    }

    pub(super) fn detach(self) -> Result<(), Error> {
        drop(self.lanes);
        Ok(self.disk.detach(self.queues)?)
    }

    /// Wait for at least one completion, across a reconnect if that was asked for.
    fn wait(&mut self) -> Result<(), Error> {
        let mut finished = Vec::new();
        match self.queues[0].wait(&mut |completion| finished.push(completion)) {
            Err(client::Error::Disconnected) => self.come_back()?,
            waited => {
                waited?;
            }
        }
        finished.into_iter().try_for_each(|completion| self.settle(completion))
    }

    fn settle(&mut self, completion: Completion) -> Result<(), Error> {
        let lane = usize::try_from(completion.token).ok().and_then(|index| self.lanes.get_mut(index));
        let lane = lane.ok_or("a completion names no known request; report this")?;
        if completion.status == Status::Ok {
            lane.state = if lane.work == Work::Read { State::Arrived } else { State::Idle };
            return Ok(());
        }
        // Busy for ever: what it was to write is not written.
        let (verb, offset_bytes, length_bytes) = (lane.work.verb(), lane.offset_bytes, lane.length_bytes);
        let place = format!("disk '{}', {verb} {length_bytes} bytes at offset {offset_bytes}", self.name);
        Err(Error::at(place, completion.status.text()))
    }

    fn come_back(&mut self) -> Result<(), Error> {
        let (name, manner) = (&self.name, &self.manner);
        if manner.reconnect.is_zero() {
            let text = "the daemon closed the connection or died; repeat the copy when it is back, or use --reconnect SECONDS";
            return Err(Error::at(format_args!("disk '{name}'"), text));
        }
        let policy = ReconnectPolicy { give_up_after: manner.reconnect, ..ReconnectPolicy::default() };
        let mut report = |event: ReconnectEvent<'_>| match event {
            ReconnectEvent::Lost => {
                let seconds = manner.reconnect.as_secs();
                manner.note(format_args!("disk '{name}': connection lost; trying again for {seconds} s"));
            }
            ReconnectEvent::AttemptFailed { .. } => {}
            ReconnectEvent::Resumed { attempts } => {
                manner.note(format_args!("disk '{name}': connected again after {attempts} attempts"));
            }
        };
        let back = self.disk.reconnect(&mut self.queues, &policy, &mut report);
        back.map_err(|error| Error::at(format_args!("disk '{name}' did not come back"), error))
    }
}
