//! `fipsee.list_disks` and `list_ports`: the disks and ports that this user may open.

use std::path::PathBuf;

use fipsee_block::client::{self, default_socket_path};
use fipsee_net::ListedPortInfo;
use pyo3::prelude::*;

use crate::error::{Failure, net_exception};

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

/// A port that this user may open.
#[pyclass(frozen, eq, module = "fipsee")]
#[derive(PartialEq, Eq)]
pub(crate) struct ListedPort(ListedPortInfo);

#[pymethods]
impl ListedPort {
    /// Network and port, for `Port`.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// Its address, as in "02:00:00:00:00:0a".
    #[getter]
    fn mac(&self) -> String {
        self.0.mac.to_string()
    }

    #[getter]
    const fn mtu(&self) -> u16 {
        self.0.mtu
    }

    /// Does a client have it?
    #[getter]
    const fn in_use(&self) -> bool {
        self.0.in_use
    }

    fn __repr__(&self) -> String {
        format!("<fipsee.ListedPort '{}', {}{}>", self.0.name, self.0.mac, if self.0.in_use { ", in use" } else { "" })
    }
}

/// The ports that this user may open, in the order of their names. None is opened.
#[pyfunction]
#[pyo3(signature = (*, socket=None))]
pub(crate) fn list_ports(py: Python<'_>, socket: Option<PathBuf>) -> PyResult<Vec<ListedPort>> {
    let socket = socket.unwrap_or_else(default_socket_path);
    let ports = py.detach(|| fipsee_net::list(&socket)).map_err(|error| net_exception(&error))?;
    Ok(ports.into_iter().map(ListedPort).collect())
}
