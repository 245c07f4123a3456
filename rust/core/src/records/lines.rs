//! Files of lines, each of which is a record; what is in one is the caller's affair.
//!
//! Lines with nothing but white space on them are skipped. A line ends with `\n`, before which there may be `\r`; the last
//! one may lack it. The scan keeps no line at all.

use std::io::Read;
use std::path::Path;

use super::index::{Offsets, Range};
use super::indexed::{Bytes, Indexed, Taking, make_index};
use super::{
    Error, Fingerprint, Kind, PROGRESS_EVERY, Progress, Result, SCAN_BUFFER, Span, read_all,
    unreadable,
};

/// A longer line is taken for a file that has none.
pub const LONGEST_LINE: u64 = 64 << 20;

/// What the scan lets pass as one line, and as empty lines that follow it or come before the first.
const LONGEST_RANGE: u64 = 2 * (LONGEST_LINE + SCAN_BUFFER as u64);

/// Begins a file of some programs; it is no part of the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Scans `path` and writes `index`, unless it is there and fits; returns the number of lines.
pub fn index(path: &Path, index: &Path, progress: &mut Progress) -> Result<u64> {
    make_index(
        path,
        index,
        Kind::Lines,
        progress,
        |file, size, found, progress| scan(path, file, size, found, progress),
    )
}

/// Finds the lines of what has so many bytes.
fn scan(
    path: &Path,
    mut source: impl Read,
    size: u64,
    found: &mut impl Offsets,
    progress: &mut Progress,
) -> Result<()> {
    let mut buffer = vec![0; SCAN_BUFFER];
    // Where the line begins that the scan is in, and whether it has anything on it.
    let (mut begin, mut is_blank) = (0_u64, true);
    let (mut lines, mut offset, mut told) = (0_u64, 0_u64, 0_u64);
    loop {
        let filled = source
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
                push(found, &mut lines, begin)?;
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
        push(found, &mut lines, begin)?;
    }
    Ok(())
}

/// The first line begins where the file does, with the empty ones before it.
fn push(found: &mut impl Offsets, lines: &mut u64, begin: u64) -> Result<()> {
    found.push(if *lines == 0 { 0 } else { begin })?;
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

    /// Finds the lines of `bytes`; errors call them `path`.
    pub fn within(path: &Path, bytes: Bytes) -> Result<Self> {
        let source = Indexed::within(path, bytes, |content, found| {
            scan(path, content, content.len() as u64, found, &mut |_, _| {
                Ok(())
            })
        })?;
        Ok(Self { source })
    }

    pub fn count(&self) -> u64 {
        self.source.count()
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.source.fingerprint()
    }

    /// Reads the bytes of some lines in a row at once, for reads of them that follow; None if that is not worth it, or can't be.
    pub fn span(&self, first: u64, end: u64) -> Option<Span> {
        self.source.span(first, end)
    }

    /// Returns the lines in the order asked, without what ends them. Those that `span` has are taken from it.
    pub fn read(&self, records: &[u64], span: Option<&Span>) -> Result<Vec<Vec<u8>>> {
        self.source.check_unchanged()?;
        let ranges = self.source.ranges(records)?;
        let mut taking = self.source.taking(&ranges, span);
        read_all(records, &ranges, |record, range| {
            self.read_one(&mut taking, record, range)
        })
    }

    fn read_one(&self, taking: &mut Taking, record: u64, range: Option<Range>) -> Result<Vec<u8>> {
        let (begin, end) = self.source.found(record, range, self.count())?;
        if end.saturating_sub(begin) > LONGEST_RANGE {
            return Err(self.source.misleads(record));
        }
        let bytes = taking.bytes((begin, end))?;
        let ends_there = end == self.source.size() || bytes.last() == Some(&b'\n');
        let line = match begin {
            0 => bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes),
            _ => bytes,
        };
        let line = line.trim_ascii();
        if !ends_there || line.is_empty() || line.contains(&b'\n') {
            return Err(self.source.misleads(record));
        }
        Ok(line.to_vec())
    }
}
