//! The optimizers of Keras 3 as they are applied to one row: same formulas, same order of operations, in f32.
//!
//! A row's state lies behind its weights, one array after the other in the order in which Keras makes its slot variables. On rows of a
//! table they are lazy: what is not touched does not decay, and moments stay as they were. Source: `keras/src/optimizers/`.
use crate::ps::memory::torch::TorchRule;

/// How a gradient changes weights. Where Keras subtracts a number from 1 before it rounds, the number is kept in f64: rounded before, the
/// difference would be off. Look at each class: some of Keras' round first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    Sgd {
        momentum: f32,
        nesterov: bool,
    },
    Adagrad {
        initial_accumulator: f32,
        epsilon: f32,
    },
    /// Adam, and AdamW with a weight decay.
    Adam {
        beta_1: f64,
        beta_2: f64,
        epsilon: f32,
        amsgrad: bool,
    },
    Rmsprop {
        rho: f64,
        momentum: f32,
        epsilon: f32,
        centered: bool,
    },
    Adadelta {
        rho: f64,
        epsilon: f32,
    },
    Ftrl {
        learning_rate_power: f32,
        initial_accumulator: f32,
        l1: f32,
        l2: f32,
        l2_shrinkage: f32,
        beta: f32,
    },
    /// One whose formula is not that of Keras.
    Torch(TorchRule),
}

impl Rule {
    /// Return how many numbers of state each weight has.
    pub fn state(&self) -> usize {
        match *self {
            Rule::Sgd { momentum, .. } => usize::from(momentum != 0.0),
            Rule::Adagrad { .. } => 1,
            Rule::Adam { amsgrad, .. } => 2 + usize::from(amsgrad),
            Rule::Rmsprop {
                momentum, centered, ..
            } => 1 + usize::from(momentum > 0.0) + usize::from(centered),
            Rule::Adadelta { .. } | Rule::Ftrl { .. } => 2,
            Rule::Torch(rule) => rule.state(),
        }
    }

    /// Write the state of weights that have not been pushed yet.
    pub fn begin(&self, state: &mut [f32]) {
        state.fill(0.0);
        match *self {
            Rule::Adagrad {
                initial_accumulator,
                ..
            } => state.fill(initial_accumulator),
            Rule::Ftrl {
                initial_accumulator,
                ..
            } => {
                let half = state.len() / 2;
                state[..half].fill(initial_accumulator);
            }
            Rule::Torch(rule) => state.fill(rule.initial()),
            _ => {}
        }
    }
}

/// What Adam's moments are corrected by, because they began at zero; of other rules only the rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Correction {
    /// The learning rate, corrected for the first moment, and by Keras for the second.
    pub(crate) rate: f32,
    /// What PyTorch divides the second moment's root by.
    pub(crate) root: f32,
}

/// An optimizer at one step of its schedule.
#[derive(Debug, Clone, Copy)]
pub struct Update {
    rule: Rule,
    rate: f32,
    /// What the weights lose first, as a share.
    decay: f32,
    correction: Correction,
}

impl Update {
    /// Prepare an update.
    ///
    /// Args: `rate` is the learning rate, `decay` the weight decay or 0, `step` counts the steps before this one.
    pub fn new(rule: Rule, rate: f32, decay: f32, step: u64) -> Update {
        let correction = match rule {
            Rule::Adam { beta_1, beta_2, .. } => {
                let time = step.saturating_add(1) as f32;
                let (first, second) = ((beta_1 as f32).powf(time), (beta_2 as f32).powf(time));
                let rate = rate * (1.0 - second).sqrt() / (1.0 - first);
                Correction { rate, root: 1.0 }
            }
            Rule::Torch(rule) => rule.correction(rate, step),
            _ => Correction { rate, root: 1.0 },
        };
        Update {
            rule,
            rate,
            decay: decay * rate,
            correction,
        }
    }

