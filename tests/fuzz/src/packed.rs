//! Requests of a client, alone or several in a message: each is understood as in a message of its own, by C and Rust.

use fipsee_block::packed::{Short, is_packed, pack, unpack};
use fipsee_block::request::{Request, RequestLimits, check_short, parse, tag_of};
use fipsee_block::wire::{self, BlockInfo, Segment, Status};
use fipsee_interop::golden;
use fipsee_interop::requests::{Memory, Scratch};
use fipsee_ring::Message;
use fipsee_ring::memory::Span;

use crate::request::with_message;

/// A request that is answered: its tag, and what it asks for or the status; and address and length of each span.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    tag: u16,
    parsed: Result<Request, Status>,
    spans: Vec<(usize, usize)>,
}

impl Outcome {
    /// The spans of a request that is refused mean nothing.
    fn new(tag: u16, parsed: Result<Request, Status>, spans: &[Span]) -> Self {
        let spans = if parsed.is_ok() { spans } else { &[] };
        Self { tag, parsed, spans: spans.iter().map(|span| (span.base().addr().get(), span.length_bytes())).collect() }
    }
}

/// As the server of a queue goes about a message.
fn outcomes(message: &Message, limits: &RequestLimits, memory: &Memory) -> Vec<Outcome> {
    let mut spans = Vec::new();
    if !is_packed(message) {
        let parsed = parse(message, limits, &memory.table, &mut spans);
        return vec![Outcome::new(tag_of(message), parsed, &spans)];
    }
    let mut all = Vec::new();
    for short in unpack(message) {
        let checked = check_short(&short, limits, &memory.table, &mut spans);
        all.push(Outcome::new(short.tag, checked, &spans));
    }
    if all.is_empty() { vec![Outcome::new(tag_of(message), Err(Status::Invalid), &[])] } else { all }
}

/// The same of each request as a message of its own, as C and Rust understand it.
fn outcomes_of_each(message: &Message, info: &BlockInfo, (memory, scratch): &mut (Memory, Scratch)) -> Vec<Outcome> {
    let mut one = |message: &Message| {
        let parsed = memory.parse_in_both(message, info, scratch);
        Outcome::new(tag_of(message), parsed, &scratch.spans)
    };
    if !is_packed(message) {
        return vec![one(message)];
    }
    let all: Vec<Outcome> = unpack(message).map(|short| one(&alone(&short))).collect();
    if all.is_empty() { vec![Outcome::new(tag_of(message), Err(Status::Invalid), &[])] } else { all }
}

/// As [`request::one`](crate::request::one).
pub(crate) fn one(bytes: &[u8]) {
    with_message(bytes, |message, info, memory| {
        let ours = compare(message, info, memory);
        let packed: Vec<Short> = if is_packed(message) { unpack(message).collect() } else { Vec::new() };
        match packed.as_slice() {
            [a, b] => assert_eq!(payload(&pack([a, b])), payload(message), "nothing of it is ignored"),
            [a, b, c] => assert_eq!(payload(&pack([a, b, c])), payload(message), "nothing of it is ignored"),
            _ => assert_eq!(ours.len(), 1, "{message:x?}"),
        }
    });
}

/// All but the stamp.
fn payload(message: &Message) -> Vec<u8> {
    message.to_bytes()[..60].to_vec()
}

fn compare(message: &Message, info: &BlockInfo, memory: &mut (Memory, Scratch)) -> Vec<Outcome> {
    let ours = outcomes(message, &RequestLimits::new(info, false), &memory.0);
    assert_eq!(ours, outcomes_of_each(message, info, memory), "{:02x?} with {info:x?}", message.to_bytes());
    ours
}

/// As a message of its own.
fn alone(short: &Short) -> Message {
    wire::request_one_segment(short.operation(), 0, short.tag, short.sector, Segment::from_word(short.segment))
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let segment = |offset_sectors, region| Segment { offset_sectors, length_sectors: 8, region };
    let [a, b, c] = [(false, 5), (true, 1), (true, 5)].map(|(is_write, region)| Short::new(is_write, 7, 16, segment(8, region)));
    let made = [pack([&a, &b]), pack([&b, &c, &a]), alone(&c)].map(|message| message.to_bytes().to_vec());
    let examples = golden::examples().into_iter().filter(|(name, _)| name.starts_with("packed-")).map(|(_, bytes)| bytes);
    let of_any_disk = made.into_iter().chain(examples).map(|bytes| [&[31][..], &bytes].concat());
    crate::request::seeds().into_iter().chain(of_any_disk).collect()
}

#[cfg(test)]
mod tests {
    use fipsee_interop::random::Random;

    use super::*;
    use crate::request::disk;
    use crate::take;

    fn short(random: &mut Random) -> Short {
        let segment = Segment {
            offset_sectors: u32::try_from(random.below(200)).expect("small"),
            length_sectors: random.pick(&[0, 1, 7, 8, 8, 8, 16, 1000, u16::MAX]),
            region: random.pick(&[0, 0, 0, 1, 5, 63, 2, 64]),
        };
        let sector = random.pick(&[0, 1, 8, 16, 9_992, 9_999, 10_000, u64::MAX]);
        Short::new(random.below(2) == 1, random.pick(&[0, 1, 0xffff]), sector, segment)
    }

    /// Well-formed messages of every kind, of which most have some bits wrong.
    #[test]
    fn random_messages_are_understood_as_before() {
        let mut random = Random::new(18);
        let others: Vec<Message> = seeds().iter().map(|seed| Message::from_bytes(&take(&mut &seed[1..]))).collect();
        let (mut packed, mut accepted, mut refused) = (0, 0, 0);
        let mut memory = (Memory::new(), Scratch::default());
        for _ in 0..100_000 {
            let [a, b, c] = [(); 3].map(|()| short(&mut random));
            let mut message = match random.below(4) {
                0 => pack([&a, &b]),
                1 => pack([&a, &b, &c]),
                2 => alone(&a),
                _ => random.pick(&others),
            };
            for _ in 0..random.below(4).saturating_sub(1) {
                let (word, bit) = (random.pick(&[0, 0, 0, 1, 2, 3, 4, 5, 6, 7]), random.below(64));
                message.set_word(word, message.word(word) ^ 1 << bit);
            }
            let ours = compare(&message, &disk(random.bytes()[0] | 1), &mut memory);
            packed += usize::from(ours.len() > 1);
            accepted += ours.iter().filter(|outcome| outcome.parsed.is_ok()).count();
            refused += ours.iter().filter(|outcome| outcome.parsed.is_err()).count();
        }
        assert!(packed > 10_000 && accepted > 10_000 && refused > 10_000, "{packed} packed, {accepted} taken, {refused} refused");
    }
}
