//! Numbers as they travel: float32, two to a word, or bfloat16, four to a word. A flag where they are named says which.
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
use std::borrow::Cow;

use crate::bfloat::{BFloat16, convert};
use crate::net::sink::Sink;
use crate::ps::protocol::words::put_numbers;

/// Of a half of a word that is far from needing its highest bit: what it names has short numbers.
const SHORT: u32 = 1 << 31;

/// Numbers where they came in, or where they are to be sent from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Numbers<'a> {
    Long(&'a [f32]),
    Short(&'a [BFloat16]),
}

impl<'a> Numbers<'a> {
    /// Whether they are bfloat16.
    pub fn is_short(&self) -> bool {
        matches!(self, Numbers::Short(_))
    }

    /// Return them as float32; those that are need no copy.
    pub fn wide(&self) -> Cow<'a, [f32]> {
        match self {
            Numbers::Long(numbers) => Cow::Borrowed(numbers),
            Numbers::Short(numbers) => numbers.iter().map(|number| (*number).into()).collect(),
        }
    }

    /// Return the first ones, and the others; there have to be so many.
    pub fn split_at(&self, count: usize) -> (Numbers<'a>, Numbers<'a>) {
        match self {
            Numbers::Long(numbers) => {
                let (first, rest) = numbers.split_at(count);
                (Numbers::Long(first), Numbers::Long(rest))
            }
            Numbers::Short(numbers) => {
                let (first, rest) = numbers.split_at(count);
                (Numbers::Short(first), Numbers::Short(rest))
            }
        }
    }

    /// Put them into a place that has room for as many.
    pub fn copy_to(&self, place: &mut [f32]) {
        match self {
            Numbers::Long(numbers) => place.copy_from_slice(numbers),
            Numbers::Short(numbers) => convert(numbers, place),
        }
    }

    /// Return the place of the first one that is not finite, and itself.
    ///
    /// Looks at all of them at first, many at a time, because nearly always they are.
    pub fn not_finite(&self) -> Option<(usize, f32)> {
        match self {
            Numbers::Long(numbers) => not_finite(numbers, |number| number.is_finite()),
            Numbers::Short(numbers) => not_finite(numbers, |number| number.is_finite()),
        }
    }

    /// Append them, filled up to whole words.
    pub fn put(&self, words: &mut impl Sink) {
        match self {
            Numbers::Long(numbers) => put_numbers(words, numbers),
            Numbers::Short(numbers) => make_room(words, numbers.len()).copy_from_slice(numbers),
        }
    }
}

fn not_finite<N: Copy + Into<f32>>(
    numbers: &[N],
    is_finite: impl Fn(N) -> bool,
) -> Option<(usize, f32)> {
    let are_finite = numbers
        .iter()
        .fold(true, |are, number| are & is_finite(*number));
    if are_finite {
        return None;
    }
    let at = numbers.iter().position(|number| !is_finite(*number))?;
    Some((at, (*numbers.get(at)?).into()))
}

/// Append numbers, rounded to bfloat16 if they are to be short.
pub fn put_as(words: &mut impl Sink, numbers: &[f32], is_short: bool) {
    if is_short {
        convert(numbers, make_room::<BFloat16>(words, numbers.len()));
    } else {
        put_numbers(words, numbers);
    }
}

/// Append room for numbers of a kind, whole words; returns where all of them have to be written.
pub fn make_room<N: bytemuck::Pod>(words: &mut impl Sink, count: usize) -> &mut [N] {
    let bytes = count.saturating_mul(size_of::<N>());
    let room = words.append_room(bytes.div_ceil(8));
    bytemuck::cast_slice_mut(room).split_at_mut(count).0
}

/// Return how many words numbers take.
pub fn words_of(count: usize, is_short: bool) -> usize {
    count.div_ceil(if is_short { 4 } else { 2 })
}

/// Return the half of a word that names something with numbers.
pub fn flagged(name: u32, is_short: bool) -> u32 {
    if is_short { name | SHORT } else { name }
}

/// Return what a half of a word names, and whether its numbers are short.
pub fn unflagged(half: u32) -> (u32, bool) {
    (half & !SHORT, half & SHORT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ps::protocol::words::Reader;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_put_is_read(
            numbers in prop::collection::vec(any::<f32>(), 0..20),
            is_short: bool,
        ) {
            let mut words = vec![7];
            put_as(&mut words, &numbers, is_short);
            prop_assert_eq!(words.len(), 1 + words_of(numbers.len(), is_short));
            let mut reader = Reader::new(&words);
            prop_assert_eq!(reader.word(), Ok(7));
            let read = reader.numbers_as(numbers.len(), is_short).unwrap();
            prop_assert!(reader.is_empty());
            prop_assert_eq!(read.is_short(), is_short);
            let rounded = |number: &f32| if is_short { BFloat16::from(*number).into() } else { *number };
            let expected: Vec<f32> = numbers.iter().map(rounded).collect();
            let bits = |numbers: &[f32]| numbers.iter().map(|one| one.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&read.wide()), bits(&expected));
            let mut again = vec![7];
            read.put(&mut again);
            prop_assert_eq!(&again, &words);
            let (first, rest) = read.split_at(numbers.len() / 2);
            let mut halves = vec![0.0; numbers.len()];
            let (left, right) = halves.split_at_mut(numbers.len() / 2);
            first.copy_to(left);
            rest.copy_to(right);
            prop_assert_eq!(bits(&halves), bits(&expected));
        }

        #[test]
        fn the_first_number_that_is_not_finite_is_found(bits: Vec<u32>) {
            let numbers: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            let mut short = vec![BFloat16::from(0.0); numbers.len()];
            convert(&numbers, &mut short);
            for numbers in [Numbers::Long(&numbers), Numbers::Short(&short)] {
                let expected = numbers.wide().iter().position(|number| !number.is_finite());
                prop_assert_eq!(numbers.not_finite().map(|(at, _)| at), expected);
            }
        }
    }

    #[test]
    fn no_name_is_lost_by_its_flag() {
        for name in [0, 1, SHORT - 1] {
            for is_short in [false, true] {
                assert_eq!(unflagged(flagged(name, is_short)), (name, is_short));
            }
        }
    }
}