    /// Apply a gradient to a row: its weights, as many as the gradient has numbers, then its state.
    pub fn apply(&self, row: &mut [f32], gradient: &[f32]) {
        let (weights, state) = row.split_at_mut(gradient.len());
        if self.decay != 0.0 {
            for weight in weights.iter_mut() {
                *weight -= *weight * self.decay;
            }
        }
        match self.rule {
            Rule::Sgd { momentum: 0.0, .. } => {
                for (weight, slope) in weights.iter_mut().zip(gradient) {
                    *weight -= self.rate * slope;
                }
            }
            Rule::Sgd { momentum, nesterov } => {
                for ((weight, slope), moment) in weights.iter_mut().zip(gradient).zip(state) {
                    *moment = momentum * *moment - self.rate * slope;
                    *weight += if nesterov {
                        momentum * *moment - self.rate * slope
                    } else {
                        *moment
                    };
                }
            }
            Rule::Adagrad { epsilon, .. } => {
                for ((weight, slope), sum) in weights.iter_mut().zip(gradient).zip(state) {
                    *sum += slope * slope;
                    *weight -= self.rate * slope / (*sum + epsilon).sqrt();
                }
            }
            Rule::Adam {
                beta_1,
                beta_2,
                epsilon,
                amsgrad,
            } => {
                let (first, rest) = state.split_at_mut(gradient.len());
                let (second, most) = rest.split_at_mut(gradient.len());
                let (share_1, share_2) = ((1.0 - beta_1) as f32, (1.0 - beta_2) as f32);
                for (at, slope) in gradient.iter().enumerate() {
                    first[at] += (slope - first[at]) * share_1;
                    second[at] += (slope * slope - second[at]) * share_2;
                    let square = if amsgrad {
                        most[at] = most[at].max(second[at]);
                        most[at]
                    } else {
                        second[at]
                    };
                    weights[at] -= first[at] * self.correction.rate / (square.sqrt() + epsilon);
                }
            }
            Rule::Rmsprop {
                rho,
                momentum,
                epsilon,
                centered,
            } => {
                let (square, rest) = state.split_at_mut(gradient.len());
                let (moment, mean) =
                    rest.split_at_mut(if momentum > 0.0 { gradient.len() } else { 0 });
                let (kept, share) = (rho as f32, (1.0 - rho) as f32);
                for (at, slope) in gradient.iter().enumerate() {
                    square[at] = kept * square[at] + share * (slope * slope);
                    let mut spread = square[at];
                    if centered {
                        mean[at] = kept * mean[at] + share * slope;
                        spread -= mean[at] * mean[at];
                    }
                    let change = self.rate * slope / (spread + epsilon).sqrt();
                    weights[at] -= if momentum > 0.0 {
                        moment[at] = momentum * moment[at] + change;
                        moment[at]
                    } else {
                        change
                    };
                }
            }
            Rule::Adadelta { rho, epsilon } => {
                let (square, changes) = state.split_at_mut(gradient.len());
                let (kept, share) = (rho as f32, (1.0 - rho) as f32);
                for (at, slope) in gradient.iter().enumerate() {
                    square[at] = kept * square[at] + share * (slope * slope);
                    let change =
                        -(changes[at] + epsilon).sqrt() * slope / (square[at] + epsilon).sqrt();
                    changes[at] = kept * changes[at] + share * (change * change);
                    weights[at] += self.rate * change;
                }
            }
            Rule::Ftrl {
                learning_rate_power,
                l1,
                l2,
                l2_shrinkage,
                beta,
                ..
            } => {
                let (sum, linear) = state.split_at_mut(gradient.len());
                let strength = l2 + beta / (2.0 * self.rate);
                for (at, slope) in gradient.iter().enumerate() {
                    let shrunk = slope + 2.0 * l2_shrinkage * weights[at];
                    let grown = sum[at] + slope * slope;
                    let (before, after) = (
                        sum[at].powf(-learning_rate_power),
                        grown.powf(-learning_rate_power),
                    );
                    linear[at] += shrunk - (after - before) / self.rate * weights[at];
                    let square = after / self.rate + 2.0 * strength;
                    weights[at] = (linear[at].clamp(-l1, l1) - linear[at]) / square;
                    sum[at] = grown;
                }
            }
            Rule::Torch(rule) => rule.apply(self.correction, weights, state, gradient),
        }
    }
}
