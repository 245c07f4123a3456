//! Reading and writing what travels in units of 8 bytes, so that numbers lie aligned and are used where they came in.
//!
//! Everything is little endian, as the machines are for which this is built.
use super::error::Malformed;

#[cfg(not(target_endian = "little"))]
compile_error!("frames and snapshots are little endian, and rows are used in place");

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
        Ok(self.words(1)?[0])
    }

    /// Return the next word's two halves, the lower one first.
    pub fn pair(&mut self) -> Result<(u32, u32), Malformed> {
        let word = self.word()?;
        Ok((word as u32, (word >> 32) as u32))
    }

    /// Return the next words.
    pub fn words(&mut self, count: usize) -> Result<&'a [u64], Malformed> {
        let (taken, rest) = self
            .words
            .split_at_checked(count)
            .ok_or(Malformed("it ends in the middle"))?;
        self.words = rest;
        Ok(taken)
    }

    /// Return the next numbers, which take whole words.
    pub fn numbers(&mut self, count: usize) -> Result<&'a [f32], Malformed> {
        let words = self.words(count.div_ceil(2))?;
        Ok(&bytemuck::cast_slice(words)[..count])
    }

    /// Return the next halves of words, which take whole words.
    pub fn halves(&mut self, count: usize) -> Result<&'a [u32], Malformed> {
        let words = self.words(count.div_ceil(2))?;
        Ok(&bytemuck::cast_slice(words)[..count])
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
pub fn put_numbers(words: &mut Vec<u64>, numbers: &[f32]) {
    let at = words.len();
    words.resize(at + numbers.len().div_ceil(2), 0);
    bytemuck::cast_slice_mut(&mut words[at..])[..numbers.len()].copy_from_slice(numbers);
}

/// Append halves of words, filled up to whole words.
pub fn put_halves(words: &mut Vec<u64>, halves: &[u32]) {
    let at = words.len();
    words.resize(at + halves.len().div_ceil(2), 0);
    bytemuck::cast_slice_mut(&mut words[at..])[..halves.len()].copy_from_slice(halves);
}
