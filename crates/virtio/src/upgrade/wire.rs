//! Questions and replies on the wire. Twin of `include/fipsee_vm.h`.

/// Type of the virtio-blk requests that carry a question and a reply. Bit 0 is clear: older devices mask it away.
pub const REQUEST_TYPE: u32 = 0x4649_5030;
/// First word of a question.
pub const MAGIC: u32 = u32::from_le_bytes(*b"FiUP");
/// The version of questions and replies.
pub const VERSION: u16 = 1;
/// Bytes of a question, of each of the entries that follow it in an attach, and of a reply.
pub const PART_BYTES: usize = 64;
/// Bits of a guest-physical address below a segment's memory id.
pub const REGION_SHIFT: u32 = 41;
