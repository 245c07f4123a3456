//! Bytes of a file that lie together, read at once: those of a task's records, or of a chunk's if these are neighbours.
//!
//! To ask the system for a record of some hundred bytes costs more than to check and to copy it. What is read at once is bounded, and is
//! nothing but a short cut: who can't have it reads record by record, and hears what is wrong there.

use super::index::Range;

/// Bytes of a span, at most.
const MOST: u64 = 4 << 20;

/// Bytes of a record, on average, from which on it is read by itself: then the system's answer is a small part of the work.
const LONG: u64 = 16 << 10;

/// Bytes of a file from a place on.
pub struct Span {
    begin: u64,
    bytes: Vec<u8>,
}

impl Span {
    /// Returns where the bytes of so many records would be worth being read at once.
    pub fn worth((begin, end): Range, records: u64) -> Option<Range> {
        let length = end.checked_sub(begin)?;
        let is_short = length < records.saturating_mul(LONG);
        let is_worth = records > 1 && length <= MOST && is_short;
        is_worth.then_some((begin, end))
    }

    /// Returns where the bytes lie that hold all of these ranges, if they are worth being read at once and half of them is wanted.
    pub fn around(ranges: &[Option<Range>]) -> Option<Range> {
        let there = || ranges.iter().flatten();
        let begin = there().map(|range| range.0).min()?;
        let end = there().map(|range| range.1).max()?;
        let wanted = there().fold(0_u64, |sum, (begin, end)| {
            sum.saturating_add(end.saturating_sub(*begin))
        });
        Self::worth((begin, end), ranges.len() as u64)
            .filter(|_| end.saturating_sub(begin) / 2 <= wanted)
    }

    pub fn new(begin: u64, bytes: Vec<u8>) -> Self {
        Self { begin, bytes }
    }

    /// Number of its bytes.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes of a range, if it has all of them.
    pub fn bytes(&self, (begin, end): Range) -> Option<&[u8]> {
        let first = begin.checked_sub(self.begin)? as usize;
        let last = end.checked_sub(self.begin)? as usize;
        self.bytes.get(first..last)
    }
}
