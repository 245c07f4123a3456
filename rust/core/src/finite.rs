//! Whether floating-point numbers are all finite, found as fast as memory is read.
//!
//! An exponent of nothing but ones is NaN's or infinity's, and only that one carries into the sign when the lowest bit of an exponent is
//! added: three operations on whole registers for each number, without a branch and without rounding.

/// Numbers that are looked at before the next answer, so that who has found one stops soon.
const BLOCK: usize = 256;

/// Places at which an array is read in turns: a core keeps more of its reads from memory under way than one place makes.
const PLACES: usize = 8;

/// Says whether none of the numbers is NaN or infinite.
pub fn all_finite_f32(values: &[f32]) -> bool {
    every_block(values, |block| {
        let carried = block.iter().fold(0_u32, |seen, value| {
            seen | (value.to_bits() & 0x7f80_0000).wrapping_add(0x0080_0000)
        });
        carried >> 31 == 0
    })
}

/// Says whether none of the numbers is NaN or infinite.
pub fn all_finite_f64(values: &[f64]) -> bool {
    every_block(values, |block| {
        let carried = block.iter().fold(0_u64, |seen, value| {
            seen | (value.to_bits() & 0x7ff0_0000_0000_0000).wrapping_add(0x0010_0000_0000_0000)
        });
        carried >> 63 == 0
    })
}

/// Says whether all blocks are good; the first bad one is the last that is looked at.
fn every_block<T>(values: &[T], is_good: impl Fn(&[T]) -> bool) -> bool {
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    let part = blocks.len() / PLACES;
    let (in_turns, last) = blocks.split_at(part * PLACES);
    (0..part).all(|at| (0..PLACES).all(|place| is_good(&in_turns[place * part + at])))
        && last.iter().all(|block| is_good(block))
        && is_good(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_number_anywhere_is_found() {
        for length in [1, 2, 31, BLOCK, BLOCK + 1, 29 * BLOCK + 7] {
            for place in [0, length / 3, length / 2, length - 1] {
                for wrong in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut narrow = vec![f32::MAX; length];
                    let mut wide = vec![f64::MIN; length];
                    assert!(all_finite_f32(&narrow) && all_finite_f64(&wide));
                    narrow[place] = wrong;
                    wide[place] = wrong.into();
                    assert!(!all_finite_f32(&narrow) && !all_finite_f64(&wide));
                }
            }
        }
    }

    #[test]
    fn nothing_is_finite() {
        assert!(all_finite_f32(&[]) && all_finite_f64(&[]));
    }

    proptest! {
        #[test]
        fn any_bits_are_taken_as_the_language_takes_them(narrow: Vec<u32>, wide: Vec<u64>) {
            let narrow: Vec<f32> = narrow.into_iter().map(f32::from_bits).collect();
            let wide: Vec<f64> = wide.into_iter().map(f64::from_bits).collect();
            prop_assert_eq!(all_finite_f32(&narrow), narrow.iter().all(|one| one.is_finite()));
            prop_assert_eq!(all_finite_f64(&wide), wide.iter().all(|one| one.is_finite()));
        }
    }
}
