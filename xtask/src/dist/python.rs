//! The Python module: a wheel for every Python from 3.11 on, and a virtual environment that has it, for tests and documents.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Dist, PROFILE};
use crate::files::{copy, empty_folder, list_ending, name_of, read};
use crate::step;

/// What is installed in the virtual environment; a path in the workspace.
const REQUIREMENTS: &str = "crates/python/requirements.txt";

pub(super) fn build(dist: &Dist) -> Result<String, String> {
    let venv = dist.target.join("python-venv");
    make_venv(&dist.root, &venv)?;
    let wheels = dist.prefix.join("wheels");
    // A wheel of an older version must not be found beside the new one.
    empty_folder(&wheels)?;
    let mut maturin = Command::new(venv.join("bin/maturin"));
    maturin.current_dir(&dist.root).env("CARGO_TARGET_DIR", &dist.target).env("VIRTUAL_ENV", &venv);
    maturin.args([
        "build",
        "--profile",
        PROFILE,
        "--locked",
        "--manylinux",
        "off",
        "--manifest-path",
        "crates/python/Cargo.toml",
    ]);
    step::succeed(maturin.arg("--out").arg(&wheels))?;
    let wheel = only_wheel(&wheels)?;
    let mut install = pip(&dist.root, &venv);
    step::succeed(install.args(["install", "--no-index", "--no-deps", "--force-reinstall"]).arg(&wheel))?;
    Ok(name_of(&wheel))
}

/// A virtual environment with what the requirements list; one that was made from the same list is kept.
fn make_venv(root: &Path, venv: &Path) -> Result<(), String> {
    let (requirements, stamp) = (root.join(REQUIREMENTS), venv.join("requirements.txt"));
    let works = || step::output(Command::new(venv.join("bin/python3")).arg("--version")).succeeded;
    if stamp.exists() && read(&stamp) == read(&requirements) && works() {
        return Ok(());
    }
    // Without a pip of its own, for which Debian has yet another package.
    step::succeed(Command::new("python3").current_dir(root).args(["-m", "venv", "--clear", "--without-pip"]).arg(venv))?;
    step::succeed(pip(root, venv).args(["install", "--requirement"]).arg(&requirements))?;
    // Last, so that an interrupted installation is begun anew.
    copy(&requirements, &stamp)
}

/// The machine's pip, at work in `venv`.
fn pip(root: &Path, venv: &Path) -> Command {
    let mut command = Command::new("python3");
    command.current_dir(root).args(["-m", "pip", "--disable-pip-version-check", "--quiet", "--python"]);
    command.arg(venv.join("bin/python3"));
    command
}

fn only_wheel(wheels: &Path) -> Result<PathBuf, String> {
    match list_ending(wheels, "whl").as_slice() {
        [wheel] => Ok(wheel.clone()),
        _ => Err(format!("maturin left no wheel, or several, in {}", wheels.display())),
    }
}
