//! Files and devices: sources that find holes, sinks that make them.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fipsee_block::disk::file::{lock_to_copy, lock_to_overwrite};
use rustix::fs::OFlags;

use super::sink::Sink;
use super::source::{Piece, Source, Stream};
use super::{Manner, ZERO_RUN_BYTES, ZEROES};
use crate::error::Error;
use crate::units;

/// A file or block device that is read from its start.
pub(super) struct FileSource {
    file: File,
    shown: String,
    size_bytes: u64,
    offset_bytes: u64,
    request_bytes: usize,
    /// The start of the data found last.
    data_from_bytes: u64,
    /// The end of the data found last.
    data_until_bytes: u64,
}

/// Open a file, a block device, or a stream that can be read only once. A file that another program writes is no copy of anything.
pub(super) fn open_source(path: &Path, manner: &Manner) -> Result<Source, Error> {
    let shown = path.display().to_string();
    let cannot = |error: std::io::Error| Error::io(format_args!("read {shown}"), &error);
    let mut file = File::open(path).map_err(cannot)?;
    let kind = file.metadata().map_err(cannot)?.file_type();
    if kind.is_dir() {
        return Err(cannot(rustix::io::Errno::ISDIR.into()));
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Ok(Source::Stream(Stream::new(file, shown, manner)));
    }
    lock_to_copy(path, &file).map_err(|text| format!("{text}, or copy what it serves"))?;
    let size_bytes = file.seek(SeekFrom::End(0)).map_err(cannot)?;
    Ok(Source::File(FileSource {
        file,
        shown,
        size_bytes,
        offset_bytes: 0,
        request_bytes: manner.request_bytes,
        data_from_bytes: 0,
        data_until_bytes: 0,
    }))
}

impl FileSource {
    pub(super) const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(super) fn next(&mut self, data: &mut Vec<u8>) -> Result<Option<Piece>, Error> {
        if self.offset_bytes == self.size_bytes {
            return Ok(None);
        }
        let hole_bytes = self.hole_bytes();
        if hole_bytes > 0 {
            self.offset_bytes += hole_bytes;
            return Ok(Some(Piece::Zeroes(hole_bytes)));
        }
        let left_bytes = self.size_bytes - self.offset_bytes;
        let length = usize::try_from(left_bytes).unwrap_or(usize::MAX).min(self.request_bytes);
        data.resize(length, 0);
        self.file.read_exact_at(data, self.offset_bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => format!("{} became shorter while it was copied; copy it again", self.shown).into(),
            _ => Error::io(format_args!("read {} at offset {}", self.shown, self.offset_bytes), &error),
        })?;
        self.offset_bytes += length as u64;
        Ok(Some(Piece::Data))
    }

    /// The length of the hole from here on, in whole runs, so that requests stay aligned. 0 also where the file
    /// system cannot report holes.
    fn hole_bytes(&mut self) -> u64 {
        if self.offset_bytes >= self.data_until_bytes {
            let seek = |whence| rustix::fs::seek(&self.file, whence);
            self.data_from_bytes = match seek(rustix::fs::SeekFrom::Data(self.offset_bytes)) {
                Ok(offset_bytes) => offset_bytes,
                // A hole up to the end.
                Err(rustix::io::Errno::NXIO) => self.size_bytes,
                Err(_) => self.offset_bytes,
            };
            let until = seek(rustix::fs::SeekFrom::Hole(self.data_from_bytes));
            self.data_until_bytes = until.unwrap_or(self.size_bytes).max(self.data_from_bytes);
        }
        let hole_bytes = self.data_from_bytes.min(self.size_bytes).saturating_sub(self.offset_bytes);
        if self.offset_bytes + hole_bytes == self.size_bytes {
            hole_bytes
        } else {
            hole_bytes / ZERO_RUN_BYTES as u64 * ZERO_RUN_BYTES as u64
        }
    }
}

