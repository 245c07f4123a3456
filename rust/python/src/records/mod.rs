//! Binding of record files; see the module of the same name in `elasticdl-core`.
use std::path::PathBuf;

use elasticdl_core::records::csv::{self, CsvFile, Header, Row};
use elasticdl_core::records::lines::{self, LinesFile};
use elasticdl_core::records::recordio::{self, Compressor, RecordIoFile};
use elasticdl_core::records::tfrecord::{self, TFRecordFile};
use elasticdl_core::records::{
    Bad, Error, Fingerprint, Span, Stop, checksum_of_rest, fingerprint_of,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyType};

static BAD_DATA: PyOnceLock<Py<PyType>> = PyOnceLock::new();

fn to_python(py: Python<'_>, error: Error) -> PyErr {
    if let Error::IndexUnwritable { path, source } = error {
        // An OSError with its number: the caller may choose another place.
        let plain = std::io::Error::from_raw_os_error(source.raw_os_error().unwrap_or(5));
        let mapped: PyErr = plain.into();
        let _ = mapped.value(py).setattr("filename", path);
        return mapped;
    }
    match BAD_DATA.import(py, "elasticdl.errors", "BadData") {
        Ok(class) => PyErr::from_type(class.clone(), error.to_string()),
        Err(missing) => missing,
    }
}

/// Runs a scan without the GIL; `progress` gets it back for its calls, and what it raises ends the scan.
fn scan(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    run: impl FnOnce(&mut elasticdl_core::records::Progress) -> Result<u64, Error> + Send,
) -> PyResult<u64> {
    let mut raised = None;
    let outcome = py.detach(|| {
        run(&mut |done, total| {
            let told = Python::attach(|py| {
                py.check_signals()?;
                match &progress {
                    Some(call) => call.call1(py, (done, total)).map(drop),
                    None => Ok(()),
                }
            });
            told.map_err(|error| {
                raised = Some(error);
                Stop
            })
        })
    });
    match (raised, outcome) {
        (Some(error), _) => Err(error),
        (None, outcome) => outcome.map_err(|error| to_python(py, error)),
    }
}

fn one_byte(delimiter: &str) -> PyResult<u8> {
    match *delimiter.as_bytes() {
        [byte] if !matches!(byte, b'"' | b'\n' | b'\r') => Ok(byte),
        _ => Err(PyValueError::new_err(format!(
            "delimiter must be one ASCII character, no quote and no line end; got {delimiter:?}"
        ))),
    }
}

/// Good records in the order asked, and number and message of each bad one.
type Good<T> = (Vec<T>, Vec<(u64, String)>);

fn messages(bad: &Bad) -> Vec<(u64, String)> {
    bad.iter()
        .map(|(record, error)| (*record, error.to_string()))
        .collect()
}

fn bytes_of(py: Python<'_>, records: &[Vec<u8>]) -> Vec<Py<PyBytes>> {
    records
        .iter()
        .map(|record| PyBytes::new(py, record).unbind())
        .collect()
}

fn lists_of(py: Python<'_>, rows: &[Row]) -> PyResult<Vec<Py<PyList>>> {
    rows.iter()
        .map(|row| PyList::new(py, row.fields()).map(Bound::unbind))
        .collect()
}

/// Bytes of a file that were read at once; reads of records that it has are given it.
#[pyclass(frozen, module = "elasticdl._core", name = "Span")]
struct PySpan(Span);

#[pymethods]
impl PySpan {
    fn __len__(&self) -> usize {
        self.0.length()
    }
}

fn within(span: Option<&Py<PySpan>>) -> Option<&Span> {
    span.map(|span| &span.get().0)
}

fn header_of(header: Option<bool>) -> Header {
    match header {
        Some(true) => Header::Yes,
        Some(false) => Header::No,
        None => Header::Auto,
    }
}

/// Names the state of a file's content, for comparison only.
fn text_of(fingerprint: Fingerprint) -> String {
    format!(
        "{}-{}-{:08x}",
        fingerprint.size, fingerprint.changed, fingerprint.sample
    )
}

#[pyclass(frozen, module = "elasticdl._core", name = "TFRecordFile")]
struct PyTFRecordFile(TFRecordFile);

