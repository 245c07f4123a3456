//! Files of lines, each of which is a record; what is in one is the caller's affair.
//!
//! Lines with nothing but white space on them are skipped. A line ends with `\n`, before which there may be `\r`; the last
//! one may lack it. The scan keeps no line at all.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::index::{Index, Range, Writer};
use super::indexed::Indexed;
use super::{Error, Fingerprint, Kind, PROGRESS_EVERY, Progress, Result, SCAN_BUFFER, unreadable};

/// A longer line is taken for a file that has none.
pub const LONGEST_LINE: u64 = 64 << 20;

/// What the scan lets pass as one line, and as empty lines that follow it or come before the first.
const LONGEST_RANGE: u64 = 2 * (LONGEST_LINE + SCAN_BUFFER as u64);

/// Begins a file of some programs; it is no part of the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Scans `path` and writes `index`, unless it is there and fits; returns the number of lines.
pub fn index(path: &Path, index: &Path, progress: &mut Progress) -> Result<u64> {
    let mut file = File::open(path).map_err(|source| unreadable(path, source))?;
    let fingerprint = Fingerprint::of(&file).map_err(|source| unreadable(path, source))?;
    if let Some(found) = Index::open_fitting(index, Kind::Lines, fingerprint) {
        return Ok(found.count());
    }
    let size = fingerprint.size;
    let mut writer = Writer::create(index)?;
    let mut buffer = vec![0; SCAN_BUFFER];
    // Where the line begins that the scan is in, and whether it has anything on it.
    let (mut begin, mut is_blank) = (0_u64, true);
    let (mut lines, mut offset, mut told) = (0_u64, 0_u64, 0_u64);
    loop {
        let filled = file
            .read(&mut buffer)
            .map_err(|source| unreadable(path, source))?;
        let mut input = buffer.get(..filled).unwrap_or(&buffer);
        if input.is_empty() {
            break;
        }
        if offset == 0
            && let Some(rest) = input.strip_prefix(BYTE_ORDER_MARK)
        {
            (offset, input) = (BYTE_ORDER_MARK.len() as u64, rest);
        }
        while let Some(end) = input.iter().position(|byte| *byte == b'\n') {
            is_blank &= blank(input.get(..end).unwrap_or(input));
            offset = offset.saturating_add(end as u64).saturating_add(1);
            if !is_blank {
                push(&mut writer, &mut lines, begin)?;
            }
            (begin, is_blank) = (offset, true);
            input = input.get(end.saturating_add(1)..).unwrap_or_default();
        }
        is_blank &= blank(input);
        offset = offset.saturating_add(input.len() as u64);
        if offset.saturating_sub(begin) > LONGEST_LINE {
            return Err(Error::Corrupt {
                path: path.to_owned(),
                record: lines,
                place: format!("byte {begin}"),
                what: "its line is longer than 64 MiB".into(),
            });
        }
        if offset.saturating_sub(told) >= PROGRESS_EVERY {
            told = offset;
            progress(offset, size).map_err(|_| Error::Stopped)?;
        }
    }
    if !is_blank {
        push(&mut writer, &mut lines, begin)?;
    }
    if Fingerprint::of(&file).map_err(|source| unreadable(path, source))? != fingerprint {
        return Err(Error::Changed {
            path: path.to_owned(),
        });
    }
    let count = writer.finish(Kind::Lines, fingerprint, size)?;
    progress(size, size).map_err(|_| Error::Stopped)?;
    Ok(count)
}

/// The first line begins where the file does, with the empty ones before it.
fn push(writer: &mut Writer, lines: &mut u64, begin: u64) -> Result<()> {
    writer.push(if *lines == 0 { 0 } else { begin })?;
    *lines = lines.saturating_add(1);
    Ok(())
}

fn blank(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_whitespace)
}

/// Random access to the lines of one file.
pub struct LinesFile {
    source: Indexed,
}

impl LinesFile {
    /// Opens a file with its index. Refuses an index of another state of the file.
    pub fn open(path: &Path, index: &Path) -> Result<Self> {
        let source = Indexed::open(path, index, Kind::Lines)?;
        Ok(Self { source })
    }

    pub fn count(&self) -> u64 {
        self.source.index.count()
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.source.index.fingerprint
    }

    /// Returns the lines in the order asked, without what ends them.
    pub fn read(&self, records: &[u64]) -> Result<Vec<Vec<u8>>> {
        self.source.check_unchanged()?;
        self.source
            .index
            .ranges(records)?
            .into_iter()
            .zip(records)
            .map(|(range, &record)| self.read_one(record, range))
            .collect()
    }

    fn read_one(&self, record: u64, range: Option<Range>) -> Result<Vec<u8>> {
        let (begin, end) = self.source.found(record, range, self.count())?;
        let length = end.saturating_sub(begin);
        if length > LONGEST_RANGE {
            return Err(self.source.index.misleads(record));
        }
        let mut bytes = vec![0; length as usize];
        self.source.read_at(&mut bytes, begin)?;
        let ends_there = end == self.source.index.fingerprint.size || bytes.last() == Some(&b'\n');
        let line = match begin {
            0 => bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes),
            _ => &bytes,
        };
        let line = line.trim_ascii();
        if !ends_there || line.is_empty() || line.contains(&b'\n') {
            return Err(self.source.index.misleads(record));
        }
        Ok(line.to_vec())
    }
}
