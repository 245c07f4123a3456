//! What a row holds before its first push: a function of (seed, table, id), so that every server gives the same answer at any time.
use crate::ps::memory::hash::{GOLDEN, mix};

/// How the weights of a row that nobody has pushed yet are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial {
    Constant(f32),
    /// Between `low` (included) and `high`.
    Uniform {
        low: f32,
        high: f32,
    },
    Normal {
        mean: f32,
        deviation: f32,
    },
    /// As `Normal`, without what lies more than two deviations away.
    TruncatedNormal {
        mean: f32,
        deviation: f32,
    },
}

impl Initial {
    /// Write the initial weights of the row with this hash.
    pub fn fill(&self, seed: u64, hash: u64, weights: &mut [f32]) {
        let mut numbers = Numbers(mix(seed) ^ hash);
        match *self {
            Initial::Constant(value) => weights.fill(value),
            Initial::Uniform { low, high } => {
                for weight in weights {
                    *weight = low + (high - low) * numbers.unit() as f32;
                }
            }
            Initial::Normal { mean, deviation } => {
                for weight in weights {
                    *weight = mean + deviation * numbers.normal() as f32;
                }
            }
            Initial::TruncatedNormal { mean, deviation } => {
                for weight in weights {
                    let mut drawn = numbers.normal();
                    while drawn.abs() > 2.0 {
                        drawn = numbers.normal();
                    }
                    *weight = mean + deviation * drawn as f32;
                }
            }
        }
    }
}

/// SplitMix64.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Return a number from [0, 1) with 24 bits, which an f32 holds without rounding up to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 40) as f64 / (1_u64 << 24) as f64
    }

    /// Return a normally distributed number (Box and Muller, 1958; half of each pair).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(initial: Initial) -> (f64, f64, f32, f32) {
        let mut all = Vec::new();
        for hash in 0..5_000 {
            let mut row = [0.0; 8];
            initial.fill(7, mix(hash), &mut row);
            all.extend(row);
        }
        let mean = all.iter().map(|x| f64::from(*x)).sum::<f64>() / all.len() as f64;
        let square = all
            .iter()
            .map(|x| (f64::from(*x) - mean).powi(2))
            .sum::<f64>()
            / all.len() as f64;
        let least = all.iter().copied().fold(f32::MAX, f32::min);
        let most = all.iter().copied().fold(f32::MIN, f32::max);
        (mean, square.sqrt(), least, most)
    }

    #[test]
    fn numbers_have_the_distribution_that_was_asked_for() {
        let (mean, deviation, least, most) = moments(Initial::Uniform {
            low: -1.0,
            high: 3.0,
        });
        assert!((mean - 1.0).abs() < 0.03 && (deviation - 4.0 / 12_f64.sqrt()).abs() < 0.03);
        assert!(least >= -1.0 && most < 3.0);
        let (mean, deviation, _, _) = moments(Initial::Normal {
            mean: 2.0,
            deviation: 0.5,
        });
        assert!((mean - 2.0).abs() < 0.02 && (deviation - 0.5).abs() < 0.02);
        let (_, deviation, least, most) = moments(Initial::TruncatedNormal {
            mean: 0.0,
            deviation: 1.0,
        });
        assert!(least >= -2.0 && most <= 2.0 && (deviation - 0.88).abs() < 0.02);
    }

    #[test]
    fn a_row_depends_on_seed_and_hash_only() {
        let row = |seed, hash| {
            let mut row = [0.0; 4];
            Initial::Normal {
                mean: 0.0,
                deviation: 1.0,
            }
            .fill(seed, hash, &mut row);
            row
        };
        assert_eq!(row(1, 2), row(1, 2));
        assert_ne!(row(1, 2), row(1, 3));
        assert_ne!(row(1, 2), row(2, 2));
    }
}
