//! Builds what the fio engine knows of the protocol, without fio: its checks are compared with Rust's.

use std::env;
use std::path::PathBuf;

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let (include, fio) = (root.join("../../include"), root.join("../../c/fio"));
    for path in [&root.join("c"), &include, &fio] {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let mut build = cc::Build::new();
    build.include(&include).include(&fio).std("gnu11").warnings(true).extra_warnings(true).warnings_into_errors(true);
    for source in ["control.c", "channel.c", "queue.c"] {
        build.file(root.join("c").join(source));
    }
    build.compile("fipsee_fuzz_c");
}
