//! A worker's end: batches of ids, and the client that pulls and pushes.
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use elasticdl_core::net::error::Error;
use elasticdl_core::ps::client::batch::Batch;
use elasticdl_core::ps::client::connections::Client;
use elasticdl_core::ps::client::push::Pushed;
use elasticdl_core::ps::client::tracker::End;
use elasticdl_core::ps::client::wanted::{Found, Wanted};
use elasticdl_core::ps::protocol::catalog::Catalog;
use elasticdl_core::ps::protocol::stamps::Stamp;
use elasticdl_core::ps::protocol::steps::Need;
use elasticdl_core::ps::server::data::Pace;
use elasticdl_core::ps::server::slot::{Head, UNSEEN};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::arguments::{Borrowed, PyIdentity, identity as core_identity, seconds};
use crate::errors::{blocking, to_python};
use crate::ps::catalog::PyCatalog;
use crate::ps::{PyEntry, SINGLE, WHOLE, array};

#[pyclass(name = "Batch", module = "elasticdl._core", frozen)]
pub struct PyBatch(pub Arc<Batch>);

#[pymethods]
impl PyBatch {
    #[new]
    fn new(
        py: Python<'_>,
        catalog: &PyCatalog,
        table: usize,
        ids: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        if table >= catalog.0.tables().len() {
            return Err(PyValueError::new_err(format!("there is no table {table}")));
        }
        let ids = Borrowed::new(ids, "ids")?;
        let ids = ids.items(WHOLE, "ids")?;
        Ok(PyBatch(Arc::new(
            py.detach(|| Batch::new(&catalog.0, table, ids)),
        )))
    }

    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyByteArray> {
        array(py, bytemuck::cast_slice(self.0.ids()))
    }

    fn inverse<'py>(&self, py: Python<'py>) -> Bound<'py, PyByteArray> {
        array(py, bytemuck::cast_slice(self.0.inverse()))
    }

    fn slots(&self) -> Vec<u32> {
        self.0.slots().collect()
    }

    fn __len__(&self) -> usize {
        self.0.ids().len()
    }
}

#[pyclass(name = "ParameterClient", module = "elasticdl._core", frozen)]
struct PyClient {
    client: Client,
    /// Gradients travel as bfloat16.
    short_gradients: bool,
    /// Rows for training do, too.
    short_rows: bool,
}

/// Stamp (task, chunk) or none, low, roll-back, learning rate, step
pub type PyHead = (Option<(u64, u16)>, u64, u64, f32, u64);

/// Stamp or none, batches, variables
pub type PyWanted<'py> = (Option<(u64, u16)>, Vec<PyRef<'py, PyBatch>>, Vec<usize>);

/// Number of a step, first and end of tasks, chunks
pub type PyNeed = (u64, u64, u64, u16);

/// Return a stamp as the core has it.
pub fn stamp(given: Option<(u64, u16)>) -> Option<Stamp> {
    given.map(|(task, chunk)| Stamp { task, chunk })
}

/// Return what must be settled as the core has it.
pub fn need(given: Option<PyNeed>) -> Need {
    given.map_or_else(Need::default, |(number, first, end, chunks)| Need {
        number,
        first,
        end,
        chunks,
    })
}

/// Numbers of dense variables as Python gives them.
pub type PyDense<'py> = Vec<(usize, Bound<'py, PyAny>)>;

/// Borrow numbers of dense variables.
pub fn lent_of(dense: &PyDense<'_>) -> PyResult<Vec<(usize, Borrowed)>> {
    dense
        .iter()
        .map(|(variable, numbers)| Ok((*variable, Borrowed::new(numbers, "a variable")?)))
        .collect()
}

/// Return numbers of dense variables, of each as many as it has.
pub fn dense_of<'a>(
    catalog: &Catalog,
    lent: &'a [(usize, Borrowed)],
) -> PyResult<Vec<(usize, &'a [f32])>> {
    lent.iter()
        .map(|(variable, numbers)| {
            let numbers: &[f32] = numbers.items(SINGLE, "a variable")?;
            match catalog.variables().get(*variable) {
                Some(described) if described.length == numbers.len() => Ok((*variable, numbers)),
                Some(described) => Err(PyValueError::new_err(format!(
                    "variable {} has {} numbers, received {}",
                    described.name,
                    described.length,
                    numbers.len()
                ))),
                None => Err(PyValueError::new_err(format!(
                    "there is no variable {variable}"
                ))),
            }
        })
        .collect()
}