/// A file or device to write.
pub(super) struct FileSink {
    file: File,
    /// Where it was opened.
    path: Option<PathBuf>,
    shown: String,
    kind: SinkKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SinkKind {
    /// New and empty: unwritten parts read as zeroes.
    Regular,
    /// Has offsets, and old content.
    Device,
    /// A pipe and the like.
    Stream,
}

impl FileSink {
    /// Create or empty the file at `path`, or open the device there. `size_bytes` is the length of the copy, if known. What a
    /// daemon serves or another program has locked is refused with its content as it was.
    pub(super) fn create(path: &Path, size_bytes: Option<u64>) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let cannot = |error: std::io::Error| Error::io(format_args!("write {shown}"), &error);
        let found = std::fs::metadata(path).ok().map(|metadata| metadata.file_type());
        let mut open = OpenOptions::new();
        open.write(true);
        match found {
            // Refused by the kernel while the device is mounted or part of another.
            Some(kind) if kind.is_block_device() => open.custom_flags(OFlags::EXCL.bits().cast_signed()),
            Some(kind) if !kind.is_file() => &mut open,
            // Not emptied before it is locked.
            _ => open.create(true).truncate(false),
        };
        let mut file = open.open(path).map_err(|error| match error.kind() {
            ErrorKind::ResourceBusy => format!("{shown} is mounted or otherwise in use; unmount it, or choose another").into(),
            _ => Error::io_at("write", path, &error),
        })?;
        let opened = file.metadata().map_err(cannot)?.file_type();
        if opened.is_file() || opened.is_block_device() {
            lock_to_overwrite(path, &file).map_err(|text| format!("{text}, or choose another destination"))?;
        }
        let kind = if opened.is_file() {
            file.set_len(0).map_err(cannot)?;
            SinkKind::Regular
        } else if opened.is_block_device() {
            let room_bytes = file.seek(SeekFrom::End(0)).map_err(cannot)?;
            if size_bytes.is_some_and(|size_bytes| size_bytes > room_bytes) {
                let size_bytes = size_bytes.unwrap_or(0);
                return Err(
                    format!("the source has {size_bytes} bytes but {shown} only {room_bytes}; choose a larger device").into()
                );
            }
            SinkKind::Device
        } else {
            SinkKind::Stream
        };
        Ok(Self { file, path: Some(path.to_owned()), shown, kind })
    }

    /// Standard output, which is always written in order.
    pub(super) fn standard() -> Result<Self, Error> {
        let duplicate = std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned();
        let file = duplicate.map_err(|error| Error::io("use standard output", &error))?.into();
        Ok(Self { file, path: None, shown: "standard output".to_owned(), kind: SinkKind::Stream })
    }
}

impl Sink for FileSink {
    fn data(&mut self, offset_bytes: u64, data: &[u8]) -> Result<(), Error> {
        let written = match self.kind {
            SinkKind::Stream => self.file.write_all(data),
            SinkKind::Regular | SinkKind::Device => self.file.write_all_at(data, offset_bytes),
        };
        written.map_err(|error| Error::io(format_args!("write {} at offset {offset_bytes}", self.shown), &error))
    }

    fn zeroes(&mut self, offset_bytes: u64, length_bytes: u64) -> Result<(), Error> {
        if self.kind == SinkKind::Regular {
            return Ok(());
        }
        let mut done_bytes = 0;
        while done_bytes < length_bytes {
            let part = usize::try_from(length_bytes - done_bytes).unwrap_or(usize::MAX).min(ZEROES.len());
            self.data(offset_bytes + done_bytes, &ZEROES[..part])?;
            done_bytes += part as u64;
        }
        Ok(())
    }

    /// Give a file its length and make it durable, name included.
    fn make_durable(&mut self, total_bytes: u64) -> Result<(), Error> {
        let cannot = |error: std::io::Error| Error::io(format_args!("finish {}", self.shown), &error);
        if self.kind == SinkKind::Regular {
            self.file.set_len(total_bytes).map_err(cannot)?;
        }
        if self.kind != SinkKind::Stream {
            self.file.sync_all().map_err(cannot)?;
        }
        let directory = self.path.as_deref().filter(|_| self.kind == SinkKind::Regular).and_then(Path::parent);
        if let Some(directory) = directory {
            let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
            // A directory that may be written but not read cannot be synchronised; the data is safe all the same.
            let _ = File::open(directory).and_then(|directory| directory.sync_all());
        }
        Ok(())
    }
    fn remains(&self, bytes: u64) -> String {
        let (shown, bytes) = (&self.shown, units::exact_bytes(bytes));
        match self.kind {
            SinkKind::Regular => format!("{shown} has the first {bytes}, flushed, and ends there"),
            SinkKind::Device => format!("{shown} has the first {bytes}, flushed; the rest is as it was"),
            SinkKind::Stream => format!("{shown} got the first {bytes}"),
        }
    }
}
