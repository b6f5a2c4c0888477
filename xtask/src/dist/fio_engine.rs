//! The fio engine: an external engine fits one version of fio, so it is built for the one installed here.

use std::path::Path;
use std::process::Command;

use super::{Dist, debug, fio_source};
use crate::files::{list_ending, name_of};
use crate::step;

/// Folder of the engine and the protocol client it is made of.
const SOURCES: &str = "c/fio";

pub(super) fn build(dist: &Dist) -> Result<String, String> {
    let version = step::print(Command::new("fio").arg("--version"))?;
    let source = fio_source::prepare(&dist.target.join("fio-source"))?;
    let engine = dist.target.join("fio-source").join("fipsee.so");
    step::succeed(compiler(&dist.root, &source, &version).arg("-o").arg(&engine))?;
    debug::split(dist, &engine, &dist.prefix.join("lib/fio/fipsee.so"))?;
    for path in list_ending(&dist.root.join(SOURCES).join("jobs"), "fio") {
        dist.install(&path, &format!("share/doc/fipsee/fio/{}", name_of(&path)))?;
    }
    dist.install(&dist.root.join(SOURCES).join("COPYING"), "share/doc/fipsee/fio/COPYING")?;
    Ok(format!("for {version}"))
}

fn compiler(root: &Path, source: &Path, version: &str) -> Command {
    let folder = root.join(SOURCES);
    let mut command = Command::new("gcc");
    command.args(["-std=gnu11", "-O2", "-g1", "-fPIC", "-shared", "-fvisibility=hidden"]);
    // fio names the source file of an error: without the folder it was built in.
    command.arg(format!("-ffile-prefix-map={}=.", root.display()));
    // fio's headers leave parameters unused and mix signs.
    command.args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-sign-compare"]);
    command.arg(format!("-DFIPSEE_FIO_VERSION=\"{version}\"")).arg("-I").arg(root.join("include"));
    command.arg("-include").arg(source.join("config-host.h")).arg("-isystem").arg(source);
    command.args(["engine.c", "job.c", "recover.c", "channel.c", "control.c", "queue.c"].map(|name| folder.join(name)));
    command
}
