//! `elasticdl._core._simulation`: servers and workers' machines without sockets or clock, for the simulator; in no wheel.
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use elasticdl_core::ps::client::batch::Batch;
use elasticdl_core::ps::client::push::Pushed;
use elasticdl_core::ps::client::tracker::{End, OutboundRequest, RequestTracker};
use elasticdl_core::ps::client::wanted::Wanted;
use elasticdl_core::ps::server::data::Pace;
use elasticdl_core::ps::server::node::{Bounds, Limits};
use elasticdl_core::ps::server::simulation::{self, Outcome, Peer, Stopped};
use elasticdl_core::ps::server::slot::{Head, UNSEEN};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::ps::PyEntry;
use crate::ps::catalog::PyCatalog;
use crate::ps::client::PyBatch;
use crate::ps::client::PyHead;
use crate::ps::client::PyNeed;
use crate::ps::client::PyWanted;
use crate::ps::client::need;
use crate::ps::client::stamp;
use crate::ps::entries;

fn bytes<'py>(py: Python<'py>, words: &[u64]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, bytemuck::cast_slice(words))
}

fn stopped(error: Stopped) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Packets (connection, kind, request, bytes), and copies that are ready (slot, term, to, hands over).
type PyOutcome<'py> = (
    Vec<(u32, u8, u64, Bound<'py, PyBytes>)>,
    Vec<(u32, u64, u64, bool)>,
);

fn outcome(py: Python<'_>, outcome: Outcome) -> PyOutcome<'_> {
    let packets = outcome.packets.into_iter().map(|(queue, packet)| {
        let words = bytes(py, &packet.words);
        (queue, packet.kind as u8, packet.number, words)
    });
    (packets.collect(), outcome.ready)
}

#[pyclass(name = "Server", module = "elasticdl._core._simulation")]
struct PyPeer(Peer);

/// Term, primary epoch, primary, backup and restored of the newest entry known; primary epoch-tagged content: whole, version, low, pushes, sum.
type PyState = (
    Option<(u64, u64, u64, Option<u64>, u64)>,
    Option<(u64, u64, u64, String)>,
);

#[pymethods]
impl PyPeer {
    #[new]
    #[pyo3(signature = (number, catalog, mistake=None))]
    fn new(number: u64, catalog: &PyCatalog, mistake: Option<&str>) -> PyResult<Self> {
        let mistake = mistake
            .map(str::parse)
            .transpose()
            .map_err(PyValueError::new_err)?;
        Ok(PyPeer(Peer::new(number, catalog.0.clone(), mistake)))
    }

    fn ask<'py>(
        &mut self,
        py: Python<'py>,
        queue: u32,
        request: u32,
        words: &[u8],
    ) -> PyResult<PyOutcome<'py>> {
        let told = self.0.ask(queue, request, words).map_err(stopped)?;
        Ok(outcome(py, told))
    }

    fn learn<'py>(
        &mut self,
        py: Python<'py>,
        given: Vec<PyEntry>,
        roll_back: u64,
        tasks: u64,
    ) -> PyResult<PyOutcome<'py>> {
        let bounds = Bounds {
            roll_back,
            tasks,
            ..Bounds::default()
        };
        let told = self
            .0
            .learn(entries(given).collect(), bounds)
            .map_err(stopped)?;
        Ok(outcome(py, told))
    }

    fn limit<'py>(
        &mut self,
        py: Python<'py>,
        roll_back: u64,
        low: u64,
        above: Vec<u64>,
        steps: u64,
        end: u64,
    ) -> PyResult<PyOutcome<'py>> {
        let limits = Limits {
            roll_back,
            low,
            above,
            steps,
            end,
        };
        let told = self.0.limit(&limits).map_err(stopped)?;
        Ok(outcome(py, told))
    }

    fn peers(&self) -> Vec<u64> {
        self.0.node().peers()
    }

    fn first(&self, to: u64) -> u64 {
        self.0.node().way(to).outgoing().first()
    }

    fn stream<'py>(
        &self,
        py: Python<'py>,
        to: u64,
        next: u64,
        room: usize,
    ) -> Option<(u64, u64, Bound<'py, PyBytes>, u64)> {
        let (number, known, words, next) = self.0.stream(to, next, room)?;
        Some((number, known, bytes(py, &words), next))
    }

    fn hear<'py>(
        &mut self,
        py: Python<'py>,
        from: u64,
        number: u64,
        words: &[u8],
    ) -> PyResult<PyOutcome<'py>> {
        let told = self.0.hear(from, number, words).map_err(stopped)?;
        Ok(outcome(py, told))
    }

    fn heard(&self, from: u64, known: u64) -> (u64, Vec<u64>) {
        self.0.node().heard(from, known)
    }

    fn accepted<'py>(
        &mut self,
        py: Python<'py>,
        by: u64,
        next: u64,
        refused: Vec<u64>,
    ) -> PyResult<PyOutcome<'py>> {
        let told = self.0.accepted(by, next, &refused).map_err(stopped)?;
        Ok(outcome(py, told))
    }

    fn copy(&mut self, slot: u32, to: u64, term: u64, hands_over: bool) -> bool {
        self.0.copy(slot, to, term, hands_over)
    }

    fn go_on_copying<'py>(
        &mut self,
        py: Python<'py>,
        slot: u32,
    ) -> PyResult<(bool, PyOutcome<'py>)> {
        let (goes_on, told) = self.0.go_on_copying(slot).map_err(stopped)?;
        Ok((goes_on, outcome(py, told)))
    }

    fn give_up_copies<'py>(&mut self, py: Python<'py>, to: u64) -> PyResult<PyOutcome<'py>> {
        let told = self.0.give_up_copies(to).map_err(stopped)?;
        Ok(outcome(py, told))
    }

    fn cut<'py>(
        &self,
        py: Python<'py>,
        slot: u32,
        primary_epoch: u64,
        steps: u64,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, u64)>> {
        let cut = self.0.cut(slot, primary_epoch, steps).map_err(stopped)?;
        Ok(cut.map(|(words, until)| (bytes(py, &words), until)))
    }

    /// Return the last roll-back that it has heard of, and how many steps it knows to be complete in it.
    fn complete(&self) -> (u64, u64) {
        self.0.node().complete()
    }

    #[pyo3(signature = (slot, words))]
    fn restore(&mut self, slot: u32, words: Option<&[u8]>) -> PyResult<()> {
        self.0.restore(slot, words).map_err(stopped)
    }

    fn accounts(&self) -> Vec<(u32, u64, u64, String)> {
        let account = |slot| {
            self.0.node().look(slot, |one| {
                let (entry, data) = (one.entry()?, one.read()?);
                let proof = data.stamps.proof();
                Some((
                    slot,
                    entry.primary_epoch,
                    proof.count,
                    format!("{:032x}", proof.sum),
                ))
            })
        };
        let slots = 0..self.0.node().catalog().slots();
        slots.filter_map(|slot| account(slot)?).collect()
    }

    fn state(&self, slot: u32) -> Option<PyState> {
        self.0.node().look(slot, |one| {
            let entry = one
                .entry()
                .map(|e| (e.term, e.primary_epoch, e.primary, e.backup, e.restored));
            let data = one.data().map(|data| {
                let proof = data.stamps.proof();
                let sum = format!("{:032x}", proof.sum);
                (data.version, data.stamps.low(), proof.count, sum)
            });
            (entry, data)
        })
    }

    /// Weights of rows of the first table and of the first variable, if the slot holds anything; of a primary epoch, only if it is whole.
    #[pyo3(signature = (slot, ids, primary_epoch=None))]
    fn weights(
        &self,
        slot: u32,
        ids: Vec<u64>,
        primary_epoch: Option<u64>,
    ) -> Option<(Vec<f32>, Option<Vec<f32>>)> {
        let catalog = self.0.node().catalog();
        self.0.node().look(slot, |one| {
            let data = match primary_epoch {
                Some(primary_epoch) => one.cut(primary_epoch)?,
                None => one.data()?,
            };
            let mut rows = vec![0.0; ids.len() * catalog.tables()[0].width];
            data.pull(catalog, 0, &ids, &mut rows);
            let variable = data.variable(catalog, 0);
            Some((rows, variable.map(|(weights, _)| weights.to_vec())))
        })?
    }
}

