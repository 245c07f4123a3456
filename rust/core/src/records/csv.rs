//! CSV files: rows by RFC 4180, with quotes, embedded line ends and any of the three line ends.
//!
//! A record is a data row as strings. Lines with nothing on them are skipped. A row is fetched and parsed by itself,
//! so that memory is one row's; the scan keeps no row at all.
//!
//! The header rule is [`Header`]. All rows must have as many fields as the first one.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use super::index::{Index, Range, Writer};
use super::indexed::Indexed;
use super::{
    Bad, Error, Fingerprint, Kind, PROGRESS_EVERY, Progress, Result, SCAN_BUFFER, read_good,
    unreadable,
};

/// Bytes up to which lines are counted to say where a row is.
const COUNTED: u64 = 16 << 20;

/// A longer row is taken for a quote that was never closed.
pub const LONGEST_ROW: u64 = 64 << 20;

/// What the scan lets pass as one row, and as empty lines that follow the last one.
const LONGEST_RANGE: u64 = 2 * (LONGEST_ROW + SCAN_BUFFER as u64);

/// Whether the first row names the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    Yes,
    No,
    /// It does if none of its fields is empty or reads as a number.
    Auto,
}

fn reader(delimiter: u8) -> Reader {
    ReaderBuilder::new().delimiter(delimiter).build()
}

/// Scans `path` and writes `index`, unless it is there and fits; returns the number of rows, a header row included.
pub fn index(path: &Path, index: &Path, delimiter: u8, progress: &mut Progress) -> Result<u64> {
    let mut file = File::open(path).map_err(|source| unreadable(path, source))?;
    let fingerprint = Fingerprint::of(&file).map_err(|source| unreadable(path, source))?;
    let kind = Kind::Csv { delimiter };
    if let Some(found) = Index::open_fitting(index, kind, fingerprint) {
        return Ok(found.count());
    }
    let size = fingerprint.size;
    let mut writer = Writer::create(index)?;
    let mut scan = Scan {
        reader: reader(delimiter),
        begin: 0,
        offset: 0,
        fields: vec![0; SCAN_BUFFER],
        ends: vec![0; 64],
    };
    let mut buffer = vec![0; SCAN_BUFFER];
    let (mut rows, mut told) = (0_u64, 0);
    loop {
        let filled = file
            .read(&mut buffer)
            .map_err(|source| unreadable(path, source))?;
        if filled == 0 {
            break;
        }
        let mut input = buffer.get(..filled).unwrap_or(&buffer);
        while let Some(begin) = scan.next_row(&mut input) {
            writer.push(begin)?;
            rows = rows.saturating_add(1);
        }
        if scan.offset.saturating_sub(scan.begin) > LONGEST_ROW {
            return Err(open_quote(
                path,
                rows,
                scan.begin,
                "it is longer than 64 MiB",
            ));
        }
        if scan.offset.saturating_sub(told) >= PROGRESS_EVERY {
            told = scan.offset;
            progress(scan.offset, size).map_err(|_| Error::Stopped)?;
        }
    }
    // A row `x` after the end shows where the scan stands: inside a quote it is swallowed; after a whole row it is a
    // row of its own; otherwise its line end closes the last row.
    let mut input = b"\nx\n".as_slice();
    match scan.next_row(&mut input) {
        None => {
            return Err(open_quote(
                path,
                rows,
                scan.begin,
                "the file ends inside it",
            ));
        }
        Some(begin) if begin < size && !input.is_empty() => writer.push(begin)?,
        Some(_) => {}
    }
    if Fingerprint::of(&file).map_err(|source| unreadable(path, source))? != fingerprint {
        return Err(Error::Changed {
            path: path.to_owned(),
        });
    }
    let count = writer.finish(kind, fingerprint, size)?;
    progress(size, size).map_err(|_| Error::Stopped)?;
    Ok(count)
}

fn open_quote(path: &Path, row: u64, begin: u64, what: &str) -> Error {
    Error::Corrupt {
        path: path.to_owned(),
        record: row,
        place: format!("a header row included, byte {begin}"),
        what: format!("{what}; is a quote never closed?"),
    }
}

/// Finds the rows of a stream of bytes, keeping none.
struct Scan {
    reader: Reader,
    /// Where the row under way begins; line ends that belong to the row before may be counted in.
    begin: u64,
    /// Bytes consumed.
    offset: u64,
    fields: Vec<u8>,
    ends: Vec<usize>,
}

