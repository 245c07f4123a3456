//! Binding of a worker's own copy of the dense variables.
use elasticdl_core::ps::client::local::LocalVariables;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::ps::array;
use crate::ps::catalog::PyCatalog;
use crate::ps::client::PyDense;
use crate::ps::client::dense_of;
use crate::ps::client::lent_of;

#[pyclass(name = "LocalVariables", module = "elasticdl._core")]
struct PyLocalVariables(LocalVariables);

#[pymethods]
impl PyLocalVariables {
    #[new]
    fn new(catalog: &PyCatalog) -> Self {
        PyLocalVariables(LocalVariables::new(catalog.0.clone()))
    }

    fn take(&mut self, variable: usize, weights: Bound<'_, PyAny>) -> PyResult<()> {
        let lent = lent_of(&vec![(variable, weights)])?;
        for (variable, weights) in dense_of(self.0.catalog(), &lent)? {
            self.0.take(variable, weights);
        }
        Ok(())
    }

    fn change(&mut self, py: Python<'_>, pushed: PyDense<'_>, rate: f32) -> PyResult<()> {
        let lent = lent_of(&pushed)?;
        let numbers = dense_of(self.0.catalog(), &lent)?;
        py.detach(|| self.0.change(numbers, rate));
        Ok(())
    }

    fn weights<'py>(&self, py: Python<'py>, variable: usize) -> Option<Bound<'py, PyByteArray>> {
        let weights = self.0.weights(variable)?;
        Some(array(py, bytemuck::cast_slice(weights)))
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyLocalVariables>()
}
