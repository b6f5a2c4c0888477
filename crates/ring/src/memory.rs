//! Memory that messages name: regions by their ids, ranges of them, and the pieces of our own address space that these are.
//!
//! A range was copied out of a message before it is looked at here, and is checked here once: a [`Span`] needs no check.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::control::{ACCESS_READ, ACCESS_WRITE, MAX_REGIONS};
use crate::region::Region;

/// Bytes that a peer names; any values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub region: u16,
    /// Their offset in it.
    pub offset_bytes: u64,
    pub length_bytes: u64,
}

/// What is wrong with an extent, or with memory that is to have an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryFault {
    /// There is no such memory, or it may not be accessed so.
    Outside,
    /// No bytes at all.
    Empty,
    /// It consists of more pieces than are taken.
    Scattered,
}

/// A checked piece of a peer's memory, laid out as an `iovec`.
///
/// The peer may change the bytes at any time. They stay mapped as long as the [`Memory`] that the span came from keeps the
/// region, which a server does until no request that names it is in flight.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Span {
    base: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: a span is an address and a length; code that dereferences it proves that the memory is still mapped.
unsafe impl Send for Span {}

impl Span {
    /// A span of memory that the caller vouches for.
    ///
    /// # Safety
    /// The memory is valid for loads and stores of `length_bytes` for as long as the span is used.
    #[inline(always)]
    pub const unsafe fn new(base: NonNull<u8>, length_bytes: usize) -> Self {
        Self { base, length_bytes }
    }

    #[inline(always)]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline(always)]
    pub const fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// The rest after its first `bytes`; empty if there is none.
    pub fn without_first(&self, bytes: usize) -> Self {
        let bytes = bytes.min(self.length_bytes);
        // SAFETY: `bytes` was bounded just now: the sum stays within the memory, or at its end.
        Self { base: unsafe { self.base.add(bytes) }, length_bytes: self.length_bytes - bytes }
    }
}

/// Split the span that holds byte `length_bytes` of the memory from `first` on, so that the spans before it hold exactly as much;
/// returns how many these are.
pub fn cut_spans(spans: &mut Vec<Span>, first: usize, length_bytes: u64) -> usize {
    let mut left = usize::try_from(length_bytes).unwrap_or(usize::MAX);
    for index in first..spans.len() {
        let span = spans[index];
        if left == 0 {
            return index - first;
        }
        if span.length_bytes > left {
            spans[index].length_bytes = left;
            spans.insert(index + 1, span.without_first(left));
            return index + 1 - first;
        }
        left -= span.length_bytes;
    }
    spans.len() - first
}

/// Fill `bytes` from the beginning of `spans`; `false` if they are shorter. Each byte is read once: what the peer changes after
/// that is not seen.
///
/// # Safety
/// The spans are still mapped, and none overlaps `bytes`.
pub unsafe fn copy_from(spans: &[Span], bytes: &mut [u8]) -> bool {
    let mut rest = &mut *bytes;
    for span in spans {
        let (now, later) = rest.split_at_mut(span.length_bytes.min(rest.len()));
        // SAFETY: the span holds at least that many bytes; mapped, and apart from the destination, by the caller.
        unsafe { std::ptr::copy_nonoverlapping(span.base.as_ptr(), now.as_mut_ptr(), now.len()) };
        rest = later;
    }
    let is_full = rest.is_empty();
    // Without this the compiler may read a byte again from where it was copied from.
    std::hint::black_box(bytes);
    is_full
}

/// Put `bytes` at the beginning of `spans`; `false`, and nothing is written, if they are shorter.
///
/// # Safety
/// The spans are still mapped for stores, and none overlaps `bytes`.
pub unsafe fn copy_to(spans: &[Span], bytes: &[u8]) -> bool {
    if spans.iter().map(Span::length_bytes).sum::<usize>() < bytes.len() {
        return false;
    }
    let mut rest = bytes;
    for span in spans {
        let (now, later) = rest.split_at(span.length_bytes.min(rest.len()));
        // SAFETY: the span holds at least that many bytes; mapped, and apart from the source, by the caller.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), span.base.as_ptr(), now.len()) };
        rest = later;
    }
    true
}

pub trait Memory {
    /// Append to `spans` the pieces, one or more, that `extent` consists of. `access` is the `ACCESS_*` bits needed. They stay
    /// mapped while the memory is not changed.
    ///
    /// # Errors
    /// Something of the extent is no memory, or may not be accessed so; `spans` may hold pieces of it.
    fn find(&self, extent: Extent, access: u16, spans: &mut Vec<Span>) -> Result<(), MemoryFault>;

