//! Binding of the wires; see the module of the same name in `elasticdl-core`.
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use elasticdl_core::net::acceptor::Told;
use elasticdl_core::net::endpoint::Endpoint;
use elasticdl_core::net::error::Error;
use elasticdl_core::net::heart::{Heart, HeartMonitor};
use elasticdl_core::net::ring::Ring;
use elasticdl_core::net::ring::sum::Element;
use elasticdl_core::net::tlsproxy::TlsProxy;
use elasticdl_core::net::transfer::{StateId, StateServer, StateTransfer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::arguments::{Borrowed, PyIdentity, identity as core_identity, seconds};
use crate::errors::{blocking, to_python};

/// Return what was refused as Python has it: where from and why of the first, and how many others.
pub fn told(told: Told) -> (Vec<(String, String)>, u64) {
    (told.first, told.others)
}

#[pyclass(name = "Endpoint", module = "elasticdl._core", frozen)]
struct PyEndpoint(Arc<Endpoint>);

#[pymethods]
impl PyEndpoint {
    #[new]
    #[pyo3(signature = (address, member, token, identity=None))]
    fn new(
        py: Python<'_>,
        address: &str,
        member: &str,
        token: &[u8],
        identity: Option<PyIdentity>,
    ) -> PyResult<Self> {
        Ok(PyEndpoint(Arc::new(blocking(py, |_| {
            Endpoint::open(address, member, token, core_identity(identity)?)
        })?)))
    }

    #[getter]
    fn address(&self) -> String {
        self.0.address()
    }

    #[getter]
    fn refused(&self) -> u64 {
        self.0.refusals().total()
    }

    fn refusals(&self) -> (Vec<(String, String)>, u64) {
        told(self.0.refusals().take())
    }

    fn enter(&self, view: u64, digest: u64) -> PyResult<()> {
        Python::attach(|py| {
            self.0
                .enter(view, digest)
                .map_err(|error| to_python(py, error))
        })
    }

    fn seal(&self, view: u64) {
        self.0.seal(view);
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

#[pyclass(name = "Ring", module = "elasticdl._core", frozen)]
struct PyRing(Ring);

impl PyRing {
    /// Call `sum` with what is contributed and where the sum goes.
    fn with<T: Element>(
        contribution: &Borrowed,
        result: &Borrowed,
        sum: impl FnOnce(&[T], &mut [T]) -> Result<Vec<f64>, Error>,
    ) -> Result<Vec<f64>, Error> {
        let count = |buffer: &Borrowed| buffer.0.len_bytes() / size_of::<T>();
        // SAFETY: both buffers are contiguous, of items of the format and size of `T`, aligned for it (all checked by `reduce`), and held
        // for the call.
        let contribution = unsafe {
            std::slice::from_raw_parts(contribution.pointer().cast::<T>(), count(contribution))
        };
        // SAFETY: as above; it is writable and does not overlap the contribution (checked by `reduce`), and the caller leaves it alone
        // during the call.
        let result =
            unsafe { std::slice::from_raw_parts_mut(result.pointer().cast::<T>(), count(result)) };
        sum(contribution, result)
    }
}

#[pymethods]
impl PyRing {
    #[new]
    fn new(
        py: Python<'_>,
        endpoint: &PyEndpoint,
        view: u64,
        digest: u64,
        rank: usize,
        peers: Vec<(String, String)>,
        silence: f64,
    ) -> PyResult<Self> {
        let silence = seconds(silence, "silence")?;
        Ring::new(endpoint.0.clone(), view, digest, rank, &peers, silence)
            .map(PyRing)
            .map_err(|error| to_python(py, error))
    }

    #[pyo3(signature = (step, contribution, result, trailer, short=0))]
    fn reduce(
        &self,
        py: Python<'_>,
        step: u64,
        contribution: &Bound<'_, PyAny>,
        result: &Bound<'_, PyAny>,
        trailer: Vec<f64>,
        short: usize,
    ) -> PyResult<Vec<f64>> {
        let contribution = Borrowed::new(contribution, "the contribution")?;
        let result = Borrowed::new(result, "the result")?;
        if result.0.readonly() {
            return Err(PyTypeError::new_err("the result must be writable"));
        }
        let (from, to) = (contribution.bytes(), result.bytes());
        if from.start < to.end && to.start < from.end {
            return Err(PyValueError::new_err(
                "contribution and result overlap; the contribution must stay intact",
            ));
        }
        let kind = |buffer: &Borrowed| match buffer.0.format().to_bytes() {
            b"f" | b"@f" | b"=f" => Some(4),
            b"d" | b"@d" | b"=d" => Some(8),
            b"<f" if cfg!(target_endian = "little") => Some(4),
            b"<d" if cfg!(target_endian = "little") => Some(8),
            _ => None,
        };
        let (bytes, other) = (kind(&contribution), kind(&result));
        let aligned = |bytes: usize| from.start % bytes == 0 && to.start % bytes == 0;
        match bytes {
            Some(bytes @ (4 | 8)) if other == Some(bytes) && aligned(bytes) => {
                blocking(py, |interrupt| match (bytes, short) {
                    (8, 0) => Self::with::<f64>(&contribution, &result, |from, to| {
                        self.0.reduce(step, from, to, &trailer, interrupt)
                    }),
                    (4, 0) => Self::with::<f32>(&contribution, &result, |from, to| {
                        self.0.reduce(step, from, to, &trailer, interrupt)
                    }),
                    (4, short) => Self::with::<f32>(&contribution, &result, |from, to| {
                        self.0
                            .reduce_short(step, from, to, short, &trailer, interrupt)
                    }),
                    _ => Err(Error::BadArgument(
                        "only float32 can travel as bfloat16".into(),
                    )),
                })
            }
            _ => Err(PyTypeError::new_err(format!(
                "contribution and result must both be float32 or both float64, aligned; received formats {:?} and {:?}",
                contribution.0.format(),
                result.0.format()
            ))),
        }
    }

    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.0.cancel());
    }

    fn close(&self, py: Python<'_>, linger: bool) {
        py.detach(|| self.0.close(linger));
    }

    #[getter]
    fn transport(&self) -> String {
        self.0.transport()
    }
}

#[pyclass(name = "StateServer", module = "elasticdl._core", frozen)]
struct PyStateServer {
    // Before the image: its thread reads that, and is joined when it is dropped.
    server: StateServer,
    // So that the thread's reference is never the last: giving a buffer back needs the GIL, which its closer may hold.
    image: Mutex<Option<Arc<Borrowed>>>,
}

#[pymethods]
impl PyStateServer {
    #[new]
    fn new(
        py: Python<'_>,
        endpoint: &PyEndpoint,
        view: u64,
        digest: u64,
        state: StateId,
        image: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        // The endpoint has compared the digest already, in `hello`.
        let _ = digest;
        let image = Arc::new(Borrowed::new(image, "the image")?);
        let server = StateServer::start(&endpoint.0, view, state, image.clone())
            .map_err(|error| to_python(py, error))?;
        Ok(PyStateServer {
            server,
            image: Mutex::new(Some(image)),
        })
    }

    #[pyo3(name = "wait")]
    fn wait_for(&self, py: Python<'_>, seconds: f64) -> PyResult<Vec<(String, bool)>> {
        let limit = self::seconds(seconds, "the limit")?;
        blocking(py, |interrupt| self.server.wait(limit, interrupt))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.server.close());
        self.image
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .take();
    }
}

