//! A parameter server as Python steers it: what the master has decided goes in, and what the master must know comes out.
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use elasticdl_core::net::address::Listener;
use elasticdl_core::ps::server::node::{Bounds, Limits};
use elasticdl_core::ps::server::process::Server;
use elasticdl_core::ps::server::snapshot::{Position, Section};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arguments::{PyIdentity, identity as core_identity, seconds};
use crate::errors::blocking;
use crate::net::told;
use crate::ps::PyEntry;
use crate::ps::catalog::PyCatalog;

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
        let addresses = super::addresses(py, addresses)?;
        let bounds = Bounds {
            roll_back,
            tasks,
            ..Bounds::default()
        };
        blocking(py, |_| {
            self.0.learn(addresses, super::entries(entries), bounds)
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

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyListener>()?;
    m.add_class::<PyServer>()
}
