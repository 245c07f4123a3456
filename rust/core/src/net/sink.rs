//! Where a message's words are written to: memory of their own, or where they go out from.
// What is written here goes to others.
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

/// Takes words one behind the other.
pub trait Sink {
    /// Return how many words have been written.
    fn len(&self) -> usize;

    /// Whether none have.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Append a word.
    fn push(&mut self, word: u64);

    /// Append words.
    fn extend_from_slice(&mut self, words: &[u64]);

    /// Append so many words, as many as are said to come.
    fn extend_by(&mut self, words: impl ExactSizeIterator<Item = u64>);

    /// Append so many words, all of which the caller writes: old content may stand there, and only the last word has been cleared.
    fn append_room(&mut self, count: usize) -> &mut [u64];

    /// Replace a word that has been written.
    fn replace(&mut self, at: usize, word: u64);
}

impl Sink for Vec<u64> {
    fn len(&self) -> usize {
        self.len()
    }

    fn push(&mut self, word: u64) {
        self.push(word);
    }

    fn extend_from_slice(&mut self, words: &[u64]) {
        self.extend_from_slice(words);
    }

    fn extend_by(&mut self, words: impl ExactSizeIterator<Item = u64>) {
        self.extend(words);
    }

    fn append_room(&mut self, count: usize) -> &mut [u64] {
        let begin = self.len();
        self.resize(begin.saturating_add(count), 0);
        self.split_at_mut(begin).1
    }

    fn replace(&mut self, at: usize, word: u64) {
        if let Some(place) = self.get_mut(at) {
            *place = word;
        }
    }
}

/// A place of a fixed size, or none. What finds no room there goes into memory, with all that comes behind it.
#[derive(Debug)]
pub struct Draft<'a> {
    place: Option<&'a mut [u64]>,
    used: usize,
    behind: Vec<u64>,
}

impl<'a> Draft<'a> {
    /// Write from the beginning of `place` on.
    pub fn new(place: &'a mut [u64]) -> Draft<'a> {
        Draft {
            place: Some(place),
            used: 0,
            behind: Vec::new(),
        }
    }

    /// Write into memory, which will take about so many words.
    pub fn nowhere(room: usize) -> Draft<'static> {
        Draft {
            place: None,
            used: 0,
            behind: Vec::with_capacity(room),
        }
    }

    /// Return how many words lie in the place if all do, and all of them otherwise.
    pub fn end(self) -> Result<usize, Vec<u64>> {
        match self.place {
            None => Err(self.behind),
            Some(_) if self.behind.is_empty() => Ok(self.used),
            Some(place) => {
                let written = place.get(..self.used).unwrap_or_default();
                Err([written, &self.behind].concat())
            }
        }
    }

    /// Return the next so many words of the place, unless they do not fit or something lies behind it already.
    fn next(&mut self, count: usize) -> Option<&mut [u64]> {
        let end = self.used.checked_add(count)?;
        let place = self.place.as_mut().filter(|_| self.behind.is_empty())?;
        let next = place.get_mut(self.used..end)?;
        self.used = end;
        Some(next)
    }
}

impl Sink for Draft<'_> {
    fn len(&self) -> usize {
        self.used.saturating_add(self.behind.len())
    }

    fn push(&mut self, word: u64) {
        self.extend_from_slice(&[word]);
    }

    fn extend_from_slice(&mut self, words: &[u64]) {
        match self.next(words.len()) {
            Some(place) => place.copy_from_slice(words),
            None => self.behind.extend_from_slice(words),
        }
    }

    fn extend_by(&mut self, words: impl ExactSizeIterator<Item = u64>) {
        match self.next(words.len()) {
            Some(place) => place
                .iter_mut()
                .zip(words)
                .for_each(|(place, word)| *place = word),
            None => self.behind.extend(words),
        }
    }

    fn append_room(&mut self, count: usize) -> &mut [u64] {
        // Asked for twice, because a borrow that is returned on one way only lasts on the other one, too.
        if self.next(count).is_none() {
            return self.behind.append_room(count);
        }
        let range = self.used.saturating_sub(count)..self.used;
        let place = self.place.as_mut().and_then(|place| place.get_mut(range));
        let place = place.unwrap_or_default();
        if let Some(last) = place.last_mut() {
            *last = 0;
        }
        place
    }

    fn replace(&mut self, at: usize, word: u64) {
        match at.checked_sub(self.used) {
            Some(at) => self.behind.replace(at, word),
            None => {
                if let Some(place) = self.place.as_mut().and_then(|place| place.get_mut(at)) {
                    *place = word;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write(sink: &mut impl Sink, pieces: &[(u8, Vec<u64>)]) {
        for (how, words) in pieces {
            let begin = sink.len();
            match how {
                0 => words.iter().for_each(|word| sink.push(*word)),
                1 => sink.extend_from_slice(words),
                2 => sink.extend_by(words.iter().copied()),
                _ => {
                    let room = sink.append_room(words.len());
                    assert_eq!(room.len(), words.len());
                    assert_eq!(room.last().copied().unwrap_or(0), 0);
                    room.copy_from_slice(words);
                }
            }
            assert_eq!(sink.len(), begin + words.len());
            if let Some(first) = words.first() {
                sink.replace(begin, first + 1);
            }
        }
    }

    proptest! {
        #[test]
        fn a_place_of_any_size_gets_what_memory_gets(
            pieces in prop::collection::vec((0_u8..4, prop::collection::vec(0..9_u64, 0..4)), 0..8),
            size in 0_usize..40,
        ) {
            let mut memory = Vec::new();
            write(&mut memory, &pieces);
            let mut place = vec![u64::MAX; size];
            let mut draft = Draft::new(&mut place);
            write(&mut draft, &pieces);
            let found = match draft.end() {
                Ok(used) => place[..used].to_vec(),
                Err(words) => {
                    prop_assert!(words.len() > size);
                    words
                }
            };
            prop_assert_eq!(found, memory);
        }
    }
}
