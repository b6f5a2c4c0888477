//! Reading back what was written.

use std::hash::{DefaultHasher, Hasher};

use super::endpoint::Endpoint;
use super::session::Session;
use super::source::{DiskSource, Piece, Source};
use super::{Copied, Manner};
use crate::error::Error;
use crate::units;

/// Checksums of the pieces of a stream, which cannot be read a second time.
pub(super) struct Digests {
    piece_bytes: usize,
    digests: Vec<u64>,
}

impl Digests {
    pub(super) const fn new(piece_bytes: usize) -> Self {
        Self { piece_bytes, digests: Vec::new() }
    }

    /// The next piece; all but the last have the same length.
    pub(super) fn add(&mut self, data: &[u8]) {
        self.digests.push(digest(data));
    }
}

fn digest(data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(data);
    hasher.finish()
}

/// Bytes still to be compared, from either source.
struct Cursor {
    source: Source,
    data: Vec<u8>,
    taken: usize,
    zeroes_bytes: u64,
    offset_bytes: u64,
}

impl Cursor {
    const fn new(source: Source) -> Self {
        Self { source, data: Vec::new(), taken: 0, zeroes_bytes: 0, offset_bytes: 0 }
    }

    /// Fetch more bytes; `false` at the end.
    fn load(&mut self) -> Result<bool, Error> {
        if self.zeroes_bytes > 0 || self.taken < self.data.len() {
            return Ok(true);
        }
        self.taken = 0;
        match self.source.next(&mut self.data)? {
            Some(Piece::Zeroes(length_bytes)) => {
                self.data.clear();
                self.zeroes_bytes = length_bytes;
            }
            Some(Piece::Data) => {}
            None => return Ok(false),
        }
        Ok(true)
    }

    /// The buffered bytes.
    fn available_bytes(&self) -> u64 {
        if self.zeroes_bytes > 0 { self.zeroes_bytes } else { (self.data.len() - self.taken) as u64 }
    }

    /// The next `count` bytes, or `None` for as many zeroes.
    fn peek(&self, count: usize) -> Option<&[u8]> {
        (self.zeroes_bytes == 0).then(|| &self.data[self.taken..self.taken + count])
    }

    fn advance(&mut self, count: u64) {
        self.offset_bytes += count;
        if self.zeroes_bytes > 0 {
            self.zeroes_bytes -= count;
        } else {
            self.taken += usize::try_from(count).unwrap_or(usize::MAX);
        }
    }
}

/// Index of the first byte that differs; `None` means zeroes.
fn first_difference(a: Option<&[u8]>, b: Option<&[u8]>) -> Option<usize> {
    match (a, b) {
        (None, None) => None,
        (Some(data), None) | (None, Some(data)) => data.iter().position(|byte| *byte != 0),
        (Some(a), Some(b)) if a == b => None,
        (Some(a), Some(b)) => a.iter().zip(b).position(|(a, b)| a != b),
    }
}

fn differs(destination: &Endpoint, offset_bytes: u64) -> Error {
    format!("{destination} differs from the source at offset {offset_bytes}; something else writes there, or its storage is bad: copy again").into()
}

/// Note how far the comparison is; a signal ends it.
fn proceed(manner: &Manner, destination: &Endpoint, copied: &Copied, compared_bytes: u64) -> Result<(), Error> {
    manner.bar.set_position(compared_bytes);
    let Some(signal) = manner.interrupt.signal() else { return Ok(()) };
    let [total, compared] = [copied.total_bytes, compared_bytes].map(units::exact_bytes);
    let text = format!("{destination} has all {total}, flushed; the first {compared} were compared and are right");
    Err(Error::interrupted(signal, text))
}

/// Read the destination and compare it with the source, or with its checksums.
pub(super) fn verify(source: &Endpoint, destination: &Endpoint, manner: &Manner, copied: &Copied) -> Result<(), Error> {
    let written = reopen(destination, manner, copied.total_bytes)?;
    if let Some(digests) = &copied.digests {
        return compare_digests(written, digests, destination, manner, copied);
    }
    let mut expected = Cursor::new(Source::open(source, manner)?);
    let mut actual = Cursor::new(written);
    while expected.load()? {
        if !actual.load()? {
            return Err(differs(destination, actual.offset_bytes));
        }
        let count = expected.available_bytes().min(actual.available_bytes());
        let length = usize::try_from(count).unwrap_or(usize::MAX);
        if let Some(index) = first_difference(expected.peek(length), actual.peek(length)) {
            return Err(differs(destination, actual.offset_bytes + index as u64));
        }
        expected.advance(count);
        actual.advance(count);
        proceed(manner, destination, copied, expected.offset_bytes)?;
    }
    // The padding of a disk's last block.
    while actual.load()? {
        let count = actual.available_bytes();
        if let Some(index) = first_difference(actual.peek(usize::try_from(count).unwrap_or(usize::MAX)), None) {
            return Err(differs(destination, actual.offset_bytes + index as u64));
        }
        actual.advance(count);
    }
    Ok(())
}

/// The part of the destination that was written.
fn reopen(destination: &Endpoint, manner: &Manner, total_bytes: u64) -> Result<Source, Error> {
    let Endpoint::Disk { name, socket } = destination else {
        return Source::open(destination, manner);
    };
    let session = Session::attach(socket, name, true, manner)?;
    let end_bytes = total_bytes.next_multiple_of(session.info().block_bytes.into());
    Ok(Source::Disk(Box::new(DiskSource::new(session, end_bytes)?)))
}

fn compare_digests(
    written: Source,
    digests: &Digests,
    destination: &Endpoint,
    manner: &Manner,
    copied: &Copied,
) -> Result<(), Error> {
    let mut actual = Cursor::new(written);
    let mut piece = Vec::new();
    for digest_of_piece in &digests.digests {
        let start_bytes = actual.offset_bytes;
        let left_bytes = copied.total_bytes - start_bytes;
        let length = usize::try_from(left_bytes).unwrap_or(usize::MAX).min(digests.piece_bytes);
        piece.clear();
        while piece.len() < length && actual.load()? {
            let count = actual.available_bytes().min((length - piece.len()) as u64);
            let part = usize::try_from(count).unwrap_or(usize::MAX);
            match actual.peek(part) {
                Some(data) => piece.extend_from_slice(data),
                None => piece.resize(piece.len() + part, 0),
            }
            actual.advance(count);
        }
        if digest(&piece) != *digest_of_piece {
            let end_bytes = start_bytes + length as u64;
            let text = format!(
                "{destination} differs from the source between offset {start_bytes} and {end_bytes}; something else writes there, or its \
                 storage is bad: copy again"
            );
            return Err(text.into());
        }
        proceed(manner, destination, copied, actual.offset_bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_compared_like_data() {
        assert_eq!(first_difference(None, None), None);
        assert_eq!(first_difference(Some(&[0, 0, 1]), None), Some(2));
        assert_eq!(first_difference(None, Some(&[0, 0])), None);
        assert_eq!(first_difference(Some(&[1, 2, 3]), Some(&[1, 2, 4])), Some(2));
    }
}
