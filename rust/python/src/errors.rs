//! The core's errors as the classes of `elasticdl.errors`, looked up once, when the first is raised.
use elasticdl_core::net::error::Error;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

static RING_BROKEN: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static CANCELLED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static TRANSFER_FAILED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static BAD_SETTING: PyOnceLock<Py<PyType>> = PyOnceLock::new();

fn build<'py>(
    py: Python<'py>,
    class: &'static PyOnceLock<Py<PyType>>,
    name: &str,
    arguments: impl PyCallArgs<'py>,
) -> PyErr {
    match class
        .import(py, "elasticdl.errors", name)
        .and_then(|class| class.call1(arguments))
    {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// Return the exception that stands for an error of the data plane.
pub fn to_python(py: Python<'_>, error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::RingBroken { rank, how, .. } => {
            build(py, &RING_BROKEN, "RingBroken", (text, rank, how.word()))
        }
        Error::Cancelled => build(py, &CANCELLED, "Cancelled", (text,)),
        Error::TransferFailed(_) => build(py, &TRANSFER_FAILED, "TransferFailed", (text,)),
        Error::BadSetting(_) => build(py, &BAD_SETTING, "BadSetting", (text,)),
        Error::BadArgument(_) => PyValueError::new_err(text),
        // What the signal's handler raised is in its place; this is for a handler that raised nothing.
        Error::Interrupted => PyKeyboardInterrupt::new_err(text),
        Error::Io { what, source } => match source.raw_os_error() {
            Some(number) => PyOSError::new_err((number, text)),
            None => PyOSError::new_err(what),
        },
    }
}

/// Run a call that may block without the GIL; signals' handlers run meanwhile, and what they raise ends the call.
pub fn blocking<T: Send>(
    py: Python<'_>,
    call: impl FnOnce(elasticdl_core::net::wake::Interrupt<'_>) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let (outcome, raised) = py.detach(|| {
        let raised = std::cell::RefCell::new(None);
        let outcome = call(&|| {
            Python::attach(|py| py.check_signals()).map_err(|error| {
                *raised.borrow_mut() = Some(error);
                Error::Interrupted
            })
        });
        (outcome, raised.into_inner())
    });
    match (outcome, raised) {
        (Err(Error::Interrupted), Some(error)) => Err(error),
        (outcome, _) => outcome.map_err(|error| to_python(py, error)),
    }
}
