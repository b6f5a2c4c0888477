//! `cargo xtask bench ipc`: provides what the peers need, builds them in their own workspace, and runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::setup::{self, is_installed};
use crate::{cargo, end, step};

const MANIFEST: &str = "bench/peers/Cargo.toml";
/// Compiles all mechanisms for this CPU.
const CONFIGURATION: &str = "bench/peers/.cargo/config.toml";
/// Aeron needs cmake 3.30; Debian 12 has 3.25. From Python's package index.
const CMAKE: &str = "cmake==4.4.4";
const LEAST_CMAKE: (u32, u32) = (3, 30);

/// What a peer needs and `cargo xtask test` does not: not part of setup, so that tests pull in none of it.
struct Need {
    is_there: fn() -> bool,
    package: &'static str,
    needed_for: &'static str,
}

const NEEDS: [Need; 5] = [
    Need { is_there: || is_installed("pkg-config"), package: "pkgconf", needed_for: "DPDK's and UCX's rows" },
    Need { is_there: || has_library("libdpdk"), package: "libdpdk-dev", needed_for: "DPDK's row" },
    Need { is_there: || has_library("ucx"), package: "libucx-dev", needed_for: "UCX's row" },
    Need { is_there: || is_installed("g++"), package: "g++", needed_for: "Aeron's row" },
    Need { is_there: has_libclang, package: "libclang-dev", needed_for: "Aeron's row" },
];

/// Run the benchmark with `arguments`.
pub(crate) fn run(root: &Path, arguments: &[String]) -> ExitCode {
    // Help and usage errors need no peers.
    let asks = arguments.iter().any(|argument| ["--help", "-h"].contains(&argument.as_str()));
    let mut features: &[&str] = &["--no-default-features"];
    let cmake = if asks { None } else { provide(root) };
    if !asks {
        features = if cmake.is_some() { &["--features", "aeron"] } else { &[] };
        if cmake.is_some() && !build(root, features, cmake.as_deref()) {
            println!("bench ipc ... cannot build Aeron, as shown above: its row will be missing");
            features = &[];
        }
    }
    let mut command = command(root, "run", features, cmake.as_deref());
    command.arg("--").args(arguments);
    end(command)
}

fn command(root: &Path, what: &str, features: &[&str], cmake: Option<&Path>) -> Command {
    let mut command = cargo(root);
    command.args([what, "--release", "--quiet", "--manifest-path", MANIFEST, "--config", CONFIGURATION]).args(features);
    if let Some(cmake) = cmake {
        command.env("CMAKE", cmake);
    }
    command
}

fn build(root: &Path, features: &[&str], cmake: Option<&Path>) -> bool {
    command(root, "build", features, cmake).status().is_ok_and(|status| status.success())
}

/// Install what is missing if we may, and say what will be missing from the table; the cmake that builds Aeron, if
/// everything that Aeron needs is there.
fn provide(root: &Path) -> Option<PathBuf> {
    let missing = || NEEDS.iter().filter(|need| !(need.is_there)());
    let packages: Vec<&str> = missing().map(|need| need.package).collect();
    if !packages.is_empty() {
        if setup::is_root() && is_installed("apt-get") {
            println!("bench ipc ... installing {}", packages.join(" "));
            if let Err(text) = setup::install_with_fresh_lists(&packages) {
                println!("bench ipc ... apt-get failed:\n{text}");
            }
        } else {
            println!("bench ipc ... install them: sudo apt-get install {}", packages.join(" "));
        }
    }
    for need in missing() {
        println!("bench ipc ... {} is not installed: {} will be missing", need.package, need.needed_for);
    }
    if !(is_installed("g++") && has_libclang()) {
        return None;
    }
    let cmake = new_cmake(root);
    if cmake.is_none() {
        println!("bench ipc ... no cmake {}.{} or newer: Aeron's row will be missing", LEAST_CMAKE.0, LEAST_CMAKE.1);
    }
    cmake
}

fn has_library(name: &str) -> bool {
    step::output(Command::new("pkg-config").args(["--exists", name])).succeeded
}

/// Where Debian puts the library that reads C headers for Rust, or where its user says it is.
fn has_libclang() -> bool {
    let is_libclang = |folder: PathBuf| {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        // libclang-cpp, which comes with the compiler, is another library.
        files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("libclang.so"))
    };
    let versions = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    std::env::var_os("LIBCLANG_PATH").is_some()
        || versions
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("llvm-"))
            .any(|entry| is_libclang(entry.path().join("lib")))
}

/// A cmake that is new enough: the machine's, or one in the target folder.
fn new_cmake(root: &Path) -> Option<PathBuf> {
    let folder = root.join("target/cmake");
    // The program itself: the script beside it needs the folder in Python's path.
    let ours = folder.join("cmake/data/bin/cmake");
    let found = [PathBuf::from("cmake"), ours.clone()].into_iter().find(|cmake| is_new_enough(cmake));
    if found.is_some() || !is_installed("pip3") {
        return found;
    }
    println!("bench ipc ... installing {CMAKE} into {}", folder.display());
    let outcome =
        step::succeed(Command::new("pip3").args(["install", "--quiet", "--upgrade", "--target"]).arg(&folder).arg(CMAKE));
    if let Err(text) = outcome {
        println!("bench ipc ... pip3 failed:\n{text}");
    }
    Some(ours).filter(|cmake| is_new_enough(cmake))
}

fn is_new_enough(cmake: &Path) -> bool {
    version(&step::output(Command::new(cmake).arg("--version")).text).is_some_and(|version| version >= LEAST_CMAKE)
}

/// Major and minor of what `cmake --version` prints.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.lines().next()?.strip_prefix("cmake version ")?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_cmake_are_distinguished() {
        assert_eq!(version("cmake version 3.25.1\n\nCMake suite maintained\n"), Some((3, 25)));
        assert_eq!(version("cmake version 4.4.4\n"), Some((4, 4)));
        assert_eq!(version("cannot run \"cmake\""), None);
        assert!(Some((3, 25)) < Some(LEAST_CMAKE) && Some((4, 0)) > Some(LEAST_CMAKE));
    }
}
