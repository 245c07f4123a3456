//! CSV files: rows by RFC 4180, with quotes, embedded line ends and any of the three line ends.
//!
//! A record is a data row as strings. Lines with nothing on them are skipped. A row is fetched and parsed by itself,
//! so that memory is one row's; the scan keeps no row at all.
//!
//! The header rule is [`Header`]. All rows must have as many fields as the first one.

use std::io::Read;
use std::path::Path;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};

use super::index::{Offsets, Range};
use super::indexed::{Bytes, Indexed, Taking, make_index};
use super::{
    Bad, Error, Fingerprint, Kind, PROGRESS_EVERY, Progress, Result, SCAN_BUFFER, Span, read_all,
    read_good, unreadable,
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
    let kind = Kind::Csv { delimiter };
    make_index(
        path,
        index,
        kind,
        progress,
        |file, size, found, progress| scan(path, file, size, delimiter, found, progress),
    )
}

/// Finds the rows of what has so many bytes.
fn scan(
    path: &Path,
    mut source: impl Read,
    size: u64,
    delimiter: u8,
    found: &mut impl Offsets,
    progress: &mut Progress,
) -> Result<()> {
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
        let filled = source
            .read(&mut buffer)
            .map_err(|source| unreadable(path, source))?;
        if filled == 0 {
            break;
        }
        let mut input = buffer.get(..filled).unwrap_or(&buffer);
        while let Some(begin) = scan.next_row(&mut input) {
            found.push(begin)?;
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
        Some(begin) if begin < size && !input.is_empty() => found.push(begin)?,
        Some(_) => {}
    }
    Ok(())
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

/// A data row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its fields, one after the other.
    text: String,
    ends: Vec<usize>,
}

impl Row {
    /// Returns the fields in their order.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = &str> {
        self.ends.iter().enumerate().map(|(place, end)| {
            let before = place
                .checked_sub(1)
                .and_then(|before| self.ends.get(before));
            let begin = before.copied().unwrap_or(0);
            self.text.get(begin..*end).unwrap_or_default()
        })
    }
}

/// What a row was parsed to: the bytes of its fields one after the other, and where each ends.
struct Fields<'a> {
    text: &'a [u8],
    ends: &'a [usize],
}

impl<'a> Fields<'a> {
    fn each(&self) -> impl Iterator<Item = &'a [u8]> {
        let (text, mut begin) = (self.text, 0);
        self.ends.iter().map(move |&end| {
            let field = text.get(begin..end).unwrap_or_default();
            begin = end;
            field
        })
    }
}

