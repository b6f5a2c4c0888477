//! The Python module: a wheel for every Python from 3.11 on, and a virtual environment that has it, for tests and documents.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Dist;
use crate::step;

/// Of the workspace: what is in the virtual environment.
const REQUIREMENTS: &str = "crates/python/requirements.txt";

pub(super) fn build(dist: &Dist) -> Result<String, String> {
    let venv = dist.target.join("python-venv");
    make_venv(&dist.root, &venv)?;
    let wheels = dist.prefix.join("wheels");
    // An older version beside the new one would be installed, too.
    if wheels.exists() {
        fs::remove_dir_all(&wheels).map_err(|error| format!("cannot remove {}: {error}", wheels.display()))?;
    }
    let mut maturin = Command::new(venv.join("bin/maturin"));
    maturin.current_dir(&dist.root).env("CARGO_TARGET_DIR", &dist.target).env("VIRTUAL_ENV", &venv);
    maturin.args(["build", "--release", "--locked", "--manylinux", "off", "--manifest-path", "crates/python/Cargo.toml"]);
    step::succeed(maturin.arg("--out").arg(&wheels))?;
    let wheel = only_wheel(&wheels)?;
    let mut install = pip(&dist.root, &venv);
    step::succeed(install.args(["install", "--no-index", "--no-deps", "--force-reinstall"]).arg(&wheel))?;
    Ok(wheel.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// A virtual environment with what the requirements list; the one that is there if it was made from the same list.
fn make_venv(root: &Path, venv: &Path) -> Result<(), String> {
    let (requirements, stamp) = (root.join(REQUIREMENTS), venv.join("requirements.txt"));
    let read = |path: &Path| fs::read_to_string(path).ok();
    let works = || step::output(Command::new(venv.join("bin/python3")).arg("--version")).succeeded;
    if read(&stamp).is_some() && read(&stamp) == read(&requirements) && works() {
        return Ok(());
    }
    // Without a pip of its own, for which Debian has yet another package.
    step::succeed(Command::new("python3").current_dir(root).args(["-m", "venv", "--clear", "--without-pip"]).arg(venv))?;
    step::succeed(pip(root, venv).args(["install", "--requirement"]).arg(requirements))?;
    // Last, so that an interrupted installation is begun anew.
    fs::copy(root.join(REQUIREMENTS), &stamp).map_err(|error| format!("cannot write {}: {error}", stamp.display()))?;
    Ok(())
}

/// The machine's pip, at work in `venv`.
fn pip(root: &Path, venv: &Path) -> Command {
    let mut command = Command::new("python3");
    command.current_dir(root).args(["-m", "pip", "--disable-pip-version-check", "--quiet", "--python"]);
    command.arg(venv.join("bin/python3"));
    command
}

fn only_wheel(wheels: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(wheels).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found = entries.filter(|path| path.extension().is_some_and(|end| end == "whl"));
    match (found.next(), found.next()) {
        (Some(wheel), None) => Ok(wheel),
        _ => Err(format!("maturin left no wheel, or several, in {}", wheels.display())),
    }
}
