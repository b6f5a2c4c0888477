//! Memory of the guest.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::Mutex;

use fipsee_ring::region::Region;

/// One piece of it.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Where the guest sees it.
    pub guest_address: u64,
    /// The memory.
    pub region: Arc<Region>,
}

/// Where the hypervisor claims to see guest-physical address 0. Never an address of ours: the daemon must not follow it.
pub const USER_OFFSET: u64 = 0x5000_0000_0000;

impl Piece {
    /// `length_bytes` of zeroes at `guest_address`.
    pub fn new(guest_address: u64, length_bytes: u64) -> Self {
        let region = Region::create("fipsee-guest", length_bytes).expect("memory for a guest");
        Self { guest_address, region: Arc::new(region) }
    }

    /// First address behind it.
    pub fn end(&self) -> u64 {
        self.guest_address + self.region.length_bytes()
    }

    /// The memory file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}

/// All of it.
#[derive(Debug)]
pub struct Ram {
    /// The pieces, by address.
    pub pieces: Vec<Piece>,
    next_free: Mutex<u64>,
}

impl Ram {
    /// Memory of these pieces; allocations come out of the first.
    pub fn new(pieces: Vec<Piece>) -> Arc<Self> {
        let first = pieces.first().expect("a guest has memory");
        // Address 0 stays free: it would hide mistakes.
        let next_free = Mutex::new(first.guest_address + 4096);
        Arc::new(Self { pieces, next_free })
    }

    /// So many bytes, never given away before, of zeroes.
    pub fn allocate(&self, length_bytes: u64, align_bytes: u64) -> u64 {
        let mut next_free = self.next_free.lock().expect("no panic with it");
        let address = next_free.next_multiple_of(align_bytes);
        *next_free = address + length_bytes;
        assert!(*next_free <= self.pieces[0].end(), "the guest's memory is used up; give it more");
        address
    }

    /// The piece that holds these bytes, and where they begin in it.
    pub fn find(&self, address: u64, length_bytes: u64) -> (&Piece, u64) {
        let holds = |piece: &&Piece| piece.guest_address <= address && address + length_bytes <= piece.end();
        let piece = self.pieces.iter().find(holds).unwrap_or_else(|| panic!("{address:#x}+{length_bytes} is no memory"));
        (piece, address - piece.guest_address)
    }

    /// Our address of it.
    pub fn pointer(&self, address: u64, length_bytes: u64) -> *mut u8 {
        let (piece, offset) = self.find(address, length_bytes);
        piece.region.pointer("guest memory", offset, length_bytes).expect("just found").as_ptr()
    }

    /// Put bytes there.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        let (mut address, mut rest) = (address, bytes);
        while !rest.is_empty() {
            let (piece, offset) = self.find(address, 1);
            let count = usize::try_from((piece.end() - address).min(rest.len() as u64)).expect("small");
            piece.region.write(offset, &rest[..count]).expect("just found");
            address += count as u64;
            rest = &rest[count..];
        }
    }

    /// The bytes there.
    pub fn read(&self, address: u64, length_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; length_bytes];
        let mut filled = 0;
        while filled < length_bytes {
            let (piece, offset) = self.find(address + filled as u64, 1);
            let left = piece.region.length_bytes() - offset;
            let count = usize::try_from(left.min((length_bytes - filled) as u64)).expect("small");
            piece.region.read(offset, &mut bytes[filled..filled + count]).expect("just found");
            filled += count;
        }
        bytes
    }
}
