//! An indirect table that changes as soon as its first entry is checked: the earlier copy is used. Without a race, which
//! `crates/daemon/tests/hostile` wins only now and then.

use std::cell::RefCell;
use std::sync::Arc;

use fipsee_block::request::{RequestLimits, parse};
use fipsee_block::wire::{MAX_INDIRECT_ENTRIES, Operation, Segment, request_indirect};
use fipsee_ring::memory::{Extent, Memory, MemoryFault, Span};
use fipsee_ring::region::Region;

const ENTRIES: u32 = 256;
const _: () = assert!(MAX_INDIRECT_ENTRIES == 256);
/// Behind the table, a sector for each entry.
const FIRST_SECTOR: u32 = 4;

/// Memory whose first sectors, the table, change to segments far outside once an entry of it is looked up.
struct Changing {
    region: Arc<Region>,
    asked: RefCell<Vec<Extent>>,
}

impl Memory for Changing {
    fn find(&self, extent: Extent, _access: u16, spans: &mut Vec<Span>) -> Result<(), MemoryFault> {
        let length = extent.length_bytes;
        let base = self.region.pointer("a segment", extent.offset_bytes, length).map_err(|_| MemoryFault::Outside)?;
        // SAFETY: the region holds these bytes and lives as long as the test.
        spans.push(unsafe { Span::new(base, usize::try_from(length).expect("small")) });
        if extent.offset_bytes >= u64::from(FIRST_SECTOR) * 512 {
            let far = Segment { offset_sectors: u32::MAX, length_sectors: u16::MAX, region: u16::MAX };
            self.region.write(0, &far.to_word().to_le_bytes().repeat(MAX_INDIRECT_ENTRIES)).expect("within the region");
            self.asked.borrow_mut().push(extent);
        }
        Ok(())
    }
}

/// checks: R-5.2-3
#[test]
fn a_table_that_changes_when_its_first_entry_is_checked_is_used_as_it_was_copied() {
    let memory = Changing { region: Arc::new(Region::create("table", 1 << 20).expect("memory")), asked: RefCell::default() };
    let entries: Vec<Segment> =
        (0..ENTRIES).map(|index| Segment { offset_sectors: FIRST_SECTOR + index, length_sectors: 1, region: 0 }).collect();
    let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_word().to_le_bytes()).collect();
    memory.region.write(0, &bytes).expect("within the region");
    let limits = RequestLimits {
        sector_count: 1 << 20,
        block_mask: 0,
        max_transfer_sectors: 1 << 16,
        max_range_sectors: 1 << 16,
        capabilities: 0,
    };
    let table = Segment { offset_sectors: 0, length_sectors: 4, region: 0 };
    let mut spans = Vec::new();
    let message = request_indirect(Operation::Read, 0, 1, 0, table, ENTRIES);
    let request = parse(&message, &limits, &memory, &mut spans).expect("a good request");
    assert_eq!(*memory.asked.borrow(), entries.iter().map(|entry| entry.extent()).collect::<Vec<_>>(), "an entry was read again");
    assert_eq!(request.length_sectors, u64::from(ENTRIES), "a length was read again");
    assert!(spans.iter().map(Span::length_bytes).eq(entries.iter().map(|_| 512)), "{spans:?}");
    let base = memory.region.base().as_ptr().addr();
    assert!(
        spans.iter().map(|span| span.base().as_ptr().addr() - base).eq((0..ENTRIES as usize).map(|index| 2048 + 512 * index))
    );
}
