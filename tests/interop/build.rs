//! Builds the C half: a library for tests in one process, and the peer program for tests across processes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Slower, and so with other windows for races than what ships: a program beside the other.
const SANITIZERS: [&str; 4] = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let (include, fio) = (root.join("../../include"), root.join("../../c/fio"));
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed={}", include.display());
    println!("cargo::rerun-if-changed={}", fio.join("stores.h").display());
    let mut build = cc::Build::new();
    // What is undefined traps, which needs no run-time in the programs that this is linked into.
    build.flag("-fsanitize=undefined").flag("-fsanitize-undefined-trap-on-error");
    build.include(&include).std("c11").warnings(true).extra_warnings(true).warnings_into_errors(true).flag("-pedantic");
    for entry in fs::read_dir(root.join("c")).expect("the C sources are beside the manifest") {
        let path = entry.expect("the directory of C sources is readable").path();
        let is_program = path.ends_with("peer.c") || path.ends_with("sanitized.c");
        if path.extension().is_some_and(|extension| extension == "c") && !is_program {
            build.file(path);
        }
    }
    build.compile("fipsee_interop_c");
    for (name, options) in [("PEER", &["-O2"][..]), ("SANITIZED_PEER", &SANITIZERS)] {
        // The machine's own, not what CC names: a fuzzer's compiler may come without the run-time of the sanitizers.
        let (mut command, program) = (Command::new("cc"), out.join(name));
        build_peer(command.args(options).arg("-I").arg(&fio), &include, &root.join("c"), &program);
        println!("cargo::rustc-env=FIPSEE_INTEROP_{name}={}", program.display());
    }
}

/// Without CFLAGS of the environment: what a fuzzer puts into the library would need its run-time in the program, too.
fn build_peer(compiler: &mut Command, include: &Path, sources: &Path, program: &Path) {
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]).arg(include);
    compiler.arg("-o").arg(program).arg(sources.join("peer.c"));
    let status = compiler.status().unwrap_or_else(|error| panic!("cannot run the C compiler: {error}; install gcc"));
    assert!(status.success(), "the C compiler refused peer.c: {status}");
}
