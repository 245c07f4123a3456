//! Records with their index, open for reading: what the readers of all formats that have an index share.
//!
//! They lie in a file with an index beside it, or are some that somebody has in memory: a part of a file that is compressed or elsewhere.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::index::{Index, Range, Writer};
use super::span::Span;
use super::{Error, Fingerprint, Kind, Progress, Result, unreadable};

/// Bytes in memory, of any owner.
pub type Bytes = Box<dyn AsRef<[u8]> + Send + Sync>;

pub struct Indexed {
    pub path: PathBuf,
    content: Content,
}

enum Content {
    File {
        file: File,
        index: Index,
    },
    /// Offsets as in an index: one per record, then the end.
    Memory {
        bytes: Bytes,
        offsets: Vec<u64>,
    },
}

/// Scans `path` by `scan` and writes `index`, unless it is there and fits; returns the number of records.
pub fn make_index(
    path: &Path,
    index: &Path,
    kind: Kind,
    progress: &mut Progress,
    scan: impl FnOnce(&File, u64, &mut Writer, &mut Progress) -> Result<()>,
) -> Result<u64> {
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    let fingerprint = Fingerprint::of(&file).map_err(|source| unreadable(path, source))?;
    if let Some(found) = Index::open_fitting(index, kind, fingerprint) {
        return Ok(found.count());
    }
    let size = fingerprint.size;
    let mut writer = Writer::create(index)?;
    scan(&file, size, &mut writer, progress)?;
    if Fingerprint::of(&file).map_err(|source| unreadable(path, source))? != fingerprint {
        return Err(Error::Changed {
            path: path.to_owned(),
        });
    }
    let count = writer.finish(kind, fingerprint, size)?;
    progress(size, size).map_err(|_| Error::Stopped)?;
    Ok(count)
}