#[pyclass(name = "Client", module = "elasticdl._core._simulation")]
struct PyRequestTracker {
    short_gradients: bool,
    short_rows: bool,
    tracker: RequestTracker,
    catalog: elasticdl_core::ps::protocol::catalog::Catalog,
    began: Instant,
    due: Vec<OutboundRequest>,
}

/// Weights of each batch's rows, changed variables, slots that hold the chunk.
type PyFound = (Vec<Vec<f32>>, Vec<(usize, Option<Vec<f32>>)>, Vec<u32>);

/// What was found, how pushes ended, servers that are lost, and whether newer entries are needed.
type PyNews = (Vec<(u32, PyFound)>, Vec<(u32, String)>, Vec<u64>, bool);

impl PyRequestTracker {
    fn at(&self, now: f64) -> Instant {
        self.began + Duration::from_secs_f64(now)
    }

    fn seconds(&self, at: Option<Instant>) -> Option<f64> {
        at.map(|at| at.duration_since(self.began).as_secs_f64())
    }
}

#[pymethods]
impl PyRequestTracker {
    #[new]
    #[pyo3(signature = (catalog, *, short_gradients=false, short_rows=false))]
    fn new(catalog: &PyCatalog, short_gradients: bool, short_rows: bool) -> Self {
        PyRequestTracker {
            short_gradients,
            short_rows,
            tracker: RequestTracker::new(catalog.0.clone()),
            catalog: catalog.0.clone(),
            began: Instant::now(),
            due: Vec::new(),
        }
    }

    fn learn(&mut self, given: Vec<PyEntry>, roll_back: u64) {
        self.tracker.learn(entries(given), roll_back);
    }

