//! Requests, understood by both languages, over the same memory.

use std::sync::Arc;

use fipsee_block::request::{Request, RequestLimits, parse};
use fipsee_block::wire::{BlockInfo, Status};
use fipsee_ring::Message;
use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE};
use fipsee_ring::memory::{RegionTable, Span};
use fipsee_ring::region::Region;

use crate::ffi::{self, CParsed, CRequestLimits, CView};

/// Memory handed over under several ids with different rights, as both sides see it.
#[derive(Debug)]
pub struct Memory {
    pub table: RegionTable,
    pub views: Vec<CView>,
    pub region: Arc<Region>,
}

// SAFETY: the views lead into the region, which is mapped as long and which any thread may access.
unsafe impl Send for Memory {}

pub const MEMORY_BYTES: u64 = 1 << 20;

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// The ids 0, 1, 5 and 63.
    pub fn new() -> Self {
        let region = Arc::new(Region::create("interop-requests", MEMORY_BYTES).expect("memory"));
        let mut table = RegionTable::default();
        let mut views = vec![CView { base: std::ptr::null(), length_sectors: 0, access: 0 }; 64];
        let both = ACCESS_READ | ACCESS_WRITE;
        let placed =
            [(0, 0, MEMORY_BYTES, both), (1, 4096, 65_536, ACCESS_READ), (5, 8192, 65_536, ACCESS_WRITE), (63, 512, 700, both)];
        for (id, offset_bytes, length_bytes, access) in placed {
            table.insert(id, &region, offset_bytes, length_bytes, access).expect("a free id and memory that is there");
            let base = region.pointer("view", offset_bytes, length_bytes).expect("within the region").as_ptr();
            views[usize::from(id)] = CView { base, length_sectors: length_bytes / 512, access };
        }
        Self { table, views, region }
    }

    /// Have both languages look at `message`, a request to the disk that `info` describes. What they agree on.
    pub fn parse_in_both(&self, message: &Message, info: &BlockInfo, scratch: &mut Scratch) -> Result<Request, Status> {
        let (spans, c) = (&mut scratch.spans, &mut scratch.c);
        let limits = RequestLimits::new(info, false);
        let c_limits = CRequestLimits {
            sector_count: info.sector_count,
            block_mask: u64::from(info.block_bytes / 512 - 1),
            max_transfer_sectors: u64::from(info.max_transfer_bytes / 512),
            max_range_sectors: info.max_range_sectors.into(),
            capabilities: info.capabilities,
        };
        let bytes = message.to_bytes();
        let rust = parse(message, &limits, &self.table, spans);
        // SAFETY: the views are of our region, which is mapped.
        let status = unsafe { ffi::request_parse(message, &c_limits, &self.views, c) };
        let request = match rust {
            Err(refused) => {
                assert_eq!(status, refused.to_wire(), "{refused:?}: {bytes:02x?} with {c_limits:?}");
                return Err(refused);
            }
            Ok(request) => request,
        };
        assert_eq!(status, 0, "Rust takes {request:?}: {bytes:02x?} with {c_limits:?}");
        let fields = (c.operation, c.tag, c.fua != 0, c.unmap != 0, c.sector, c.length_sectors, c.aux);
        let operation = request.operation.to_wire();
        let ours = (operation, request.tag, request.fua, request.unmap, request.sector, request.length_sectors, request.aux);
        assert_eq!(fields, ours, "{bytes:02x?}");
        let found = &c.spans[..usize::try_from(c.span_count).expect("at most 256")];
        assert_eq!(found.len(), spans.len(), "{bytes:02x?}");
        let base = self.region.base().as_ptr().addr();
        for (c_span, span) in found.iter().zip(spans) {
            let place = span.base().as_ptr().addr();
            assert_eq!((c_span.address, c_span.length_bytes), (place as u64, span.length_bytes() as u64), "{bytes:02x?}");
            let end = (place - base) as u64 + span.length_bytes() as u64;
            assert!(place >= base && end <= MEMORY_BYTES, "{span:?} leaves the memory: {bytes:02x?}");
        }
        Ok(request)
    }
}

/// What parsing needs and can be reused.
#[derive(Debug)]
pub struct Scratch {
    pub spans: Vec<Span>,
    c: CParsed,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { spans: Vec::new(), c: CParsed::EMPTY }
    }
}
