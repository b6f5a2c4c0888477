//! What `--version` says: the version and, of a release build from a clone, the commit with its date.
//!
//! `FIPSEE_COMMIT` sets both ("c8a6172 2026-11-24") for a build from an archive; empty, it leaves them out. Builds of the profile `dev` are
//! not asked: each commit would build the workspace again.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FIPSEE_COMMIT");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let commit = env::var("FIPSEE_COMMIT").ok().or_else(commit_of_a_release).filter(|commit| !commit.is_empty());
    println!("cargo::rustc-env=FIPSEE_VERSION={version}{}", commit.map(|commit| format!(" ({commit})")).unwrap_or_default());
}

fn commit_of_a_release() -> Option<String> {
    if env::var("PROFILE").ok()? != "release" {
        return None;
    }
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("../..").canonicalize().ok()?;
    // An archive that was unpacked within another project's clone is not that clone.
    if PathBuf::from(git(&root, &["rev-parse", "--show-toplevel"])?).canonicalize().ok()? != root {
        return None;
    }
    // The log of HEAD grows with each commit and each change of branch, in worktrees, too. A file that is missing would count as changed
    // each time.
    for name in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&root, &["rev-parse", "--git-path", name])?);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&root, &["log", "-1", "--abbrev=7", "--date=short", "--format=%h %cd"])
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
