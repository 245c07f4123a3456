//! `elasticdl._core`: conversions, GIL release and error mapping around `elasticdl-core`; nothing else.
use pyo3::prelude::*;

mod net;
mod records;

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    net::register(m)?;
    records::register(m)
}
