//! Requests of a client, alone or several in a message, with the indirect table behind them and the disk they go to. What the
//! server of a queue finds in a message is what Rust and C find in each of its requests, as a message of its own.

use std::sync::{LazyLock, Mutex, PoisonError};

use fipsee_block::packed::{PACKED, Short, is_packed, pack, unpack};
use fipsee_block::request::{Request, RequestLimits, check_short, parse, tag_of};
use fipsee_block::wire::{self, BlockInfo, Operation, Segment, Status};
use fipsee_interop::golden;
use fipsee_interop::requests::{Memory, Scratch};
use fipsee_ring::Message;
use fipsee_ring::memory::Span;

use crate::take;

/// An indirect table of 256 entries and a little more.
const TABLE_BYTES: usize = 2560;
/// Where a request's first word holds the tag.
const TAG: u64 = 0xffff_0000_0000;

static MEMORY: LazyLock<Mutex<(Memory, Scratch)>> = LazyLock::new(|| Mutex::new((Memory::new(), Scratch::default())));

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

    /// A malformed packed message is answered once.
    fn or_invalid(all: Vec<Self>, message: &Message) -> Vec<Self> {
        if all.is_empty() { vec![Self::new(tag_of(message), Err(Status::Invalid), &[])] } else { all }
    }
}

/// As the server of a queue goes about a message.
fn outcomes(message: &Message, limits: &RequestLimits, memory: &Memory) -> Vec<Outcome> {
    let mut spans = Vec::new();
    if !is_packed(message) {
        let parsed = parse(message, limits, &memory.table, &mut spans);
        return vec![Outcome::new(tag_of(message), parsed, &spans)];
    }
    let mut check = |short: Short| {
        let checked = check_short(&short, limits, &memory.table, &mut spans);
        Outcome::new(short.tag, checked, &spans)
    };
    Outcome::or_invalid(unpack(message).map(&mut check).collect(), message)
}

/// The same by the document, from what Rust and C make of each request alone.
fn expected(message: &Message, info: &BlockInfo, memory: &Memory, scratch: &mut Scratch) -> Vec<Outcome> {
    let mut one = |message: &Message| {
        let parsed = memory.parse_in_both(message, info, scratch);
        Outcome::new(tag_of(message), parsed, &scratch.spans)
    };
    if message.to_bytes()[0] != PACKED {
        return vec![one(message)];
    }
    Outcome::or_invalid(apart(message).map(|message| one(&message)).collect(), message)
}

/// The requests of a packed message, each as a message of its own, still to be parsed; none if the message is malformed.
fn apart(message: &Message) -> impl Iterator<Item = Message> {
    let [_, count, writes, reserved, ..] = message.word(0).to_le_bytes();
    let third = message.word(7) & 0xffff_ffff;
    let fits = match count {
        2 => third == 0 && message.word(5) | message.word(6) == 0,
        3 => third >> 16 == 0,
        _ => false,
    };
    let is_sound = fits && reserved == 0 && writes >> count == 0;
    (0..if is_sound { usize::from(count) } else { 0 }).map(move |index| {
        let operation = if writes >> index & 1 == 0 { Operation::Read } else { Operation::Write };
        let tag = if index < 2 { message.word(0) >> (16 * index) & TAG } else { third << 32 };
        let head = u64::from(operation.to_wire()) | 1 << 8 | tag;
        Message::from_words([head, message.word(1 + 2 * index), message.word(2 + 2 * index), 0, 0, 0, 0, 0])
    })
}

/// A byte chooses the disk, 64 are the message, the rest is the beginning of memory 0.
pub(crate) fn one(mut bytes: &[u8]) {
    let mut guard = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let (memory, scratch) = &mut *guard;
    let [choice] = take(&mut bytes);
    let message = Message::from_bytes(&take(&mut bytes));
    memory.region.write(0, &take::<TABLE_BYTES>(&mut bytes)).expect("within the memory");
    let ours = compare(choice, &message, memory, scratch);
    let packed: Vec<Short> = if is_packed(&message) { unpack(&message).collect() } else { Vec::new() };
    match packed.as_slice() {
        [a, b] => assert_eq!(payload(&pack([a, b])), payload(&message), "nothing of it is ignored"),
        [a, b, c] => assert_eq!(payload(&pack([a, b, c])), payload(&message), "nothing of it is ignored"),
        _ => assert_eq!(ours.len(), 1, "{message:x?}"),
    }
}

