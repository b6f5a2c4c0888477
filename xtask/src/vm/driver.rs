//! The guest's driver for its disk.

use std::path::PathBuf;

use super::debian::Debian;
use super::uml::Uml;
use super::unready::Unready;

/// A kernel that a guest runs.
pub(super) enum Kernel<'a> {
    Uml(&'a Uml),
    Debian(&'a Debian),
}

impl Kernel<'_> {
    /// A module that came with it.
    fn module(&self, name: &str) -> Option<PathBuf> {
        match self {
            Self::Uml(uml) => uml.module(name),
            Self::Debian(debian) => debian.module(name),
        }
    }
}

/// Names of drivers as on the command line, each as the kernel calls it on its bus.
pub(super) const DRIVERS: [&str; 1] = ["virtio_blk"];

/// What a guest loads for that driver, in this order.
pub(super) fn modules(driver: &str, kernel: &Kernel<'_>) -> Result<Vec<PathBuf>, Unready> {
    let module = kernel.module(driver);
    module.map(|path| vec![path]).ok_or_else(|| Unready::Broken(format!("the guest's kernel has no module {driver}")))
}
