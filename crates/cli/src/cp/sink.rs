//! Writing: at any offset to disks and files, in order to streams.

use fipsee_block::client::transfer::{Piece, Pieces};
use fipsee_block::wire::{CAPABILITY_WRITE, CAPABILITY_WRITE_ZEROES, SECTOR_BYTES};

use super::endpoint::Endpoint;
use super::file::FileSink;
use super::session::{Session, Work};
use super::{ALIGN_BYTES, Manner};
use crate::error::Error;
use crate::units;

/// The destination of the bytes.
pub(super) trait Sink {
    fn data(&mut self, offset_bytes: u64, data: &[u8]) -> Result<(), Error>;

    fn zeroes(&mut self, offset_bytes: u64, length_bytes: u64) -> Result<(), Error>;

    /// How many of the first `handed_bytes`, which it was given, are written for certain.
    fn complete_bytes(&self, handed_bytes: u64) -> u64 {
        handed_bytes
    }

    /// Wait until all that it was given is written.
    fn settle(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Make everything durable that it was given, `total_bytes`.
    fn make_durable(&mut self, total_bytes: u64) -> Result<(), Error>;

    /// What the destination has when the copy ends early, with that many bytes durable.
    fn remains(&self, bytes: u64) -> String;

    /// The same at the end of the copy.
    fn finish(mut self: Box<Self>, total_bytes: u64) -> Result<(), Error> {
        self.make_durable(total_bytes)
    }
}

/// Open the destination, once it is known to have room for `size_bytes` (`None`: unknown yet).
pub(super) fn open(
    place: &Endpoint,
    manner: &Manner,
    source: &Endpoint,
    size_bytes: Option<u64>,
) -> Result<Box<dyn Sink>, Error> {
    Ok(match place {
        Endpoint::Disk { name, socket } => {
            Box::new(DiskSink::new(Session::attach(socket, name, false, manner)?, source, size_bytes)?)
        }
        Endpoint::File(path) => Box::new(FileSink::create(path, size_bytes)?),
        Endpoint::Standard => Box::new(FileSink::standard()?),
    })
}

/// Writes a disk.
pub(super) struct DiskSink {
    session: Session,
    source: String,
    block_bytes: u64,
    size_bytes: u64,
    /// Bytes of one request for zeroes; 0 when the disk does not support it.
    zero_range_bytes: u64,
    /// A run of zeroes that may still grow: start and length.
    pending_zeroes: (u64, u64),
}

impl DiskSink {
    fn new(session: Session, source: &Endpoint, source_bytes: Option<u64>) -> Result<Self, Error> {
        let info = session.info();
        let (name, size_bytes) = (session.name(), info.size_bytes());
        if !info.can(CAPABILITY_WRITE) {
            return Err(format!("disk '{name}' is exported for reading only; serve it without ro to write it").into());
        }
        if let Some(source_bytes) = source_bytes.filter(|source_bytes| *source_bytes > size_bytes) {
            return Err(too_large(source, source_bytes, name, size_bytes));
        }
        let longest_bytes = u64::from(info.max_range_sectors) * SECTOR_BYTES / ALIGN_BYTES as u64 * ALIGN_BYTES as u64;
        let zero_range_bytes = if info.can(CAPABILITY_WRITE_ZEROES) { longest_bytes } else { 0 };
        let block_bytes = u64::from(info.block_bytes);
        Ok(Self { session, source: source.shown_as_source(), block_bytes, size_bytes, zero_range_bytes, pending_zeroes: (0, 0) })
    }

    /// A stream may prove too long while it is copied.
    fn check_room(&self, end_bytes: u64) -> Result<(), Error> {
        if end_bytes <= self.size_bytes {
            return Ok(());
        }
        let (source, name, size_bytes) = (&self.source, self.session.name(), self.size_bytes);
        let text = format!(
            "{source} has more than the {size_bytes} bytes of disk '{name}'; nothing beyond them was written, choose a larger disk"
        );
        Err(text.into())
    }

