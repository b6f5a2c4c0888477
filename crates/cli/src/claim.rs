//! Attaching to write: nobody else is to meanwhile, unless `--force` says that they may.

use std::path::Path;

use fipsee_block::client::{AttachOptions, Claim, Disk, Error, Queue};

/// What a command claims.
#[must_use]
pub const fn of(force: bool) -> Claim {
    if force { Claim::Ignore } else { Claim::SoleWriter }
}

/// Attach; `tell` the user when the daemon is too old to know what is claimed.
///
/// # Errors
/// As [`Disk::attach`].
pub fn attach(socket: &Path, options: &AttachOptions, log: &dyn Fn(&str)) -> Result<(Disk, Vec<Queue>), Error> {
    match Disk::attach(socket, options) {
        Err(Error::Unsupported(_)) => {
            let disk = &options.name;
            log(&format!("the daemon is too old to keep others from writing disk '{disk}' meanwhile; going on without"));
            Disk::attach(socket, &AttachOptions { claim: Claim::None, ..options.clone() })
        }
        attached => attached,
    }
}
