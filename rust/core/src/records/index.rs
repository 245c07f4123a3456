//! The index file: where each record of a data file begins.
//!
//! ```text
//! 0   magic "EDLINDEX"          24  changed, i64 ns          48  CRC32C of the offsets, u32
//! 8   format, u32               32  sample, u32              52  CRC32C of the bytes 0 to 51, u32
//! 12  kind, u32                 36  reserved, u32 0          56  reserved, u64 0
//! 16  size of the file, u64     40  number of records, u64   64  offsets, u64 each: one per record, then the end
//! ```
//!
//! All numbers are little-endian. The file is written under another name and renamed, so that it is whole or not
//! there. It lies beside the data, where others may write, so it is read with `pread` and believed as little as can be:
//! only one of this user or root is taken, its records must fill the data file from its beginning to its end, and what
//! is read later is compared with these bounds again.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Error, Fingerprint, Result};
use crate::net::frame::{u32_at, u64_at};

const MAGIC: &[u8; 8] = b"EDLINDEX";
const FORMAT: u32 = 1;
const HEADER: usize = 64;
/// Offsets that are read at a time, at most.
const BLOCK: usize = 8 << 10;

/// What kind of file an index is for. Whatever changes the offsets is part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    TFRecord,
    /// The byte that separates fields decides where a quote opens, and so where rows end.
    Csv {
        delimiter: u8,
    },
    Lines,
}

impl Kind {
    fn code(self) -> u32 {
        match self {
            Self::TFRecord => 1,
            Self::Csv { delimiter } => 2 | u32::from(delimiter) << 8,
            Self::Lines => 3,
        }
    }
}

/// First byte of a record and one past its last.
pub type Range = (u64, u64);

/// A verified index.
pub struct Index {
    pub fingerprint: Fingerprint,
    path: PathBuf,
    file: File,
    count: u64,
}

impl Index {
    /// Opens and verifies an index.
    pub fn open(path: &Path, kind: Kind) -> Result<Self> {
        Self::verify(path, kind).map_err(|wrong| wrong.of(path))
    }

