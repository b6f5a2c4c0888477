//! Finds and compiles what the peers that are C libraries need. One that is not there is left out, and the table says
//! what to install.

use std::path::Path;
use std::process::Command;

/// A peer in C: the `cfg` that includes it, its name for pkg-config, our source, the libraries that it calls.
const PEERS: [(&str, &str, &str, &[&str]); 2] =
    [("has_dpdk", "libdpdk", "c/rte_ring.c", &["rte_ring", "rte_eal"]), ("has_ucx", "ucx", "c/ucx.c", &["ucp", "ucs"])];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=c");
    // A library that is installed or removed changes one of these folders.
    for folder in pkg_config(&["--variable", "pc_path", "pkg-config"]).unwrap_or_default().trim().split(':') {
        if Path::new(folder).is_dir() {
            println!("cargo::rerun-if-changed={folder}");
        }
    }
    for (cfg, package, source, libraries) in PEERS {
        let Some(flags) = compiler_flags(package) else { continue };
        let mut build = cc::Build::new();
        build.file(source).opt_level(3).flag("-std=gnu11").warnings(false);
        for flag in &flags {
            build.flag(flag);
        }
        // After the package's own flags, which may name an older CPU.
        build.flag("-march=native").compile(cfg);
        println!("cargo::rustc-cfg={cfg}");
        libraries.iter().for_each(|library| println!("cargo::rustc-link-lib={library}"));
    }
}

/// The flags that compile against `package`, if it is installed.
fn compiler_flags(package: &str) -> Option<Vec<String>> {
    Some(pkg_config(&["--cflags", package])?.split_whitespace().map(str::to_owned).collect())
}

fn pkg_config(arguments: &[&str]) -> Option<String> {
    let output = Command::new("pkg-config").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
