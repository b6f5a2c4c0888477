//! What a guest of `cargo xtask bench net` boots from. The suite boots it itself (`bench/suite/src/net/guest`), in a network namespace.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use super::super::apt::Apt;
use super::super::archive::Archive;
use super::super::environment::{UML_NEEDS, all_installed};
use super::super::packages::Packages;
use super::super::uml::{Build, Uml};
use super::super::unready::Unready;
use crate::{files, step, target};

/// What the suite asks for.
pub(crate) const PREPARE: &str = "prepare-net-guest";

const SOURCE: &str = "bench/c/net_guest.c";

/// `FOLDER`: put the path of the kernel of user-mode Linux into the file `kernel` there, and beside it `initrd`, which holds the one program
/// of the guest.
pub(crate) fn prepare(root: &Path, words: &[String]) -> ExitCode {
    let prepared = match words {
        [folder] => try_prepare(root, Path::new(folder)),
        _ => Err(format!("bench {PREPARE} is for the benchmark suite; use bench net").into()),
    };
    match prepared {
        Ok(()) => ExitCode::SUCCESS,
        Err(Unready::Missing(error) | Unready::Broken(error)) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_prepare(root: &Path, folder: &Path) -> Result<(), Unready> {
    all_installed(&UML_NEEDS)?;
    let uml = Uml::prepare(Build::Plain, root, &Packages::new(target(root).join("vm/packages"), Apt::own()))?;
    files::write(&folder.join("kernel"), uml.program().display().to_string())?;
    let mut archive = Archive::default();
    archive.add_file("init", &program(root, folder)?)?;
    Ok(files::write(&folder.join("initrd"), archive.finish()?)?)
}

/// Compiled each time: it takes less than a second.
fn program(root: &Path, folder: &Path) -> Result<PathBuf, String> {
    let path = folder.join("net-guest");
    let mut command = Command::new("gcc");
    command.args(["-std=gnu11", "-O2", "-g0", "-static", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&path);
    step::succeed(command.arg(root.join(SOURCE)))?;
    Ok(path)
}
