//! The two ends of a channel that is measured: one side hands over memory and doorbells, then both open their ends and run.

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
use super::plan::{Design, HotPathOptions, PROFILE, Spec, Task};
use super::spin::Spin;
use super::{bare, channel};

/// The channel's memory and doorbells, as one side has them.
pub(super) struct Endpoints {
    region: Arc<Region>,
    geometry: QueueGeometry,
    /// From the first side to the second.
    event_doorbell: EventDoorbell,
    /// From the second side to the first.
    socket_doorbell: SocketDoorbell,
}

pub(super) fn peer_error(text: impl ToString) -> PeerError {
    PeerError::Wrong(text.to_string())
}

pub(super) fn fault(fault: PeerFault) -> PeerError {
    peer_error(fault)
}

impl Endpoints {
    /// Lay out a region and hand it, with the doorbells, to the other side.
    pub(super) fn offer(spec: &Spec, other: &Seqpacket) -> Result<Self, PeerError> {
        let layout = spec.layout();
        let region = Region::create("fipsee-ping", layout.region_bytes)
            .map_err(|error| peer_error(format_args!("cannot create shared memory: {error}; raise the limit of memory")))?;
        layout.write_to(&region).map_err(fault)?;
        let doorbells = || Ok((EventDoorbell::new()?, SocketDoorbell::pair()?));
        let (event_doorbell, (theirs, ours)) = doorbells().map_err(|error: std::io::Error| {
            peer_error(format_args!("cannot make doorbells: {error}; raise the limit of open files"))
        })?;
        let text = serde_json::to_vec(spec).map_err(peer_error)?;
        let descriptors: [BorrowedFd<'_>; 3] = [region.as_fd(), event_doorbell.as_fd(), theirs.as_fd()];
        other.send(&text, &descriptors).map_err(|_| PeerError::Gone)?;
        let geometry = first_queue(&region)?;
        Ok(Self { region: Arc::new(region), geometry, event_doorbell, socket_doorbell: ours })
    }

    /// Take what [`offer`](Self::offer) sent.
    pub(super) fn receive(spec: &Spec, descriptors: Vec<OwnedFd>) -> Result<Self, PeerError> {
        let [memory, event_doorbell, socket_doorbell] =
            <[_; 3]>::try_from(descriptors).map_err(|_| peer_error("a measurement comes with memory and two doorbells"))?;
        let region = Region::from_peer(memory, spec.layout().region_bytes, Access::ReadWrite).map_err(peer_error)?;
        let geometry = first_queue(&region)?;
        let (event_doorbell, socket_doorbell) =
            (EventDoorbell::from_fd(event_doorbell), SocketDoorbell::from_fd(socket_doorbell));
        Ok(Self { region: Arc::new(region), geometry, event_doorbell, socket_doorbell })
    }

    /// The first side: send, time, check.
    pub(super) fn run_caller(self, spec: &Spec, length: RunLength, other: &Seqpacket) -> Result<Sample, PeerError> {
        let options = spec.options().map_err(peer_error)?;
        match spec.task {
            Task::Queue(queue) => match spec.design {
                Design::Channel if spec.silence_us.is_some() => {
                    let silence = Duration::from_micros(spec.silence_us.unwrap_or(0));
                    drive::wake(&mut self.caller(options, other)?, silence, length)
                }
                Design::Channel => drive::call(&mut self.caller(options, other)?, queue, length),
                Design::Bare => drive::call(&mut self.bare_caller(&options, other)?, queue, length),
                Design::Classic | Design::ClassicStores => {
                    drive::call(&mut self.classic(spec, &options, other, true)?, queue, length)
                }
                Design::OneLine | Design::TwoLines => {
                    let ring = self.request_ring(&options)?;
                    drive::call(&mut floor(spec, &ring, &options, other, true), queue, length)
                }
            },
            Task::Stream(_) => match spec.design {
                Design::Channel => drive::send(&mut self.channel_source(options, other)?, spec.batch, length),
                Design::Classic | Design::ClassicStores => {
                    drive::send(&mut self.classic(spec, &options, other, true)?, spec.batch, length)
                }
                _ => drive::send(&mut self.bare_source(&options, other)?, spec.batch, length),
            },
        }
    }

    /// The second side: answer, or receive, until the stop message.
    pub(super) fn run_answerer(self, spec: &Spec, other: &Seqpacket) -> Result<(), PeerError> {
        let options = spec.answerer_options().map_err(peer_error)?;
        match spec.task {
            Task::Queue(_) => match spec.design {
                Design::Channel if spec.silence_us.is_some() => drive::awake(&mut self.answerer(options, other)?),
                Design::Channel => drive::answer(&mut self.answerer(options, other)?),
                Design::Bare => drive::answer(&mut self.bare_answerer(&options, other)?),
                Design::Classic | Design::ClassicStores => drive::answer(&mut self.classic(spec, &options, other, false)?),
                Design::OneLine | Design::TwoLines => {
                    let ring = self.request_ring(&options)?;
                    drive::answer(&mut floor(spec, &ring, &options, other, false))
                }
            },
            Task::Stream(_) => match spec.design {
                Design::Channel => drive::receive(&mut self.channel_sink(&options, other)?),
                Design::Classic | Design::ClassicStores => drive::receive(&mut self.classic(spec, &options, other, false)?),
                _ => drive::receive(&mut self.bare_sink(&options, other)?),
            },
        }
    }

    fn request_ring(&self, options: &HotPathOptions) -> Result<MappedRing, PeerError> {
        self.geometry.request_ring(&self.region, &options.tuning).map_err(fault)
    }

    fn caller<'a>(self, options: HotPathOptions, other: &'a Seqpacket) -> Result<channel::Caller<'a>, PeerError> {
        let Self { region, geometry, event_doorbell, socket_doorbell } = self;
        let queue = ClientQueue::open(&region, &geometry, event_doorbell, socket_doorbell, &options.tuning).map_err(fault)?;
        Ok(channel::Caller::new(queue, options, other))
    }

    fn answerer<'a>(self, options: HotPathOptions, other: &'a Seqpacket) -> Result<channel::Answerer<'a>, PeerError> {
        let Self { region, geometry, event_doorbell, socket_doorbell } = self;
        let queue = ServerQueue::open(&region, &geometry, event_doorbell, socket_doorbell, &options.tuning).map_err(fault)?;
        channel::Answerer::new(queue, options, other)
    }

    /// Both rings, outgoing first, with their starts.
    fn rings(&self, options: &HotPathOptions, first_side: bool) -> Result<[(MappedRing, Cursor); 2], PeerError> {
        let requests = (self.request_ring(options)?, Cursor::at_start(self.geometry.request_start));
        let completions = self.geometry.completion_ring(&self.region, &options.tuning).map_err(fault)?;
        let completions = (completions, Cursor::at_start(self.geometry.completion_start));
        Ok(if first_side { [requests, completions] } else { [completions, requests] })
    }

    fn bare_caller<'a>(&self, options: &HotPathOptions, other: &'a Seqpacket) -> Result<bare::Caller<'a>, PeerError> {
        let [(out, out_start), (into, into_start)] = self.rings(options, true)?;
        Ok(bare::Caller {
            writer: Writer::new(out, out_start, &options.tuning),
            reader: Reader::new(into, into_start, &options.tuning),
            pace: CallerPace::new(&options.tuning),
            spin: Spin::new(options, other),
        })
    }

    fn bare_answerer<'a>(&self, options: &HotPathOptions, other: &'a Seqpacket) -> Result<bare::Answerer<'a>, PeerError> {
        let [(out, out_start), (into, into_start)] = self.rings(options, false)?;
        Ok(bare::Answerer {
            writer: Writer::new(out, out_start, &options.tuning),
            reader: Reader::new(into, into_start, &options.tuning),
            pace: AnswererPace::default(),
            take: options.tuning.take,
            spin: Spin::new(options, other),
        })
    }

    /// As in the report: the message in plain stores, then the flag.
    fn classic<'a>(
        &self,
        spec: &Spec,
        options: &HotPathOptions,
        other: &'a Seqpacket,
        first_side: bool,
    ) -> Result<Classic<'a>, PeerError> {
        let [(out, _), (into, _)] = self.rings(options, first_side)?;
        Ok(Classic::new(out, into, spec.design == Design::ClassicStores, Spin::waiting(options, other)))
    }

    fn stream_writer(&self, options: &HotPathOptions) -> Result<StreamWriter<MappedRing>, PeerError> {
        let start = Cursor::at_start(self.geometry.request_start);
        Ok(StreamWriter::new(self.request_ring(options)?, start, &options.tuning))
    }

    fn stream_reader(&self, options: &HotPathOptions) -> Result<Reader<MappedRing>, PeerError> {
        let start = Cursor::at_start(self.geometry.request_start);
        Ok(Reader::new(self.request_ring(options)?, start, &options.tuning))
    }

    fn channel_source<'a>(self, options: HotPathOptions, other: &'a Seqpacket) -> Result<channel::Source<'a>, PeerError> {
        let (writer, slot_count) = (self.stream_writer(&options)?, self.geometry.request_slots);
        Ok(channel::Source { writer, doorbell: self.event_doorbell, slot_count, spin: Spin::new(&options, other), options })
    }

    fn channel_sink<'a>(&self, options: &HotPathOptions, other: &'a Seqpacket) -> Result<channel::Sink<'a>, PeerError> {
        channel::Sink::new(self.stream_reader(options)?, &self.event_doorbell, options, other)
    }

    fn bare_source<'a>(&self, options: &HotPathOptions, other: &'a Seqpacket) -> Result<bare::Source<'a>, PeerError> {
        let (writer, slot_count) = (self.stream_writer(options)?, self.geometry.request_slots);
        Ok(bare::Source { writer, slot_count, spin: Spin::new(options, other) })
    }

    fn bare_sink<'a>(&self, options: &HotPathOptions, other: &'a Seqpacket) -> Result<bare::Sink<'a>, PeerError> {
        Ok(bare::Sink { reader: self.stream_reader(options)?, spin: Spin::new(options, other) })
    }
}

/// Copied out and checked, as a client does with a daemon's layout.
fn first_queue(region: &Region) -> Result<QueueGeometry, PeerError> {
    let layout = RegionLayout::read_from(&PROFILE, region).map_err(fault)?;
    layout.queues.first().copied().ok_or_else(|| peer_error("a region without a queue"))
}

fn floor<'a>(spec: &Spec, ring: &'a MappedRing, options: &HotPathOptions, other: &'a Seqpacket, first_side: bool) -> Floor<'a> {
    let spin = Spin::new(options, other);
    // Another line every time: how long one takes depends on the slice of the last-level cache it belongs to.
    let line = spec.seed % floor::LINES;
    match spec.design {
        Design::OneLine => Floor::one_line(ring, line, spin),
        _ => Floor::two_lines(ring, line, first_side, spin),
    }
}
