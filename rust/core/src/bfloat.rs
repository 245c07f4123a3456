//! Numbers of 16 bits with the sign and exponent of float32, and 8 bits of precision: what gradients and rows may be while they travel.
//!
//! Rounded to the nearest, halves to the even one. Plain loops over slices, which the compiler turns into vector instructions; those of the
//! crate `half`, which look at each number, took half as long again.
#![allow(
    clippy::arithmetic_side_effects,
    reason = "no number of 31 bits, increased by one of 16, leaves 32 bits; what is not one is replaced"
)]
use bytemuck::{Pod, Zeroable};

/// What follows the sign of a float32 that is infinite; what is above is no number.
const INFINITE: u32 = 0x7f80_0000;

/// One such number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct BFloat16(u16);

// SAFETY: it is a u16 and nothing else, and all bits are a number.
unsafe impl Zeroable for BFloat16 {}
// SAFETY: as above; it has no padding.
unsafe impl Pod for BFloat16 {}

impl BFloat16 {
    /// Whether it is neither infinite nor no number.
    pub fn is_finite(self) -> bool {
        u32::from(self.0) << 16 & INFINITE != INFINITE
    }
}

impl From<f32> for BFloat16 {
    fn from(number: f32) -> BFloat16 {
        let bits = number.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // Its last bits may be all that it has, and without them it would be infinite.
        let none = bits >> 16 | 0x40;
        let is_none = bits & !(1 << 31) > INFINITE;
        BFloat16((if is_none { none } else { rounded }) as u16)
    }
}

impl From<BFloat16> for f32 {
    fn from(number: BFloat16) -> f32 {
        f32::from_bits(u32::from(number.0) << 16)
    }
}

impl std::ops::Add for BFloat16 {
    type Output = BFloat16;

    fn add(self, other: BFloat16) -> BFloat16 {
        (f32::from(self) + f32::from(other)).into()
    }
}

/// Convert each number; both have as many.
pub fn convert<F: Copy, I: From<F>>(from: &[F], into: &mut [I]) {
    for (into, from) in into.iter_mut().zip(from) {
        *into = I::from(*from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn short(number: f32) -> f32 {
        BFloat16::from(number).into()
    }

    #[test]
    fn halves_go_to_the_even_number() {
        let unit = 1.0 / 128.0;
        assert_eq!(short(1.0 + unit / 2.0), 1.0);
        assert_eq!(short(1.0 + 1.5 * unit), 1.0 + 2.0 * unit);
        assert_eq!(short(f32::MAX), f32::INFINITY);
        assert_eq!(short(f32::MIN), f32::NEG_INFINITY);
        assert!(short(-0.0).is_sign_negative());
        for bits in [0x7f80_0001, 0x7fff_ffff, 0xff80_0001, 0xffff_ffff] {
            assert!(short(f32::from_bits(bits)).is_nan(), "{bits:x}");
        }
    }

    proptest! {
        #[test]
        fn the_nearest_number_is_taken(bits in any::<u32>()) {
            let number = f32::from_bits(bits);
            let near = short(number);
            prop_assert_eq!(near.is_nan(), number.is_nan());
            if near.is_finite() {
                let other = |step: i32| {
                    f64::from(f32::from_bits(near.to_bits().wrapping_add_signed(step << 16)))
                };
                let distance = |to: f64| (f64::from(number) - to).abs();
                for neighbour in [other(1), other(-1)] {
                    let is_nearer = distance(neighbour) < distance(f64::from(near));
                    prop_assert!(!is_nearer, "{number:e}: {near:e}");
                }
                prop_assert_eq!(short(near).to_bits(), near.to_bits());
            }
            prop_assert_eq!(BFloat16::from(number).is_finite(), near.is_finite());
        }
    }
}
