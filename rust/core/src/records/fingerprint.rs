//! What identifies the content of a file without reading all of it: size, time of change, and three samples.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

const SAMPLE: u64 = 64 << 10;

/// Identity of a file's content, as far as it can be had cheaply.
///
/// The samples (first, middle and last 64 KiB) catch a file that was replaced by another one of the same size with
/// its times kept, as archive tools do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Bytes.
    pub size: u64,
    /// Last change, in nanoseconds since 1970.
    pub changed: i64,
    /// CRC32C over the samples.
    pub sample: u32,
}

impl Fingerprint {
    /// Takes the fingerprint of an open file.
    ///
    /// # Errors
    /// Those of `fstat` and `pread`.
    pub fn of(file: &File) -> io::Result<Self> {
        let (size, changed) = stat(file)?;
        let mut sample = 0;
        let mut buffer = vec![0; SAMPLE.min(size) as usize];
        let last = size.saturating_sub(buffer.len() as u64);
        for offset in [0, last / 2, last] {
            file.read_exact_at(&mut buffer, offset)?;
            sample = crc32c::crc32c_append(sample, &buffer);
        }
        Ok(Self {
            size,
            changed,
            sample,
        })
    }

    /// Takes that of bytes in memory, which have no time of change.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self {
            size: bytes.len() as u64,
            changed: 0,
            sample: crc32c::crc32c(bytes),
        }
    }

    /// Says whether size and time of change are still the same: one system call, for every read.
    pub fn still_holds(&self, file: &File) -> io::Result<bool> {
        Ok(stat(file)? == (self.size, self.changed))
    }
}

fn stat(file: &File) -> io::Result<(u64, i64)> {
    let metadata = file.metadata()?;
    let changed = metadata
        .mtime()
        .wrapping_mul(1_000_000_000)
        .wrapping_add(metadata.mtime_nsec());
    Ok((metadata.size(), changed))
}