impl Scan {
    /// Consumes `input` up to the end of a row and returns where the row begins; None when it needs more input.
    fn next_row(&mut self, input: &mut &[u8]) -> Option<u64> {
        while !input.is_empty() {
            let (result, read, _, _) =
                self.reader
                    .read_record(input, &mut self.fields, &mut self.ends);
            *input = input.get(read..).unwrap_or_default();
            self.offset = self.offset.saturating_add(read as u64);
            // Full output needs no care: what was written is not wanted.
            if matches!(result, ReadRecordResult::Record) {
                let begin = self.begin;
                self.begin = self.offset;
                return Some(begin);
            }
        }
        None
    }
}

/// Parses the bytes of one row; None if there is more than that. Making a reader costs more than parsing a row, so it is lent and reset.
fn parse(reader: &mut Reader, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    reader.reset();
    let mut text = vec![0; bytes.len()];
    let mut ends = vec![0; 16];
    let (mut input, mut written, mut fields) = (bytes, 0_usize, 0_usize);
    loop {
        let (text_room, ends_room) = (text.get_mut(written..)?, ends.get_mut(fields..)?);
        let (result, read, wrote, ended) = reader.read_record(input, text_room, ends_room);
        input = input.get(read..)?;
        written = written.saturating_add(wrote);
        fields = fields.saturating_add(ended);
        match result {
            // Without more input, the next turn tells the parser that this is the end.
            ReadRecordResult::InputEmpty => {}
            ReadRecordResult::OutputFull => text.resize(text.len().saturating_add(64), 0),
            ReadRecordResult::OutputEndsFull => ends.resize(ends.len().saturating_mul(2), 0),
            ReadRecordResult::Record | ReadRecordResult::End => break,
        }
    }
    // After the last row of a file there may be empty lines.
    if !input.iter().all(|byte| matches!(byte, b'\n' | b'\r')) {
        return None;
    }
    let mut begin = 0;
    let mut row = Vec::with_capacity(fields);
    for &end in ends.get(..fields)? {
        row.push(text.get(begin..end)?.to_vec());
        begin = end;
    }
    Some(row)
}

/// Random access to the data rows of one file.
pub struct CsvFile {
    source: Indexed,
    delimiter: u8,
    columns: usize,
    header: Option<Vec<String>>,
}

impl CsvFile {
    /// Opens a file with its index. Refuses an index of another state of the file.
    pub fn open(path: &Path, index: &Path, delimiter: u8, header: Header) -> Result<Self> {
        let mut opened = Self {
            source: Indexed::open(path, index, Kind::Csv { delimiter })?,
            delimiter,
            columns: 0,
            header: None,
        };
        if let Some(range) = opened.source.index.range(0)? {
            let first = opened.parse_row(&mut reader(delimiter), 0, range)?;
            opened.columns = first.len();
            let is_header = match header {
                Header::Yes => true,
                Header::No => false,
                Header::Auto => first.iter().all(|field| is_name(field)),
            };
            if is_header {
                opened.header = Some(opened.strings(0, range, first)?);
            }
        }
        Ok(opened)
    }

    /// Number of data rows.
    pub fn count(&self) -> u64 {
        self.source
            .index
            .count()
            .saturating_sub(u64::from(self.header.is_some()))
    }

    /// Names of the columns; None if the file has no header row.
    pub fn header(&self) -> Option<&[String]> {
        self.header.as_deref()
    }

    /// Number of fields of each row; 0 in a file without rows.
    pub fn columns(&self) -> usize {
        self.columns
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.source.index.fingerprint
    }

    /// Returns the data rows in the order asked; the first bad one is the error.
    pub fn read(&self, records: &[u64]) -> Result<Vec<Vec<String>>> {
        self.source.check_unchanged()?;
        let mut reader = reader(self.delimiter);
        self.ranges(records)?
            .into_iter()
            .zip(records)
            .map(|(range, &record)| self.read_one(&mut reader, record, range))
            .collect()
    }

    /// Returns the good ones of the data rows in the order asked, and what is wrong with the others.
    pub fn read_good(&self, records: &[u64]) -> Result<(Vec<Vec<String>>, Bad)> {
        self.source.check_unchanged()?;
        let mut reader = reader(self.delimiter);
        let ranges = self.ranges(records)?;
        read_good(records, &ranges, |record, range| {
            self.read_one(&mut reader, record, range)
        })
    }

