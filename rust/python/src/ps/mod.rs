//! Binding of the parameter server and its client; see the module of the same name in `elasticdl-core`.
use std::collections::BTreeMap;

use elasticdl_core::net::address::Address;
use elasticdl_core::ps::protocol::placement::Entry;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::errors::to_python;

pub mod catalog;
pub mod client;
pub mod server;

/// Formats of whole numbers of 64 bits.
const WHOLE: &[&[u8]] = &[b"l", b"q", b"L", b"Q"];
const SINGLE: &[&[u8]] = &[b"f"];

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

/// Return bytes as an array of Python's.
pub fn array<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyByteArray> {
    PyByteArray::new(py, bytes)
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    catalog::register(m)?;
    server::register(m)?;
    client::register(m)
}
