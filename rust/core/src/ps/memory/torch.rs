//! The optimizers of PyTorch where their formulas are not those of Keras: a rate multiplies a moment and is no part of it, and epsilon is
//! added to a root, which Adam has corrected before. Plain gradient descent and Adadelta are the same in both.
//!
//! A row's state lies behind its weights, in the order of the arrays that are named first. On rows of a table they are lazy, as those of Keras
//! are here. Source: the functions `_single_tensor_*` of `torch/optim/`.
use crate::ps::memory::optimizer::Correction;

/// How a gradient changes weights. PyTorch computes what is the same for all weights in f64.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TorchRule {
    /// With momentum; without, it is that of Keras.
    Sgd { momentum: f32, nesterov: bool },
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
}

impl TorchRule {
    /// Return how many numbers of state each weight has.
    pub fn state(&self) -> usize {
        match *self {
            TorchRule::Sgd { .. } | TorchRule::Adagrad { .. } => 1,
            TorchRule::Adam { amsgrad, .. } => 2 + usize::from(amsgrad),
            TorchRule::Rmsprop {
                momentum, centered, ..
            } => 1 + usize::from(momentum > 0.0) + usize::from(centered),
        }
    }

    /// Return what each number of the state is before the first push.
    pub fn initial(&self) -> f32 {
        match *self {
            TorchRule::Adagrad {
                initial_accumulator,
                ..
            } => initial_accumulator,
            _ => 0.0,
        }
    }

    /// Return the correction at a step; `step` counts the steps before this one.
    pub(crate) fn correction(&self, rate: f32, step: u64) -> Correction {
        match *self {
            TorchRule::Adam { beta_1, beta_2, .. } => {
                let time = step.saturating_add(1) as f64;
                Correction {
                    rate: (f64::from(rate) / (1.0 - beta_1.powf(time))) as f32,
                    root: (1.0 - beta_2.powf(time)).sqrt() as f32,
                }
            }
            _ => Correction { rate, root: 1.0 },
        }
    }

    /// Apply a gradient to weights, as many as it has numbers, and their state.
    pub(crate) fn apply(
        &self,
        correction: Correction,
        weights: &mut [f32],
        state: &mut [f32],
        gradient: &[f32],
    ) {
        let Correction { rate, root } = correction;
        match *self {
            TorchRule::Sgd { momentum, nesterov } => {
                for ((weight, slope), moment) in weights.iter_mut().zip(gradient).zip(state) {
                    *moment = momentum * *moment + slope;
                    *weight -= rate
                        * if nesterov {
                            slope + momentum * *moment
                        } else {
                            *moment
                        };
                }
            }
            TorchRule::Adagrad { epsilon, .. } => {
                for ((weight, slope), sum) in weights.iter_mut().zip(gradient).zip(state) {
                    *sum += slope * slope;
                    *weight -= rate * slope / (sum.sqrt() + epsilon);
                }
            }
            TorchRule::Adam {
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
                    second[at] = beta_2 as f32 * second[at] + share_2 * (slope * slope);
                    let square = if amsgrad {
                        most[at] = most[at].max(second[at]);
                        most[at]
                    } else {
                        second[at]
                    };
                    weights[at] -= rate * (first[at] / (square.sqrt() / root + epsilon));
                }
            }
            TorchRule::Rmsprop {
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
                        mean[at] += (slope - mean[at]) * share;
                        spread -= mean[at] * mean[at];
                    }
                    let change = slope / (spread.sqrt() + epsilon);
                    weights[at] -= rate
                        * if momentum > 0.0 {
                            moment[at] = momentum * moment[at] + change;
                            moment[at]
                        } else {
                            change
                        };
                }
            }
        }
    }
}
