//! Rules that no other tool knows. Each message says what to do instead.
//!
//! A line may break a rule with a reason: `tidy: allow RULE, the reason`, on it or on the line above.

mod code;
mod life;
mod manifest;
mod source;
pub(crate) mod text;
mod words;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::step;

/// One file under the root.
pub(crate) struct File {
    /// Path from the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// What was found.
pub(crate) struct Report {
    pub(crate) file_count: usize,
    pub(crate) errors: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

/// Folders that hold nothing we wrote.
const FOREIGN_FOLDERS: [&str; 2] = ["target", ".git"];
/// Files made by tools.
const GENERATED_FILES: [&str; 1] = ["Cargo.lock"];

/// Check every text file below `root`.
pub(crate) fn run(root: &Path) -> Result<Report, String> {
    let mut files = Vec::new();
    collect(root, root, &mut files).map_err(|error| format!("cannot read {}: {error}", root.display()))?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let mut errors = Vec::new();
    for file in &files {
        errors.extend(text::check(file));
        errors.extend(words::check(file));
        if file.path.ends_with(".rs") {
            errors.extend(source::check(file));
        }
    }
    errors.extend(manifest::check(&files));
    for (client, forbidden) in manifest::CLIENTS {
        let tree = ["tree", "--edges", "normal", "--prefix", "none", "--format", "{p}|{f}", "--package", client];
        let tree = step::output(crate::cargo(root).args(tree));
        errors.extend(match tree.succeeded {
            true => manifest::check_client(client, forbidden, &tree.text),
            false => vec![format!("cannot find out what {client} is built from: {}", tree.text)],
        });
    }
    errors.extend(text::check_links(&files, &|path| root.join(path).exists()));
    errors.extend(text::check_paths(&files, &|path| root.join(path).exists()));
    errors.extend(words::check_types(&files));
    errors.extend(text::check_decisions(&files));
    errors.extend(life::check(&files));
    let warnings = text::wire_without_protocol(&changed_files(root)).into_iter().collect();
    Ok(Report { file_count: files.len(), errors, warnings })
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<File>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        if kind.is_dir() && !FOREIGN_FOLDERS.contains(&&*name) {
            collect(root, &path, files)?;
        } else if kind.is_file() && !GENERATED_FILES.contains(&&*name) && name != ".git" {
            // A file that is not UTF-8 is data, to which no rule applies.
            if let Ok(text) = fs::read_to_string(&path) {
                let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                files.push(File { path, text });
            }
        }
    }
    Ok(())
}

/// What this branch changes, if git knows what it branched from.
fn changed_files(root: &Path) -> Vec<String> {
    let git = |arguments: &[&str]| step::output(Command::new("git").current_dir(root).args(arguments));
    for base in ["origin/HEAD", "origin/main", "main"] {
        let fork = git(&["merge-base", "HEAD", base]);
        if fork.succeeded {
            let changed = git(&["diff", "--name-only", fork.text.trim()]);
            return changed.text.lines().map(str::to_owned).collect();
        }
    }
    Vec::new()
}

/// May line `index` of `lines` break `rule`?
pub(crate) fn is_allowed(lines: &[&str], index: usize, rule: &str) -> bool {
    let mark = format!("tidy: allow {rule}, ");
    let line = |index: usize| lines.get(index).and_then(|line| line.split_once(&mark));
    let reason = line(index).or_else(|| index.checked_sub(1).and_then(line));
    reason.is_some_and(|(_, reason)| !reason.trim().is_empty())
}

/// The place of something, for editors that jump there.
pub(crate) fn at(file: &File, line_index: usize, what: &str) -> String {
    format!("{}:{}: {what}", file.path, line_index + 1)
}
