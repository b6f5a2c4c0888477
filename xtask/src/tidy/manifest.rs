//! Which part may depend on which (ARCHITECTURE.md).

use std::collections::HashMap;

use super::{File, at};

/// A part, and the parts it may depend on. A part that is not listed here may depend on `UNLISTED`.
const ARROWS: &[(&str, &[&str])] = &[
    ("crates/ring", &[]),
    ("crates/topology", &["crates/ring"]),
    ("crates/serve", &["crates/ring", "crates/topology"]),
    // The testkit is for tests: those of crates below it may have it, too.
    // The server with its feature `server` only, which clients must not have (`CLIENTS`).
    ("crates/block", &["crates/ring", "crates/serve", "tests/testkit"]),
    // Likewise.
    ("crates/call", &["crates/ring", "crates/topology", "crates/serve", "tests/testkit"]),
    // Likewise.
    ("crates/net", &["crates/ring", "crates/serve", "tests/testkit"]),
    ("crates/virtio", &["crates/ring", "crates/serve", "crates/block", "crates/net", "tests/testkit"]),
    (
        "crates/daemon",
        &["crates/ring", "crates/topology", "crates/serve", "crates/block", "crates/net", "crates/virtio", "tests/testkit"],
    ),
    (
        "crates/cli",
        &["crates/ring", "crates/topology", "crates/block", "crates/net", "crates/daemon", "bench/measure", "tests/testkit"],
    ),
    ("crates/capi", &["crates/ring", "crates/topology", "crates/block", "crates/call", "crates/net"]),
    ("crates/python", &["crates/ring", "crates/topology", "crates/block", "crates/net"]),
    // `fipsee ping` and the benchmarks measure in the same way.
    ("bench/measure", &["crates/ring", "crates/topology"]),
    ("bench/peers", &["crates/ring", "crates/topology", "bench/measure"]),
    // The benchmarks use the load generator that users use.
    (
        "bench/suite",
        &[
            "crates/ring",
            "crates/topology",
            "crates/serve",
            "crates/block",
            "crates/net",
            "crates/virtio",
            "crates/daemon",
            "crates/cli",
            "bench/measure",
            "tests/testkit",
        ],
    ),
    // Rust and C understand the same bytes.
    (
        "tests/fuzz",
        &[
            "crates/ring",
            "crates/serve",
            "crates/block",
            "crates/call",
            "crates/virtio",
            "crates/daemon",
            "crates/net",
            "tests/interop",
        ],
    ),
    ("fuzz", &["tests/fuzz"]),
    ("tests/oracle", &["crates/ring", "crates/block", "crates/virtio", "crates/daemon", "tests/testkit"]),
    // Its oracle has the model, its writers the fronts.
    ("tests/durability", &["crates/block", "tests/oracle", "tests/testkit"]),
    // What clients, sessions and workers do is driven from outside; the rules of exclusion are the daemon's.
    // A service outside the products, on the runtime.
    ("tests/service", &["crates/ring", "crates/serve", "crates/daemon", "tests/testkit"]),
    (
        "tests/simulate",
        &[
            "crates/ring",
            "crates/block",
            "crates/call",
            "crates/serve",
            "crates/virtio",
            "crates/daemon",
            "crates/net",
            "tests/service",
        ],
    ),
    ("tests/testkit", &["crates/ring", "crates/serve", "crates/block", "crates/net", "crates/virtio", "crates/daemon"]),
    // The fio engine gets the faults that the Rust client gets.
    ("tests/acceptance", &["crates/ring", "crates/call", "tests/testkit"]),
    // It builds the workspace, so it must compile when no crate does. So its virtual machines start `fipseed` themselves
    // (`vm/back_end.rs`, `vm/net.rs`), without the testkit's launcher.
    ("xtask", &[]),
];
const UNLISTED: &[&str] = &["crates/ring", "crates/block", "crates/call", "crates/net", "crates/virtio", "crates/daemon"];

/// Clients, and what they must not be built with: the server's runtime, its disks, io_uring. C programs may serve typed calls,
/// which are on the runtime.
pub(crate) const CLIENTS: &[(&str, &[&str])] = &[
    ("fipsee-capi", &["io-uring", "fipsee-block/server"]),
    ("fipsee-python", &["io-uring", "fipsee-block/server", "fipsee-serve"]),
];