    fn verify(path: &Path, kind: Kind) -> std::result::Result<Self, Wrong> {
        // Without O_NONBLOCK a pipe of that name would be waited for.
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(nonblock)
            .open(path)?;
        let metadata = file.metadata()?;
        if !is_trusted(&metadata) {
            return Err("another user owns it or may write it".into());
        }
        if metadata.len() < HEADER as u64 {
            return Err("it is no index".into());
        }
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0)?;
        if &header[..8] != MAGIC {
            return Err("it is no index".into());
        }
        if u32_at(&header, 52) != crc32c::crc32c(&header[..52]) {
            return Err("its header is damaged".into());
        }
        let format = u32_at(&header, 8);
        if format != FORMAT {
            return Err(format!("its format is {format}, this version knows {FORMAT}").into());
        }
        if u32_at(&header, 12) != kind.code() {
            return Err("it is for another kind of file".into());
        }
        let count = u64_at(&header, 40);
        let length = count
            .checked_add(1)
            .and_then(|offsets| offsets.checked_mul(8))
            .and_then(|bytes| bytes.checked_add(HEADER as u64));
        if length != Some(metadata.len()) {
            return Err("its length is wrong".into());
        }
        let fingerprint = Fingerprint {
            size: u64_at(&header, 16),
            changed: u64_at(&header, 24) as i64,
            sample: u32_at(&header, 32),
        };
        let index = Self {
            fingerprint,
            path: path.to_owned(),
            file,
            count,
        };
        index.verify_offsets(u32_at(&header, 48))?;
        Ok(index)
    }

    /// Looks at all offsets once: checksums keep from accidents only.
    fn verify_offsets(&self, expected: u32) -> std::result::Result<(), Wrong> {
        let (mut crc, mut last) = (0, None);
        // One more than there are records; the file has room for them.
        let all = self.count.saturating_add(1);
        let mut at = 0;
        while at < all {
            let many = all.saturating_sub(at).min(BLOCK as u64) as usize;
            let bytes = self.bytes(at, many)?;
            crc = crc32c::crc32c_append(crc, &bytes);
            for offset in offsets(&bytes) {
                match last {
                    None if offset != 0 && self.count > 0 => {
                        return Err("its records do not begin where the file does".into());
                    }
                    Some(before) if offset < before => {
                        return Err("its offsets are out of order".into());
                    }
                    _ => last = Some(offset),
                }
            }
            at = at.saturating_add(many as u64);
        }
        if crc != expected {
            return Err("its offsets are damaged".into());
        }
        if last != Some(self.fingerprint.size) {
            return Err("its records do not end where the file does".into());
        }
        Ok(())
    }

    /// Opens an index if it is whole and belongs to the file as it is now.
    pub fn open_fitting(path: &Path, kind: Kind, fingerprint: Fingerprint) -> Option<Self> {
        Self::open(path, kind)
            .ok()
            .filter(|found| found.fingerprint == fingerprint)
            // That a file has content and no record is seen by nobody but who looks again.
            .filter(|found| found.count > 0 || fingerprint.size == 0)
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns where each of `records` lies, or None for one that there is not. Those of a task lie near each other.
    pub fn ranges(&self, records: &[u64]) -> Result<Vec<Option<Range>>> {
        let there = || records.iter().filter(|record| **record < self.count);
        let first = there().min().copied().unwrap_or(0);
        let last = there().max().copied().unwrap_or(0);
        let many = last.saturating_sub(first).saturating_add(2);
        let together = if many <= BLOCK as u64 && there().next().is_some() {
            Some(self.block(first, many as usize)?)
        } else {
            None
        };
        let range_of = |&record: &u64| {
            if record >= self.count {
                return Ok(None);
            }
            let range = match &together {
                Some(block) => self.pair(block, record.saturating_sub(first) as usize),
                None => self.pair(&self.block(record, 2)?, 0),
            };
            range.map(Some)
        };
        records.iter().map(range_of).collect()
    }

    /// Says that the index puts the records of the file elsewhere than they are.
    pub fn misleads(&self, record: u64) -> Error {
        let what = format!("record {record} does not lie where it says; remove it");
        Wrong::from(what).of(&self.path)
    }

    fn block(&self, first: u64, many: usize) -> Result<Vec<u8>> {
        self.bytes(first, many)
            .map_err(|error| Wrong::from(error).of(&self.path))
    }

    /// Reads `many` offsets; there are no more than `BLOCK`.
    fn bytes(&self, first: u64, many: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; many.saturating_mul(8)];
        let place = first.saturating_mul(8).saturating_add(HEADER as u64);
        self.file.read_exact_at(&mut bytes, place)?;
        Ok(bytes)
    }

    /// Returns two offsets that follow each other. Somebody may have changed them since they were verified.
    fn pair(&self, block: &[u8], at: usize) -> Result<Range> {
        let words = block.as_chunks::<8>().0;
        if let Some([begin, end, ..]) = words.get(at..) {
            let (begin, end) = (u64::from_le_bytes(*begin), u64::from_le_bytes(*end));
            if begin <= end && end <= self.fingerprint.size {
                return Ok((begin, end));
            }
        }
        Err(Wrong::from("it has changed since it was opened").of(&self.path))
    }
}

/// Why an index can't be used.
struct Wrong(String);

impl Wrong {
    fn of(self, path: &Path) -> Error {
        Error::BadIndex {
            path: path.to_owned(),
            what: self.0,
        }
    }
}

impl From<&str> for Wrong {
    fn from(what: &str) -> Self {
        Self(what.into())
    }
}