impl Indexed {
    /// Opens a file with its index. Refuses an index of another state of the file.
    pub fn open(path: &Path, index: &Path, kind: Kind) -> Result<Self> {
        let file = File::open(path).map_err(|source| unreadable(path, source))?;
        let index = Index::open(index, kind)?;
        if Fingerprint::of(&file).map_err(|source| unreadable(path, source))? != index.fingerprint {
            return Err(Error::Changed {
                path: path.to_owned(),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            content: Content::File { file, index },
        })
    }

    /// Finds the records of `bytes` by `scan`; errors call them `path`.
    pub fn within(
        path: &Path,
        bytes: Bytes,
        scan: impl FnOnce(&[u8], &mut Vec<u64>) -> Result<()>,
    ) -> Result<Self> {
        let mut offsets = Vec::new();
        let content = (*bytes).as_ref();
        scan(content, &mut offsets)?;
        offsets.push(content.len() as u64);
        Ok(Self {
            path: path.to_owned(),
            content: Content::Memory { bytes, offsets },
        })
    }

    pub fn count(&self) -> u64 {
        match &self.content {
            Content::File { index, .. } => index.count(),
            Content::Memory { offsets, .. } => offsets.len().saturating_sub(1) as u64,
        }
    }

    /// Number of bytes.
    pub fn size(&self) -> u64 {
        match &self.content {
            Content::File { index, .. } => index.fingerprint.size,
            Content::Memory { bytes, .. } => (**bytes).as_ref().len() as u64,
        }
    }

    pub fn fingerprint(&self) -> Fingerprint {
        match &self.content {
            Content::File { index, .. } => index.fingerprint,
            Content::Memory { bytes, .. } => Fingerprint::of_bytes((**bytes).as_ref()),
        }
    }

    /// Returns where each of `records` lies, or None for one that there is not.
    pub fn ranges(&self, records: &[u64]) -> Result<Vec<Option<Range>>> {
        match &self.content {
            Content::File { index, .. } => index.ranges(records),
            Content::Memory { offsets, .. } => {
                let range_of = |record: &u64| {
                    let first = usize::try_from(*record).ok()?;
                    match offsets.get(first..)? {
                        [begin, end, ..] => Some((*begin, *end)),
                        _ => None,
                    }
                };
                Ok(records.iter().map(range_of).collect())
            }
        }
    }

    /// Returns where one record lies, or None if there is no such record.
    pub fn range(&self, record: u64) -> Result<Option<Range>> {
        Ok(self.ranges(&[record])?.pop().flatten())
    }

    /// Says that the index puts the records of the file elsewhere than they are.
    pub fn misleads(&self, record: u64) -> Error {
        match &self.content {
            Content::File { index, .. } => index.misleads(record),
            Content::Memory { .. } => Error::BadIndex {
                path: self.path.clone(),
                what: format!("record {record} does not lie where it says"),
            },
        }
    }

    /// Refuses a file that has changed since it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        let Content::File { file, index } = &self.content else {
            return Ok(());
        };
        match index.fingerprint.still_holds(file) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Changed {
                path: self.path.clone(),
            }),
            Err(source) => Err(unreadable(&self.path, source)),
        }
    }

    /// Returns where a record lies, of a file with so many; there may be none of that number.
    pub fn found(&self, record: u64, range: Option<Range>, count: u64) -> Result<Range> {
        range.ok_or_else(|| Error::NoSuchRecord {
            path: self.path.clone(),
            record,
            count,
        })
    }

    /// Reads the bytes of some records in a row at once; None if that is not worth it, or can't be.
    pub fn span(&self, first: u64, end: u64) -> Option<Span> {
        let (records, last) = (end.checked_sub(first)?, end.checked_sub(1)?);
        match *self.ranges(&[first, last]).ok()? {
            [Some((begin, _)), Some((_, end))] => {
                self.read_span(Span::worth((begin, end), records)?)
            }
            _ => None,
        }
    }

    fn read_span(&self, (begin, end): Range) -> Option<Span> {
        let Content::File { file, .. } = &self.content else {
            return None;
        };
        let mut bytes = vec![0; end.checked_sub(begin)? as usize];
        file.read_exact_at(&mut bytes, begin).ok()?;
        Some(Span::new(begin, bytes))
    }

    /// Begins to take records that lie at `ranges`: out of `span`, or out of one of their own if that is worth it, else one by one.
    pub fn taking<'a>(&'a self, ranges: &[Option<Range>], span: Option<&'a Span>) -> Taking<'a> {
        let own = match span {
            Some(_) => None,
            None => Span::around(ranges).and_then(|range| self.read_span(range)),
        };
        Taking {
            source: self,
            span,
            own,
            room: Vec::new(),
        }
    }

    /// Fills `room` with the bytes from a place on, as far as there are some; returns how many there were.
    pub fn read_some(&self, room: &mut [u8], begin: u64) -> io::Result<usize> {
        match &self.content {
            Content::File { file, .. } => file.read_at(room, begin),
            Content::Memory { bytes, .. } => {
                let mut rest = (**bytes).as_ref().get(begin as usize..).unwrap_or_default();
                io::Read::read(&mut rest, room)
            }
        }
    }
}

/// Records that are taken one after the other.
pub struct Taking<'a> {
    source: &'a Indexed,
    span: Option<&'a Span>,
    own: Option<Span>,
    room: Vec<u8>,
}

impl Taking<'_> {
    /// Returns the bytes of a range.
    pub fn bytes(&mut self, range: Range) -> Result<&[u8]> {
        let (begin, end) = range;
        if let Some(bytes) = self
            .span
            .or(self.own.as_ref())
            .and_then(|span| span.bytes(range))
        {
            return Ok(bytes);
        }
        let unreadable = |source| unreadable(&self.source.path, source);
        match &self.source.content {
            Content::File { file, .. } => {
                self.room.resize(end.saturating_sub(begin) as usize, 0);
                file.read_exact_at(&mut self.room, begin)
                    .map_err(unreadable)?;
                Ok(&self.room)
            }
            Content::Memory { bytes, .. } => (**bytes)
                .as_ref()
                .get(begin as usize..end as usize)
                .ok_or_else(|| unreadable(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}
