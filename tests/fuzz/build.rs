//! Builds what the C clients know of the protocol, of which one is the fio engine, without fio: their checks are compared with Rust's.

use std::env;
use std::path::PathBuf;

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let folders = ["../../include", "../../c/fio", "../../c/net"].map(|folder| root.join(folder));
    for path in folders.iter().chain([&root.join("c")]) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let mut build = cc::Build::new();
    build.includes(&folders).std("gnu11").warnings(true).extra_warnings(true).warnings_into_errors(true);
    for source in ["control.c", "channel.c", "queue.c", "net.c"] {
        build.file(root.join("c").join(source));
    }
    build.compile("fipsee_fuzz_c");
}
