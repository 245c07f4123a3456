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
//! there; it is mapped for reading, so that it costs no memory of the process's own.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::{Error, Fingerprint, Result};

const MAGIC: &[u8; 8] = b"EDLINDEX";
const FORMAT: u32 = 1;
const HEADER: usize = 64;

/// What kind of file an index is for. Whatever changes the offsets is part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    TFRecord,
    /// The byte that separates fields decides where a quote opens, and so where rows end.
    Csv {
        delimiter: u8,
    },
}

impl Kind {
    fn code(self) -> u32 {
        match self {
            Self::TFRecord => 1,
            Self::Csv { delimiter } => 2 | u32::from(delimiter) << 8,
        }
    }
}

/// A verified index, mapped.
pub struct Index {
    pub fingerprint: Fingerprint,
    count: u64,
    map: Mmap,
}

impl Index {
    /// Opens and verifies an index.
    pub fn open(path: &Path, kind: Kind) -> Result<Self> {
        let bad = |what: String| Error::BadIndex {
            path: path.to_owned(),
            what,
        };
        let file = File::open(path).map_err(|error| bad(error.to_string()))?;
        // SAFETY: an index is written under another name and renamed when whole; nothing of ours changes it in place.
        // Whoever else cuts it while it is mapped ends this process by SIGBUS, as with any mapped file.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| bad(error.to_string()))?;
        if map.len() < HEADER || &map[..8] != MAGIC {
            return Err(bad("it is no index".into()));
        }
        if u32_at(&map, 52) != crc32c::crc32c(&map[..52]) {
            return Err(bad("its header is damaged".into()));
        }
        let format = u32_at(&map, 8);
        if format != FORMAT {
            return Err(bad(format!(
                "its format is {format}, this version knows {FORMAT}"
            )));
        }
        if u32_at(&map, 12) != kind.code() {
            return Err(bad("it is for another kind of file".into()));
        }
        let count = u64_at(&map, 40);
        let length = count
            .checked_add(1)
            .and_then(|offsets| offsets.checked_mul(8))
            .and_then(|bytes| bytes.checked_add(HEADER as u64));
        if length != Some(map.len() as u64) {
            return Err(bad("its length is wrong".into()));
        }
        if u32_at(&map, 48) != crc32c::crc32c(&map[HEADER..]) {
            return Err(bad("its offsets are damaged".into()));
        }
        let size = u64_at(&map, 16);
        let offsets = (HEADER..map.len()).step_by(8).map(|at| u64_at(&map, at));
        // A checksum keeps from accidents, not from whoever may write here.
        if !offsets.chain([size]).is_sorted() {
            return Err(bad("its offsets are out of order".into()));
        }
        let fingerprint = Fingerprint {
            size,
            changed: u64_at(&map, 24) as i64,
            sample: u32_at(&map, 32),
        };
        Ok(Self {
            fingerprint,
            count,
            map,
        })
    }

    /// Opens an index if it is whole and belongs to the file as it is now.
    pub fn open_fitting(path: &Path, kind: Kind, fingerprint: Fingerprint) -> Option<Self> {
        Self::open(path, kind)
            .ok()
            .filter(|found| found.fingerprint == fingerprint)
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the first byte of `record` and one past its last, or None if there is no such record.
    pub fn range(&self, record: u64) -> Option<(u64, u64)> {
        if record >= self.count {
            return None;
        }
        let at = HEADER + record as usize * 8;
        Some((u64_at(&self.map, at), u64_at(&self.map, at + 8)))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
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
            let mut out = BufWriter::new(File::create_new(&beside)?);
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

    pub fn push(&mut self, offset: u64) -> Result<()> {
        let bytes = offset.to_le_bytes();
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        self.offsets += 1;
        self.out
            .write_all(&bytes)
            .map_err(|source| unwritable(&self.target, source))
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
        // Not synced: what a power cut could leave under the name fails its checksums, and is made anew.
        fs::rename(&self.beside, &self.target)
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
