//! Requests of a client: the message, the indirect table behind it, the disk it goes to.

use std::sync::{LazyLock, Mutex, PoisonError};

use fipsee_block::wire::{self, BlockInfo, Operation, Segment};
use fipsee_interop::golden;
use fipsee_interop::requests::{Memory, Scratch};
use fipsee_ring::Message;

use crate::take;

/// An indirect table of 256 entries and a little more.
const TABLE_BYTES: usize = 2560;

static MEMORY: LazyLock<Mutex<(Memory, Scratch)>> = LazyLock::new(|| Mutex::new((Memory::new(), Scratch::default())));

/// A byte chooses the disk, 64 are the message, the rest is the beginning of memory 0.
pub(crate) fn one(mut bytes: &[u8]) {
    let mut guard = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let (memory, scratch) = &mut *guard;
    let [choice] = take(&mut bytes);
    let message = Message::from_bytes(&take(&mut bytes));
    memory.region.write(0, &take::<TABLE_BYTES>(&mut bytes)).expect("within the memory");
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
    if let Ok(request) = memory.parse_in_both(&message, &info, scratch) {
        let end = request.sector.checked_add(request.length_sectors).expect("no wrap");
        let is_on_disk = matches!(request.operation, Operation::GetInfo | Operation::AckEvent | Operation::Flush);
        assert!(is_on_disk || end <= info.sector_count, "{request:?} leaves the disk");
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let table = Segment { offset_sectors: 0, length_sectors: 4, region: 0 };
    let entry = Segment { offset_sectors: 8, length_sectors: 8, region: 5 }.to_word().to_le_bytes();
    let indirect = wire::request_indirect(Operation::Read, 0, 3, 8, table, 2).to_bytes();
    let mut all = vec![[&[31][..], &indirect, &entry, &entry].concat()];
    let requests = golden::examples().into_iter().filter(|(name, _)| name.starts_with("request-"));
    all.extend(requests.map(|(_, bytes)| [&[31][..], &bytes].concat()));
    all
}
