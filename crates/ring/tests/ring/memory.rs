//! Extents that a peer names: what is within its memory is found, byte for byte, and nothing else is.

use std::sync::Arc;

use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, MAX_REGIONS};
use fipsee_ring::memory::{Extent, Memory, MemoryFault, RegionTable, Span, copy_to, cut_spans};
use fipsee_ring::region::Region;

/// Of a page, 700 bytes from byte 100 on have the id 3 and may be read.
fn table() -> (Arc<Region>, RegionTable) {
    let region = Arc::new(Region::create("memory", 4096).expect("memory"));
    let bytes: Vec<u8> = (0..4096_u32).map(|index| (index % 251) as u8).collect();
    region.write(0, &bytes).expect("within the region");
    let mut table = RegionTable::default();
    table.insert(3, &region, 100, 700, ACCESS_READ).expect("a free id");
    (region, table)
}

fn extent(region: u16, offset_bytes: u64, length_bytes: u64) -> Extent {
    Extent { region, offset_bytes, length_bytes }
}

#[test]
fn extents_end_with_their_memory_to_the_byte() {
    let (region, table) = table();
    let base = region.base().as_ptr().addr();
    let mut spans = Vec::new();
    for (offset, length) in [(0, 1), (0, 700), (1, 699), (699, 1), (350, 7)] {
        spans.clear();
        table.find(extent(3, offset, length), ACCESS_READ, &mut spans).expect("within the memory");
        let found: Vec<_> = spans.iter().map(|span| (span.base().as_ptr().addr() - base, span.length_bytes())).collect();
        assert_eq!(found.iter().map(|(at, bytes)| (*at as u64, *bytes as u64)).collect::<Vec<_>>(), [(100 + offset, length)]);
    }
    spans.clear();
    for (wrong, fault) in [
        (extent(3, 0, 701), MemoryFault::Outside),
        (extent(3, 700, 1), MemoryFault::Outside),
        (extent(3, 1, 700), MemoryFault::Outside),
        (extent(3, u64::MAX, 1), MemoryFault::Outside),
        (extent(3, u64::MAX - 10, 20), MemoryFault::Outside),
        (extent(3, 20, u64::MAX - 10), MemoryFault::Outside),
        (extent(3, 0, 0), MemoryFault::Empty),
        (extent(2, 0, 1), MemoryFault::Outside),
        (extent(MAX_REGIONS, 0, 1), MemoryFault::Outside),
        (extent(u16::MAX, 0, 1), MemoryFault::Outside),
    ] {
        assert_eq!(table.find(wrong, ACCESS_READ, &mut spans), Err(fault), "{wrong:?}");
    }
    assert_eq!(table.find(extent(3, 0, 1), ACCESS_WRITE, &mut spans), Err(MemoryFault::Outside), "it may only be read");
    assert_eq!(table.find(extent(3, 0, 1), ACCESS_READ | ACCESS_WRITE, &mut spans), Err(MemoryFault::Outside));
    assert!(spans.is_empty(), "{spans:?}");
}

#[test]
fn an_id_is_given_once_until_it_is_taken_back() {
    let (region, mut table) = table();
    assert_eq!(table.insert(3, &region, 0, 1, ACCESS_READ), Err(MemoryFault::Outside), "taken");
    assert_eq!(table.insert(4, &region, 4000, 97, ACCESS_READ), Err(MemoryFault::Outside), "not within the region");
    assert_eq!(table.insert(MAX_REGIONS, &region, 0, 1, ACCESS_READ), Err(MemoryFault::Outside));
    table.remove(3).expect("it is there");
    assert_eq!(table.remove(3), Err(MemoryFault::Outside));
    assert_eq!(table.find(extent(3, 0, 1), ACCESS_READ, &mut Vec::new()), Err(MemoryFault::Outside));
    table.insert(3, &region, 0, 1, ACCESS_READ).expect("free again");
}

#[test]
fn copies_take_the_pieces_in_order() {
    let (region, table) = table();
    let mut spans = Vec::new();
    let mut bytes = [0; 5];
    table.read(extent(3, 1, 5), &mut spans, &mut bytes).expect("within the memory");
    assert_eq!(bytes, [101, 102, 103, 104, 105]);
    assert!(spans.is_empty(), "{spans:?}");
    assert_eq!(table.read(extent(3, 1, 4), &mut spans, &mut bytes), Err(MemoryFault::Outside), "shorter than the bytes");

    table.find(extent(3, 0, 10), ACCESS_READ, &mut spans).expect("within the memory");
    assert_eq!(cut_spans(&mut spans, 0, 4), 1);
    assert_eq!(spans.iter().map(Span::length_bytes).collect::<Vec<_>>(), [4, 6]);
    spans.swap(0, 1);
    // SAFETY: the region exists, is mapped for writing, and nothing else uses it.
    let put = |bytes: &[u8]| unsafe { copy_to(&spans, bytes) };
    assert!(!put(&[9; 11]) && put(&[1, 2, 3, 4, 5, 6, 7, 8]));
    let mut found = [0; 10];
    region.read(100, &mut found).expect("within the region");
    assert_eq!(found, [7, 8, 102, 103, 1, 2, 3, 4, 5, 6], "nothing was written where all did not fit");
}