#[pymethods]
impl PyTFRecordFile {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, index: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| TFRecordFile::open(&path, &index));
        opened.map(Self).map_err(|error| to_python(py, error))
    }

    #[staticmethod]
    fn within(py: Python<'_>, name: PathBuf, content: PyBackedBytes) -> PyResult<Self> {
        let opened = py.detach(|| TFRecordFile::within(&name, Box::new(content)));
        opened.map(Self).map_err(|error| to_python(py, error))
    }

    fn span(&self, py: Python<'_>, first: u64, end: u64) -> Option<PySpan> {
        py.detach(|| self.0.span(first, end)).map(PySpan)
    }

    fn __len__(&self) -> usize {
        self.0.count() as usize
    }

    #[getter]
    fn fingerprint(&self) -> String {
        text_of(self.0.fingerprint())
    }

    #[pyo3(signature = (records, span = None))]
    fn read(
        &self,
        py: Python<'_>,
        records: Vec<u64>,
        span: Option<Py<PySpan>>,
    ) -> PyResult<Vec<Py<PyBytes>>> {
        let read = py.detach(|| self.0.read(&records, within(span.as_ref())));
        read.map(|read| bytes_of(py, &read))
            .map_err(|error| to_python(py, error))
    }

    #[pyo3(signature = (records, span = None))]
    fn read_good(
        &self,
        py: Python<'_>,
        records: Vec<u64>,
        span: Option<Py<PySpan>>,
    ) -> PyResult<Good<Py<PyBytes>>> {
        let read = py.detach(|| self.0.read_good(&records, within(span.as_ref())));
        read.map(|(good, bad)| (bytes_of(py, &good), messages(&bad)))
            .map_err(|error| to_python(py, error))
    }
}

#[pyclass(frozen, module = "elasticdl._core", name = "CSVFile")]
struct PyCsvFile(CsvFile);

#[pymethods]
impl PyCsvFile {
    #[new]
    #[pyo3(signature = (path, index, delimiter = ",", header = None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        index: PathBuf,
        delimiter: &str,
        header: Option<bool>,
    ) -> PyResult<Self> {
        let (delimiter, header) = (one_byte(delimiter)?, header_of(header));
        let opened = py.detach(|| CsvFile::open(&path, &index, delimiter, header));
        opened.map(Self).map_err(|error| to_python(py, error))
    }

    #[staticmethod]
    #[pyo3(signature = (name, content, delimiter = ",", header = None))]
    fn within(
        py: Python<'_>,
        name: PathBuf,
        content: PyBackedBytes,
        delimiter: &str,
        header: Option<bool>,
    ) -> PyResult<Self> {
        let (delimiter, header) = (one_byte(delimiter)?, header_of(header));
        let opened = py.detach(|| CsvFile::within(&name, Box::new(content), delimiter, header));
        opened.map(Self).map_err(|error| to_python(py, error))
    }

    fn span(&self, py: Python<'_>, first: u64, end: u64) -> Option<PySpan> {
        py.detach(|| self.0.span(first, end)).map(PySpan)
    }

    fn __len__(&self) -> usize {
        self.0.count() as usize
    }

    #[getter]
    fn header(&self) -> Option<Vec<String>> {
        self.0.header().map(<[String]>::to_vec)
    }

    #[getter]
    fn columns(&self) -> usize {
        self.0.columns()
    }

    #[getter]
    fn fingerprint(&self) -> String {
        text_of(self.0.fingerprint())
    }

    #[pyo3(signature = (records, span = None))]
    fn read(
        &self,
        py: Python<'_>,
        records: Vec<u64>,
        span: Option<Py<PySpan>>,
    ) -> PyResult<Vec<Py<PyList>>> {
        let read = py.detach(|| self.0.read(&records, within(span.as_ref())));
        lists_of(py, &read.map_err(|error| to_python(py, error))?)
    }

    #[pyo3(signature = (records, span = None))]
    fn read_good(
        &self,
        py: Python<'_>,
        records: Vec<u64>,
        span: Option<Py<PySpan>>,
    ) -> PyResult<Good<Py<PyList>>> {
        let read = py.detach(|| self.0.read_good(&records, within(span.as_ref())));
        let (good, bad) = read.map_err(|error| to_python(py, error))?;
        Ok((lists_of(py, &good)?, messages(&bad)))
    }
}

#[pyclass(frozen, module = "elasticdl._core", name = "LinesFile")]
struct PyLinesFile(LinesFile);

#[pymethods]
impl PyLinesFile {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, index: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| LinesFile::open(&path, &index));
        opened.map(Self).map_err(|error| to_python(py, error))
    }

    #[staticmethod]
    fn within(py: Python<'_>, name: PathBuf, content: PyBackedBytes) -> PyResult<Self> {
        let opened = py.detach(|| LinesFile::within(&name, Box::new(content)));
        opened.map(Self).map_err(|error| to_python(py, error))
    }

    fn span(&self, py: Python<'_>, first: u64, end: u64) -> Option<PySpan> {
        py.detach(|| self.0.span(first, end)).map(PySpan)
    }

    fn __len__(&self) -> usize {
        self.0.count() as usize
    }

    #[getter]
    fn fingerprint(&self) -> String {
        text_of(self.0.fingerprint())
    }

    #[pyo3(signature = (records, span = None))]
    fn read(
        &self,
        py: Python<'_>,
        records: Vec<u64>,
        span: Option<Py<PySpan>>,
    ) -> PyResult<Vec<Py<PyBytes>>> {
        let read = py.detach(|| self.0.read(&records, within(span.as_ref())));
        read.map(|read| bytes_of(py, &read))
            .map_err(|error| to_python(py, error))
    }
}

