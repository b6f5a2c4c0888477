//! The Python module: a wheel for every Python from 3.11 on, and a virtual environment that has it, for tests and documents.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Dist, PROFILE, debug, notices};
use crate::files::{copy, empty_folder, list, list_ending, name_of, read, read_text, rename, write};
use crate::step;

/// What is installed in the virtual environment; a path in the workspace.
const REQUIREMENTS: &str = "crates/python/requirements.txt";

/// The crate and the Debian package of the module.
const PACKAGE: &str = "fipsee-python";
const DEBIAN_PACKAGE: &str = "python3-fipsee";

pub(super) fn build(dist: &Dist) -> Result<String, String> {
    let venv = dist.target.join("python-venv");
    make_venv(&dist.root, &venv)?;
    let wheels = dist.prefix.join("wheels");
    // A wheel of an older version must not be found beside the new one.
    empty_folder(&wheels)?;
    let work = dist.target.join("python-wheel");
    empty_folder(&work)?;
    let mut maturin = Command::new(venv.join("bin/maturin"));
    maturin.current_dir(&dist.root).env("CARGO_TARGET_DIR", &dist.target).env("VIRTUAL_ENV", &venv);
    // The tag names the oldest glibc that has what the module uses.
    maturin.args(["build", "--profile", PROFILE, "--locked", "--manifest-path", "crates/python/Cargo.toml"]);
    step::succeed(maturin.arg("--out").arg(&work))?;
    notices::install(dist, &[DEBIAN_PACKAGE], PACKAGE, &[PACKAGE])?;
    finish(dist, &venv, &only_wheel(&work)?, &wheels)?;
    let wheel = only_wheel(&wheels)?;
    let mut install = pip(&dist.root, &venv);
    step::succeed(install.args(["install", "--no-index", "--no-deps", "--force-reinstall"]).arg(&wheel))?;
    Ok(name_of(&wheel))
}

/// Pack the wheel again without debug information and with the third-party notices.
fn finish(dist: &Dist, venv: &Path, wheel: &Path, wheels: &Path) -> Result<(), String> {
    let tool = || {
        let mut command = Command::new(venv.join("bin/python3"));
        command.args(["-m", "wheel"]);
        command
    };
    let work = dist.target.join("python-wheel/unpacked");
    step::succeed(tool().arg("unpack").arg(wheel).arg("--dest").arg(&work))?;
    let [root] = list(&work)?.try_into().map_err(|_| format!("{} has no folder of its own", wheel.display()))?;
    for module in list_ending(&root.join("fipsee"), "so") {
        let linked = dist.target.join("python-wheel").join(name_of(&module));
        // Away, so that what is there is not taken for what was stripped before.
        rename(&module, &linked)?;
        debug::split(dist, &linked, &module)?;
    }
    let [information] =
        list_ending(&root, "dist-info").try_into().map_err(|_| format!("{} has no dist-info", wheel.display()))?;
    let notices = dist.prefix.join("share/doc").join(DEBIAN_PACKAGE).join(notices::FILE);
    copy(&notices, &information.join("licenses").join(notices::FILE))?;
    let metadata = read_text(&information.join("METADATA"))?;
    let listed = format!("\nLicense-File: {}\nLicense-Expression: ", notices::FILE);
    write(&information.join("METADATA"), metadata.replacen("\nLicense-Expression: ", &listed, 1))?;
    let mut pack = tool();
    pack.env("SOURCE_DATE_EPOCH", dist.epoch()?.to_string()).arg("pack").arg(&root).arg("--dest-dir").arg(wheels);
    step::succeed(&mut pack).map(drop)
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
