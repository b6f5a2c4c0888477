//! Which part may depend on which (ARCHITECTURE.md).

use std::collections::HashMap;

use super::{File, at};

/// A part, and the parts it may depend on. A part that is not listed here may depend on `UNLISTED`.
const ARROWS: &[(&str, &[&str])] = &[
    ("crates/ring", &[]),
    ("crates/topology", &["crates/ring"]),
    ("crates/serve", &["crates/ring", "crates/topology"]),
    ("crates/block", &["crates/ring"]),
    // For its feature `server` only.
    ("crates/call", &["crates/ring", "crates/serve"]),
    ("crates/virtio", &["crates/ring", "crates/block"]),
    // Its tests have a guest, as have those of the command line.
    ("crates/daemon", &["crates/ring", "crates/topology", "crates/serve", "crates/block", "crates/virtio", "tests/guest"]),
    ("crates/cli", &["crates/ring", "crates/topology", "crates/block", "crates/daemon", "tests/guest"]),
    ("crates/capi", &["crates/ring", "crates/block", "crates/call"]),
    ("crates/python", &["crates/ring", "crates/block"]),
    // The benchmarks use the load generator that users use.
    (
        "bench/suite",
        &["crates/ring", "crates/block", "crates/virtio", "crates/daemon", "crates/cli", "tests/guest", "tests/hostile"],
    ),
    // Rust and C understand the same bytes.
    ("tests/fuzz", &["crates/ring", "crates/block", "crates/call", "crates/virtio", "crates/daemon", "tests/interop"]),
    ("fuzz", &["tests/fuzz"]),
    ("tests/oracle", &["crates/ring", "crates/block", "crates/virtio", "crates/daemon", "tests/guest"]),
    // Its referee has the oracle's model.
    ("tests/durability", &["crates/block", "crates/daemon", "tests/guest", "tests/oracle"]),
    ("tests/hostile", &["crates/ring", "crates/block", "crates/virtio", "crates/daemon", "tests/guest"]),
    // The fio engine is lied to as the Rust client is.
    ("tests/doors", &["crates/ring", "crates/call", "tests/hostile"]),
    ("xtask", &[]),
];
const UNLISTED: &[&str] = &["crates/ring", "crates/block", "crates/call", "crates/virtio", "crates/daemon"];

/// What a client carries of these, it carries without the server's runtime: `crates/serve` stands behind their feature `server`.
const CLIENT_SIDES: &[&str] = &["crates/block", "crates/call"];
/// Clients, and of which part they may have that feature.
const CLIENTS: &[(&str, &[&str])] = &[
    ("crates/block", &[]),
    ("crates/call", &[]),
    ("crates/python", &[]),
    // C programs serve calls.
    ("crates/capi", &["crates/call"]),
];

pub(crate) fn check(files: &[File]) -> Vec<String> {
    let manifests: Vec<(&str, &File)> =
        files.iter().filter_map(|file| Some((file.path.strip_suffix("/Cargo.toml")?, file))).collect();
    let folder_of: HashMap<String, &str> =
        manifests.iter().filter_map(|(folder, file)| Some((package_name(&file.text)?, *folder))).collect();
    let mut errors = Vec::new();
    for (folder, file) in manifests {
        let allowed = ARROWS.iter().find(|(part, _)| *part == folder).map_or(UNLISTED, |(_, allowed)| allowed);
        for (index, name) in dependencies(&file.text) {
            let Some(target) = folder_of.get(&name) else { continue };
            let line = file.text.lines().nth(index).unwrap_or_default();
            if let Some(error) = carries_runtime(folder, target, line) {
                errors.push(at(file, index, error));
            }
            if allowed.contains(target) {
                continue;
            }
            let what = match allowed {
                [] => "no part of this workspace".to_owned(),
                parts => format!("only {}", parts.join(", ")),
            };
            errors.push(at(file, index, &format!("{folder} must not depend on {target}; it may use {what}")));
        }
    }
    errors
}

/// Would a client have the server's runtime by the dependency of `folder` on `target` that `line` declares?
fn carries_runtime(folder: &str, target: &str, line: &str) -> Option<&'static str> {
    if CLIENT_SIDES.contains(&folder) && target == "crates/serve" && !line.contains("optional = true") {
        return Some("clients do without the runtime: make this dependency optional, and have the feature `server` bring it");
    }
    let (_, served) = CLIENTS.iter().find(|(client, _)| *client == folder)?;
    let asks = line.contains("\"server\"") && !served.contains(&target);
    asks.then_some("a client does without the runtime: do not ask for the feature `server`")
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
    fn clients_do_not_reach_the_runtime() {
        for (client, _) in CLIENTS {
            let mut parts = vec![*client];
            while let Some(part) = parts.pop() {
                assert_ne!(part, "crates/serve", "{client} carries it");
                let allowed = ARROWS.iter().find(|(listed, _)| *listed == part).map_or(UNLISTED, |(_, allowed)| allowed);
                let optional = |next: &&&str| CLIENT_SIDES.contains(&part) && **next == "crates/serve";
                parts.extend(allowed.iter().filter(|next| !optional(next)));
            }
        }
    }

    #[test]
    fn the_runtime_is_optional_below_clients_and_they_do_not_ask_for_it() {
        let serve = || manifest("crates/serve", "fipsee-serve", "");
        let call = |serve: &str| manifest("crates/call", "fipsee-call", &format!("[dependencies]\nfipsee-serve = {serve}\n"));
        let optional = || call("{ workspace = true, optional = true }");
        assert_eq!(check(&[serve(), optional()]), [""; 0]);
        assert_eq!(check(&[serve(), call("{ workspace = true }")]).len(), 1);
        let asks = |folder, name| {
            let asks = format!("[dependencies]\n{name} = {{ workspace = true, features = [\"server\"] }}\n");
            let client = manifest(folder, "client", &asks);
            check(&workspace(client).into_iter().chain([serve(), optional()]).collect::<Vec<_>>())
        };
        assert_eq!(asks("crates/capi", "fipsee-call"), [""; 0], "C programs serve calls");
        assert_eq!(asks("crates/capi", "fipsee-block").len(), 1);
        assert_eq!(asks("crates/python", "fipsee-block").len(), 1);
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