/// `tree`: the packages that `client` is built from, `name version|feature,feature` each. `forbidden`: packages, or
/// `package/feature`.
pub(crate) fn check_client(client: &str, forbidden: &[&str], tree: &str) -> Vec<String> {
    let is_in = |line: &str, forbidden: &str| {
        let (package, features) = line.split_once('|').unwrap_or((line, ""));
        let (name, feature) = forbidden.split_once('/').unwrap_or((forbidden, ""));
        package.split(' ').next() == Some(name) && (feature.is_empty() || features.split([',', ' ']).any(|has| has == feature))
    };
    let found = forbidden.iter().filter(|forbidden| tree.lines().any(|line| is_in(line, forbidden)));
    found.map(|what| format!("{client} is built with {what}, which is the server's: no client may need it")).collect()
}

pub(crate) fn check(files: &[File]) -> Vec<String> {
    let manifests: Vec<(&str, &File)> =
        files.iter().filter_map(|file| Some((file.path.strip_suffix("/Cargo.toml")?, file))).collect();
    let folder_of: HashMap<String, &str> =
        manifests.iter().filter_map(|(folder, file)| Some((package_name(&file.text)?, *folder))).collect();
    let mut errors = Vec::new();
    for (folder, file) in manifests {
        let allowed = ARROWS.iter().find(|(part, _)| *part == folder).map_or(UNLISTED, |(_, allowed)| allowed);
        for (index, name) in dependencies(&file.text) {
            let Some(target) = folder_of.get(&name).filter(|target| **target != folder && !allowed.contains(target)) else {
                continue;
            };
            let what = match allowed {
                [] => "no part of this workspace".to_owned(),
                parts => format!("only {}", parts.join(", ")),
            };
            errors.push(at(file, index, &format!("{folder} must not depend on {target}; it may use {what}")));
        }
    }
    errors
}

fn package_name(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("name"))?;
    Some(line.split('"').nth(1)?.to_owned())
}

/// Names in every table of dependencies, with their line.
fn dependencies(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_table = false;
    for (index, line) in text.lines().enumerate() {
        if let Some(table) = line.trim().strip_prefix('[') {
            let table = table.trim_end_matches(']');
            in_table = table.ends_with("dependencies");
            if let Some((_, name)) = table.split_once("dependencies.") {
                found.push((index, name.to_owned()));
            }
        } else if in_table && let Some(name) = line.split(['=', '.', ' ']).next().filter(|name| !name.is_empty()) {
            found.push((index, name.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(folder: &str, name: &str, dependencies: &str) -> File {
        let text = format!("[package]\nname = \"{name}\"\n\n{dependencies}");
        File { path: format!("{folder}/Cargo.toml"), text }
    }

    fn workspace(part: File) -> Vec<File> {
        vec![
            manifest("crates/ring", "fipsee-ring", ""),
            manifest("crates/cli", "fipsee", ""),
            manifest("crates/block", "fipsee-block", "[dependencies]\nfipsee-ring.workspace = true\nio-uring = \"1\"\n"),
            part,
        ]
    }

    #[test]
    fn clients_are_built_without_the_server() {
        let (ring, block, with) =
            ("fipsee-ring v0.1.0|\n", "fipsee-block v0.1.0 (path)|\n", "fipsee-block v0.1.0|a,server (*)\n");
        for (client, forbidden) in CLIENTS {
            assert_eq!(check_client(client, forbidden, &format!("{ring}{block}")), [""; 0]);
            assert_eq!(check_client(client, forbidden, &format!("{ring}{with}io-uring v0.7.15|\n")).len(), 2);
        }
        assert_eq!(check_client("fipsee-python", CLIENTS[1].1, "fipsee-serve v0.1.0|\n").len(), 1);
    }

    #[test]
    fn arrows_point_down() {
        let good = manifest("crates/daemon", "fipseed", "[dependencies]\nfipsee-block = { path = \"../block\" }\n");
        assert_eq!(check(&workspace(good)), [""; 0]);
    }

    #[test]
    fn arrows_up_and_arrows_to_the_command_line_are_errors() {
        for (folder, table) in [
            ("crates/ring2", "[dependencies]\nfipsee.workspace = true\n"),
            ("crates/daemon", "[dev-dependencies]\nfipsee = { path = \"../cli\" }\n"),
            ("tests/part", "[dependencies.fipsee]\npath = \"../cli\"\n"),
            ("xtask", "[target.'cfg(unix)'.dependencies]\nfipsee-ring.workspace = true\n"),
        ] {
            let errors = check(&workspace(manifest(folder, "part", table)));
            assert_eq!(errors.len(), 1, "{folder}: {errors:?}");
            assert!(errors[0].starts_with(&format!("{folder}/Cargo.toml:")), "{errors:?}");
        }
    }
}
