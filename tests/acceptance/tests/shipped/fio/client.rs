//! The C code under two compilers and their sanitizers.

use std::path::{Path, PathBuf};
use std::process::Command;

use fipsee_acceptance::{has_program, run, serve, shipped};

use super::Fio;

/// The protocol's half, which needs nothing of fio, and fio's half.
const CLIENT: [&str; 3] = ["channel.c", "control.c", "queue.c"];
const ENGINE: [&str; 3] = ["engine.c", "job.c", "recover.c"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A compiler for `sources`, warnings being errors.
fn compile(compiler: &str, sources: &[&str]) -> Command {
    let mut command = Command::new(compiler);
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-I"]).arg(repository().join("include"));
    command.args(sources.iter().map(|name| repository().join("c/fio").join(name)));
    command
}

/// Have `command` find the headers of the fio that `cargo xtask dist` built the engine for.
fn with_fio(what: &str, command: &mut Command) -> Option<()> {
    let engine = shipped(what, "lib/fio/fipsee.so")?;
    let target = engine.ancestors().nth(4).expect("the prefix is in the target folder");
    let versions = std::fs::read_dir(target.join("fio-source")).expect("dist keeps the source of fio").flatten();
    let source = versions.map(|entry| entry.path().join("source")).find(|path| path.join("config-host.h").exists());
    let source = source.expect("dist keeps the source of fio");
    let version = run(Command::new("fio").arg("--version"));
    command.arg("-include").arg(source.join("config-host.h")).arg("-isystem").arg(source);
    // fio's headers leave parameters unused and mix signs.
    command.args(["-Wno-unused-parameter", "-Wno-sign-compare"]);
    command.arg(format!("-DFIPSEE_FIO_VERSION=\"{}\"", version.trim()));
    Some(())
}

/// The engine with address and undefined-behaviour sanitizers, in `directory`, and what fio needs to load it.
pub(crate) fn sanitized(what: &str, directory: &Path) -> Option<(PathBuf, String)> {
    if !has_program(what, "gcc") {
        return None;
    }
    let engine = directory.join("sanitized.so");
    let mut command = compile("gcc", &[CLIENT.as_slice(), &ENGINE].concat());
    command.args(["-g", "-O1", "-shared", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o"]).arg(&engine);
    with_fio(what, &mut command)?;
    run(&mut command);
    let library = |name: &str| run(Command::new("gcc").arg(format!("-print-file-name={name}"))).trim().to_owned();
    Some((engine, format!("{} {}", library("libasan.so"), library("libubsan.so"))))
}

#[test]
fn two_compilers_have_nothing_to_warn_of() {
    const TEST: &str = "fio-warnings";
    for compiler in ["gcc", "clang"] {
        if !has_program(TEST, compiler) {
            continue;
        }
        let strict = ["-fsyntax-only", "-O2", "-Wconversion", "-Wno-sign-conversion", "-Wshadow", "-Wpointer-arith"];
        run(compile(compiler, &CLIENT).args(strict));
        let mut command = compile(compiler, &ENGINE);
        let Some(()) = with_fio(TEST, &mut command) else { return };
        run(command.arg("-fsyntax-only"));
    }
}

#[test]
fn sanitizers_find_nothing_in_jobs_that_succeed() {
    const TEST: &str = "fio-sanitized";
    let Some(daemon) = serve(TEST, &["a=memory:64M", "b=file:{dir}/b.img,size=64M"]) else { return };
    let Some(mut fio) = Fio::new(TEST, &daemon) else { return };
    let Some((engine, preload)) = sanitized(TEST, &daemon.dir.path("")) else { return };
    fio.engine = engine;
    for options in [
        "filename=a rw=randrw bssplit=512/20:4k/40:64k/20:1m/20 size=32m iodepth=16 verify=crc32c fsync=16",
        "filename=b rw=randrw bssplit=512/20:4k/40:64k/20:1m/20 size=32m iodepth=16 verify=crc32c fsync=16 sync=1",
        "filename=a rw=randwrite bs=4k size=8m iodepth=256 verify=crc32c numjobs=2 thread=1 offset_increment=8m",
        "filename=a rw=randwrite bs=16k size=8m iodepth=4 verify=crc32c mem=malloc wait=sleep",
        "filename=a rw=trimwrite bs=16k size=8m iodepth=4",
    ] {
        // fio itself does not free everything.
        let mut command = fio.job(options);
        fio.jobs_of(command.env("LD_PRELOAD", &preload).env("ASAN_OPTIONS", "detect_leaks=0"));
    }
}