#[pymethods]
impl PyClient {
    #[new]
    #[pyo3(signature = (name, token, catalog, identity=None, *, short_gradients=false, short_rows=false))]
    fn new(
        py: Python<'_>,
        name: &str,
        token: &[u8],
        catalog: &PyCatalog,
        identity: Option<PyIdentity>,
        short_gradients: bool,
        short_rows: bool,
    ) -> PyResult<Self> {
        let client = blocking(py, |_| {
            Client::open(name, token, core_identity(identity)?, catalog.0.clone())
        })?;
        Ok(PyClient {
            client,
            short_gradients,
            short_rows,
        })
    }

    fn learn(
        &self,
        py: Python<'_>,
        addresses: BTreeMap<u64, String>,
        entries: Vec<PyEntry>,
        roll_back: u64,
    ) -> PyResult<()> {
        let addresses = super::addresses(py, addresses)?;
        py.detach(|| {
            self.client
                .learn(addresses, super::entries(entries), roll_back)
        });
        Ok(())
    }

    #[pyo3(signature = (chunk, batches, variables, need=None, *, exact=false))]
    fn pull(
        &self,
        py: Python<'_>,
        chunk: Option<(u64, u16)>,
        batches: Vec<PyRef<'_, PyBatch>>,
        variables: Vec<usize>,
        need: Option<PyNeed>,
        exact: bool,
    ) -> PyResult<u32> {
        let mut wanted = self.wanted(chunk, &batches, variables, need)?;
        wanted.is_short &= !exact;
        Ok(py.detach(|| self.client.ask(Some(wanted), None)))
    }

