//! A record file with its index, open for reading: what the readers of all formats that have an index share.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::index::{Index, Range};
use super::{Error, Fingerprint, Kind, Result, unreadable};

pub struct Indexed {
    pub path: PathBuf,
    pub file: File,
    pub index: Index,
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
            index,
            file,
        })
    }

    /// Refuses a file that has changed since it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        match self.index.fingerprint.still_holds(&self.file) {
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

    /// Fills `bytes` from a place in the file on.
    pub fn read_at(&self, bytes: &mut [u8], begin: u64) -> Result<()> {
        self.file
            .read_exact_at(bytes, begin)
            .map_err(|source| unreadable(&self.path, source))
    }
}
