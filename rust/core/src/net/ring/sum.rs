//! Sums of tensors. Plain loops over slices, which the compiler turns into vector instructions.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "slices are of this member's own operation, and adding up is what they are for"
)]
use bytemuck::Pod;

/// What a ring can add up.
pub trait Element: Pod + std::ops::Add<Output = Self> {
    /// Its code in the first frame of a ring.
    const CODE: u32;
    /// Its name for messages.
    const NAME: &'static str;
}

impl Element for f32 {
    const CODE: u32 = 1;
    const NAME: &'static str = "float32";
}

impl Element for f64 {
    const CODE: u32 = 2;
    const NAME: &'static str = "float64";
}

/// `into = left + right`.
pub fn add<T: Element>(into: &mut [T], left: &[T], right: &[T]) {
    for ((into, left), right) in into.iter_mut().zip(left).zip(right) {
        *into = *left + *right;
    }
}

/// `into += right`.
pub fn accumulate<T: Element>(into: &mut [T], right: &[T]) {
    for (into, right) in into.iter_mut().zip(right) {
        *into = *into + *right;
    }
}

/// Sum parts in the order given: the same order in all members gives the same bits in all members.
pub fn in_order<'a, T: Element>(into: &mut [T], mut parts: impl Iterator<Item = &'a [T]>) {
    match (parts.next(), parts.next()) {
        (Some(first), Some(second)) => add(into, first, second),
        (Some(only), None) => into.copy_from_slice(only),
        (None, _) => {}
    }
    for part in parts {
        accumulate(into, part);
    }
}
