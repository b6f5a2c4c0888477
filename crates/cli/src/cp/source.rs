//! Reading, piece by piece and in order.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;

use fipsee_block::client::transfer::Pieces;

use super::Manner;
use super::endpoint::Endpoint;
use super::file::FileSource;
use super::session::{Session, Work};
use crate::error::Error;
use crate::interrupt::Interrupt;

/// The next piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Bytes that were stored in the caller's vector: a whole request, except at the end.
    Data,
    /// A number of zeroes that need not be read.
    Zeroes(u64),
}

/// The source of the bytes.
pub(super) enum Source {
    /// A disk.
    Disk(Box<DiskSource>),
    /// A file with offsets.
    File(FileSource),
    /// What can be read only once.
    Stream(Stream),
}

impl Source {
    pub(super) fn open(place: &Endpoint, manner: &Manner) -> Result<Self, Error> {
        match place {
            Endpoint::Disk { name, socket } => {
                let session = Session::attach(socket, name, true, manner)?;
                let size_bytes = session.info().size_bytes();
                Ok(Self::Disk(Box::new(DiskSource::new(session, size_bytes)?)))
            }
            Endpoint::File(path) => super::file::open_source(path, manner),
            Endpoint::Standard => {
                let duplicate = io::stdin().as_fd().try_clone_to_owned();
                let file = duplicate.map_err(|error| Error::io("use standard input", &error))?.into();
                Ok(Self::Stream(Stream::new(file, "standard input".to_owned(), manner)))
            }
        }
    }

    /// Size in bytes, where it is known before the end.
    pub(super) const fn size_bytes(&self) -> Option<u64> {
        match self {
            Self::Disk(disk) => Some(disk.end_bytes),
            Self::File(file) => Some(file.size_bytes()),
            Self::Stream(_) => None,
        }
    }

    pub(super) const fn can_be_read_again(&self) -> bool {
        !matches!(self, Self::Stream(_))
    }

    /// The next piece; `None` at the end.
    pub(super) fn next(&mut self, data: &mut Vec<u8>) -> Result<Option<Piece>, Error> {
        match self {
            Self::Disk(disk) => disk.next(data),
            Self::File(file) => file.next(data),
            Self::Stream(stream) => stream.next(data).map_err(|error| Error::io(format_args!("read {}", stream.shown), &error)),
        }
    }
}

/// Reads in order, and stops waiting for more when a signal comes.
pub(super) struct Stream {
    file: File,
    /// Its name, for errors.
    shown: String,
    /// Bytes of a piece.
    request_bytes: usize,
    interrupt: Arc<Interrupt>,
}

impl Stream {
    pub(super) fn new(file: File, shown: String, manner: &Manner) -> Self {
        Self { file, shown, request_bytes: manner.request_bytes, interrupt: Arc::clone(&manner.interrupt) }
    }

    /// The next piece; `None` at the end and after a signal, which a part of a piece does not survive.
    fn next(&mut self, data: &mut Vec<u8>) -> io::Result<Option<Piece>> {
        data.resize(self.request_bytes, 0);
        let mut filled = 0;
        while filled < data.len() {
            if !self.interrupt.wait_to_read(&self.file)? {
                return Ok(None);
            }
            match self.file.read(&mut data[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        data.truncate(filled);
        Ok((filled > 0).then_some(Piece::Data))
    }
}

/// Reads a disk from its start, as many requests ahead as there are lanes.
pub(super) struct DiskSource {
    session: Session,
    /// What is asked for next.
    ahead: Pieces,
    /// What the caller gets next.
    taken_bytes: u64,
    end_bytes: u64,
    lane: usize,
}

impl DiskSource {
    /// Read `end_bytes`, a multiple of the block size.
    pub(super) fn new(session: Session, end_bytes: u64) -> Result<Self, Error> {
        let ahead = Pieces::new(1, end_bytes, session.request_bytes() as u64);
        let mut source = Self { session, ahead, taken_bytes: 0, end_bytes, lane: 0 };
        for lane in 0..source.session.lane_count() {
            source.ask(lane)?;
        }
        Ok(source)
    }

    fn ask(&mut self, lane: usize) -> Result<(), Error> {
        self.ahead.next(&[0]).map_or(Ok(()), |piece| self.session.start(lane, Work::Read, piece.offset_bytes, piece.length_bytes))
    }

    /// The next piece, always data.
    pub(super) fn next(&mut self, data: &mut Vec<u8>) -> Result<Option<Piece>, Error> {
        if self.taken_bytes == self.end_bytes {
            return Ok(None);
        }
        self.session.take(self.lane, data)?;
        self.taken_bytes += data.len() as u64;
        self.ask(self.lane)?;
        self.lane = (self.lane + 1) % self.session.lane_count();
        Ok(Some(Piece::Data))
    }
}