    #[expect(clippy::too_many_arguments)]
    #[pyo3(signature = (head, rows, dense, is_first=false, wanted=None, need=None, confirms=0, marks=BTreeSet::new()))]
    fn push(
        &self,
        py: Python<'_>,
        head: PyHead,
        rows: Vec<(PyRef<'_, PyBatch>, Bound<'_, PyAny>, bool)>,
        dense: PyDense<'_>,
        is_first: bool,
        wanted: Option<PyWanted<'_>>,
        need: Option<PyNeed>,
        confirms: u16,
        marks: BTreeSet<u32>,
    ) -> PyResult<u32> {
        let catalog = self.client.catalog();
        let (stamp, low, roll_back, rate, step) = head;
        let head = Head {
            seen: UNSEEN,
            stamp: self::stamp(stamp),
            low,
            roll_back,
            pace: Pace { rate, step },
        };
        let wanted = wanted
            .map(|(chunk, batches, variables)| self.wanted(chunk, &batches, variables, need))
            .transpose()?;
        let rows: Vec<(Arc<Batch>, Borrowed, bool)> = rows
            .iter()
            .map(|(batch, gradients, is_distinct)| {
                Ok((
                    batch.0.clone(),
                    Borrowed::new(gradients, "gradients")?,
                    *is_distinct,
                ))
            })
            .collect::<PyResult<_>>()?;
        let mut gradients = Vec::new();
        for (batch, numbers, is_distinct) in &rows {
            let numbers: &[f32] = numbers.items(SINGLE, "gradients")?;
            let table = &catalog.tables()[batch.table()];
            let rows = if *is_distinct {
                batch.ids().len()
            } else {
                batch.inverse().len()
            };
            if numbers.len() != rows * table.width {
                return Err(PyValueError::new_err(format!(
                    "gradients of {rows} rows of table {} have {} numbers, received {}",
                    table.name,
                    rows * table.width,
                    numbers.len()
                )));
            }
            gradients.push((batch.clone(), numbers, table.width, *is_distinct));
        }
        let lent = lent_of(&dense)?;
        let variables = dense_of(catalog, &lent)?;
        Ok(py.detach(|| {
            let rows: Vec<(Arc<Batch>, Cow<'_, [f32]>)> = gradients
                .into_iter()
                .map(|(batch, numbers, width, is_distinct)| {
                    let sums = if is_distinct {
                        Cow::Borrowed(numbers)
                    } else {
                        Cow::Owned(batch.sum(width, numbers))
                    };
                    (batch, sums)
                })
                .collect();
            let pushed = Pushed::new(
                catalog,
                self.short_gradients,
                head,
                &rows,
                &variables,
                is_first,
            )
            .marking(&marks)
            .confirming(confirms);
            self.client.ask(wanted, Some(pushed))
        }))
    }

    fn confirm(&self, py: Python<'_>, roll_back: u64, low: u64, tasks: Vec<(u64, u16)>) {
        py.detach(|| self.client.confirm(roll_back, low, tasks));
    }

    fn forget(&self) {
        self.client.forget();
    }

    fn rows<'py>(
        &self,
        py: Python<'py>,
        ticket: u32,
        timeout: f64,
    ) -> PyResult<Option<PyFound<'py>>> {
        let limit = seconds(timeout, "timeout")?;
        let found = blocking(py, |_| self.client.take_found(ticket, limit))?;
        Ok(found.map(
            |Found {
                 rows,
                 variables,
                 held,
                 ..
             }| {
                let array = |numbers: &[f32]| array(py, bytemuck::cast_slice(numbers));
                (
                    rows.iter().map(|rows| array(rows)).collect(),
                    variables
                        .iter()
                        .map(|(variable, came)| {
                            let weights = came.as_ref().map(|came| &came.weights[..]);
                            (*variable, weights.map(array))
                        })
                        .collect(),
                    held.into_iter().collect(),
                )
            },
        ))
    }

    #[pyo3(signature = (table, first, end, need=None))]
    fn ask_ids(
        &self,
        py: Python<'_>,
        table: usize,
        first: u32,
        end: u32,
        need: Option<PyNeed>,
    ) -> PyResult<u32> {
        let catalog = self.client.catalog();
        if table >= catalog.tables().len() || end > catalog.slots() {
            return Err(PyValueError::new_err(format!(
                "there is no table {table} with the slots {first} to {end}"
            )));
        }
        let wanted = Wanted {
            need: self::need(need),
            listed: Some((table, first..end)),
            ..Wanted::default()
        };
        Ok(py.detach(|| self.client.ask(Some(wanted), None)))
    }

    fn ids<'py>(
        &self,
        py: Python<'py>,
        ticket: u32,
        timeout: f64,
    ) -> PyResult<Option<Bound<'py, PyByteArray>>> {
        let limit = seconds(timeout, "timeout")?;
        let found = blocking(py, |_| self.client.take_found(ticket, limit))?;
        Ok(found.map(|found| array(py, bytemuck::cast_slice(&found.listed))))
    }

    fn settled(&self, py: Python<'_>, ticket: u32, timeout: f64) -> PyResult<Option<String>> {
        let limit = seconds(timeout, "timeout")?;
        match py.detach(|| self.client.take_end(ticket, limit)) {
            None => Ok(None),
            Some(End::Settled) => Ok(Some("settled".into())),
            Some(End::Stale) => Ok(Some("stale".into())),
            Some(End::RolledBack) => Ok(Some("rolled back".into())),
            Some(End::Refused(why)) => Err(to_python(py, Error::BadArgument(why))),
        }
    }

    fn notice(&self) -> (Vec<u64>, bool) {
        let noticed = self.client.notice();
        (noticed.lost.into_iter().collect(), noticed.is_astray)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.client.close());
    }
}

/// Weights of each batch's distinct ids; variables that have changed; slots that hold the chunk.
type PyFound<'py> = (
    Vec<Bound<'py, PyByteArray>>,
    Vec<(usize, Option<Bound<'py, PyByteArray>>)>,
    Vec<u32>,
);

impl PyClient {
    fn wanted(
        &self,
        chunk: Option<(u64, u16)>,
        batches: &[PyRef<'_, PyBatch>],
        variables: Vec<usize>,
        need: Option<PyNeed>,
    ) -> PyResult<Wanted> {
        let known = self.client.catalog().variables().len();
        if let Some(variable) = variables.iter().find(|variable| **variable >= known) {
            return Err(PyValueError::new_err(format!(
                "there is no variable {variable}"
            )));
        }
        Ok(Wanted {
            chunk: stamp(chunk),
            need: self::need(need),
            batches: batches.iter().map(|batch| batch.0.clone()).collect(),
            is_short: self.short_rows,
            variables,
            listed: None,
        })
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyBatch>()?;
    m.add_class::<PyClient>()
}
