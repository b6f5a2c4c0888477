//! The C half in this process: `c/interop.h`.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, PoisonError};

use fipsee_block::wire::{CompletionEntry, MAX_PACKED};
use fipsee_ring::Message;
use fipsee_ring::control::MAX_MESSAGE_BYTES;
use fipsee_ring::tuning::Choices;

/// Words of a message's fields.
pub const FIELDS: usize = 45;

/// A control message in neutral form: the kind, its fields in wire order, its bytes.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CControl {
    /// The kind, then the fields.
    pub values: [u64; 8],
    /// Bytes used of `text`.
    pub text_bytes: u32,
    /// Name, text, service information or entries.
    pub text: [u8; MAX_MESSAGE_BYTES],
}

/// The limits of a disk, as `RequestLimits`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CRequestLimits {
    pub sector_count: u64,
    pub block_mask: u64,
    pub max_transfer_sectors: u64,
    pub max_range_sectors: u64,
    pub capabilities: u32,
}

/// One region.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CView {
    pub base: *const u8,
    pub length_sectors: u64,
    pub access: u16,
}

/// A piece of memory found.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CSpan {
    pub address: u64,
    pub length_bytes: u64,
}

/// A request understood.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CParsed {
    pub sector: u64,
    pub length_sectors: u64,
    pub aux: u32,
    pub span_count: u32,
    pub tag: u16,
    pub operation: u8,
    pub fua: u8,
    pub unmap: u8,
    pub spans: [CSpan; 256],
}

#[repr(C)]
struct Entry {
    name: *const c_char,
    value: u64,
}

// SAFETY: the signatures are those of c/interop.h, which build.rs compiles into this crate.
unsafe extern "C" {
    fn interop_layout(index: usize) -> *const Entry;
    fn interop_golden(index: usize, into: *mut u8, length_bytes: *mut usize) -> *const c_char;
    fn interop_control_decode(bytes: *const u8, length_bytes: usize, out: *mut CControl) -> c_int;
    fn interop_control_encode(input: *const CControl, into: *mut u8) -> usize;
    fn interop_block_info_is_valid(info: *const Message) -> c_int;
    fn interop_completion_read(bytes: *const u8, unacknowledged: u32, entries: *mut CompletionEntry, count: *mut u32) -> c_int;
    fn interop_region_is_valid(bytes: *const u8, region_bytes: u64) -> c_int;
    fn interop_request_parse(
        message: *const Message,
        limits: *const CRequestLimits,
        views: *const CView,
        out: *mut CParsed,
    ) -> u16;
    fn interop_describe(kind: u32, message: *const Message, fields: *mut u32) -> c_int;
    fn interop_trace(choices: u32) -> *const c_char;
    fn interop_trace_runs(choices: u32) -> *const c_char;
    fn interop_pace_reset(methods: c_int);
    fn interop_pace_window(window: u32) -> u64;
    fn interop_pace_asks(choices: u32, period: u32, windows: u32) -> u64;
    fn interop_gather_reset(choices: u32, slot_count: u32);
    fn interop_gather_look(messages: u32, now_ticks: u64) -> u64;
    fn interop_build(kind: u32, fields: *const u32, message: *mut Message) -> c_int;
}

impl CControl {
    pub const EMPTY: Self = Self { values: [0; 8], text_bytes: 0, text: [0; MAX_MESSAGE_BYTES] };
}

impl CParsed {
    pub const EMPTY: Self = Self {
        sector: 0,
        length_sectors: 0,
        aux: 0,
        span_count: 0,
        tag: 0,
        operation: 0,
        fua: 0,
        unmap: 0,
        spans: [CSpan { address: 0, length_bytes: 0 }; 256],
    };
}

/// Everything the C headers fix, by name.
pub fn layout() -> Vec<(String, u64)> {
    let entry = |index| {
        // SAFETY: any index is allowed.
        let entry = unsafe { interop_layout(index) };
        // SAFETY: null or an entry of a static table.
        unsafe { entry.as_ref() }
    };
    (0..)
        .map_while(entry)
        .map(|entry| {
            // SAFETY: names in the table are string literals.
            let name = unsafe { CStr::from_ptr(entry.name) };
            (name.to_str().expect("names are ASCII").to_owned(), entry.value)
        })
        .collect()
}

/// Every example of the protocol's golden bytes, built in C.
pub fn golden() -> Vec<(String, Vec<u8>)> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(()); // The C side publishes into a static ring.
    let _guard = ONE_AT_A_TIME.lock();
    let mut examples = Vec::new();
    loop {
        let (mut bytes, mut length) = (vec![0_u8; 512], 0);
        // SAFETY: the buffer has the 512 bytes that every example fits; the length is ours.
        let name = unsafe { interop_golden(examples.len(), bytes.as_mut_ptr(), &raw mut length) };
        if name.is_null() {
            return examples;
        }
        bytes.truncate(length);
        // SAFETY: not null, so a string literal.
        let name = unsafe { CStr::from_ptr(name) };
        examples.push((name.to_str().expect("names are ASCII").to_owned(), bytes));
    }
}

/// What C understands of a control message.
pub fn control_decode(bytes: &[u8]) -> Option<CControl> {
    let mut out = CControl::EMPTY;
    // SAFETY: the bytes are as many as said; `out` is ours.
    let understood = unsafe { interop_control_decode(bytes.as_ptr(), bytes.len(), &raw mut out) };
    (understood == 1).then_some(out)
}

/// The bytes C makes of a control message.
pub fn control_encode(control: &CControl) -> Vec<u8> {
    let mut bytes = vec![0_u8; 512];
    // SAFETY: the buffer has the length of the longest message.
    let length = unsafe { interop_control_encode(control, bytes.as_mut_ptr()) };
    bytes.truncate(length);
    bytes
}

