//! One measurement between the two sides: memory and doorbells are handed over, both open their ends and run.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fipsee_ring::PeerFault;
use fipsee_ring::channel::{ClientQueue, QueueGeometry, RegionLayout, ServerQueue};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::pace::{AnswererPace, CallerPace};
use fipsee_ring::region::{Access, Region};
use fipsee_ring::ring::{Cursor, Reader, StreamWriter, Writer};
use fipsee_ring::seqpacket::Seqpacket;

use super::classic::Classic;
use super::drive::{self, PeerError, RunLength, Sample};
use super::floor::{self, Floor};
use super::plan::{Choices, Design, PROFILE, Spec, Task};
use super::spin::Spin;
use super::{bare, channel};

/// The channel's memory and doorbells, as one side has them.
pub(super) struct Meeting {
    region: Arc<Region>,
    geometry: QueueGeometry,
    /// From the first side to the second.
    event_doorbell: EventDoorbell,
    /// From the second side to the first.
    socket_doorbell: SocketDoorbell,
}

pub(super) fn wrong(text: impl ToString) -> PeerError {
    PeerError::Wrong(text.to_string())
}

pub(super) fn fault(fault: PeerFault) -> PeerError {
    wrong(fault)
}

impl Meeting {
    /// Lay out a region and hand it, with the doorbells, to the other side.
    pub(super) fn invite(spec: &Spec, other: &Seqpacket) -> Result<Self, PeerError> {
        let layout = spec.layout();
        let region = Region::create("fipsee-ping", layout.region_bytes)
            .map_err(|error| wrong(format_args!("cannot create shared memory: {error}; raise the limit of memory")))?;
        layout.write_to(&region).map_err(fault)?;
        let doorbells = || Ok((EventDoorbell::new()?, SocketDoorbell::pair()?));
        let (event_doorbell, (theirs, ours)) = doorbells().map_err(|error: std::io::Error| {
            wrong(format_args!("cannot make doorbells: {error}; raise the limit of open files"))
        })?;
        let text = serde_json::to_vec(spec).map_err(wrong)?;
        let descriptors: [BorrowedFd<'_>; 3] = [region.as_fd(), event_doorbell.as_fd(), theirs.as_fd()];
        other.send(&text, &descriptors).map_err(|_| PeerError::Gone)?;
        let geometry = the_queue(&region)?;
        Ok(Self { region: Arc::new(region), geometry, event_doorbell, socket_doorbell: ours })
    }

    /// Take over what [`invite`](Self::invite) sent.
    pub(super) fn accept(spec: &Spec, descriptors: Vec<OwnedFd>) -> Result<Self, PeerError> {
        let [memory, event_doorbell, socket_doorbell] =
            <[_; 3]>::try_from(descriptors).map_err(|_| wrong("a measurement comes with memory and two doorbells"))?;
        let region = Region::from_peer(memory, spec.layout().region_bytes, Access::ReadWrite).map_err(wrong)?;
        let geometry = the_queue(&region)?;
        let (event_doorbell, socket_doorbell) =
            (EventDoorbell::from_fd(event_doorbell), SocketDoorbell::from_fd(socket_doorbell));
        Ok(Self { region: Arc::new(region), geometry, event_doorbell, socket_doorbell })
    }

    /// The first side: send, time, check.
    pub(super) fn ask(self, spec: &Spec, length: RunLength, other: &Seqpacket) -> Result<Sample, PeerError> {
        let choices = spec.choices().map_err(wrong)?;
        match spec.task {
            Task::Queue(queue) => match spec.design {
                Design::Channel if spec.silence_us.is_some() => {
                    let silence = Duration::from_micros(spec.silence_us.unwrap_or(0));
                    drive::wake(&mut self.caller(choices, other)?, silence, length)
                }
                Design::Channel => drive::call(&mut self.caller(choices, other)?, queue, length),
                Design::Bare => drive::call(&mut self.bare_caller(&choices, other)?, queue, length),
                Design::Classic | Design::ClassicStores => {
                    drive::call(&mut self.classic(spec, &choices, other, true)?, queue, length)
                }
                Design::OneLine | Design::TwoLines => {
                    let ring = self.request_ring(&choices)?;
                    drive::call(&mut floor(spec, &ring, &choices, other, true), queue, length)
                }
            },
            Task::Stream(_) => match spec.design {
                Design::Channel => drive::send(&mut self.channel_source(choices, other)?, spec.batch, length),
                Design::Classic | Design::ClassicStores => {
                    drive::send(&mut self.classic(spec, &choices, other, true)?, spec.batch, length)
                }
                _ => drive::send(&mut self.bare_source(&choices, other)?, spec.batch, length),
            },
        }
    }

    /// The second side: answer, or receive, until the stop message.
    pub(super) fn answer(self, spec: &Spec, other: &Seqpacket) -> Result<(), PeerError> {
        let choices = spec.answerer_choices().map_err(wrong)?;
        match spec.task {
            Task::Queue(_) => match spec.design {
                Design::Channel if spec.silence_us.is_some() => drive::awake(&mut self.answerer(choices, other)?),
                Design::Channel => drive::answer(&mut self.answerer(choices, other)?),
                Design::Bare => drive::answer(&mut self.bare_answerer(&choices, other)?),
                Design::Classic | Design::ClassicStores => drive::answer(&mut self.classic(spec, &choices, other, false)?),
                Design::OneLine | Design::TwoLines => {
                    let ring = self.request_ring(&choices)?;
                    drive::answer(&mut floor(spec, &ring, &choices, other, false))
                }
            },
            Task::Stream(_) => match spec.design {
                Design::Channel => drive::receive(&mut self.channel_sink(&choices, other)?),
                Design::Classic | Design::ClassicStores => drive::receive(&mut self.classic(spec, &choices, other, false)?),
                _ => drive::receive(&mut self.bare_sink(&choices, other)?),
            },
        }
    }

    fn request_ring(&self, choices: &Choices) -> Result<MappedRing, PeerError> {
        self.geometry.request_ring(&self.region, &choices.tuning).map_err(fault)
    }

    fn caller<'a>(self, choices: Choices, other: &'a Seqpacket) -> Result<channel::Caller<'a>, PeerError> {
        let Self { region, geometry, event_doorbell, socket_doorbell } = self;
        let queue = ClientQueue::open(&region, &geometry, event_doorbell, socket_doorbell, &choices.tuning).map_err(fault)?;
        Ok(channel::Caller::new(queue, choices, other))
    }

    fn answerer<'a>(self, choices: Choices, other: &'a Seqpacket) -> Result<channel::Answerer<'a>, PeerError> {
        let Self { region, geometry, event_doorbell, socket_doorbell } = self;
        let queue = ServerQueue::open(&region, &geometry, event_doorbell, socket_doorbell, &choices.tuning).map_err(fault)?;
        channel::Answerer::new(queue, choices, other)
    }

    /// Both rings, outgoing first, with their starts.
    fn rings(&self, choices: &Choices, first_side: bool) -> Result<[(MappedRing, Cursor); 2], PeerError> {
        let requests = (self.request_ring(choices)?, Cursor::at_start(self.geometry.request_start));
        let completions = self.geometry.completion_ring(&self.region, &choices.tuning).map_err(fault)?;
        let completions = (completions, Cursor::at_start(self.geometry.completion_start));
        Ok(if first_side { [requests, completions] } else { [completions, requests] })
    }

    fn bare_caller<'a>(&self, choices: &Choices, other: &'a Seqpacket) -> Result<bare::Caller<'a>, PeerError> {
        let [(out, out_start), (into, into_start)] = self.rings(choices, true)?;
        Ok(bare::Caller {
            writer: Writer::new(out, out_start, &choices.tuning),
            reader: Reader::new(into, into_start, &choices.tuning),
            pace: CallerPace::new(&choices.tuning),
            spin: Spin::new(choices, other),
        })
    }

    fn bare_answerer<'a>(&self, choices: &Choices, other: &'a Seqpacket) -> Result<bare::Answerer<'a>, PeerError> {
        let [(out, out_start), (into, into_start)] = self.rings(choices, false)?;
        Ok(bare::Answerer {
            writer: Writer::new(out, out_start, &choices.tuning),
            reader: Reader::new(into, into_start, &choices.tuning),
            pace: AnswererPace::default(),
            take: choices.tuning.take,
            spin: Spin::new(choices, other),
        })
    }

    /// As in the report: the message in plain stores, then the flag.
    fn classic<'a>(
        &self,
        spec: &Spec,
        choices: &Choices,
        other: &'a Seqpacket,
        first_side: bool,
    ) -> Result<Classic<'a>, PeerError> {
        let [(out, _), (into, _)] = self.rings(choices, first_side)?;
        Ok(Classic::new(out, into, spec.design == Design::ClassicStores, Spin::waiting(choices, other)))
    }

    fn stream_writer(&self, choices: &Choices) -> Result<StreamWriter<MappedRing>, PeerError> {
        let start = Cursor::at_start(self.geometry.request_start);
        Ok(StreamWriter::new(self.request_ring(choices)?, start, &choices.tuning))
    }

    fn stream_reader(&self, choices: &Choices) -> Result<Reader<MappedRing>, PeerError> {
        let start = Cursor::at_start(self.geometry.request_start);
        Ok(Reader::new(self.request_ring(choices)?, start, &choices.tuning))
    }

    fn channel_source<'a>(self, choices: Choices, other: &'a Seqpacket) -> Result<channel::Source<'a>, PeerError> {
        let (writer, slot_count) = (self.stream_writer(&choices)?, self.geometry.request_slots);
        Ok(channel::Source { writer, doorbell: self.event_doorbell, slot_count, spin: Spin::new(&choices, other), choices })
    }

    fn channel_sink<'a>(&self, choices: &Choices, other: &'a Seqpacket) -> Result<channel::Sink<'a>, PeerError> {
        channel::Sink::new(self.stream_reader(choices)?, &self.event_doorbell, choices, other)
    }

    fn bare_source<'a>(&self, choices: &Choices, other: &'a Seqpacket) -> Result<bare::Source<'a>, PeerError> {
        let (writer, slot_count) = (self.stream_writer(choices)?, self.geometry.request_slots);
        Ok(bare::Source { writer, slot_count, spin: Spin::new(choices, other) })
    }

    fn bare_sink<'a>(&self, choices: &Choices, other: &'a Seqpacket) -> Result<bare::Sink<'a>, PeerError> {
        Ok(bare::Sink { reader: self.stream_reader(choices)?, spin: Spin::new(choices, other) })
    }
}

/// Copied out and checked, as a client does with a daemon's layout.
fn the_queue(region: &Region) -> Result<QueueGeometry, PeerError> {
    let layout = RegionLayout::read_from(&PROFILE, region).map_err(fault)?;
    layout.queues.first().copied().ok_or_else(|| wrong("a region without a queue"))
}

fn floor<'a>(spec: &Spec, ring: &'a MappedRing, choices: &Choices, other: &'a Seqpacket, first_side: bool) -> Floor<'a> {
    let spin = Spin::new(choices, other);
    // Another line every time: how long one takes depends on the slice of the last-level cache it belongs to.
    let line = spec.seed % floor::LINES;
    match spec.design {
        Design::OneLine => Floor::one_line(ring, line, spin),
        _ => Floor::two_lines(ring, line, first_side, spin),
    }
}
