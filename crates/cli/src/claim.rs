//! Attaching to write: as the sole writer, unless `--force` is given.

use std::path::Path;

use fipsee_block::client::{AttachOptions, Claim, Disk, Error, Queue};

/// The claim of a command.
#[must_use]
pub const fn of(force: bool) -> Claim {
    if force { Claim::Ignore } else { Claim::SoleWriter }
}

/// Attach; `log` a note when the daemon is too old for claims.
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
