//! A worker's own copy of the dense variables, which continues with the worker's gradients alone between two looks at the servers.
use std::collections::BTreeMap;

use crate::ps::protocol::catalog::Catalog;

/// Dense variables with an optimizer of their own.
#[derive(Debug, Clone)]
pub struct LocalVariables {
    catalog: Catalog,
    /// Weights, and behind them the optimizer's state.
    variables: BTreeMap<usize, Vec<f32>>,
    changes: u64,
}

impl LocalVariables {
    /// Hold nothing.
    pub fn new(catalog: Catalog) -> LocalVariables {
        LocalVariables {
            catalog,
            variables: BTreeMap::new(),
            changes: 0,
        }
    }

    /// Return what the variables are.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Replace a variable's weights; the optimizer's state is kept.
    pub fn take(&mut self, variable: usize, weights: &[f32]) {
        self.variables
            .entry(variable)
            .or_insert_with(|| self.catalog.begin_variable(weights))[..weights.len()]
            .copy_from_slice(weights);
    }

    /// Change variables as a server does: by their gradients, or by what is to be added. One that was never taken is passed over.
    ///
    /// Adam is corrected for the changes of this copy: of others its moments know nothing.
    pub fn change<'a>(&mut self, pushed: impl IntoIterator<Item = (usize, &'a [f32])>, rate: f32) {
        let updates = self.catalog.updates(rate, self.changes);
        for (variable, numbers) in pushed {
            if let Some(held) = self.variables.get_mut(&variable) {
                self.catalog.change(variable, held, numbers, &updates);
            }
        }
        self.changes += 1;
    }

    /// Return a variable's weights, or nothing if it was never taken.
    pub fn weights(&self, variable: usize) -> Option<&[f32]> {
        let length = self.catalog.variables().get(variable)?.length;
        Some(&self.variables.get(&variable)?[..length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ps::memory::optimizer::Rule;
    use crate::ps::memory::torch::TorchRule;
    use crate::ps::protocol::catalog::Variable;
    use crate::ps::protocol::numbers::Numbers;
    use crate::ps::protocol::part::{Dense, Part};
    use crate::ps::protocol::stamps::Stamp;
    use crate::ps::server::data::{Data, Pace};

    const LENGTH: usize = 5;
    const FIRST: [f32; LENGTH] = [0.5, -1.0, 0.0, 2.0, -0.25];

    fn rules() -> Vec<Rule> {
        let adam = |amsgrad| Rule::Adam {
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-7,
            amsgrad,
        };
        let sgd = |momentum, nesterov| Rule::Sgd { momentum, nesterov };
        vec![
            sgd(0.0, false),
            sgd(0.9, false),
            sgd(0.9, true),
            Rule::Adagrad {
                initial_accumulator: 0.1,
                epsilon: 1e-7,
            },
            adam(false),
            adam(true),
            Rule::Rmsprop {
                rho: 0.9,
                momentum: 0.5,
                epsilon: 1e-7,
                centered: true,
            },
            Rule::Adadelta {
                rho: 0.95,
                epsilon: 1e-7,
            },
            Rule::Ftrl {
                learning_rate_power: -0.5,
                initial_accumulator: 0.1,
                l1: 0.01,
                l2: 0.02,
                l2_shrinkage: 0.03,
                beta: 0.1,
            },
            Rule::Torch(TorchRule::Sgd {
                momentum: 0.9,
                nesterov: true,
            }),
            Rule::Torch(TorchRule::Adagrad {
                initial_accumulator: 0.1,
                epsilon: 1e-10,
            }),
            Rule::Torch(TorchRule::Adam {
                beta_1: 0.9,
                beta_2: 0.999,
                epsilon: 1e-8,
                amsgrad: true,
            }),
            Rule::Torch(TorchRule::Rmsprop {
                rho: 0.99,
                momentum: 0.5,
                epsilon: 1e-8,
                centered: true,
            }),
        ]
    }

    /// A variable that decays, one that does not, and one that is added to.
    fn catalog(rule: Rule) -> Catalog {
        let variable = |name: &str, decays, adds| Variable {
            name: name.into(),
            length: LENGTH,
            decays,
            adds,
        };
        let variables = vec![
            variable("kernel", true, false),
            variable("bias", false, false),
            variable("mean", false, true),
        ];
        Catalog::new(0, 1, vec![], variables, rule, 0.01)
    }

    fn gradient(step: u64, variable: usize) -> [f32; LENGTH] {
        std::array::from_fn(|at| {
            ((step * 31 + variable as u64 * 7 + at as u64 * 3) % 11) as f32 / 5.0 - 1.0
        })
    }

    fn dense(numbers: &[[f32; LENGTH]; 3], is_first: bool) -> Part<'_> {
        let dense = numbers
            .iter()
            .enumerate()
            .map(|(variable, numbers)| Dense {
                variable,
                is_first,
                numbers: Numbers::Long(numbers),
            })
            .collect();
        Part {
            rows: vec![],
            dense,
        }
    }

    fn taken(catalog: &Catalog) -> LocalVariables {
        let mut local = LocalVariables::new(catalog.clone());
        (0..3).for_each(|variable| local.take(variable, &FIRST));
        local
    }

    fn push(local: &mut LocalVariables, slopes: &[[f32; LENGTH]; 3], rate: f32) {
        local.change(slopes.iter().map(|one| &one[..]).enumerate(), rate);
    }

    #[test]
    fn a_worker_that_is_alone_has_the_server_s_own_numbers() {
        for rule in rules() {
            let catalog = catalog(rule);
            let (mut server, mut local) = (Data::new(&catalog), taken(&catalog));
            let pace = |step| Pace {
                rate: 0.1 / (1.0 + step as f32),
                step,
            };
            server.apply(&catalog, &dense(&[FIRST; 3], true), None, pace(0));
            for step in 0..30 {
                let slopes = std::array::from_fn(|variable| gradient(step, variable));
                let stamp = Stamp {
                    task: step,
                    chunk: 0,
                };
                server.apply(&catalog, &dense(&slopes, false), Some(stamp), pace(step));
                push(&mut local, &slopes, pace(step).rate);
                for variable in 0..3 {
                    let (weights, _) = server.variable(&catalog, variable).unwrap();
                    assert_eq!(local.weights(variable), Some(weights), "{rule:?}");
                    assert_ne!(weights, FIRST, "{rule:?}");
                }
            }
        }
    }

    #[test]
    fn weights_that_come_replace_its_own_and_the_optimizer_goes_on() {
        let rule = Rule::Sgd {
            momentum: 0.5,
            nesterov: false,
        };
        let mut local = taken(&catalog(rule));
        push(&mut local, &[[1.0; LENGTH]; 3], 1.0);
        local.take(1, &[10.0; LENGTH]);
        assert_eq!(local.weights(1), Some(&[10.0; LENGTH][..]));
        push(&mut local, &[[0.0; LENGTH]; 3], 1.0);
        // Half of the step before.
        assert_eq!(local.weights(1), Some(&[9.5; LENGTH][..]));
    }

    #[test]
    fn a_variable_that_never_came_is_passed_over() {
        let mut local = LocalVariables::new(catalog(rules()[0]));
        local.take(2, &FIRST);
        push(&mut local, &[[1.0; LENGTH]; 3], 1.0);
        assert_eq!(local.weights(0), None);
        assert_eq!(
            local.weights(2),
            Some(&FIRST.map(|number| number + 1.0)[..])
        );
        assert_eq!(local.weights(3), None);
    }
}