impl From<String> for Wrong {
    fn from(what: String) -> Self {
        Self(what)
    }
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Says whether nobody but this user and root can have written a file.
fn is_trusted(metadata: &Metadata) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let is_ours = metadata.uid() == user || metadata.uid() == 0;
    metadata.is_file() && is_ours && metadata.mode() & 0o022 == 0
}

fn offsets(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
}

/// Takes what a scan finds: where each record begins, one after the other.
pub trait Offsets {
    fn push(&mut self, offset: u64) -> Result<()>;
}

impl Offsets for Vec<u64> {
    fn push(&mut self, offset: u64) -> Result<()> {
        Vec::push(self, offset);
        Ok(())
    }
}

/// Writes an index beside its final name; it appears there with [`Writer::finish`] or not at all.
pub struct Writer {
    target: PathBuf,
    beside: PathBuf,
    out: BufWriter<File>,
    offsets: u64,
    crc: u32,
}

impl Writer {
    pub fn create(target: &Path) -> Result<Self> {
        // On a shared volume processes of several machines write beside each other, and numbers of processes are the same in all pods.
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|error| unwritable(target, io::Error::other(error)))?;
        // Hidden, and with the suffix of an index: nobody who looks for data beside it takes it for data.
        let mut name = OsString::from(format!(".{:016x}-", u64::from_le_bytes(random)));
        name.push(target.file_name().unwrap_or_default());
        let beside = target.with_file_name(name);
        let create = || {
            let file = OpenOptions::new()
                .write(true)
                .create_new(true) // follows no link
                .mode(0o644)
                .open(&beside)?;
            // Some shared volumes give all files to another user; a reader could not tell it from a stranger's.
            if !is_trusted(&file.metadata()?) {
                let _ = fs::remove_file(&beside);
                return Err(io::Error::from(rustix::io::Errno::PERM));
            }
            let mut out = BufWriter::new(file);
            out.write_all(&[0; HEADER])?;
            Ok(out)
        };
        let out = create().map_err(|source| unwritable(target, source))?;
        Ok(Self {
            target: target.to_owned(),
            beside,
            out,
            offsets: 0,
            crc: 0,
        })
    }

    /// Closes the last record at `end`, and puts the index in place; returns the number of records.
    pub fn finish(mut self, kind: Kind, fingerprint: Fingerprint, end: u64) -> Result<u64> {
        let count = self.offsets;
        self.push(end)?;
        self.publish(kind, fingerprint, count)
            .map_err(|source| unwritable(&self.target, source))?;
        Ok(count)
    }

    fn publish(&mut self, kind: Kind, fingerprint: Fingerprint, count: u64) -> io::Result<()> {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        header[12..16].copy_from_slice(&kind.code().to_le_bytes());
        header[16..24].copy_from_slice(&fingerprint.size.to_le_bytes());
        header[24..32].copy_from_slice(&fingerprint.changed.to_le_bytes());
        header[32..36].copy_from_slice(&fingerprint.sample.to_le_bytes());
        header[40..48].copy_from_slice(&count.to_le_bytes());
        header[48..52].copy_from_slice(&self.crc.to_le_bytes());
        let crc = crc32c::crc32c(&header[..52]);
        header[52..56].copy_from_slice(&crc.to_le_bytes());
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header)?;
        self.out.flush()?;
        // Not synced, which takes milliseconds for each data file: what a power cut can leave under the name fails its checksums, and is
        // made anew.
        fs::rename(&self.beside, &self.target)
    }
}

impl Offsets for Writer {
    fn push(&mut self, offset: u64) -> Result<()> {
        let bytes = offset.to_le_bytes();
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        self.offsets = self.offsets.saturating_add(1);
        self.out
            .write_all(&bytes)
            .map_err(|source| unwritable(&self.target, source))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After a success the name is gone already; after a failure nothing may stay behind.
        let _ = fs::remove_file(&self.beside);
    }
}

fn unwritable(path: &Path, source: io::Error) -> Error {
    Error::IndexUnwritable {
        path: path.to_owned(),
        source,
    }
}
