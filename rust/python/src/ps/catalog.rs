//! What a model has on parameter servers, from Python's words: tables, variables, initial weights and the optimizer's rule.
use std::collections::BTreeMap;
use std::path::PathBuf;

use elasticdl_core::ps::memory::initial::Initial;
use elasticdl_core::ps::memory::optimizer::Rule;
use elasticdl_core::ps::memory::torch::TorchRule;
use elasticdl_core::ps::protocol::catalog::{Catalog, Policy, Table, Variable};
use elasticdl_core::ps::server::snapshot::{self, Section};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::arguments::Borrowed;
use crate::ps::{WHOLE, array};

/// (name, width, (kind of initial weights, first parameter, second), admission, whether it decays)
type PyTable = (String, usize, (String, f32, f32), u32, bool);

fn initial(kind: &str, first: f32, second: f32) -> PyResult<Initial> {
    match kind {
        "constant" => Ok(Initial::Constant(first)),
        "uniform" => Ok(Initial::Uniform {
            low: first,
            high: second,
        }),
        "normal" => Ok(Initial::Normal {
            mean: first,
            deviation: second,
        }),
        "truncated_normal" => Ok(Initial::TruncatedNormal {
            mean: first,
            deviation: second,
        }),
        _ => Err(PyValueError::new_err(format!(
            "no kind of initial weights is called {kind:?}"
        ))),
    }
}

fn rule(name: &str, numbers: &BTreeMap<String, f64>) -> PyResult<Rule> {
    let wide = |key: &str| {
        numbers
            .get(key)
            .copied()
            .ok_or_else(|| PyValueError::new_err(format!("the optimizer {name} needs {key}")))
    };
    let number = |key: &str| Ok::<_, PyErr>(wide(key)? as f32);
    let flag = |key: &str| Ok::<_, PyErr>(wide(key)? != 0.0);
    Ok(match name {
        "sgd" => Rule::Sgd {
            momentum: number("momentum")?,
            nesterov: flag("nesterov")?,
        },
        "adagrad" => Rule::Adagrad {
            initial_accumulator: number("initial_accumulator")?,
            epsilon: number("epsilon")?,
        },
        "adam" => Rule::Adam {
            beta_1: wide("beta_1")?,
            beta_2: wide("beta_2")?,
            epsilon: number("epsilon")?,
            amsgrad: flag("amsgrad")?,
        },
        "rmsprop" => Rule::Rmsprop {
            rho: wide("rho")?,
            momentum: number("momentum")?,
            epsilon: number("epsilon")?,
            centered: flag("centered")?,
        },
        "adadelta" => Rule::Adadelta {
            rho: wide("rho")?,
            epsilon: number("epsilon")?,
        },
        "ftrl" => Rule::Ftrl {
            learning_rate_power: number("learning_rate_power")?,
            initial_accumulator: number("initial_accumulator")?,
            l1: number("l1")?,
            l2: number("l2")?,
            l2_shrinkage: number("l2_shrinkage")?,
            beta: number("beta")?,
        },
        "torch_sgd" => Rule::Torch(TorchRule::Sgd {
            momentum: number("momentum")?,
            nesterov: flag("nesterov")?,
        }),
        "torch_adagrad" => Rule::Torch(TorchRule::Adagrad {
            initial_accumulator: number("initial_accumulator")?,
            epsilon: number("epsilon")?,
        }),
        "torch_adam" => Rule::Torch(TorchRule::Adam {
            beta_1: wide("beta_1")?,
            beta_2: wide("beta_2")?,
            epsilon: number("epsilon")?,
            amsgrad: flag("amsgrad")?,
        }),
        "torch_rmsprop" => Rule::Torch(TorchRule::Rmsprop {
            rho: wide("rho")?,
            momentum: number("momentum")?,
            epsilon: number("epsilon")?,
            centered: flag("centered")?,
        }),
        _ => {
            return Err(PyValueError::new_err(format!(
                "no optimizer is called {name:?}"
            )));
        }
    })
}

