//! `elasticdl._core`: conversions, GIL release and error mapping around `elasticdl-core`; nothing else.
use pyo3::prelude::*;

mod arguments;
mod errors;
mod finite;
mod local;
mod memory;
mod net;
mod ps;
mod records;
#[cfg(feature = "simulation")]
mod simulation;

#[pyfunction]
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(version, m)?)?;
    finite::register(m)?;
    memory::register(m)?;
    net::register(m)?;
    ps::register(m)?;
    local::register(m)?;
    #[cfg(feature = "simulation")]
    simulation::register(m)?;
    records::register(m)
}