#[pyfunction]
#[pyo3(signature = (path, index, progress = None))]
fn index_lines(
    py: Python<'_>,
    path: PathBuf,
    index: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    scan(py, progress, |tell| lines::index(&path, &index, tell))
}

#[pyclass(frozen, module = "elasticdl._core", name = "RecordIOFile")]
struct PyRecordIoFile(RecordIoFile);

#[pymethods]
impl PyRecordIoFile {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| RecordIoFile::open(&path));
        opened.map(Self).map_err(|error| to_python(py, error))
    }

    #[getter]
    fn chunks(&self) -> Vec<u64> {
        self.0.chunks()
    }

    #[getter]
    fn fingerprint(&self) -> String {
        text_of(self.0.fingerprint())
    }

    fn read(&self, py: Python<'_>, chunk: usize) -> PyResult<Vec<Py<PyBytes>>> {
        let read = py.detach(|| self.0.read(chunk));
        read.map(|read| bytes_of(py, &read))
            .map_err(|error| to_python(py, error))
    }
}

#[pyfunction]
fn recordio_chunk<'py>(
    py: Python<'py>,
    records: Vec<Vec<u8>>,
    compressor: u32,
) -> PyResult<Bound<'py, PyBytes>> {
    let compressor = Compressor::of(compressor)
        .ok_or_else(|| PyValueError::new_err("compressor is 0 (none), 1 (Snappy) or 2 (gzip)"))?;
    let made = py.detach(|| recordio::chunk(&records, compressor));
    let made = made.ok_or_else(|| {
        PyValueError::new_err("the records of a chunk have less than 32 MiB in all")
    })?;
    Ok(PyBytes::new(py, &made))
}

#[pyfunction]
fn fingerprint(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let taken = py.detach(|| fingerprint_of(&path));
    taken.map(text_of).map_err(|error| to_python(py, error))
}

#[pyfunction]
#[pyo3(signature = (path, index, progress = None))]
fn index_tfrecord(
    py: Python<'_>,
    path: PathBuf,
    index: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    scan(py, progress, |tell| tfrecord::index(&path, &index, tell))
}

#[pyfunction]
#[pyo3(signature = (path, index, delimiter = ",", progress = None))]
fn index_csv(
    py: Python<'_>,
    path: PathBuf,
    index: PathBuf,
    delimiter: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let delimiter = one_byte(delimiter)?;
    scan(py, progress, |tell| {
        csv::index(&path, &index, delimiter, tell)
    })
}

#[pyfunction]
fn looks_like_tfrecord(start: &[u8]) -> bool {
    tfrecord::looks_like(start)
}

#[pyfunction]
#[pyo3(signature = (data, before=0))]
fn crc32c(py: Python<'_>, data: PyBuffer<u8>, before: u32) -> PyResult<u32> {
    if !data.is_c_contiguous() {
        return Ok(checksum_of_rest(before, &data.to_vec(py)?));
    }
    let (start, length) = (data.buf_ptr() as usize, data.item_count());
    // SAFETY: the buffer stays where it is and as long as it is until `data` is dropped, and its items are single bytes. Nobody may write to
    // it meanwhile: a checksum of what changes means nothing.
    let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, length) };
    Ok(py.detach(|| checksum_of_rest(before, bytes)))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PySpan>()?;
    m.add_class::<PyTFRecordFile>()?;
    m.add_class::<PyCsvFile>()?;
    m.add_class::<PyLinesFile>()?;
    m.add_class::<PyRecordIoFile>()?;
    m.add_function(wrap_pyfunction!(index_tfrecord, m)?)?;
    m.add_function(wrap_pyfunction!(index_csv, m)?)?;
    m.add_function(wrap_pyfunction!(index_lines, m)?)?;
    m.add_function(wrap_pyfunction!(recordio_chunk, m)?)?;
    m.add_function(wrap_pyfunction!(fingerprint, m)?)?;
    m.add_function(wrap_pyfunction!(looks_like_tfrecord, m)?)?;
    m.add_function(wrap_pyfunction!(crc32c, m)?)
}
