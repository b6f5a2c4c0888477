//! Fip-see, the bare ring: `ring::{Writer, Reader, StreamWriter}` over a region, as `fipsee ping` uses them.

use std::sync::Arc;

use fipsee_ring::Message;
use fipsee_ring::layout::{COLD_BYTES, SLOT_BYTES};
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::pace::let_answers_gather;
use fipsee_ring::region::Region;
use fipsee_ring::ring::{Cursor, Reader, StreamError, StreamWriter, Writer};
use fipsee_ring::tuning::Tuning;

use super::pacing::Pacing;
use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side};

/// Two rings, one each way; answers say which slots are free.
pub struct Calls(Arc<Region>);

/// One side of them.
pub struct CallsEnd {
    writer: Writer<MappedRing>,
    reader: Reader<MappedRing>,
    side: Side,
    pacing: Pacing,
}

fn ring(region: &Arc<Region>, index: u64, slots: u32) -> Result<MappedRing, String> {
    let ring_bytes = u64::from(slots) * SLOT_BYTES as u64;
    let cold_offset_bytes = 2 * ring_bytes + index * COLD_BYTES as u64;
    MappedRing::new(region, index * ring_bytes, slots, cold_offset_bytes).map_err(|fault| fault.to_string())
}

fn region(plan: &Plan) -> Result<Arc<Region>, String> {
    let length_bytes = 2 * (plan.slots as usize * SLOT_BYTES + COLD_BYTES) as u64;
    let region = Region::create("fipsee-peers", length_bytes).map_err(|error| format!("cannot make a region: {error}"))?;
    Ok(Arc::new(region))
}

impl Mechanism for Calls {
    type End = CallsEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        region(plan).map(Self)
    }

    fn open(self, side: Side, plan: &Plan) -> Result<CallsEnd, String> {
        let (calls, answers) = (ring(&self.0, 0, plan.slots)?, ring(&self.0, 1, plan.slots)?);
        let (outgoing, incoming) = if side == Side::Client { (calls, answers) } else { (answers, calls) };
        let start = Cursor::at_start(0);
        let (writer, reader) =
            (Writer::new(outgoing, start, &Tuning::default()), Reader::new(incoming, start, &Tuning::default()));
        Ok(CallsEnd { writer, reader, side, pacing: Pacing::new(side) })
    }
}

impl End for CallsEnd {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) {
        self.writer.publish_all(messages);
        if messages.len() == 1 {
            // Drains the store buffer before we wait (docs/how-fast.md); a channel has this fence for its doorbell.
            self.writer.fence();
        }
        let answers = (self.side == Side::Server).then(|| self.writer.memory());
        if let Some(ownership) = self.pacing.sent(messages.len(), &mut self.reader, answers) {
            self.writer.set_ownership(ownership);
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        self.pacing.hold();
        // A caller knows how many answers are due; an answerer waits for one call.
        let due = if self.side == Side::Client { into.len() } else { 1 };
        take(&mut self.reader, into, due, Reader::receive)
    }
}

#[inline(always)]
fn take(
    reader: &mut Reader<MappedRing>,
    into: &mut [Message],
    due: usize,
    receive: impl Fn(&mut Reader<MappedRing>, &mut Message) -> bool,
) -> usize {
    let mut backoff = SpinBackoff::default();
    while !reader.has_message() {
        backoff.pause();
        let_answers_gather(due);
    }
    let mut count = 0;
    while count < into.len() && receive(reader, &mut into[count]) {
        count += 1;
    }
    count
}

/// One ring. Its reader says now and then which slots are free.
pub struct Stream(Arc<Region>);

/// One side of it.
pub enum StreamEnd {
    /// The client's.
    Source(StreamWriter<MappedRing>),
    /// The server's.
    Sink(Reader<MappedRing>),
}

impl Mechanism for Stream {
    type End = StreamEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        region(plan).map(Self)
    }

    fn open(self, side: Side, plan: &Plan) -> Result<StreamEnd, String> {
        let (memory, start) = (ring(&self.0, 0, plan.slots)?, Cursor::at_start(0));
        Ok(match side {
            Side::Client => StreamEnd::Source(StreamWriter::new(memory, start, &Tuning::default())),
            Side::Server => StreamEnd::Sink(Reader::new(memory, start, &Tuning::default())),
        })
    }
}

impl End for StreamEnd {
    #[inline(always)]
    fn send(&mut self, mut messages: &[Message]) {
        let Self::Source(writer) = self else { unreachable!("a sink never sends") };
        let mut backoff = SpinBackoff::default();
        if let [message] = messages {
            while let Err(error) = writer.try_publish(message) {
                assert_eq!(error, StreamError::Full, "the reader's counter is wrong");
                backoff.pause();
            }
            return;
        }
        while !messages.is_empty() {
            match writer.publish_burst(messages) {
                Ok(0) => backoff.pause(),
                Ok(count) => messages = &messages[count..],
                Err(fault) => panic!("{fault}"),
            }
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let Self::Sink(reader) = self else { unreachable!("a source never receives") };
        // As it goes, not at the end of a batch that may be a whole lap: the writer needs the slots meanwhile.
        take(reader, into, 1, |reader, into| {
            let received = reader.receive_streamed(into);
            reader.release_some();
            received
        })
    }
}