/// All but the stamp.
fn payload(message: &Message) -> Vec<u8> {
    message.to_bytes()[..60].to_vec()
}

/// The bits of `choice` say what the disk is like: size of a block, longest transfer, capabilities.
fn compare(choice: u8, message: &Message, memory: &Memory, scratch: &mut Scratch) -> Vec<Outcome> {
    let info = BlockInfo {
        first_sector: 0,
        sector_count: 10_000,
        block_bytes: if choice & 0x80 == 0 { 512 } else { 4096 },
        optimal_bytes: 4096,
        max_transfer_bytes: if choice & 0x40 == 0 { 1 << 20 } else { 4096 },
        max_range_sectors: 4096,
        max_segments: 256,
        capabilities: u32::from(choice & 31),
        identity: [0; 16],
    };
    let ours = outcomes(message, &RequestLimits::new(&info, false), memory);
    assert_eq!(ours, expected(message, &info, memory, scratch), "{:02x?} of {info:x?}", message.to_bytes());
    for request in ours.iter().filter_map(|outcome| outcome.parsed.as_ref().ok()) {
        let end = request.sector.checked_add(request.length_sectors).expect("no wrap");
        let has_no_range = matches!(request.operation, Operation::GetInfo | Operation::AckEvent | Operation::Flush);
        assert!(has_no_range || end <= info.sector_count, "{request:?} leaves the disk");
    }
    ours
}

/// As a message of its own.
fn alone(short: &Short) -> Message {
    wire::request_one_segment(short.operation(), 0, short.tag, short.sector, Segment::from_word(short.segment))
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let segment = |offset_sectors, region| Segment { offset_sectors, length_sectors: 8, region };
    let table = Segment { offset_sectors: 0, length_sectors: 4, region: 0 };
    let entry = segment(8, 5).to_word().to_le_bytes();
    let indirect = wire::request_indirect(Operation::Read, 0, 3, 8, table, 2).to_bytes();
    let [a, b, c] = [(false, 5), (true, 1), (true, 5)].map(|(is_write, region)| Short::new(is_write, 7, 16, segment(8, region)));
    let mut all = vec![[&[31][..], &indirect, &entry, &entry].concat()];
    all.extend([pack([&a, &b]), pack([&b, &c, &a]), alone(&c)].map(|message| [&[31][..], &message.to_bytes()].concat()));
    let requests = golden::examples().into_iter().filter(|(name, _)| name.starts_with("request-") || name.starts_with("packed-"));
    all.extend(requests.map(|(_, bytes)| [&[31][..], &bytes].concat()));
    all
}

#[cfg(test)]
mod tests {
    use fipsee_interop::random::Random;

    use super::*;

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
    fn random_messages_are_understood_as_their_requests_are_alone() {
        let mut random = Random::new(18);
        let others: Vec<Message> = seeds().iter().map(|seed| Message::from_bytes(&take(&mut &seed[1..]))).collect();
        let (mut packed, mut accepted, mut refused) = (0, 0, 0);
        let (memory, mut scratch) = (Memory::new(), Scratch::default());
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
            let ours = compare(random.bytes()[0] | 1, &message, &memory, &mut scratch);
            packed += usize::from(ours.len() > 1);
            accepted += ours.iter().filter(|outcome| outcome.parsed.is_ok()).count();
            refused += ours.iter().filter(|outcome| outcome.parsed.is_err()).count();
        }
        assert!(packed > 10_000 && accepted > 10_000 && refused > 10_000, "{packed} packed, {accepted} taken, {refused} refused");
    }
}
