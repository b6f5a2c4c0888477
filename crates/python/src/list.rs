//! `fipsee.list_disks`: the disks that this user may open.

use std::path::PathBuf;

use fipsee_block::client::{self, default_socket_path};
use pyo3::prelude::*;

use crate::error::Failure;

/// A disk that this user may open.
#[pyclass(frozen, eq, module = "fipsee")]
#[derive(PartialEq, Eq)]
pub(crate) struct ListedDisk(client::ListedDisk);

#[pymethods]
impl ListedDisk {
    /// Its name, for `open`.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Size in bytes.
    #[getter]
    const fn size(&self) -> u64 {
        self.0.size_bytes
    }

    /// Logical block size in bytes.
    #[getter]
    const fn block_size(&self) -> u32 {
        self.0.block_bytes
    }

    /// May no client write it?
    #[getter]
    const fn read_only(&self) -> bool {
        self.0.read_only
    }

    fn __repr__(&self) -> String {
        let access = if self.0.read_only { ", read-only" } else { "" };
        format!("<fipsee.ListedDisk '{}' of {} bytes{access}>", self.0.name, self.0.size_bytes)
    }
}

/// The disks that this user may open, in the order of their names. None is opened.
#[pyfunction]
#[pyo3(signature = (*, socket=None))]
pub(crate) fn list_disks(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<Vec<ListedDisk>> {
    let socket = socket.unwrap_or_else(default_socket_path);
    let disks = py.detach(|| client::list(&socket)).map_err(Failure::from)?;
    Ok(disks.into_iter().map(ListedDisk).collect())
}