    /// Fill `bytes` from the beginning of `extent`. `spans` is empty, and is afterwards: a place to work in.
    fn read(&self, extent: Extent, spans: &mut Vec<Span>, bytes: &mut [u8]) -> Result<(), MemoryFault> {
        self.find(extent, ACCESS_READ, spans)?;
        // SAFETY: found just now in memory that is not changed during this call; `bytes` is no memory of a peer's.
        let is_full = unsafe { copy_from(spans, bytes) };
        spans.clear();
        if is_full { Ok(()) } else { Err(MemoryFault::Outside) }
    }
}

#[derive(Clone, Debug)]
struct View {
    base: NonNull<u8>,
    length_bytes: u64,
    access: u16,
    /// Their region, if the id is taken.
    memory: Option<Arc<Region>>,
}

const NO_VIEW: View = View { base: NonNull::dangling(), length_bytes: 0, access: 0, memory: None };

/// The memory a peer has handed over, by region id.
#[derive(Debug)]
pub struct RegionTable(Vec<View>);

// SAFETY: the pointers lead into regions that the views keep mapped, and which any thread may access.
unsafe impl Send for RegionTable {}

impl Default for RegionTable {
    /// A table without memory: every extent is refused.
    fn default() -> Self {
        Self(vec![NO_VIEW; usize::from(MAX_REGIONS)])
    }
}

impl RegionTable {
    /// The table of a queue before its client has handed over anything: the pool of its channel is region 0.
    pub fn of_pool(memory: &Arc<Region>, offset_bytes: u64, length_bytes: u64) -> Result<Self, MemoryFault> {
        let mut table = Self::default();
        table.insert(0, memory, offset_bytes, length_bytes, ACCESS_READ | ACCESS_WRITE).map(|()| table)
    }

    /// Give `length_bytes` at `offset_bytes` of `memory` the id `region`. `access` is `ACCESS_*` bits.
    ///
    /// # Errors
    /// The id is out of range or taken, or the range is outside the memory.
    pub fn insert(
        &mut self,
        region: u16,
        memory: &Arc<Region>,
        offset_bytes: u64,
        length_bytes: u64,
        access: u16,
    ) -> Result<(), MemoryFault> {
        let base = memory.pointer("registered memory", offset_bytes, length_bytes).map_err(|_| MemoryFault::Outside)?;
        let free = self.0.get_mut(usize::from(region)).filter(|view| view.memory.is_none()).ok_or(MemoryFault::Outside)?;
        *free = View { base, length_bytes, access, memory: Some(Arc::clone(memory)) };
        Ok(())
    }

    /// Forget a region. The caller has seen that no request in flight names it.
    pub fn remove(&mut self, region: u16) -> Result<(), MemoryFault> {
        let view = self.0.get_mut(usize::from(region)).filter(|view| view.memory.is_some()).ok_or(MemoryFault::Outside)?;
        *view = NO_VIEW;
        Ok(())
    }
}

impl RegionTable {
    /// The one piece that an extent is. `access` is the `ACCESS_*` bits needed. It stays mapped while the table is not changed.
    ///
    /// # Errors
    /// It is no memory, or may not be accessed so.
    #[inline(always)]
    pub fn span(&self, extent: Extent, access: u16) -> Result<Span, MemoryFault> {
        let Some(view) = self.0.get(usize::from(extent.region)) else {
            return Err(MemoryFault::Outside);
        };
        let Extent { offset_bytes, length_bytes, .. } = extent;
        if length_bytes == 0 {
            return Err(MemoryFault::Empty);
        }
        let fits = offset_bytes.checked_add(length_bytes).is_some_and(|end| end <= view.length_bytes);
        let (Ok(skip), Ok(length_bytes)) = (usize::try_from(offset_bytes), usize::try_from(length_bytes)) else {
            return Err(MemoryFault::Outside);
        };
        if !fits || view.access & access != access {
            return Err(MemoryFault::Outside);
        }
        // SAFETY: offset and length are within the view, and the view within its region.
        Ok(Span { base: unsafe { view.base.add(skip) }, length_bytes })
    }
}

impl Memory for RegionTable {
    #[inline(always)]
    fn find(&self, extent: Extent, access: u16, spans: &mut Vec<Span>) -> Result<(), MemoryFault> {
        self.span(extent, access).map(|span| spans.push(span))
    }
}