    /// Returns where data rows lie.
    fn ranges(&self, records: &[u64]) -> Result<Vec<Option<Range>>> {
        let rows: Vec<u64> = records.iter().map(|&record| self.row(record)).collect();
        self.source.index.ranges(&rows)
    }

    /// Returns the number of a data row in the index, where a header is a row too; one that there is not for a record that there is not.
    fn row(&self, record: u64) -> u64 {
        record.saturating_add(u64::from(self.header.is_some()))
    }

    fn read_one(
        &self,
        reader: &mut Reader,
        record: u64,
        range: Option<Range>,
    ) -> Result<Vec<String>> {
        let range = self.source.found(record, range, self.count())?;
        let row = self.row(record);
        let fields = self.parse_row(reader, row, range)?;
        if fields.len() != self.columns {
            let what = format!(
                "it has {} fields, the first row has {}",
                fields.len(),
                self.columns
            );
            return Err(self.corrupt(row, range, what));
        }
        self.strings(row, range, fields)
    }

    fn parse_row(
        &self,
        reader: &mut Reader,
        row: u64,
        (begin, end): Range,
    ) -> Result<Vec<Vec<u8>>> {
        let length = end.saturating_sub(begin);
        if length > LONGEST_RANGE {
            return Err(self.source.index.misleads(row));
        }
        // The parser drops a byte order mark at its very beginning. That is right for the first row only; before
        // the others goes an empty line, which is skipped.
        let lead = usize::from(begin > 0);
        let mut bytes = vec![b'\n'; lead.saturating_add(length as usize)];
        self.source
            .read_at(bytes.get_mut(lead..).unwrap_or_default(), begin)?;
        let ends_there = end == self.source.index.fingerprint.size
            || matches!(bytes.last(), Some(b'\n' | b'\r'));
        parse(reader, &bytes)
            .filter(|_| ends_there)
            .ok_or_else(|| self.source.index.misleads(row))
    }

    fn strings(&self, row: u64, range: Range, fields: Vec<Vec<u8>>) -> Result<Vec<String>> {
        let mut strings = Vec::with_capacity(fields.len());
        for (column, field) in fields.into_iter().enumerate() {
            match String::from_utf8(field) {
                Ok(string) => strings.push(string),
                Err(error) => {
                    let at = error.utf8_error().valid_up_to();
                    let byte = error.as_bytes().get(at).copied().unwrap_or_default();
                    let what = format!(
                        "field {} is not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8",
                        column.saturating_add(1)
                    );
                    return Err(self.corrupt(row, range, what));
                }
            }
        }
        Ok(strings)
    }

    fn corrupt(&self, row: u64, range: Range, what: String) -> Error {
        Error::Corrupt {
            path: self.source.path.clone(),
            record: row.saturating_sub(u64::from(self.header.is_some())),
            place: self.place(range),
            what,
        }
    }

    /// Says where a row begins: its line, where that is soon counted, as rows that are skipped are reported in every epoch.
    fn place(&self, range: Range) -> String {
        let (begin, _) = range;
        if begin > COUNTED {
            return format!("byte {begin}");
        }
        match self.line(range) {
            Ok(line) => format!("line {line}"),
            Err(_) => "line unknown".into(),
        }
    }

    /// Counts the line that a row begins on, from 1, as editors do. Reads the file up to there.
    fn line(&self, (begin, end): Range) -> std::io::Result<u64> {
        let mut buffer = vec![0; SCAN_BUFFER];
        let (mut offset, mut line, mut after_return) = (0_u64, 1_u64, false);
        while offset < end {
            let wanted = buffer.len().min(end.saturating_sub(offset) as usize);
            let room = buffer.get_mut(..wanted).unwrap_or_default();
            let read = self.source.file.read_at(room, offset)?;
            if read == 0 {
                break;
            }
            for (at, &byte) in (offset..).zip(room.iter().take(read)) {
                let line_end = matches!(byte, b'\n' | b'\r');
                if at >= begin && !line_end {
                    return Ok(line);
                }
                // "\r\n" is one line end.
                if line_end && !(byte == b'\n' && after_return) {
                    line = line.saturating_add(1);
                }
                after_return = byte == b'\r';
            }
            offset = offset.saturating_add(read as u64);
        }
        Ok(line)
    }
}

fn is_name(field: &[u8]) -> bool {
    let text = String::from_utf8_lossy(field);
    let text = text.trim();
    !text.is_empty() && text.parse::<f64>().is_err()
}
