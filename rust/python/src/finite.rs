//! Binding of the look for NaN and infinity.
use elasticdl_core::finite::{all_finite_f32, all_finite_f64};
use pyo3::prelude::*;

use crate::arguments::Borrowed;

/// Bytes up to which a look is over before another thread could have taken the interpreter's lock.
const SHORT: usize = 64 << 10;

#[pyfunction]
fn all_finite(py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<bool> {
    let values = Borrowed::new(values, "values")?;
    let is_short = values.0.len_bytes() <= SHORT;
    let run = |look: &(dyn Fn() -> bool + Sync)| {
        if is_short { look() } else { py.detach(look) }
    };
    if let Ok(narrow) = values.items::<f32>(&[b"f"], "values") {
        return Ok(run(&|| all_finite_f32(narrow)));
    }
    let wide = values.items::<f64>(&[b"f", b"d"], "values")?;
    Ok(run(&|| all_finite_f64(wide)))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(all_finite, m)?)
}