    fn write_pending_zeroes(&mut self) -> Result<(), Error> {
        let (start_bytes, length_bytes) = std::mem::take(&mut self.pending_zeroes);
        let (work, most_bytes) = match self.zero_range_bytes {
            0 => (Work::Write, self.session.request_bytes() as u64),
            range_bytes => (Work::Zero, range_bytes),
        };
        let mut pieces = Pieces::new(1, length_bytes.next_multiple_of(self.block_bytes), most_bytes);
        while let Some(Piece { offset_bytes, length_bytes, .. }) = pieces.next(&[start_bytes]) {
            let lane = self.session.idle_lane()?;
            if work == Work::Write {
                self.session.buffer(lane).fill(0, &vec![0; usize::try_from(length_bytes).unwrap_or(0)]);
            }
            self.session.start(lane, work, offset_bytes, length_bytes)?;
        }
        Ok(())
    }
}

impl Sink for DiskSink {
    fn data(&mut self, offset_bytes: u64, data: &[u8]) -> Result<(), Error> {
        self.check_room(offset_bytes + data.len() as u64)?;
        self.write_pending_zeroes()?;
        let mut offset_bytes = offset_bytes;
        for part in data.chunks(self.session.request_bytes()) {
            let lane = self.session.idle_lane()?;
            let length_bytes = (part.len() as u64).next_multiple_of(self.block_bytes);
            let buffer = self.session.buffer(lane);
            buffer.fill(0, part);
            let padding_bytes = length_bytes - part.len() as u64;
            if padding_bytes > 0 {
                buffer.fill(part.len() as u64, &vec![0; usize::try_from(padding_bytes).unwrap_or(0)]);
            }
            self.session.start(lane, Work::Write, offset_bytes, length_bytes)?;
            offset_bytes += part.len() as u64;
        }
        Ok(())
    }

    fn zeroes(&mut self, offset_bytes: u64, length_bytes: u64) -> Result<(), Error> {
        self.check_room(offset_bytes + length_bytes)?;
        let (start_bytes, pending_bytes) = self.pending_zeroes;
        if pending_bytes > 0 && start_bytes + pending_bytes == offset_bytes {
            self.pending_zeroes.1 += length_bytes;
            return Ok(());
        }
        self.write_pending_zeroes()?;
        self.pending_zeroes = (offset_bytes, length_bytes);
        Ok(())
    }

    fn complete_bytes(&self, handed_bytes: u64) -> u64 {
        let pending = self.pending_zeroes;
        let pending_start = if pending.1 > 0 { pending.0 } else { handed_bytes };
        pending_start.min(self.session.first_busy_byte().unwrap_or(handed_bytes))
    }

    fn settle(&mut self) -> Result<(), Error> {
        self.write_pending_zeroes()?;
        self.session.wait_for_all()
    }

    fn make_durable(&mut self, _total_bytes: u64) -> Result<(), Error> {
        self.settle()?;
        self.session.flush()
    }

    fn remains(&self, bytes: u64) -> String {
        let (name, bytes, size) = (self.session.name(), units::exact_bytes(bytes), units::bytes(self.size_bytes));
        format!("disk '{name}' has the first {bytes}, flushed; the rest of its {size} is as it was")
    }

    fn finish(mut self: Box<Self>, total_bytes: u64) -> Result<(), Error> {
        self.make_durable(total_bytes)?;
        let (session, name) = (&self.session, self.session.name());
        let written_bytes = total_bytes.next_multiple_of(self.block_bytes);
        if written_bytes > total_bytes {
            let padding_bytes = written_bytes - total_bytes;
            session.note(format_args!(
                "the last block of disk '{name}' was filled up with {padding_bytes} zero bytes (its blocks have {})",
                self.block_bytes
            ));
        }
        if written_bytes < self.size_bytes {
            let rest_bytes = self.size_bytes - written_bytes;
            session.note(format_args!(
                "the source is shorter than disk '{name}'; the last {rest_bytes} of its {} bytes are as they were",
                self.size_bytes
            ));
        }
        self.session.detach()
    }
}

fn too_large(source: &Endpoint, source_bytes: u64, name: &str, size_bytes: u64) -> Error {
    format!(
        "{source} has {source_bytes} bytes but disk '{name}' only {size_bytes}; choose a larger disk, or enlarge it: fipsee resize {name} {}",
        source_bytes.next_multiple_of(ALIGN_BYTES as u64)
    )
    .into()
}
