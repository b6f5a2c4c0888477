//! The work of both sides, the same for every design.

use fipsee_ring::pace::Delays;
use fipsee_ring::{Message, clock};
use hdrhistogram::Histogram;
use std::time::Duration;

use super::payload;

/// The reason that a side stopped early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PeerError {
    /// The other side is gone.
    Gone,
    /// A message differs from the one sent, or the other side breaks the rules of the ring.
    Wrong(String),
}

/// The calling end of call and reply.
pub(super) trait Calls {
    /// Publish `calls`, and receive as many answers.
    fn exchange(&mut self, calls: &[Message], answers: &mut [Message]) -> Result<(), PeerError>;
    /// Publish a message that has no answer.
    fn send(&mut self, message: &Message);
    /// The delay of both sides' first look.
    fn delays(&self) -> Delays {
        Delays::default()
    }
}

/// The answering end of call and reply.
pub(super) trait Answers {
    /// Give every message to `answer` and publish what it returns, until it returns nothing.
    fn serve(&mut self, answer: &mut impl FnMut(&Message) -> Option<Message>) -> Result<(), PeerError>;
}

/// The sending end of a stream.
pub(super) trait Sends {
    /// Publish `messages`, waiting for free slots.
    fn send(&mut self, messages: &[Message]) -> Result<(), PeerError>;
    /// Wait until the other side has taken everything.
    fn drain(&mut self) -> Result<(), PeerError>;
}

/// The receiving end of a stream.
pub(super) trait Receives {
    /// Give every message to `take`, until it returns `false`; all that was received is then released.
    fn receive(&mut self, take: &mut impl FnMut(&Message) -> bool) -> Result<(), PeerError>;
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Times of whole bursts, in ticks; of a stream, of [`STREAM_CHUNK`] messages each.
    pub(super) ticks: Histogram<u64>,
    /// Messages sent, not counting answers.
    pub(super) messages: u64,
    /// From before the first to after the last, in ticks.
    pub(super) elapsed_ticks: u64,
    /// The final delay of the first look.
    pub(super) delays: Delays,
}

/// Bursts between two readings of the wall clock.
const BATCHES_PER_CLOCK_CHECK: u32 = 64;
/// Messages of a stream published together, with one check of the doorbell.
pub(super) const STREAM_BURST: usize = 16;
/// Messages of a stream between two time stamps.
pub(super) const STREAM_CHUNK: u64 = 4096;
/// Longest time that the histogram holds.
const LONGEST: Duration = Duration::from_secs(1000);

pub(super) fn histogram() -> Result<Histogram<u64>, String> {
    let histogram = Histogram::new_with_bounds(1, clock::duration_to_ticks(LONGEST), 3);
    histogram.map_err(|error| format!("cannot make a histogram: {error}; report this"))
}

fn trouble(text: String) -> PeerError {
    PeerError::Wrong(text)
}

/// Bursts of `queue` messages: for `warm_up`, which is not counted, then for `duration`.
pub(super) fn call(end: &mut impl Calls, queue: u32, warm_up: Duration, duration: Duration) -> Result<Sample, PeerError> {
    let mut calls = vec![Message::ZERO; queue as usize];
    let mut answers = calls.clone();
    let mut sequence = 0;
    let mut ticks = histogram().map_err(trouble)?;
    let mut started_ticks = clock::ticks_fenced();
    let warm_ticks = started_ticks.saturating_add(clock::duration_to_ticks(warm_up));
    while clock::ticks() < warm_ticks {
        burst(end, &mut calls, &mut answers, &mut sequence)?;
    }
    let first = sequence;
    started_ticks = started_ticks.max(clock::ticks_fenced());
    let end_ticks = started_ticks.saturating_add(clock::duration_to_ticks(duration));
    while clock::ticks() < end_ticks {
        for _ in 0..BATCHES_PER_CLOCK_CHECK {
            ticks.saturating_record(burst(end, &mut calls, &mut answers, &mut sequence)?);
        }
    }
    let elapsed_ticks = clock::ticks_fenced() - started_ticks;
    end.send(&payload::STOP);
    Ok(Sample { ticks, messages: sequence - first, elapsed_ticks, delays: end.delays() })
}

/// One burst and its answers; the time from before the first store to after the last answer was copied, in ticks.
#[inline(always)]
fn burst(end: &mut impl Calls, calls: &mut [Message], answers: &mut [Message], sequence: &mut u64) -> Result<u64, PeerError> {
    let first = *sequence;
    for message in &mut *calls {
        *message = payload::message(*sequence);
        *sequence += 1;
    }
    let from_ticks = clock::ticks_fenced();
    end.exchange(calls, answers)?;
    let to_ticks = clock::ticks_fenced();
    for (answer, sequence) in answers.iter().zip(first..) {
        if !payload::is_answer(answer, sequence) {
            return Err(wrong("answer", sequence));
        }
    }
    Ok(to_ticks.wrapping_sub(from_ticks))
}

#[cold]
fn wrong(what: &str, sequence: u64) -> PeerError {
    PeerError::Wrong(format!(
        "{what} {sequence} is not what was sent; the ring or this machine's memory is at fault: report this with the CPU's model"
    ))
}

