//! RecordIO files: chunks of records, each compressed as a whole.
//!
//! ```text
//! 0   magic 0x01020304, u32          8   compressor, u32             16  number of records, u32
//! 4   CRC-32 of the payload, u32     12  bytes of the payload, u32   20  payload
//! ```
//!
//! All numbers are little-endian. The payload, decompressed, has for each record its length, u32, and its bytes. Compressors are 0 none,
//! 1 Snappy in its framing format, 2 gzip. The heads say where all records are, so that opening a file reads nothing else.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Error, Fingerprint, Result, unreadable};
use crate::net::frame::u32_at;

/// What a file begins with.
pub const MAGIC: u32 = 0x0102_0304;
const HEAD: u64 = 20;

/// A writer ends a chunk before its records have more bytes than this; so no record has as many.
pub const LONGEST: usize = 32 << 20;

/// A chunk that decompresses to more is taken for a mistake: writers can be told to make chunks a few times longer.
const LONGEST_PAYLOAD: u64 = 8 * LONGEST as u64;

/// How a chunk is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    None = 0,
    Snappy = 1,
    Gzip = 2,
}

impl Compressor {
    pub fn of(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1 => Some(Self::Snappy),
            2 => Some(Self::Gzip),
            _ => None,
        }
    }
}

/// What the head of a chunk says.
struct Chunk {
    /// Of its payload.
    begin: u64,
    size: u32,
    crc: u32,
    compressor: Compressor,
    records: u32,
    /// Records of the chunks before it.
    first: u64,
}

/// Access to the chunks of one file.
pub struct RecordIoFile {
    path: PathBuf,
    file: File,
    fingerprint: Fingerprint,
    chunks: Vec<Chunk>,
}

