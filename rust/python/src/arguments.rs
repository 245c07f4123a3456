//! What Python's arguments are in the core: durations, identities, borrowed memory.
use std::time::Duration;

use elasticdl_core::net::tls::Identity;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Longest duration, so that no sum with a moment overflows.
const LONGEST: Duration = Duration::from_secs(1 << 30);

/// Return a duration that Python gave in seconds.
pub fn seconds(value: f64, name: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .ok()
        .filter(|duration| *duration <= LONGEST)
        .ok_or_else(|| {
            PyValueError::new_err(format!(
                "{name} is a number of seconds, not negative, at most {}; received {value}",
                LONGEST.as_secs()
            ))
        })
}

/// What Python calls an identity: three attributes with PEM in them.
#[derive(FromPyObject)]
pub struct PyIdentity {
    authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl PyIdentity {
    /// Return it as the core has it.
    pub fn to_core(&self) -> elasticdl_core::net::error::Result<Identity> {
        Identity::new(&self.authority, &self.certificate, &self.key)
    }
}

/// Return an identity as the core has it, if there is one.
pub fn identity(given: Option<PyIdentity>) -> elasticdl_core::net::error::Result<Option<Identity>> {
    given.map(|given| given.to_core()).transpose()
}

/// A C-contiguous buffer that Python lends for the length of a call.
pub struct Borrowed(pub PyUntypedBuffer);

impl Borrowed {
    pub fn new(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Borrowed> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err(format!(
                "{name} must be C-contiguous"
            )));
        }
        Ok(Borrowed(buffer))
    }

    pub fn pointer(&self) -> *mut u8 {
        // An empty exporter may give a null pointer, which no slice may have; a well-aligned one that is never read will do.
        let pointer: *mut u8 = self.0.buf_ptr().cast();
        if pointer.is_null() {
            std::ptr::without_provenance_mut(align_of::<u128>())
        } else {
            pointer
        }
    }

    pub fn bytes(&self) -> std::ops::Range<usize> {
        self.pointer() as usize..self.pointer() as usize + self.0.len_bytes()
    }
}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the exporter keeps `len_bytes` contiguous bytes at this address until the buffer is released, which needs `self`.
        // That nobody writes them meanwhile is what the caller promises by lending them.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.0.len_bytes()) }
    }
}

impl Borrowed {
    /// Return the buffer's items if they have one of these formats of the struct module.
    pub fn items<T: bytemuck::AnyBitPattern>(
        &self,
        formats: &[&[u8]],
        name: &str,
    ) -> PyResult<&[T]> {
        let format = self.0.format().to_bytes();
        let known = format
            .strip_prefix(b"@")
            .or(format.strip_prefix(b"="))
            .or(format.strip_prefix(b"<"));
        let format = known.unwrap_or(format);
        let items = bytemuck::try_cast_slice(self.as_ref());
        match items {
            Ok(items) if formats.contains(&format) && self.0.item_size() == size_of::<T>() => {
                Ok(items)
            }
            _ => Err(PyTypeError::new_err(format!(
                "{name} has items of the format {:?}; expected one of {:?}, aligned",
                String::from_utf8_lossy(format),
                formats
                    .iter()
                    .map(|format| String::from_utf8_lossy(format))
                    .collect::<Vec<_>>(),
            ))),
        }
    }
}