#[pyclass(name = "StateTransfer", module = "elasticdl._core", frozen)]
struct PyStateTransfer(StateTransfer);

#[pymethods]
impl PyStateTransfer {
    #[new]
    fn new(
        py: Python<'_>,
        endpoint: &PyEndpoint,
        view: u64,
        digest: u64,
        state: StateId,
        donor: (String, String),
        silence: f64,
    ) -> PyResult<Self> {
        let silence = seconds(silence, "silence")?;
        StateTransfer::new(
            endpoint.0.clone(),
            view,
            digest,
            state,
            (&donor.0, &donor.1),
            silence,
        )
        .map(PyStateTransfer)
        .map_err(|error| to_python(py, error))
    }

    fn run<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        let length = blocking(py, |interrupt| self.0.open(interrupt))?;
        let image = PyByteArray::new_with(py, length, |_| Ok(()))?;
        let start = image.data() as usize;
        blocking(py, |interrupt| {
            // SAFETY: the array is new and nobody else has a reference to it, so that nobody reads, writes or resizes it before it is
            // returned; it has `length` initialised bytes.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, length) };
            self.0.fill(bytes, interrupt)
        })?;
        Ok(image)
    }

    fn acknowledge(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, |_| self.0.acknowledge())
    }

    fn cancel(&self) {
        self.0.cancel();
    }
}

