//! Reading and writing what travels in units of 8 bytes, so that numbers lie aligned and are used where they came in.
//!
//! Everything is little endian, as the machines are for which this is built.
// What is read here comes from others.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]
use crate::net::sink::Sink;
use crate::ps::protocol::error::Malformed;
use crate::ps::protocol::numbers::{Numbers, words_of};

#[cfg(not(target_endian = "little"))]
compile_error!("frames and snapshots are little endian, and rows are used in place");

const CUT_OFF: Malformed = Malformed("it ends in the middle");

/// Reads a sequence of words from the front.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    words: &'a [u64],
}

impl<'a> Reader<'a> {
    /// Read `words`.
    pub fn new(words: &'a [u64]) -> Reader<'a> {
        Reader { words }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Return the next word.
    pub fn word(&mut self) -> Result<u64, Malformed> {
        let [word] = self.array()?;
        Ok(*word)
    }

    /// Return the next word's two halves, the lower one first.
    pub fn pair(&mut self) -> Result<(u32, u32), Malformed> {
        let word = self.word()?;
        Ok((word as u32, (word >> 32) as u32))
    }

    /// Return so many next words.
    pub fn array<const N: usize>(&mut self) -> Result<&'a [u64; N], Malformed> {
        let (taken, rest) = self.words.split_first_chunk().ok_or(CUT_OFF)?;
        self.words = rest;
        Ok(taken)
    }

    /// Return the next words.
    pub fn words(&mut self, count: usize) -> Result<&'a [u64], Malformed> {
        let (taken, rest) = self.words.split_at_checked(count).ok_or(CUT_OFF)?;
        self.words = rest;
        Ok(taken)
    }

    /// Return the next numbers, which take whole words, as long or short ones.
    pub fn numbers_as(&mut self, count: usize, is_short: bool) -> Result<Numbers<'a>, Malformed> {
        if !is_short {
            return Ok(Numbers::Long(self.numbers(count)?));
        }
        let words = self.words(words_of(count, is_short))?;
        let numbers = bytemuck::cast_slice(words).get(..count).ok_or(CUT_OFF)?;
        Ok(Numbers::Short(numbers))
    }

    /// Return the next numbers, which take whole words.
    pub fn numbers(&mut self, count: usize) -> Result<&'a [f32], Malformed> {
        let words = self.words(count.div_ceil(2))?;
        bytemuck::cast_slice(words).get(..count).ok_or(CUT_OFF)
    }

    /// Return the next halves of words, which take whole words.
    pub fn halves(&mut self, count: usize) -> Result<&'a [u32], Malformed> {
        let words = self.words(count.div_ceil(2))?;
        bytemuck::cast_slice(words).get(..count).ok_or(CUT_OFF)
    }

    /// Return all that is left.
    pub fn rest(&mut self) -> &'a [u64] {
        std::mem::take(&mut self.words)
    }

    /// Say that all has been read.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.words.is_empty() {
            Ok(())
        } else {
            Err(Malformed("it has more than it says"))
        }
    }
}

/// Return two halves as a word.
pub fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Append numbers, filled up to whole words.
pub fn put_numbers(words: &mut impl Sink, numbers: &[f32]) {
    let (pairs, rest) = numbers.as_chunks::<2>();
    words.extend_by(
        pairs
            .iter()
            .map(|[low, high]| pair(low.to_bits(), high.to_bits())),
    );
    words.extend_by(rest.iter().map(|last| pair(last.to_bits(), 0)));
}

/// Append halves of words, filled up to whole words.
pub fn put_halves(words: &mut impl Sink, halves: &[u32]) {
    let (pairs, rest) = halves.as_chunks::<2>();
    words.extend_by(pairs.iter().map(|[low, high]| pair(*low, *high)));
    words.extend_by(rest.iter().map(|last| pair(*last, 0)));
}
