//! A ring with the guest's half in C (`c/rings.c`), over `include/`.

use std::sync::Arc;

use fipsee_ring::tuning::Choices;
use fipsee_virtio::blk::upgrade::wire::{COLD_PAIR_BYTES, Entry, PART_BYTES};

use super::ram::Ram;

// SAFETY: the signatures are those of c/rings.c, which build.rs compiles into this crate.
unsafe extern "C" {
    fn guest_c_ring_bytes() -> usize;
    fn guest_c_attach(into: *mut u8, entries: *const u8, entry_count: u16) -> usize;
    fn guest_c_doorbell_request(into: *mut u8, attachment: u64, queue: u16) -> usize;
    fn guest_c_open(ring: *mut u64, entry: *const u8, requests: *mut u8, completions: *mut u8, cold: *mut u8) -> i32;
    fn guest_c_choose(ring: *mut u64, choices: u32);
    fn guest_c_submit(ring: *mut u64, operation: u8, tag: u16, sector: u64, address: u64, sectors: u16) -> i32;
    fn guest_c_reap(ring: *mut u64, tags: *mut u16, statuses: *mut u16) -> i32;
    fn guest_c_arm(ring: *mut u64) -> i32;
    fn guest_c_woken(ring: *mut u64);
}

/// An entry where C wants one: aligned to 8 bytes.
#[repr(C, align(8))]
struct Aligned([u8; PART_BYTES]);

/// The upgrade request for one queue, and for advice, as C writes it.
pub fn attach(entry: &Entry) -> Vec<u8> {
    let (entry, mut bytes) = (Aligned(entry.to_bytes()), vec![0; 2 * PART_BYTES]);
    // SAFETY: one entry, and room for an upgrade request and it.
    let length = unsafe { guest_c_attach(bytes.as_mut_ptr(), entry.0.as_ptr(), 1) };
    bytes.truncate(length);
    bytes
}

/// The doorbell request, as C writes it.
pub fn doorbell(attachment: u64, queue: u16) -> Vec<u8> {
    let mut bytes = vec![0; PART_BYTES];
    // SAFETY: room for an upgrade request.
    let length = unsafe { guest_c_doorbell_request(bytes.as_mut_ptr(), attachment, queue) };
    bytes.truncate(length);
    bytes
}

/// The guest's end of a ring.
#[derive(Debug)]
pub struct CRing {
    state: Vec<u64>,
    _ram: Arc<Ram>,
}

impl CRing {
    /// Open what was attached.
    pub fn open(ram: &Arc<Ram>, entry: &Entry) -> Self {
        // SAFETY: it only returns a size.
        let bytes = unsafe { guest_c_ring_bytes() };
        let mut state = vec![0; bytes.div_ceil(8)];
        let requests = ram.pointer(entry.request_address, entry.request_bytes());
        let completions = ram.pointer(entry.completion_address, entry.completion_bytes());
        let cold = ram.pointer(entry.cold_address, COLD_PAIR_BYTES);
        let wire = Aligned(entry.to_bytes());
        // SAFETY: the state is as long as C says; the memory is as long as the entry says and is mapped as long as self.
        let open = unsafe { guest_c_open(state.as_mut_ptr(), wire.0.as_ptr(), requests, completions, cold) };
        assert_eq!(open, 1, "C takes the ring");
        Self { state, _ram: Arc::clone(ram) }
    }

    /// Use these choices.
    pub fn choose(&mut self, choices: Choices) {
        // SAFETY: an open ring.
        unsafe { guest_c_choose(self.state.as_mut_ptr(), choices.word()) };
    }

    /// Publish a request of one segment; is the daemon to be woken?
    pub fn submit(&mut self, operation: u8, tag: u16, sector: u64, (address, sectors): (u64, u16)) -> bool {
        // SAFETY: an open ring.
        let published = unsafe { guest_c_submit(self.state.as_mut_ptr(), operation, tag, sector, address, sectors) };
        assert_ne!(published, 0, "the ring is full");
        published == 2
    }

    /// Tags and statuses that have come.
    pub fn reap(&mut self) -> Vec<(u16, u16)> {
        let (mut tags, mut statuses) = ([0; 14], [0; 14]);
        // SAFETY: an open ring, and room for 14 each.
        let count = unsafe { guest_c_reap(self.state.as_mut_ptr(), tags.as_mut_ptr(), statuses.as_mut_ptr()) };
        let count = usize::try_from(count).expect("the daemon keeps to the protocol");
        tags.into_iter().zip(statuses).take(count).collect()
    }

    /// Arm; `true`: something is there, do not sleep.
    pub fn arm_and_work_remains(&mut self) -> bool {
        // SAFETY: an open ring.
        unsafe { guest_c_arm(self.state.as_mut_ptr()) == 1 }
    }

    /// Awake again.
    pub fn woken(&mut self) {
        // SAFETY: an open ring.
        unsafe { guest_c_woken(self.state.as_mut_ptr()) };
    }
}