#[pyclass(name = "Heart", module = "elasticdl._core", frozen)]
struct PyHeart(Heart);

#[pymethods]
impl PyHeart {
    #[new]
    #[pyo3(signature = (address, member, token, interval, identity=None))]
    fn new(
        py: Python<'_>,
        address: &str,
        member: &str,
        token: &[u8],
        interval: f64,
        identity: Option<PyIdentity>,
    ) -> PyResult<Self> {
        let interval = seconds(interval, "interval")?;
        core_identity(identity)
            .and_then(|identity| Heart::start(address, member, token, interval, identity))
            .map(PyHeart)
            .map_err(|error| to_python(py, error))
    }

    fn set(&self, view: u64, step: u64, progress: u64) {
        self.0.set(view, step, progress);
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

#[pyclass(name = "HeartMonitor", module = "elasticdl._core", frozen)]
struct PyHeartMonitor(HeartMonitor);

#[pymethods]
impl PyHeartMonitor {
    #[new]
    #[pyo3(signature = (address, token, identity=None))]
    fn new(
        py: Python<'_>,
        address: &str,
        token: &[u8],
        identity: Option<PyIdentity>,
    ) -> PyResult<Self> {
        core_identity(identity)
            .and_then(|identity| HeartMonitor::open(address, token, identity))
            .map(PyHeartMonitor)
            .map_err(|error| to_python(py, error))
    }

    #[getter]
    fn address(&self) -> String {
        self.0.address()
    }

    #[getter]
    fn refused(&self) -> u64 {
        self.0.refusals().total()
    }

    fn refusals(&self) -> (Vec<(String, String)>, u64) {
        told(self.0.refusals().take())
    }

    fn poll(&self) -> Vec<(String, u64, u64, u64, f64, bool)> {
        self.0
            .poll()
            .into_iter()
            .map(|sign| {
                (
                    sign.member,
                    sign.view,
                    sign.step,
                    sign.progress,
                    sign.age.as_secs_f64(),
                    sign.connected,
                )
            })
            .collect()
    }

    fn forget(&self, member: &str) {
        self.0.forget(member);
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

#[pyclass(name = "TlsProxy", module = "elasticdl._core", frozen)]
struct PyTlsProxy(TlsProxy);

#[pymethods]
impl PyTlsProxy {
    #[new]
    fn new(py: Python<'_>, address: &str, to: PathBuf, identity: PyIdentity) -> PyResult<Self> {
        identity
            .to_core()
            .and_then(|identity| TlsProxy::open(address, &to, identity))
            .map(PyTlsProxy)
            .map_err(|error| to_python(py, error))
    }

    #[getter]
    fn address(&self) -> String {
        self.0.address()
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

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyEndpoint>()?;
    m.add_class::<PyRing>()?;
    m.add_class::<PyStateServer>()?;
    m.add_class::<PyStateTransfer>()?;
    m.add_class::<PyHeart>()?;
    m.add_class::<PyHeartMonitor>()?;
    m.add_class::<PyTlsProxy>()
}