impl RecordIoFile {
    /// Opens a file and reads the heads of its chunks.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|source| unreadable(path, source))?;
        let fingerprint = Fingerprint::of(&file).map_err(|source| unreadable(path, source))?;
        let mut opened = Self {
            path: path.to_owned(),
            file,
            fingerprint,
            chunks: Vec::new(),
        };
        let (mut at, mut first) = (0, 0);
        while at < fingerprint.size {
            let chunk = opened.head(at, first)?;
            at = chunk.begin.saturating_add(u64::from(chunk.size));
            first = first.saturating_add(u64::from(chunk.records));
            opened.chunks.push(chunk);
        }
        Ok(opened)
    }

    fn head(&self, at: u64, first: u64) -> Result<Chunk> {
        let left = self.fingerprint.size.saturating_sub(at);
        let truncated = |needed| Error::Truncated {
            path: self.path.clone(),
            record: first,
            offset: at,
            needed,
            left,
        };
        if left < HEAD {
            return Err(truncated(HEAD));
        }
        let mut head = [0; HEAD as usize];
        self.file
            .read_exact_at(&mut head, at)
            .map_err(|source| unreadable(&self.path, source))?;
        if u32_at(&head, 0) != MAGIC {
            let what = "no chunk begins here, so nothing after it can be read";
            return Err(self.corrupt(first, at, what));
        }
        let Some(compressor) = Compressor::of(u32_at(&head, 8)) else {
            let what = "its chunk is compressed in a way that is not known";
            return Err(self.corrupt(first, at, what));
        };
        let size = u32_at(&head, 12);
        let needed = HEAD.saturating_add(u64::from(size));
        if needed > left {
            return Err(truncated(needed));
        }
        Ok(Chunk {
            begin: at.saturating_add(HEAD),
            size,
            crc: u32_at(&head, 4),
            compressor,
            records: u32_at(&head, 16),
            first,
        })
    }

    /// Number of records of each chunk.
    pub fn chunks(&self) -> Vec<u64> {
        self.chunks
            .iter()
            .map(|chunk| u64::from(chunk.records))
            .collect()
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns the records of a chunk; there is one of this number.
    pub fn read(&self, number: usize) -> Result<Vec<Vec<u8>>> {
        let Some(chunk) = self.chunks.get(number) else {
            let count = self
                .chunks
                .last()
                .map_or(0, |last| last.first.saturating_add(u64::from(last.records)));
            return Err(Error::NoSuchRecord {
                path: self.path.clone(),
                record: count,
                count,
            });
        };
        match self.fingerprint.still_holds(&self.file) {
            Ok(true) => {}
            Ok(false) => {
                return Err(Error::Changed {
                    path: self.path.clone(),
                });
            }
            Err(source) => return Err(unreadable(&self.path, source)),
        }
        let corrupt = |what: &str| {
            let begin = chunk.begin.saturating_sub(HEAD);
            self.corrupt(chunk.first, begin, what)
        };
        // The file has as many bytes.
        let mut bytes = vec![0; chunk.size as usize];
        self.file
            .read_exact_at(&mut bytes, chunk.begin)
            .map_err(|source| unreadable(&self.path, source))?;
        if crc32(&bytes) != chunk.crc {
            return Err(corrupt("the checksum of its chunk is wrong"));
        }
        let payload = decompressed(bytes, chunk.compressor)
            .map_err(|error| corrupt(&format!("its chunk can't be decompressed: {error}")))?;
        split(&payload, chunk.records)
            .ok_or_else(|| corrupt("its chunk has not the records that its head says"))
    }

    fn corrupt(&self, record: u64, offset: u64, what: &str) -> Error {
        Error::Corrupt {
            path: self.path.clone(),
            record,
            place: format!("chunk at byte {offset}"),
            what: what.to_owned(),
        }
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Grows with what comes out, up to a bound: a few bytes may stand for many.
fn decompressed(bytes: Vec<u8>, compressor: Compressor) -> std::io::Result<Vec<u8>> {
    let mut payload = Vec::new();
    let most = LONGEST_PAYLOAD.saturating_add(1);
    match compressor {
        Compressor::None => payload = bytes,
        Compressor::Snappy => {
            snap::read::FrameDecoder::new(bytes.as_slice())
                .take(most)
                .read_to_end(&mut payload)?;
        }
        Compressor::Gzip => {
            flate2::read::MultiGzDecoder::new(bytes.as_slice())
                .take(most)
                .read_to_end(&mut payload)?;
        }
    }
    if payload.len() as u64 > LONGEST_PAYLOAD {
        return Err(std::io::Error::other("it has more than 256 MiB"));
    }
    Ok(payload)
}

/// Returns the records of a payload; None unless it has exactly so many.
fn split(payload: &[u8], count: u32) -> Option<Vec<Vec<u8>>> {
    let mut rest = payload;
    let mut records = Vec::new();
    for _ in 0..count {
        let (length, after) = rest.split_first_chunk()?;
        let (record, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        records.push(record.to_vec());
        rest = after;
    }
    rest.is_empty().then_some(records)
}

/// Returns a chunk of these records, whose bytes are fewer than [`LONGEST`] in all; None if they are more.
pub fn chunk(records: &[Vec<u8>], compressor: Compressor) -> Option<Vec<u8>> {
    let mut payload = Vec::new();
    let mut bytes = 0_usize;
    for record in records {
        bytes = bytes.saturating_add(record.len());
        payload.extend(u32::try_from(record.len()).ok()?.to_le_bytes());
        payload.extend(record);
    }
    if bytes >= LONGEST {
        return None;
    }
    // Nothing fails that writes to memory.
    let packed = match compressor {
        Compressor::None => payload,
        Compressor::Snappy => {
            let mut encoder = snap::write::FrameEncoder::new(Vec::new());
            encoder.write_all(&payload).ok()?;
            encoder.into_inner().ok()?
        }
        Compressor::Gzip => {
            let level = flate2::Compression::default();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(&payload).ok()?;
            encoder.finish().ok()?
        }
    };
    let words = [
        MAGIC,
        crc32(&packed),
        compressor as u32,
        u32::try_from(packed.len()).ok()?,
        u32::try_from(records.len()).ok()?,
    ];
    let mut chunk: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    chunk.extend(packed);
    Some(chunk)
}
