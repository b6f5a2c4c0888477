//! Requests of a client, alone or several in a message: the parser and the one that it replaced say the same of each.

mod oracle;

use std::cell::RefCell;

use fipsee_block::packed::{Short, is_packed, pack, unpack};
use fipsee_block::request::{Request, RequestLimits, check_short, parse, tag_of};
use fipsee_block::wire::{self, Operation, Segment, Status};
use fipsee_interop::golden;
use fipsee_interop::requests::Memory;
use fipsee_ring::Message;
use fipsee_ring::memory::Span;

use crate::take;

/// An indirect table of 256 entries and a little more.
const TABLE_BYTES: usize = 2560;

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::new(Memory::new());
}

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

/// A byte chooses the disk, 64 are the message, the rest is the beginning of memory 0.
pub(crate) fn one(mut bytes: &[u8]) {
    let [choice] = take(&mut bytes);
    let message = Message::from_bytes(&take(&mut bytes));
    MEMORY.with_borrow(|memory| {
        memory.region.write(0, &take::<TABLE_BYTES>(&mut bytes)).expect("within the memory");
        let ours = compare(choice, &message, memory);
        let packed: Vec<Short> = if is_packed(&message) { unpack(&message).collect() } else { Vec::new() };
        match packed.as_slice() {
            [a, b] => assert_eq!(payload(&pack([a, b])), payload(&message), "nothing of it is ignored"),
            [a, b, c] => assert_eq!(payload(&pack([a, b, c])), payload(&message), "nothing of it is ignored"),
            _ => assert_eq!(ours.len(), 1, "{message:x?}"),
        }
    });
}

/// All but the stamp.
fn payload(message: &Message) -> Vec<u8> {
    message.to_bytes()[..60].to_vec()
}

/// The bits of `choice` say what the disk is like: size of a block, longest transfer, capabilities.
fn compare(choice: u8, message: &Message, memory: &Memory) -> Vec<Outcome> {
    let limits = RequestLimits {
        sector_count: 10_000,
        block_mask: if choice & 0x80 == 0 { 0 } else { 7 },
        max_transfer_sectors: if choice & 0x40 == 0 { 2048 } else { 8 },
        max_range_sectors: 4096,
        capabilities: u32::from(choice & 31),
    };
    let ours = outcomes(message, &limits, memory);
    assert_eq!(ours, oracle::outcomes(message, &limits, memory), "{:02x?} with {limits:x?}", message.to_bytes());
    ours
}

/// As a message of its own.
fn alone(short: &Short) -> Message {
    wire::request_one_segment(short.operation(), 0, short.tag, short.sector, Segment::from_word(short.segment))
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let segment = |offset_sectors, region| Segment { offset_sectors, length_sectors: 8, region };
    let table = segment(0, 0);
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
    use super::*;

    /// A sequence that looks random and is the same every time (splitmix64).
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        }

        fn below(&mut self, limit: u64) -> u64 {
            self.next() % limit
        }

        fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
            all[usize::try_from(self.below(all.len() as u64)).expect("an index")]
        }

        fn short(&mut self) -> Short {
            let segment = Segment {
                offset_sectors: u32::try_from(self.below(200)).expect("small"),
                length_sectors: self.one_of(&[0, 1, 7, 8, 8, 8, 16, 1000, u16::MAX]),
                region: self.one_of(&[0, 0, 0, 1, 5, 63, 2, 64]),
            };
            let sector = self.one_of(&[0, 1, 8, 16, 9_992, 9_999, 10_000, u64::MAX]);
            Short::new(self.below(2) == 1, self.one_of(&[0, 1, 0xffff]), sector, segment)
        }
    }

    /// Well-formed messages of every kind, of which most have some bits wrong.
    #[test]
    fn random_messages_are_understood_as_before() {
        let mut numbers = Numbers(18);
        let others: Vec<Message> = seeds().iter().map(|seed| Message::from_bytes(&take(&mut &seed[1..]))).collect();
        let (mut packed, mut accepted, mut refused) = (0, 0, 0);
        MEMORY.with_borrow(|memory| {
            for _ in 0..100_000 {
                let [a, b, c] = [numbers.short(), numbers.short(), numbers.short()];
                let mut message = match numbers.below(4) {
                    0 => pack([&a, &b]),
                    1 => pack([&a, &b, &c]),
                    2 => alone(&a),
                    _ => numbers.one_of(&others),
                };
                for _ in 0..numbers.below(4).saturating_sub(1) {
                    let (word, bit) = (numbers.one_of(&[0, 0, 0, 1, 2, 3, 4, 5, 6, 7]), numbers.below(64));
                    message.set_word(word, message.word(word) ^ 1 << bit);
                }
                let [choice, ..] = (numbers.next() | 1).to_le_bytes();
                let ours = compare(choice, &message, memory);
                packed += usize::from(ours.len() > 1);
                accepted += ours.iter().filter(|outcome| outcome.parsed.is_ok()).count();
                refused += ours.iter().filter(|outcome| outcome.parsed.is_err()).count();
            }
        });
        assert!(packed > 10_000 && accepted > 10_000 && refused > 10_000, "{packed} packed, {accepted} taken, {refused} refused");
    }
}
