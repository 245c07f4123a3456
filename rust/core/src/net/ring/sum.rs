//! Sums of tensors. Plain loops over slices, which the compiler turns into vector instructions.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "slices are of this member's own operation, and adding up is what they are for"
)]
use bytemuck::Pod;

use crate::bfloat::{BFloat16, convert};

/// Elements that are added up at a time in a wider type: they stay in the first cache.
const RUN: usize = 512;

/// What a ring can add up.
pub trait Element: Pod + std::ops::Add<Output = Self> {
    /// Its code in the first frame of a ring.
    const CODE: u32;
    /// Its name for messages.
    const NAME: &'static str;

    /// See `in_order`.
    fn sum<'a>(into: &mut [Self], mut parts: impl Iterator<Item = &'a [Self]>) {
        match (parts.next(), parts.next()) {
            (Some(first), Some(second)) => add(into, first, second),
            (Some(only), None) => into.copy_from_slice(only),
            (None, _) => {}
        }
        for part in parts {
            accumulate(into, part);
        }
    }
}

impl Element for f32 {
    const CODE: u32 = 1;
    const NAME: &'static str = "float32";
}

impl Element for f64 {
    const CODE: u32 = 2;
    const NAME: &'static str = "float64";
}

impl Element for BFloat16 {
    const CODE: u32 = 3;
    const NAME: &'static str = "bfloat16";

    /// In float32, and rounded once: each sum of two would lose a bit where the parts are many.
    fn sum<'a>(into: &mut [Self], parts: impl Iterator<Item = &'a [Self]>) {
        let parts: Vec<&[BFloat16]> = parts.collect();
        let Some((first, others)) = parts.split_first() else {
            return;
        };
        let (mut sums, mut wide) = ([0.0f32; RUN], [0.0f32; RUN]);
        for (start, run) in (0..).step_by(RUN).zip(into.chunks_mut(RUN)) {
            let (sums, wide) = (&mut sums[..run.len()], &mut wide[..run.len()]);
            let here = start..start + run.len();
            convert(&first[here.clone()], sums);
            for part in others {
                convert(&part[here.clone()], wide);
                accumulate(sums, wide);
            }
            convert(sums, run);
        }
    }
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
pub fn in_order<'a, T: Element>(into: &mut [T], parts: impl Iterator<Item = &'a [T]>) {
    T::sum(into, parts);
}