/// The accesses that each operation of the C ring makes, in order, a letter each (`c/trace.c`); then those of single messages and
/// runs of them.
pub fn trace(choices: Choices) -> [String; 2] {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(()); // The C side keeps its trace in a static.
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    [interop_trace, interop_trace_runs].map(|run| {
        // SAFETY: alone in here.
        let trace = unsafe { run(choices.word()) };
        // SAFETY: a terminated string that stays as it is while we are alone.
        unsafe { CStr::from_ptr(trace) }.to_str().expect("the trace is ASCII").to_owned()
    })
}

/// Does C take this for a disk's description?
pub fn block_info_is_valid(bytes: &[u8; 64]) -> bool {
    // SAFETY: a message has the size and at least the alignment of a block info.
    unsafe { interop_block_info_is_valid(&Message::from_bytes(bytes)) == 1 }
}

/// What C's reader of the completion ring makes of a message: is it an event, or `None` at a fault; and tags and statuses of the entries that
/// it handed out. `unacknowledged`: bit `1 << kind` of each kind of event that is.
pub fn completion_read(bytes: &[u8; 64], unacknowledged: u32) -> (Option<bool>, Vec<(u16, u16)>) {
    let (mut entries, mut count) = ([CompletionEntry { tag: 0, status: 0 }; MAX_PACKED], 0);
    // SAFETY: 64 bytes are read, and at most MAX_PACKED entries written.
    let outcome = unsafe { interop_completion_read(bytes.as_ptr(), unacknowledged, entries.as_mut_ptr(), &mut count) };
    let given = entries.iter().take(count as usize).map(|entry| (entry.tag, entry.status)).collect();
    ((outcome >= 0).then_some(outcome == 1), given)
}

/// Does C take this for a sound region header with its table?
pub fn region_is_valid(bytes: &[u8], region_bytes: u64) -> bool {
    assert!(bytes.len() >= 64 * 65, "header and longest table");
    // SAFETY: just checked.
    unsafe { interop_region_is_valid(bytes.as_ptr(), region_bytes) == 1 }
}

/// What C makes of a request: its status and, if that is 0, its fields in `out`.
///
/// # Safety
/// Each view's memory is valid for its length.
pub unsafe fn request_parse(message: &Message, limits: &CRequestLimits, views: &[CView], out: &mut CParsed) -> u16 {
    assert_eq!(views.len(), 64, "one view for each region id");
    // SAFETY: all four are valid and of the C types; the views' memory is the caller's promise.
    unsafe { interop_request_parse(message, limits, views.as_ptr(), out) }
}

/// The fields C finds in a message of `kind`.
pub fn describe(kind: u32, message: &Message) -> [u32; FIELDS] {
    let mut fields = [0; FIELDS];
    // SAFETY: the array has the length that C writes.
    let known = unsafe { interop_describe(kind, message, fields.as_mut_ptr()) };
    assert_eq!(known, 1, "C does not know kind {kind}");
    fields
}

/// The message C builds from fields.
pub fn build(kind: u32, fields: &[u32; FIELDS]) -> Message {
    let mut message = Message::ZERO;
    // SAFETY: the array has the length that C reads; a message is 64 bytes.
    let known = unsafe { interop_build(kind, fields.as_ptr(), &raw mut message) };
    assert_eq!(known, 1, "C does not know kind {kind}");
    message
}

/// C's search for the delays and the method of calls; there is one at a time.
#[derive(Debug)]
pub struct CSearch(#[expect(dead_code, reason = "held, not read")] std::sync::MutexGuard<'static, ()>);

static ONE_PACE: Mutex<()> = Mutex::new(());

impl CSearch {
    /// A search that has seen nothing; `methods`: of other methods than prefetching, too.
    pub fn start(methods: bool) -> Self {
        let guard = ONE_PACE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the guard keeps other threads out of C's static.
        unsafe { interop_pace_reset(methods.into()) };
        Self(guard)
    }

    /// One window on: the delays of caller and answerer, in ticks, and the number of the method.
    pub fn window(&mut self, window_ticks: u32) -> (u64, u64, u64) {
        // SAFETY: as above.
        let all = unsafe { interop_pace_window(window_ticks) };
        (all & 0xff_ffff, all >> 24 & 0xff_ffff, all >> 48)
    }
}

/// What a caller in C asks of the answerer, advised `choices`, after so many windows of exchanges that each take as long.
pub fn pace_asks(choices: Choices, period_ticks: u32, windows: u32) -> (u32, Choices) {
    let _guard = ONE_PACE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: alone in here.
    let both = unsafe { interop_pace_asks(choices.word(), period_ticks, windows) };
    let half = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or(0);
    (half(both >> 32), Choices::from_word(half(both)))
}

/// When a stream's reader in C lets messages gather; there is one at a time.
#[derive(Debug)]
pub struct CGather(#[expect(dead_code, reason = "held, not read")] std::sync::MutexGuard<'static, ()>);

impl CGather {
    /// Of a ring of so many slots whose reader follows `choices`.
    pub fn start(choices: Choices, slot_count: u32) -> Self {
        static ONE_GATHER: Mutex<()> = Mutex::new(());
        let guard = ONE_GATHER.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the guard keeps other threads out of C's static.
        unsafe { interop_gather_reset(choices.word(), slot_count) };
        Self(guard)
    }

    /// How many ticks an empty look at `now_ticks` waits, after so many messages more.
    pub fn look(&mut self, messages: u32, now_ticks: u64) -> u64 {
        // SAFETY: as above.
        unsafe { interop_gather_look(messages, now_ticks) }
    }
}