/// Parses one row after the other. Making a reader costs more than parsing a row, so it is reset, and so are its rooms.
struct Parser {
    reader: Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Parser {
    fn new(delimiter: u8) -> Self {
        Self {
            reader: reader(delimiter),
            text: vec![0; 256],
            ends: vec![0; 16],
        }
    }

    /// Parses the bytes of one row; None if there is more than that. `is_first`: of the file, where there may be a byte order mark.
    fn parse(&mut self, bytes: &[u8], is_first: bool) -> Option<Fields<'_>> {
        self.reader.reset();
        if !is_first {
            // The reader drops a byte order mark at its very beginning; before other rows goes an empty line, which is skipped.
            self.reader
                .read_record(b"\n", &mut self.text, &mut self.ends);
        }
        let (mut input, mut written, mut fields) = (bytes, 0_usize, 0_usize);
        loop {
            let text_room = self.text.get_mut(written..)?;
            let ends_room = self.ends.get_mut(fields..)?;
            let (result, read, wrote, ended) = self.reader.read_record(input, text_room, ends_room);
            input = input.get(read..)?;
            written = written.saturating_add(wrote);
            fields = fields.saturating_add(ended);
            match result {
                // Without more input, the next turn tells the parser that this is the end.
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => {
                    self.text.resize(self.text.len().saturating_mul(2), 0);
                }
                ReadRecordResult::OutputEndsFull => {
                    self.ends.resize(self.ends.len().saturating_mul(2), 0);
                }
                ReadRecordResult::Record | ReadRecordResult::End => break,
            }
        }
        // After the last row of a file there may be empty lines.
        if !input.iter().all(|byte| matches!(byte, b'\n' | b'\r')) {
            return None;
        }
        Some(Fields {
            text: self.text.get(..written)?,
            ends: self.ends.get(..fields)?,
        })
    }
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
        let source = Indexed::open(path, index, Kind::Csv { delimiter })?;
        Self::opened(source, delimiter, header)
    }

    /// Finds the rows of `bytes`; errors call them `path`.
    pub fn within(path: &Path, bytes: Bytes, delimiter: u8, header: Header) -> Result<Self> {
        let source = Indexed::within(path, bytes, |content, found| {
            let size = content.len() as u64;
            scan(path, content, size, delimiter, found, &mut |_, _| Ok(()))
        })?;
        Self::opened(source, delimiter, header)
    }

    fn opened(source: Indexed, delimiter: u8, header: Header) -> Result<Self> {
        let mut opened = Self {
            source,
            delimiter,
            columns: 0,
            header: None,
        };
        if let Some(range) = opened.source.range(0)? {
            let (mut parser, mut taking) =
                (Parser::new(delimiter), opened.source.taking(&[], None));
            let first = opened.parse_row(&mut parser, &mut taking, 0, range)?;
            let is_header = match header {
                Header::Yes => true,
                Header::No => false,
                Header::Auto => first.each().all(is_name),
            };
            let columns = first.ends.len();
            let names = is_header
                .then(|| opened.strings(0, range, &first))
                .transpose()?;
            opened.header = names.map(|row| row.fields().map(str::to_owned).collect());
            opened.columns = columns;
        }
        Ok(opened)
    }

    /// Number of data rows.
    pub fn count(&self) -> u64 {
        self.source
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
        self.source.fingerprint()
    }

    /// Reads the bytes of some data rows in a row at once, for reads of them that follow; None if that is not worth it, or can't be.
    pub fn span(&self, first: u64, end: u64) -> Option<Span> {
        self.source.span(self.row(first), self.row(end))
    }

    /// Returns the data rows in the order asked; the first bad one is the error. Those that `span` has are taken from it.
    pub fn read(&self, records: &[u64], span: Option<&Span>) -> Result<Vec<Row>> {
        self.source.check_unchanged()?;
        let ranges = self.ranges(records)?;
        let mut taking = self.source.taking(&ranges, span);
        let mut parser = Parser::new(self.delimiter);
        read_all(records, &ranges, |record, range| {
            self.read_one(&mut parser, &mut taking, record, range)
        })
    }

    /// Returns the good ones of the data rows in the order asked, and what is wrong with the others.
    pub fn read_good(&self, records: &[u64], span: Option<&Span>) -> Result<(Vec<Row>, Bad)> {
        self.source.check_unchanged()?;
        let ranges = self.ranges(records)?;
        let mut taking = self.source.taking(&ranges, span);
        let mut parser = Parser::new(self.delimiter);
        read_good(records, &ranges, |record, range| {
            self.read_one(&mut parser, &mut taking, record, range)
        })
    }

    /// Returns where data rows lie.
    fn ranges(&self, records: &[u64]) -> Result<Vec<Option<Range>>> {
        let rows: Vec<u64> = records.iter().map(|&record| self.row(record)).collect();
        self.source.ranges(&rows)
    }

    /// Returns the number of a data row in the index, where a header is a row too; one that there is not for a record that there is not.
    fn row(&self, record: u64) -> u64 {
        record.saturating_add(u64::from(self.header.is_some()))
    }

    fn read_one(
        &self,
        parser: &mut Parser,
        taking: &mut Taking,
        record: u64,
        range: Option<Range>,
    ) -> Result<Row> {
        let range = self.source.found(record, range, self.count())?;
        let row = self.row(record);
        let fields = self.parse_row(parser, taking, row, range)?;
        if fields.ends.len() != self.columns {
            let what = format!(
                "it has {} fields, the first row has {}",
                fields.ends.len(),
                self.columns
            );
            return Err(self.corrupt(row, range, what));
        }
        self.strings(row, range, &fields)
    }

    fn parse_row<'a>(
        &self,
        parser: &'a mut Parser,
        taking: &mut Taking,
        row: u64,
        range: Range,
    ) -> Result<Fields<'a>> {
        let (begin, end) = range;
        if end.saturating_sub(begin) > LONGEST_RANGE {
            return Err(self.source.misleads(row));
        }
        let bytes = taking.bytes(range)?;
        let ends_there = end == self.source.size() || matches!(bytes.last(), Some(b'\n' | b'\r'));
        parser
            .parse(bytes, begin == 0)
            .filter(|_| ends_there)
            .ok_or_else(|| self.source.misleads(row))
    }

    fn strings(&self, row: u64, range: Range, fields: &Fields) -> Result<Row> {
        let mut text = String::with_capacity(fields.text.len());
        for (column, field) in fields.each().enumerate() {
            match str::from_utf8(field) {
                Ok(field) => text.push_str(field),
                Err(error) => {
                    let byte = field.get(error.valid_up_to()).copied().unwrap_or_default();
                    let what = format!(
                        "field {} is not UTF-8 (byte 0x{byte:02x}); save the file as UTF-8",
                        column.saturating_add(1)
                    );
                    return Err(self.corrupt(row, range, what));
                }
            }
        }
        Ok(Row {
            text,
            ends: fields.ends.to_vec(),
        })
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
            let read = self.source.read_some(room, offset)?;
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
