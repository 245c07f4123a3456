//! A part of a message that is needed for longer than the message.
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Words of a message, all of which stays as long as any of its excerpts does: nothing is copied.
#[derive(Clone)]
pub struct Excerpt {
    message: Arc<Vec<u64>>,
    range: Range<usize>,
}

impl Excerpt {
    /// Keep words of a message; what lies elsewhere is copied.
    pub fn of(message: &Arc<Vec<u64>>, words: &[u64]) -> Excerpt {
        let bytes = words.as_ptr().addr().wrapping_sub(message.as_ptr().addr());
        let from = bytes / size_of::<u64>();
        let range = from..from.saturating_add(words.len());
        match message.get(range.clone()) {
            Some(found) if std::ptr::eq(found, words) => Excerpt {
                message: message.clone(),
                range,
            },
            _ => words.to_vec().into(),
        }
    }
}

/// Words that came in a message, and may be needed for longer.
#[derive(Debug, Clone, Copy)]
pub struct Arrived<'a> {
    words: &'a [u64],
    /// What is kept with them; none: they are copied.
    message: Option<&'a Arc<Vec<u64>>>,
}

impl<'a> Arrived<'a> {
    /// Have words of a message, all of which is kept with them.
    pub fn within(message: &'a Arc<Vec<u64>>, words: &'a [u64]) -> Arrived<'a> {
        Arrived {
            words,
            message: Some(message),
        }
    }

    /// Return the words as long as the message is here.
    pub fn words(&self) -> &'a [u64] {
        self.words
    }

    /// Return the words for as long as they are needed.
    pub fn keep(&self) -> Excerpt {
        match self.message {
            Some(message) => Excerpt::of(message, self.words),
            None => self.words.to_vec().into(),
        }
    }
}

impl<'a> From<&'a [u64]> for Arrived<'a> {
    /// Have words that are copied if they are kept.
    fn from(words: &'a [u64]) -> Arrived<'a> {
        Arrived {
            words,
            message: None,
        }
    }
}

impl<'a> From<&'a Vec<u64>> for Arrived<'a> {
    fn from(words: &'a Vec<u64>) -> Arrived<'a> {
        words[..].into()
    }
}

impl From<Vec<u64>> for Excerpt {
    fn from(words: Vec<u64>) -> Excerpt {
        Excerpt {
            range: 0..words.len(),
            message: Arc::new(words),
        }
    }
}

impl Deref for Excerpt {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        self.message.get(self.range.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(formatter)
    }
}

impl PartialEq for Excerpt {
    fn eq(&self, other: &Excerpt) -> bool {
        self[..] == other[..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_message_are_kept_where_they_are_and_others_are_copied() {
        let message = Arc::new((0..9).collect::<Vec<u64>>());
        let within = Excerpt::of(&message, &message[2..5]);
        assert_eq!(within[..], [2, 3, 4]);
        assert!(std::ptr::eq(&within[..], &message[2..5]));
        let elsewhere = [7, 8];
        let copied = Excerpt::of(&message, &elsewhere);
        assert_eq!(copied[..], elsewhere);
        drop(message);
        assert_eq!(within, Excerpt::from(vec![2, 3, 4]));
        assert_ne!(within, copied);
    }

    #[test]
    fn a_message_goes_with_its_last_excerpt() {
        let message = Arc::new(vec![1, 2, 3]);
        let one = Excerpt::of(&message, &message[..1]);
        let other = one.clone();
        drop(one);
        let Err(message) = Arc::try_unwrap(message) else {
            panic!("nobody keeps it");
        };
        drop(other);
        assert_eq!(Arc::try_unwrap(message), Ok(vec![1, 2, 3]));
    }
}