/// Of each table the ids that have a row and their weights; variables that have a value, and their weights.
type PyTaken<'py> = (
    Vec<(Bound<'py, PyByteArray>, Bound<'py, PyByteArray>)>,
    Vec<(usize, Bound<'py, PyByteArray>)>,
);

#[pyclass(name = "Catalog", module = "elasticdl._core", frozen)]
pub struct PyCatalog(pub Catalog);

#[pymethods]
impl PyCatalog {
    #[new]
    #[pyo3(signature = (*, seed, slots, tables, variables, optimizer, parameters, weight_decay))]
    fn new(
        seed: u64,
        slots: u32,
        tables: Vec<PyTable>,
        variables: Vec<(String, usize, bool, bool)>,
        optimizer: &str,
        parameters: BTreeMap<String, f64>,
        weight_decay: f32,
    ) -> PyResult<Self> {
        if !(1..=1 << 16).contains(&slots) {
            return Err(PyValueError::new_err(format!(
                "slots are 1 to 65536, received {slots}"
            )));
        }
        let tables = tables
            .into_iter()
            .map(|(name, width, (kind, first, second), admission, decays)| {
                let initial = initial(&kind, first, second)?;
                Ok(Table {
                    name,
                    width,
                    initial,
                    admission,
                    decays,
                })
            })
            .collect::<PyResult<_>>()?;
        let variables = variables
            .into_iter()
            .map(|(name, length, decays, adds)| Variable {
                name,
                length,
                decays,
                adds,
            })
            .collect();
        let rule = rule(optimizer, &parameters)?;
        Ok(PyCatalog(Catalog::new(
            seed,
            slots,
            tables,
            variables,
            rule,
            weight_decay,
        )))
    }

    fn with_policy(
        &self,
        modulates: bool,
        max_staleness: Option<u64>,
        expiry: Option<u32>,
        accumulates: bool,
    ) -> PyCatalog {
        PyCatalog(self.0.clone().with_policy(Policy {
            modulates,
            max_staleness,
            expiry,
            accumulates,
        }))
    }

    fn slot_of_row(&self, table: usize, id: u64) -> u32 {
        self.0.slot_of_row(table, id)
    }

    fn slot_of_variable(&self, variable: usize) -> u32 {
        self.0.slot_of_variable(variable)
    }

    fn initial<'py>(
        &self,
        py: Python<'py>,
        table: usize,
        ids: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, PyByteArray>> {
        let ids = Borrowed::new(ids, "ids")?;
        let ids: &[u64] = ids.items(WHOLE, "ids")?;
        let described = self
            .0
            .tables()
            .get(table)
            .ok_or_else(|| PyValueError::new_err(format!("there is no table {table}")))?;
        let weights = py.detach(|| {
            let mut weights = vec![0.0; ids.len() * described.width];
            for (id, row) in ids.iter().zip(weights.chunks_exact_mut(described.width)) {
                self.0.begin_row(table, *id, row);
            }
            weights
        });
        Ok(array(py, bytemuck::cast_slice(&weights)))
    }

    fn read_slot<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        slot: u32,
        place: (u64, u64, u32),
    ) -> PyResult<PyTaken<'py>> {
        let (offset, length, crc) = place;
        let section = Section {
            slot,
            offset,
            length,
            crc,
            ..Section::default()
        };
        let data = py
            .detach(|| snapshot::read(&path, &section, &self.0))
            .map_err(|error| {
                PyValueError::new_err(format!("slot {slot} in {}: {error}", path.display()))
            })?;
        let tables = self
            .0
            .tables()
            .iter()
            .enumerate()
            .map(|(table, described)| {
                let ids = data.trained(table);
                let mut weights = vec![0.0; ids.len() * described.width];
                data.pull(&self.0, table, &ids, &mut weights);
                (
                    array(py, bytemuck::cast_slice(&ids)),
                    array(py, bytemuck::cast_slice(&weights)),
                )
            });
        let variables = (0..self.0.variables().len()).filter_map(|variable| {
            let (weights, _) = data.variable(&self.0, variable)?;
            Some((variable, array(py, bytemuck::cast_slice(weights))))
        });
        Ok((tables.collect(), variables.collect()))
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyCatalog>()
}
