//! All requests except reads and writes.

use fipsee_block::disk::{Disk, Engine, Submitted};
use fipsee_block::request::Request;
use fipsee_block::wire::{
    CAPABILITY_DISCARD, CAPABILITY_FLUSH, CAPABILITY_FUA, CAPABILITY_WRITE, CAPABILITY_WRITE_ZEROES, Operation, Status,
};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};

use super::serve::Header;
use super::{SERIAL_BYTES, StatusAddress, VirtqueueServer};
use crate::blk::config::{MAX_DISCARD_SEGMENTS, MAX_WRITE_ZEROES_SEGMENTS};
use crate::blk::upgrade::wire::REQUEST_TYPE;
use crate::core::queue::chain::total_bytes;

fipsee_ring::wire_structures! {
    /// `struct virtio_blk_discard_write_zeroes`: a segment of discard and write-zeroes.
    Range: 16 { 0 sector: u64, 8 sector_count: u32, 12 flags: u32 }
}

const SEGMENT_BYTES: usize = size_of::<Range>();

impl VirtqueueServer {
    #[cold]
    #[inline(never)]
    pub(super) fn serve_rare<D: Disk>(
        &mut self,
        header: &Header,
        at: &StatusAddress,
        disk: &D,
        engine: &mut Engine,
        started_ticks: u64,
    ) {
        let counter = match header.kind {
            VIRTIO_BLK_T_FLUSH => &self.counters.flushes,
            VIRTIO_BLK_T_DISCARD => &self.counters.discards,
            VIRTIO_BLK_T_WRITE_ZEROES => &self.counters.write_zeroes,
            _ => &self.counters.rest,
        };
        counter.add(1);
        let requests = match header.kind {
            VIRTIO_BLK_T_FLUSH => {
                self.limits.needs(CAPABILITY_FLUSH).map(|()| vec![self.plain_request(Operation::Flush, at.head)])
            }
            VIRTIO_BLK_T_GET_ID => return self.serve_id(at),
            VIRTIO_BLK_T_DISCARD => self.ranges(Operation::Discard, at.head),
            VIRTIO_BLK_T_WRITE_ZEROES => self.ranges(Operation::WriteZeroes, at.head),
            REQUEST_TYPE => return self.serve_upgrade_request(header, at),
            _ => Err(Status::Unsupported),
        };
        match requests {
            Ok(requests) => self.begin(&requests, at, disk, engine, started_ticks),
            Err(status) => self.answer(at, status),
        }
    }

    fn serve_id(&mut self, at: &StatusAddress) {
        let room_bytes = total_bytes(self.queue.chain.writable());
        let put = self.queue.write(self.queue.chain.writable(), &self.serial);
        let mut at = *at;
        at.used_bytes = used_bytes(room_bytes, SERIAL_BYTES);
        self.answer(&at, if put { Status::Ok } else { Status::BadMemory });
    }

    /// The ranges of a discard or write-zeroes, all checked before the first one is started.
    fn ranges(&self, operation: Operation, head: u16) -> Result<Vec<Request>, Status> {
        let is_discard = operation == Operation::Discard;
        let most = self.limits.max_range_sectors;
        let (capability, max_segments, flags_known, max_sectors) = match is_discard {
            true => (CAPABILITY_DISCARD, MAX_DISCARD_SEGMENTS, 0, most / u64::from(MAX_DISCARD_SEGMENTS)),
            false => (CAPABILITY_WRITE_ZEROES, MAX_WRITE_ZEROES_SEGMENTS, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP, most),
        };
        self.limits.needs(CAPABILITY_WRITE | capability)?;
        let limit = SEGMENT_BYTES * max_segments as usize;
        let bytes = self.queue.read(limit).ok_or(Status::BadMemory)?;
        let (segments, []) = bytes.as_chunks::<SEGMENT_BYTES>() else { return Err(Status::Invalid) };
        if segments.is_empty() {
            return Err(Status::NoSegments);
        }
        let durable = !is_discard && self.writes_through() && self.limits.capabilities & CAPABILITY_FUA != 0;
        let range = |segment: &[u8; SEGMENT_BYTES]| {
            let Range { sector, sector_count, flags } = zerocopy::transmute!(*segment);
            let length_sectors = u64::from(sector_count);
            if flags & !flags_known != 0 {
                return Err(Status::Unsupported);
            }
            if length_sectors == 0 || length_sectors > max_sectors {
                return Err(Status::TooLong);
            }
            self.limits.range(sector, length_sectors)?;
            let unmap = flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
            Ok(Request { operation, tag: head, fua: durable, unmap, sector, length_sectors, aux: 0 })
        };
        segments.iter().map(range).collect()
    }

    /// Hand the parts of a request to the disk.
    fn begin<D: Disk>(&mut self, requests: &[Request], at: &StatusAddress, disk: &D, engine: &mut Engine, started_ticks: u64) {
        let is_volatile = requests.iter().any(|request| request.operation == Operation::WriteZeroes && !request.fua);
        let then_flush = is_volatile && self.writes_through();
        let job = &mut self.jobs[usize::from(at.head)];
        (job.place, job.status, job.then_flush) = (*at, Status::Ok, then_flush);
        job.parts = u32::try_from(requests.len()).unwrap_or(0);
        job.written.clear();
        self.queue.hold(at.head);
        for request in requests {
            // SAFETY: there is no memory.
            match unsafe { self.submit(request, disk, engine, started_ticks) } {
                Submitted::Done(status) => self.part_is_done(at.head, status),
                Submitted::Pending => self.operations += 1,
            }
        }
    }
}

/// Bytes that were written in one piece, when `written_bytes` were put into room for `room_bytes`, followed by the status.
pub(super) fn used_bytes(room_bytes: u64, written_bytes: usize) -> u32 {
    let written = room_bytes.min(written_bytes as u64);
    u32::try_from(written + u64::from(written == room_bytes)).unwrap_or(u32::MAX)
}
