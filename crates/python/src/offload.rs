//! `fipsee.Offload`: what a frame leaves to be done.

use fipsee_net::wire::{
    CHECKSUM_NEEDED, CHECKSUM_VALID, OFFLOAD_CHECKSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6, OFFLOAD_USO, Offload as Wire,
    SEGMENT_ECN, SEGMENT_TCP4, SEGMENT_TCP6, SEGMENT_UDP,
};
use pyo3::prelude::*;

/// What a frame leaves to be done, in the order of a virtio-net header: nothing if all is 0.
///
/// `flags`: NEEDS_CHECKSUM, the checksum that begins at `checksum_start` and has its place `checksum_offset` behind that is left to be done;
/// or CHECKSUM_VALID. `segmentation`: 0, or TCP4, TCP6 (both also with ECN added) or UDP, of which each segment is to have `segment_size`
/// bytes of payload. `header_size`: of all headers, of frames that are received.
#[pyclass(frozen, eq, hash, from_py_object, module = "fipsee")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Offload {
    #[pyo3(get)]
    flags: u8,
    #[pyo3(get)]
    segmentation: u8,
    #[pyo3(get)]
    header_size: u16,
    #[pyo3(get)]
    segment_size: u16,
    #[pyo3(get)]
    checksum_start: u16,
    #[pyo3(get)]
    checksum_offset: u16,
}

impl From<Wire> for Offload {
    fn from(Wire { flags, segmentation, header_bytes, segment_bytes, checksum_start, checksum_offset }: Wire) -> Self {
        let (header_size, segment_size) = (header_bytes, segment_bytes);
        Self { flags, segmentation, header_size, segment_size, checksum_start, checksum_offset }
    }
}

impl From<Offload> for Wire {
    fn from(Offload { flags, segmentation, header_size, segment_size, checksum_start, checksum_offset }: Offload) -> Self {
        let (header_bytes, segment_bytes) = (header_size, segment_size);
        Self { flags, segmentation, header_bytes, segment_bytes, checksum_start, checksum_offset }
    }
}

#[pymethods]
impl Offload {
    /// For `Port(offloads=...)`, added to each other: what frames may leave to be done.
    #[classattr]
    const CHECKSUM: u32 = OFFLOAD_CHECKSUM;
    #[classattr]
    const TSO4: u32 = OFFLOAD_TSO4;
    #[classattr]
    const TSO6: u32 = OFFLOAD_TSO6;
    #[classattr]
    const TSO_ECN: u32 = OFFLOAD_ECN;
    #[classattr]
    const USO: u32 = OFFLOAD_USO;
    /// Of `flags`.
    #[classattr]
    const NEEDS_CHECKSUM: u8 = CHECKSUM_NEEDED;
    #[classattr]
    const CHECKSUM_VALID: u8 = CHECKSUM_VALID;
    /// Of `segmentation`.
    #[classattr]
    const TCP4: u8 = SEGMENT_TCP4;
    #[classattr]
    const TCP6: u8 = SEGMENT_TCP6;
    #[classattr]
    const UDP: u8 = SEGMENT_UDP;
    #[classattr]
    const ECN: u8 = SEGMENT_ECN;

    #[new]
    #[pyo3(signature = (*, flags=0, segmentation=0, header_size=0, segment_size=0, checksum_start=0, checksum_offset=0))]
    const fn new(
        flags: u8,
        segmentation: u8,
        header_size: u16,
        segment_size: u16,
        checksum_start: u16,
        checksum_offset: u16,
    ) -> Self {
        Self { flags, segmentation, header_size, segment_size, checksum_start, checksum_offset }
    }

    fn __repr__(&self) -> String {
        let Self { flags, segmentation, header_size, segment_size, checksum_start, checksum_offset } = self;
        format!(
            "fipsee.Offload(flags={flags}, segmentation={segmentation}, header_size={header_size}, segment_size={segment_size}, \
             checksum_start={checksum_start}, checksum_offset={checksum_offset})"
        )
    }
}
