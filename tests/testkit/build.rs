//! Builds the guest's half of a ring in C.

use std::path::PathBuf;

fn main() {
    if std::env::var_os("CARGO_FEATURE_DAEMON").is_none() {
        return;
    }
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let include = root.join("../../include");
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed={}", include.display());
    let mut build = cc::Build::new();
    // What is undefined traps, which needs no run-time in the programs that this is linked into.
    build.flag("-fsanitize=undefined").flag("-fsanitize-undefined-trap-on-error");
    build.include(&include).std("c11").warnings(true).extra_warnings(true).warnings_into_errors(true).flag("-pedantic");
    build.file(root.join("c/rings.c")).compile("fipsee_guest_c");
}
