//! TFRecord files: length, masked CRC32C of the length, data, masked CRC32C of the data, for each record.
//!
//! Format: <https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details>. The scan checks every
//! length (a wrong one makes the rest of the file unreadable), each read checks the data.

use std::io::{BufReader, Cursor, Read, Seek};
use std::path::Path;

use super::index::{Offsets, Range};
use super::indexed::{Bytes, Indexed, Taking, make_index};
use super::{
    Bad, Error, Fingerprint, Kind, PROGRESS_EVERY, Progress, Result, SCAN_BUFFER, Span, read_all,
    read_good, unreadable,
};
use crate::net::frame::{u32_at, u64_at};

/// Length and its checksum.
pub const HEAD: u64 = 12;
/// The data's checksum.
pub const TAIL: u64 = 4;

/// Masks a CRC, so that the CRC of data that contains CRCs is still a good one.
pub fn masked_crc(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

/// Returns the length of the data if `head` is the head of a record with a right checksum.
fn length(head: &[u8; HEAD as usize]) -> Option<u64> {
    (masked_crc(&head[..8]) == u32_at(head, 8)).then(|| u64_at(head, 0))
}

/// Returns the head, the data and the data's checksum of a record.
fn split(record: &[u8]) -> Option<(&[u8; HEAD as usize], &[u8], &[u8; TAIL as usize])> {
    let (head, rest) = record.split_first_chunk()?;
    let (data, crc) = rest.split_last_chunk()?;
    Some((head, data, crc))
}

/// Says whether bytes that begin a file are the head of a TFRecord.
pub fn looks_like(start: &[u8]) -> bool {
    start
        .first_chunk()
        .is_some_and(|head| length(head).is_some())
}

/// Scans `path` and writes `index`, unless it is there and fits; returns the number of records.
pub fn index(path: &Path, index: &Path, progress: &mut Progress) -> Result<u64> {
    make_index(
        path,
        index,
        Kind::TFRecord,
        progress,
        |file, size, found, progress| scan(path, file, size, found, progress),
    )
}

/// Finds the records of what has so many bytes.
fn scan(
    path: &Path,
    input: impl Read + Seek,
    size: u64,
    found: &mut impl Offsets,
    progress: &mut Progress,
) -> Result<()> {
    let mut reader = BufReader::with_capacity(SCAN_BUFFER, input);
    let (mut offset, mut record, mut told) = (0_u64, 0_u64, 0);
    while offset < size {
        let left = size.saturating_sub(offset);
        let truncated = |needed| Error::Truncated {
            path: path.to_owned(),
            record,
            offset,
            needed,
            left,
        };
        if left < HEAD {
            return Err(truncated(HEAD + TAIL));
        }
        let mut head = [0; HEAD as usize];
        reader
            .read_exact(&mut head)
            .map_err(|source| unreadable(path, source))?;
        let Some(length) = length(&head) else {
            return Err(corrupt(
                path,
                record,
                offset,
                "the checksum of its length is wrong, nothing after it can be read",
            ));
        };
        let needed = length.saturating_add(HEAD + TAIL);
        if needed > left {
            return Err(truncated(needed));
        }
        found.push(offset)?;
        reader
            .seek_relative(length.saturating_add(TAIL) as i64)
            .map_err(|source| unreadable(path, source))?;
        offset = offset.saturating_add(needed);
        record = record.saturating_add(1);
        if offset.saturating_sub(told) >= PROGRESS_EVERY {
            told = offset;
            progress(offset, size).map_err(|_| Error::Stopped)?;
        }
    }
    Ok(())
}

fn corrupt(path: &Path, record: u64, offset: u64, what: &str) -> Error {
    Error::Corrupt {
        path: path.to_owned(),
        record,
        place: format!("byte {offset}"),
        what: what.to_owned(),
    }
}

/// Random access to the records of one file.
pub struct TFRecordFile {
    source: Indexed,
}

impl TFRecordFile {
    /// Opens a file with its index. Refuses an index of another state of the file.
    pub fn open(path: &Path, index: &Path) -> Result<Self> {
        let source = Indexed::open(path, index, Kind::TFRecord)?;
        Ok(Self { source })
    }

    /// Finds the records of `bytes`; errors call them `path`.
    pub fn within(path: &Path, bytes: Bytes) -> Result<Self> {
        let source = Indexed::within(path, bytes, |content, found| {
            let size = content.len() as u64;
            scan(path, Cursor::new(content), size, found, &mut |_, _| Ok(()))
        })?;
        Ok(Self { source })
    }

    pub fn count(&self) -> u64 {
        self.source.count()
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.source.fingerprint()
    }

    /// Reads the bytes of some records in a row at once, for reads of them that follow; None if that is not worth it, or can't be.
    pub fn span(&self, first: u64, end: u64) -> Option<Span> {
        self.source.span(first, end)
    }

    /// Returns the records in the order asked; the first bad one is the error. Those that `span` has are taken from it.
    pub fn read(&self, records: &[u64], span: Option<&Span>) -> Result<Vec<Vec<u8>>> {
        self.source.check_unchanged()?;
        let ranges = self.source.ranges(records)?;
        let mut taking = self.source.taking(&ranges, span);
        read_all(records, &ranges, |record, range| {
            self.read_one(&mut taking, record, range)
        })
    }

    /// Returns the good ones of the records in the order asked, and what is wrong with the others.
    pub fn read_good(&self, records: &[u64], span: Option<&Span>) -> Result<(Vec<Vec<u8>>, Bad)> {
        self.source.check_unchanged()?;
        let ranges = self.source.ranges(records)?;
        let mut taking = self.source.taking(&ranges, span);
        read_good(records, &ranges, |record, range| {
            self.read_one(&mut taking, record, range)
        })
    }

    fn read_one(&self, taking: &mut Taking, record: u64, range: Option<Range>) -> Result<Vec<u8>> {
        let range = self.source.found(record, range, self.count())?;
        let (begin, bytes) = (range.0, taking.bytes(range)?);
        // Shorter than any record.
        let Some((head, data, crc)) = split(bytes) else {
            return Err(self.source.misleads(record));
        };
        match length(head) {
            Some(stored) if stored == data.len() as u64 => {}
            // The data is right and says otherwise.
            Some(_) => return Err(self.source.misleads(record)),
            None => {
                return Err(corrupt(
                    &self.source.path,
                    record,
                    begin,
                    "its length is damaged",
                ));
            }
        }
        if masked_crc(data) != u32::from_le_bytes(*crc) {
            return Err(corrupt(
                &self.source.path,
                record,
                begin,
                "the checksum of its data is wrong",
            ));
        }
        Ok(data.to_vec())
    }
}