/// Answer until the stop message. Every message is checked.
pub(super) fn answer(end: &mut impl Answers) -> Result<(), PeerError> {
    let (mut sequence, mut verdict) = (0, Ok(()));
    end.serve(&mut |message| {
        if payload::is_message(message, sequence) {
            sequence += 1;
            return Some(payload::answer_to(message));
        }
        if !payload::is_stop(message) {
            verdict = Err(wrong("message", sequence));
        }
        None
    })?;
    verdict
}

/// Send a stream: for `warm_up`, which is not counted, then for `duration`.
pub(super) fn send(end: &mut impl Sends, warm_up: Duration, duration: Duration) -> Result<Sample, PeerError> {
    let mut sequence = 0;
    let mut ticks = histogram().map_err(trouble)?;
    let warm_ticks = clock::ticks().saturating_add(clock::duration_to_ticks(warm_up));
    while clock::ticks() < warm_ticks {
        chunk(end, &mut sequence)?;
    }
    end.drain()?;
    let first = sequence;
    let started_ticks = clock::ticks_fenced();
    let end_ticks = started_ticks.saturating_add(clock::duration_to_ticks(duration));
    let mut from_ticks = started_ticks;
    while from_ticks < end_ticks {
        chunk(end, &mut sequence)?;
        let to_ticks = clock::ticks_fenced();
        ticks.saturating_record(to_ticks.wrapping_sub(from_ticks));
        from_ticks = to_ticks;
    }
    end.drain()?;
    let elapsed_ticks = clock::ticks_fenced() - started_ticks;
    end.send(&[payload::STOP])?;
    Ok(Sample { ticks, messages: sequence - first, elapsed_ticks, delays: Delays::default() })
}

#[inline(always)]
fn chunk(end: &mut impl Sends, sequence: &mut u64) -> Result<(), PeerError> {
    let mut messages = [Message::ZERO; STREAM_BURST];
    for _ in 0..STREAM_CHUNK / STREAM_BURST as u64 {
        for message in &mut messages {
            *message = payload::message(*sequence);
            *sequence += 1;
        }
        end.send(&messages)?;
    }
    Ok(())
}

/// Receive a stream until the stop message. Every message is checked.
pub(super) fn receive(end: &mut impl Receives) -> Result<(), PeerError> {
    let (mut sequence, mut verdict) = (0, Ok(()));
    end.receive(&mut |message| {
        if payload::is_message(message, sequence) {
            sequence += 1;
            return true;
        }
        if !payload::is_stop(message) {
            verdict = Err(wrong("message", sequence));
        }
        false
    })?;
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A design without a second side: it answers itself, and flips one bit of one message.
    struct Spoiling {
        spoiled: u64,
        seen: u64,
    }

    impl Spoiling {
        fn pass(&mut self, message: &Message) -> Message {
            let mut passed = *message;
            if self.seen == self.spoiled {
                passed.set_word(3, passed.word(3) ^ 1 << 17);
            }
            self.seen += 1;
            passed
        }
    }

    impl Calls for Spoiling {
        fn exchange(&mut self, calls: &[Message], answers: &mut [Message]) -> Result<(), PeerError> {
            for (call, answer) in calls.iter().zip(answers) {
                *answer = self.pass(&payload::answer_to(call));
            }
            Ok(())
        }

        fn send(&mut self, _: &Message) {}
    }

    impl Answers for Spoiling {
        fn serve(&mut self, answer: &mut impl FnMut(&Message) -> Option<Message>) -> Result<(), PeerError> {
            for sequence in 0..100 {
                let call = self.pass(&payload::message(sequence));
                if answer(&call).is_none() {
                    return Ok(());
                }
            }
            assert!(answer(&payload::STOP).is_none());
            Ok(())
        }
    }

    impl Receives for Spoiling {
        fn receive(&mut self, take: &mut impl FnMut(&Message) -> bool) -> Result<(), PeerError> {
            self.serve(&mut |message| take(message).then_some(*message))
        }
    }

    fn spoiling(spoiled: u64) -> Spoiling {
        Spoiling { spoiled, seen: 0 }
    }

    fn assert_noticed(result: Result<(), PeerError>, what: &str) {
        let Err(PeerError::Wrong(text)) = result else { panic!("{result:?}") };
        assert!(text.starts_with(what) && text.contains("is not what was sent"), "{text}");
    }

    #[test]
    fn a_spoiled_answer_message_or_stream_is_noticed() {
        let duration = Duration::from_micros(10);
        assert_noticed(call(&mut spoiling(70), 8, Duration::ZERO, duration).map(|_| ()), "answer 70");
        assert_noticed(answer(&mut spoiling(70)), "message 70");
        assert_noticed(receive(&mut spoiling(70)), "message 70");
        assert_eq!(answer(&mut spoiling(u64::MAX)), Ok(()));
        assert_eq!(receive(&mut spoiling(u64::MAX)), Ok(()));
    }

    #[test]
    fn correct_messages_are_counted() {
        let sample = call(&mut spoiling(u64::MAX), 8, Duration::ZERO, Duration::from_micros(10)).expect("sound");
        assert_eq!(sample.messages, 8 * sample.ticks.len());
        assert!(sample.elapsed_ticks > 0 && sample.messages >= 8 * u64::from(BATCHES_PER_CLOCK_CHECK));
    }
}
