//! Binding of the parameter server and its client; see the module of the same name in `elasticdl-core`.
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use elasticdl_core::net::address::{Address, Listener};
use elasticdl_core::net::error::Error;
use elasticdl_core::ps::client::batch::Batch;
use elasticdl_core::ps::client::connections::Client;
use elasticdl_core::ps::client::push::Pushed;
use elasticdl_core::ps::client::tracker::{End, Found, Wanted};
use elasticdl_core::ps::memory::initial::Initial;
use elasticdl_core::ps::memory::optimizer::Rule;
use elasticdl_core::ps::protocol::catalog::{Catalog, Policy, Table, Variable};
use elasticdl_core::ps::protocol::placement::Entry;
use elasticdl_core::ps::protocol::stamps::Stamp;
use elasticdl_core::ps::protocol::steps::Need;
use elasticdl_core::ps::server::data::Pace;
use elasticdl_core::ps::server::node::{Bounds, Limits};
use elasticdl_core::ps::server::process::Server;
use elasticdl_core::ps::server::slot::{Head, UNSEEN};
use elasticdl_core::ps::server::snapshot::{self, Position, Section};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::arguments::{Borrowed, PyIdentity, identity as core_identity, seconds};
use crate::errors::{blocking, to_python};
use crate::net::told;

/// Formats of whole numbers of 64 bits.
const WHOLE: &[&[u8]] = &[b"l", b"q", b"L", b"Q"];
const SINGLE: &[&[u8]] = &[b"f"];

/// (name, width, (kind of initial weights, first parameter, second), admission, whether it decays)
type PyTable = (String, usize, (String, f32, f32), u32, bool);
/// (slot, term, primary epoch, primary, backup, restored)
pub type PyEntry = (u32, u64, u64, u64, Option<u64>, u64);

/// Return entries as the core has them.
pub fn entries(given: Vec<PyEntry>) -> impl Iterator<Item = (u32, Entry)> {
    given
        .into_iter()
        .map(|(slot, term, primary_epoch, primary, backup, restored)| {
            (
                slot,
                Entry {
                    term,
                    primary_epoch,
                    primary,
                    backup,
                    restored,
                },
            )
        })
}

fn addresses(py: Python<'_>, given: BTreeMap<u64, String>) -> PyResult<Vec<(u64, Address)>> {
    given
        .into_iter()
        .map(|(server, address)| {
            Ok((
                server,
                address.parse().map_err(|error| to_python(py, error))?,
            ))
        })
        .collect()
}

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

#[pyclass(name = "Listener", module = "elasticdl._core", frozen)]
struct PyListener {
    address: String,
    /// Until a server takes it.
    listener: Mutex<Option<Listener>>,
}

#[pymethods]
impl PyListener {
    #[new]
    fn new(py: Python<'_>, address: &str) -> PyResult<Self> {
        let listener = blocking(py, |_| Listener::bind(&address.parse()?))?;
        Ok(PyListener {
            address: listener.address().to_string(),
            listener: Mutex::new(Some(listener)),
        })
    }

    #[getter]
    fn address(&self) -> &str {
        &self.address
    }
}

#[pyclass(name = "ParameterServer", module = "elasticdl._core", frozen)]
struct PyServer(Server);

#[pymethods]
impl PyServer {
    #[new]
    #[pyo3(signature = (listener, number, token, catalog, identity=None))]
    fn new(
        py: Python<'_>,
        listener: &PyListener,
        number: u64,
        token: &[u8],
        catalog: &PyCatalog,
        identity: Option<PyIdentity>,
    ) -> PyResult<Self> {
        let listener = listener
            .listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .ok_or_else(|| PyValueError::new_err("a server listens there already"))?;
        blocking(py, |_| {
            Server::open(
                listener,
                number,
                token,
                core_identity(identity)?,
                catalog.0.clone(),
            )
        })
        .map(PyServer)
    }

    #[getter]
    fn address(&self) -> &str {
        self.0.address()
    }

    fn learn(
        &self,
        py: Python<'_>,
        addresses: BTreeMap<u64, String>,
        entries: Vec<PyEntry>,
        roll_back: u64,
        tasks: u64,
    ) -> PyResult<()> {
        let addresses = self::addresses(py, addresses)?;
        let bounds = Bounds {
            roll_back,
            tasks,
            ..Bounds::default()
        };
        blocking(py, |_| {
            self.0.learn(addresses, self::entries(entries), bounds)
        })
    }

