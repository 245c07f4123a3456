//! Record files: indexing once, then random access.
//!
//! A record file is scanned once; the offsets of its records go to an index file ([`index`]) together with a
//! fingerprint of the file ([`fingerprint`]). Readers of a format ([`tfrecord`], [`csv`], [`lines`]) then fetch any record with
//! one positioned read, or those of a task with one together ([`Span`]), so that a shuffled order costs no more than a sequential one.
//! All files are read with `pread`, never mapped: one that is cut under our feet is an error, not a SIGBUS. Files of [`recordio`] have their
//! index in themselves.

// What is read here, and in the modules below, comes from others.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]
pub mod csv;
mod fingerprint;
mod index;
mod indexed;
pub mod lines;
pub mod recordio;
mod span;
pub mod tfrecord;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

pub use fingerprint::Fingerprint;
use index::{Kind, Range};
pub use indexed::Bytes;
pub use span::Span;

/// Bytes between two calls of a progress function.
const PROGRESS_EVERY: u64 = 16 << 20;

/// Size of the buffer that scans a file.
const SCAN_BUFFER: usize = 256 << 10;

/// What can be wrong with a record file or its index.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("can't read {path}: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "{path} is gone, or this process can't see it; data must not change while a job runs, put it back and start the job again"
    )]
    Gone { path: PathBuf },
    #[error("can't write the index {path}: {source}")]
    IndexUnwritable { path: PathBuf, source: io::Error },
    #[error("the index {path} can't be used: {what}")]
    BadIndex { path: PathBuf, what: String },
    #[error(
        "{path} ends in the middle of record {record}: the record begins at byte {offset} and needs {needed} bytes, \
         but only {left} are left; the file was cut, copy it again"
    )]
    Truncated {
        path: PathBuf,
        record: u64,
        offset: u64,
        needed: u64,
        left: u64,
    },
    #[error("record {record} of {path} (counted from 0, {place}) is corrupt: {what}")]
    Corrupt {
        path: PathBuf,
        record: u64,
        /// `byte 1234`, or `line 17` where people count lines.
        place: String,
        what: String,
    },
    #[error(
        "{path} has changed since it was indexed; data must not change while a job runs, start the job again"
    )]
    Changed { path: PathBuf },
    #[error("{path} has {count} records; record {record} (counted from 0) does not exist")]
    NoSuchRecord {
        path: PathBuf,
        record: u64,
        count: u64,
    },
    #[error("stopped by the progress function")]
    Stopped,
}

pub type Result<T> = std::result::Result<T, Error>;

/// The caller wants the scan to end; the scan returns [`Error::Stopped`].
pub struct Stop;

/// Told now and then: bytes scanned, bytes in all.
pub type Progress<'a> = dyn FnMut(u64, u64) -> std::result::Result<(), Stop> + 'a;

/// Bad records found in a read that continues: which, and what is wrong with each.
pub type Bad = Vec<(u64, Error)>;

/// CRC32C (Castagnoli), the checksum of TFRecord files.
pub fn checksum(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
}

/// The checksum of bytes of which the first ones have the checksum `before`, and `data` are the rest.
pub fn checksum_of_rest(before: u32, data: &[u8]) -> u32 {
    crc32c::crc32c_append(before, data)
}

/// Takes the fingerprint of a file that somebody else reads.
pub fn fingerprint_of(path: &Path) -> Result<Fingerprint> {
    File::open(path)
        .and_then(|file| Fingerprint::of(&file))
        .map_err(|source| unreadable(path, source))
}

/// Says why a file of the data can't be read, of which its name was found before.
fn unreadable(path: &Path, source: io::Error) -> Error {
    if source.kind() == io::ErrorKind::NotFound {
        return Error::Gone {
            path: path.to_owned(),
        };
    }
    Error::Unreadable {
        path: path.to_owned(),
        source,
    }
}

/// Reads `records`, which lie at `ranges`, by `read_one`; the first error ends the read.
fn read_all<T>(
    records: &[u64],
    ranges: &[Option<Range>],
    mut read_one: impl FnMut(u64, Option<Range>) -> Result<T>,
) -> Result<Vec<T>> {
    let each = records.iter().zip(ranges);
    each.map(|(&record, &range)| read_one(record, range))
        .collect()
}

/// Reads `records`, which lie at `ranges`, by `read_one`; corrupt ones are collected, other errors end the read.
fn read_good<T>(
    records: &[u64],
    ranges: &[Option<Range>],
    mut read_one: impl FnMut(u64, Option<Range>) -> Result<T>,
) -> Result<(Vec<T>, Bad)> {
    let mut good = Vec::with_capacity(records.len());
    let mut bad = Vec::new();
    for (&record, &range) in records.iter().zip(ranges) {
        match read_one(record, range) {
            Ok(value) => good.push(value),
            Err(error @ Error::Corrupt { .. }) => bad.push((record, error)),
            Err(error) => return Err(error),
        }
    }
    Ok((good, bad))
}