    /// Want rows, and a push of these gradients of distinct ids and of variables.
    #[pyo3(signature = (now, ticket, wanted, head=None, rows=vec![], dense=vec![], is_first=false, needed=None, confirms=0, marks=BTreeSet::new()))]
    #[allow(clippy::too_many_arguments)]
    fn begin(
        &mut self,
        now: f64,
        ticket: u32,
        wanted: Option<PyWanted<'_>>,
        head: Option<PyHead>,
        rows: Vec<(PyRef<'_, PyBatch>, Vec<f32>)>,
        dense: Vec<(usize, Vec<f32>)>,
        is_first: bool,
        needed: Option<PyNeed>,
        confirms: u16,
        marks: BTreeSet<u32>,
    ) {
        let wanted = wanted.map(|(chunk, batches, variables)| Wanted {
            chunk: stamp(chunk),
            need: need(needed),
            batches: batches.iter().map(|batch| batch.0.clone()).collect(),
            is_short: self.short_rows,
            variables,
            ..Wanted::default()
        });
        let pushed = head.map(|(of, low, roll_back, rate, step)| {
            let head = Head {
                seen: UNSEEN,
                stamp: stamp(of),
                low,
                roll_back,
                pace: Pace { rate, step },
            };
            let rows: Vec<(Arc<Batch>, Cow<'_, [f32]>)> = rows
                .into_iter()
                .map(|(batch, numbers)| (batch.0.clone(), numbers.into()))
                .collect();
            let dense: Vec<(usize, &[f32])> = dense
                .iter()
                .map(|(at, numbers)| (*at, &numbers[..]))
                .collect();
            Pushed::new(
                &self.catalog,
                self.short_gradients,
                head,
                &rows,
                &dense,
                is_first,
            )
            .marking(&marks)
            .confirming(confirms)
        });
        let now = self.at(now);
        self.tracker.begin(now, ticket, wanted, pushed);
    }

    /// Let all servers know how many chunks of tasks are settled.
    fn confirm(&mut self, roll_back: u64, low: u64, tasks: Vec<(u64, u16)>) {
        self.tracker.confirm(roll_back, low, tasks);
    }

    /// Return the servers to which something may be sent now, and when there is more.
    fn due(&mut self, now: f64) -> (Vec<u64>, Option<f64>) {
        let (due, later) = self.tracker.due(self.at(now));
        self.due = due;
        let servers = self.due.iter().map(|request| request.server).collect();
        (servers, self.seconds(later))
    }

    /// Return the messages for a server that `due` has found: number and bytes of each.
    fn ask<'py>(
        &mut self,
        py: Python<'py>,
        now: f64,
        server: u64,
    ) -> Vec<(u32, Bound<'py, PyBytes>)> {
        let now = self.at(now);
        let due = std::mem::take(&mut self.due);
        let (mine, others) = due
            .into_iter()
            .partition(|request| request.server == server);
        self.due = others;
        let mine: Vec<OutboundRequest> = mine;
        mine.into_iter()
            .filter_map(|request| {
                let (number, ask) = self.tracker.ask(now, request)?;
                Some((number, bytes(py, &ask.words())))
            })
            .collect()
    }

    /// Take a packet in; false if it makes no sense.
    fn take(&mut self, now: f64, server: u64, kind: u8, number: u64, words: &[u8]) -> bool {
        let Some(kind) = simulation::kind(kind) else {
            return false;
        };
        let (now, words) = (self.at(now), simulation::words(words));
        self.tracker
            .take(now, server, kind, number, &words)
            .is_some()
    }

    fn forget(&mut self) {
        self.tracker.forget();
    }

    fn lose(&mut self, now: f64, server: u64) {
        let now = self.at(now);
        self.tracker.lose(now, server);
    }

    fn doubt(&mut self, now: f64) -> Option<f64> {
        let next = self.tracker.doubt(self.at(now));
        self.seconds(next)
    }

    fn news(&mut self) -> PyNews {
        let news = self.tracker.take_news();
        let found = news.found.into_iter().map(|(ticket, found)| {
            let held = found.held.into_iter().collect();
            let variables = found.variables.into_iter().map(|(variable, came)| {
                let weights = came.map(|came| came.weights.to_vec());
                (variable, weights)
            });
            (ticket, (found.rows, variables.collect(), held))
        });
        let ended = news.ended.into_iter().map(|(ticket, end)| {
            let end = match end {
                End::Settled => "settled".into(),
                End::Stale => "stale".into(),
                End::RolledBack => "rolled back".into(),
                End::Refused(why) => why,
            };
            (ticket, end)
        });
        (
            found.collect(),
            ended.collect(),
            news.lost.into_iter().collect(),
            news.is_astray,
        )
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let simulation = PyModule::new(m.py(), "_simulation")?;
    simulation.add_class::<PyPeer>()?;
    simulation.add_class::<PyRequestTracker>()?;
    m.add_submodule(&simulation)
}