    fn limit(
        &self,
        py: Python<'_>,
        roll_back: u64,
        low: u64,
        above: Vec<u64>,
        steps: u64,
        end: u64,
    ) {
        let limits = Limits {
            roll_back,
            low,
            above,
            steps,
            end,
        };
        py.detach(|| self.0.limit(&limits));
    }

    fn know(&self, py: Python<'_>, workers: BTreeSet<String>) {
        py.detach(|| self.0.know(workers));
    }

    fn copy(
        &self,
        py: Python<'_>,
        slot: u32,
        to: u64,
        term: u64,
        hands_over: bool,
    ) -> PyResult<bool> {
        blocking(py, |_| self.0.copy(slot, to, term, hands_over))
    }

    fn give_up_copies(&self, py: Python<'_>, to: u64) {
        py.detach(|| self.0.give_up_copies(to));
    }

    fn take_ready(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<(u32, u64, u64, bool)>> {
        let limit = seconds(timeout, "timeout")?;
        let ready = blocking(py, |_| self.0.take_ready(limit))?;
        Ok(ready
            .into_iter()
            .map(|one| (one.slot, one.term, one.to, one.hands_over))
            .collect())
    }

    fn take_lost(&self) -> Vec<u64> {
        self.0.take_lost().into_iter().collect()
    }

    fn cut(
        &self,
        py: Python<'_>,
        path: PathBuf,
        slots: Vec<(u32, u64)>,
        position: (u64, Vec<u64>),
        steps: u64,
    ) -> PyResult<Vec<PySection>> {
        let (low, above) = position;
        let position = Position { low, above };
        let sections = py.detach(|| self.0.cut(&path, &slots, &position, steps))?;
        let section = |one: Section| {
            let sum = format!("{:032x}", one.proof.sum);
            let place = (one.offset, one.length, one.crc);
            (
                one.slot,
                place,
                (one.version, one.low, one.until, one.rows),
                (one.proof.count, sum),
            )
        };
        Ok(sections.into_iter().map(section).collect())
    }

    fn restore(
        &self,
        py: Python<'_>,
        path: PathBuf,
        slot: u32,
        place: (u64, u64, u32),
        renumbered: Option<u64>,
    ) -> PyResult<()> {
        let (offset, length, crc) = place;
        let section = Section {
            slot,
            offset,
            length,
            crc,
            ..Section::default()
        };
        py.detach(|| self.0.restore(&path, &section, renumbered))
            .map_err(|error| {
                PyValueError::new_err(format!("slot {slot} in {}: {error}", path.display()))
            })
    }

    fn begin_anew(&self, py: Python<'_>, slots: Vec<u32>) {
        py.detach(|| self.0.begin_anew(slots));
    }

    fn accounts(&self, py: Python<'_>) -> Vec<(u32, u64, u64, String)> {
        let accounts = py.detach(|| self.0.accounts());
        accounts
            .into_iter()
            .map(|(slot, primary_epoch, proof)| {
                (
                    slot,
                    primary_epoch,
                    proof.count,
                    format!("{:032x}", proof.sum),
                )
            })
            .collect()
    }

    fn complete(&self) -> (u64, u64) {
        self.0.complete()
    }

    fn load(&self, py: Python<'_>) -> (usize, usize, usize) {
        let load = py.detach(|| self.0.load());
        (load.rows, load.bytes, load.slots)
    }

    #[getter]
    fn refused(&self) -> u64 {
        self.0.refusals().total()
    }

    fn refusals(&self) -> (Vec<(String, String)>, u64) {
        told(self.0.refusals().take())
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

/// Slot; offset, length and checksum in the file; version, low, until, rows; pushes and the sum of their stamps' hashes.
type PySection = (u32, (u64, u64, u32), (u64, u64, u64, u64), (u64, String));

#[pyclass(name = "Batch", module = "elasticdl._core", frozen)]
pub struct PyBatch(pub Arc<Batch>);

/// Return bytes as an array of Python's.
pub fn array<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyByteArray> {
    PyByteArray::new(py, bytes)
}

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
struct PyClient(Client);

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

fn need(given: Option<PyNeed>) -> Need {
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
    #[pyo3(signature = (name, token, catalog, identity=None))]
    fn new(
        py: Python<'_>,
        name: &str,
        token: &[u8],
        catalog: &PyCatalog,
        identity: Option<PyIdentity>,
    ) -> PyResult<Self> {
        blocking(py, |_| {
            Client::open(name, token, core_identity(identity)?, catalog.0.clone())
        })
        .map(PyClient)
    }

    fn learn(
        &self,
        py: Python<'_>,
        addresses: BTreeMap<u64, String>,
        entries: Vec<PyEntry>,
        roll_back: u64,
    ) -> PyResult<()> {
        let addresses = self::addresses(py, addresses)?;
        py.detach(|| self.0.learn(addresses, self::entries(entries), roll_back));
        Ok(())
    }

    #[pyo3(signature = (chunk, batches, variables, need=None))]
    fn pull(
        &self,
        py: Python<'_>,
        chunk: Option<(u64, u16)>,
        batches: Vec<PyRef<'_, PyBatch>>,
        variables: Vec<usize>,
        need: Option<PyNeed>,
    ) -> PyResult<u32> {
        let wanted = self.wanted(chunk, &batches, variables, need)?;
        Ok(py.detach(|| self.0.ask(Some(wanted), None)))
    }

    #[expect(clippy::too_many_arguments)]
    #[pyo3(signature = (head, rows, dense, is_first=false, wanted=None, need=None, confirms=0))]
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
    ) -> PyResult<u32> {
        let catalog = self.0.catalog();
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
            let pushed = Pushed::new(catalog, head, &rows, &variables, is_first);
            self.0.ask(wanted, Some(pushed.confirming(confirms)))
        }))
    }

    fn confirm(&self, py: Python<'_>, roll_back: u64, low: u64, tasks: Vec<(u64, u16)>) {
        py.detach(|| self.0.confirm(roll_back, low, tasks));
    }

    fn forget(&self) {
        self.0.forget();
    }

    fn rows<'py>(
        &self,
        py: Python<'py>,
        ticket: u32,
        timeout: f64,
    ) -> PyResult<Option<PyFound<'py>>> {
        let limit = seconds(timeout, "timeout")?;
        let found = blocking(py, |_| self.0.take_found(ticket, limit))?;
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
        let catalog = self.0.catalog();
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
        Ok(py.detach(|| self.0.ask(Some(wanted), None)))
    }

    fn ids<'py>(
        &self,
        py: Python<'py>,
        ticket: u32,
        timeout: f64,
    ) -> PyResult<Option<Bound<'py, PyByteArray>>> {
        let limit = seconds(timeout, "timeout")?;
        let found = blocking(py, |_| self.0.take_found(ticket, limit))?;
        Ok(found.map(|found| array(py, bytemuck::cast_slice(&found.listed))))
    }

    fn settled(&self, py: Python<'_>, ticket: u32, timeout: f64) -> PyResult<Option<String>> {
        let limit = seconds(timeout, "timeout")?;
        match py.detach(|| self.0.take_end(ticket, limit)) {
            None => Ok(None),
            Some(End::Settled) => Ok(Some("settled".into())),
            Some(End::Stale) => Ok(Some("stale".into())),
            Some(End::RolledBack) => Ok(Some("rolled back".into())),
            Some(End::Refused(why)) => Err(to_python(py, Error::BadArgument(why))),
        }
    }

    fn notice(&self) -> (Vec<u64>, bool) {
        let noticed = self.0.notice();
        (noticed.lost.into_iter().collect(), noticed.is_astray)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
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
        let known = self.0.catalog().variables().len();
        if let Some(variable) = variables.iter().find(|variable| **variable >= known) {
            return Err(PyValueError::new_err(format!(
                "there is no variable {variable}"
            )));
        }
        Ok(Wanted {
            chunk: stamp(chunk),
            need: self::need(need),
            batches: batches.iter().map(|batch| batch.0.clone()).collect(),
            variables,
            listed: None,
        })
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyCatalog>()?;
    m.add_class::<PyListener>()?;
    m.add_class::<PyServer>()?;
    m.add_class::<PyBatch>()?;
    m.add_class::<PyClient>()
}
