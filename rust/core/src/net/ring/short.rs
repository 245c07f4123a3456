//! Sums of which the first elements travel as bfloat16, and the others as they are: two operations, of which the second has the trailer.
use bytemuck::Zeroable;

use super::Ring;
use crate::bfloat::{BFloat16, convert};
use crate::net::endpoint::lock;
use crate::net::error::{Error, Result};
use crate::net::wake::Interrupt;

impl Ring {
    /// Sum as `reduce` does, for float32 of which the first `short` travel as bfloat16: each contribution is rounded to it, and so is the sum.
    ///
    /// # Errors
    /// As for `reduce`.
    pub fn reduce_short(
        &self,
        step: u64,
        contribution: &[f32],
        result: &mut [f32],
        short: usize,
        trailer: &[f64],
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<f64>> {
        let (Some((gradients, others)), Some((sums, other_sums))) = (
            contribution.split_at_checked(short),
            result.split_at_mut_checked(short),
        ) else {
            return Err(Error::BadArgument(format!(
                "{short} elements were to be short, of {} and {}",
                contribution.len(),
                result.len()
            )));
        };
        if self.peers.len() == 1 {
            return self.reduce(step, contribution, result, trailer, interrupt); // nothing travels
        }
        let mut scratch = lock(&self.scratch);
        scratch.resize(short.saturating_mul(2), BFloat16::zeroed());
        let (given, summed) = scratch.split_at_mut(short);
        convert(gradients, given);
        self.reduce(step, given, summed, &[], interrupt)?;
        convert(summed, sums);
        self.reduce(step, others, other_sums, trailer, interrupt)
    }
}
