//! Rules for every text: sources, manifests, scripts and documents.

use super::{File, at, is_allowed};

/// Longest source file. A longer one does more than one thing.
const MAX_SOURCE_LINES: usize = 499;
const SOURCE_ENDINGS: [&str; 7] = [".rs", ".c", ".h", ".cpp", ".go", ".py", ".sh"];

/// First line of every C file under include/, which others compile into theirs.
const INCLUDE_LICENCE: &str = "/* SPDX-License-Identifier: MIT OR Apache-2.0 */";
const ANY_LICENCE: &str = "SPDX-License-Identifier:";

/// Texts that belong to one machine or one moment. In two pieces each, or this file would break its own rule.
const FORBIDDEN_TEXTS: [(&str, &str, &str); 9] = [
    ("/wo", "rk/", "a path of a developer's machine: use a relative path"),
    ("/ro", "ot/", "a path of a developer's machine: use a relative path"),
    ("/ho", "me/", "a path of a developer's machine: use a relative path"),
    ("/tmp/", "wt/", "a path of a developer's machine: use a relative path"),
    ("index.", "crates.io", "a registry's host: leave the choice to cargo"),
    ("static.", "crates.io", "a registry's host: leave the choice to cargo"),
    ("deb.", "debian.org", "a registry's host: leave the choice to apt"),
    ("arti", "factory", "a registry's host: leave the choice to the tool"),
    ("FIX", "ME", "an open end: finish it, or open an issue and leave it out"),
];

/// Files that say what is on the wire, and the document that must say the same.
const WIRE_FILES: [&str; 5] = [
    "crates/block/src/wire.rs",
    "crates/ring/src/control.rs",
    "crates/ring/src/layout.rs",
    "include/fipsee.h",
    "include/fipsee_block.h",
];
const PROTOCOL_DOCUMENT: &str = "docs/protocol.md";

/// Documents about what was: paths in them are those of then.
const PAST: [&str; 2] = ["CHANGELOG.md", "bench/results/"];

pub(crate) fn is_source(path: &str) -> bool {
    SOURCE_ENDINGS.iter().any(|ending| path.ends_with(ending))
}

pub(crate) fn check(file: &File) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut errors = Vec::new();
    if is_source(&file.path) && lines.len() > MAX_SOURCE_LINES {
        errors.push(at(file, MAX_SOURCE_LINES, &format!("{} lines; split the file below 500", lines.len())));
    }
    let first = lines.first().copied().unwrap_or_default();
    if file.path.starts_with("include/") && file.path.ends_with(".h") {
        if first != INCLUDE_LICENCE {
            errors.push(at(file, 0, &format!("the first line must be {INCLUDE_LICENCE}")));
        }
    } else if (file.path.ends_with(".c") || file.path.ends_with(".h")) && !first.contains(ANY_LICENCE) {
        errors.push(at(file, 0, "the first line must be an SPDX-License-Identifier comment"));
    }
    for (index, line) in lines.iter().enumerate() {
        for (head, tail, why) in FORBIDDEN_TEXTS {
            if line.contains(&format!("{head}{tail}")) && !is_allowed(&lines, index, "text") {
                errors.push(at(file, index, &format!("'{head}{tail}' is {why}")));
            }
        }
    }
    errors.extend(check_tables(file, &lines));
    errors
}

/// A row of a document that is in no table: an empty line before it has ended its table.
fn check_tables(file: &File, lines: &[&str]) -> Vec<String> {
    let mut in_code = false;
    let mut is_wrong = |index: usize, line: &str| {
        in_code ^= line.starts_with("```");
        let begins = line.starts_with('|') && !index.checked_sub(1).is_some_and(|before| lines[before].starts_with('|'));
        begins && !in_code && !lines.get(index + 1).is_some_and(|next| next.trim_start_matches(['|', ' ', ':']).starts_with("--"))
    };
    let is_document = file.path.ends_with(".md");
    let wrong = lines.iter().enumerate().filter(|(index, line)| is_document && is_wrong(*index, line));
    wrong
        .map(|(index, _)| at(file, index, "a row without its table: remove the empty line before it, or add titles and a rule"))
        .collect()
}

/// A line without code, quoted messages and targets of links.
pub(crate) fn prose(line: &str) -> String {
    let outside = |text: &str, mark: char| text.split(mark).step_by(2).collect::<Vec<_>>().join(" ");
    let text = outside(&outside(line, '`'), '"');
    let mut pieces = text.split("](");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |prose, piece| prose + " " + piece.split_once(')').map_or("", |(_, after)| after))
}

/// Relative links in documents must lead somewhere.
pub(crate) fn check_links(files: &[File], exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut errors = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (index, target) in links(&file.text) {
            let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let path = if target.starts_with('/') { target.clone() } else { join(folder, &target) };
            if target.starts_with('/') || !exists(&path) {
                errors.push(at(file, index, &format!("the link to {target} leads nowhere")));
            }
        }
    }
    errors
}

/// Targets of the relative links of a Markdown text, without fragment, outside code blocks.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for (position, _) in line.match_indices("](") {
            let target = line[position + 2..].split([')', ' ', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                found.push((index, target.to_owned()));
            }
        }
    }
    found
}

/// A relative path from a folder, both in the repository.
pub(crate) fn join(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// Paths of sources and folders in backquotes lead somewhere, too. Those that begin with a folder at the top are whole; others leave
/// folders out, as `hostile/local.rs` does.
pub(crate) fn check_paths(files: &[File], exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let is_top = |part: &str| files.iter().any(|file| file.path.strip_prefix(part).is_some_and(|rest| rest.starts_with('/')));
    let is_known = |path: &str| {
        files.iter().any(|file| {
            let mut parts = file.path.split('/');
            path.split('/').all(|part| parts.any(|other| other == part)) && parts.next().is_none()
        })
    };
    let mut errors = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md") && !PAST.iter().any(|past| file.path.starts_with(past))) {
        let lines: Vec<&str> = file.text.lines().collect();
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (index, path) in quoted_paths(&lines) {
            let first = path.split('/').next().unwrap_or_default();
            let leads = match is_top(first) {
                true => exists(path) || exists(&join(folder, path)),
                false => !is_source(path) || is_known(path),
            };
            if !leads && !is_allowed(&lines, index, "path") {
                errors.push(at(file, index, &format!("`{path}` is not in the repository: name where it is now")));
            }
        }
    }
    errors
}

/// What looks like a path of a source or a folder in the backquotes of a Markdown text, with its line, outside code blocks.
fn quoted_paths<'a>(lines: &[&'a str]) -> Vec<(usize, &'a str)> {
    let is_path = |path: &&str| {
        let is_name = |part: &str| {
            let is_placeholder = part.chars().all(|c| c.is_ascii_uppercase());
            let is_plain = part.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
            is_plain && !is_placeholder && part.contains(|c: char| c.is_ascii_alphanumeric())
        };
        let last = path.rsplit('/').next().unwrap_or_default();
        path.contains('/') && path.split('/').all(is_name) && (is_source(path) || !last.contains('.'))
    };
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in lines.iter().enumerate() {
        in_code ^= line.starts_with("```");
        if !in_code && !line.starts_with("    ") {
            let quoted = line.split('`').skip(1).step_by(2).map(|path| path.trim_end_matches('/'));
            found.extend(quoted.filter(is_path).map(|path| (index, path)));
        }
    }
    found
}

/// Every decision is linked from ARCHITECTURE.md, or no reader finds it.
pub(crate) fn check_decisions(files: &[File]) -> Vec<String> {
    let Some(architecture) = files.iter().find(|file| file.path == "ARCHITECTURE.md") else { return Vec::new() };
    let linked: Vec<String> = links(&architecture.text).into_iter().map(|(_, target)| target).collect();
    let decisions = files.iter().filter(|file| file.path.starts_with("docs/decisions/") && file.path.ends_with(".md"));
    let unlinked = decisions.filter(|file| !linked.contains(&file.path));
    unlinked.map(|file| at(file, 0, "no link in ARCHITECTURE.md leads to this decision")).collect()
}

/// What is on the wire changed, and the document about it did not: perhaps right, worth a look.
pub(crate) fn wire_without_protocol(changed: &[String]) -> Option<String> {
    let wire: Vec<&str> = WIRE_FILES.into_iter().filter(|wire| changed.iter().any(|path| path == wire)).collect();
    let is_documented = wire.is_empty() || changed.iter().any(|path| path == PROTOCOL_DOCUMENT);
    (!is_documented).then(|| format!("{} changed but {PROTOCOL_DOCUMENT} did not; do they still say the same?", wire.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn long_sources_are_errors_and_long_documents_are_not() {
        assert_eq!(check(&file("a.rs", &"\n".repeat(499))), [""; 0]);
        assert_eq!(check(&file("a.rs", &"\n".repeat(500))).len(), 1);
        assert_eq!(check(&file("a.md", &"\n".repeat(900))), [""; 0]);
    }

    #[test]
    fn rows_that_an_empty_line_cuts_off_are_errors() {
        let table = "| a | b |\n|---|---|\n| c | d |\n";
        assert_eq!(check(&file("docs/a.md", &format!("{table}\n{table}"))), [""; 0]);
        assert_eq!(check(&file("docs/a.md", &format!("{table}\n| e | f |\n| g | h |\n"))).len(), 1);
        assert_eq!(check(&file("docs/a.md", "```\n| e |\n```\n")), [""; 0]);
    }

    #[test]
    fn headers_carry_their_licence() {
        assert_eq!(check(&file("include/a.h", &format!("{INCLUDE_LICENCE}\n"))), [""; 0]);
        assert_eq!(check(&file("include/a.h", "// SPDX-License-Identifier: GPL-2.0\n")).len(), 1);
        assert_eq!(check(&file("c/a.c", "// SPDX-License-Identifier: GPL-2.0\n")), [""; 0]);
        assert_eq!(check(&file("c/a.c", "int a;\n")).len(), 1);
    }

    #[test]
    fn texts_of_one_machine_are_errors_wherever_they_are() {
        for (head, tail, _) in FORBIDDEN_TEXTS {
            let line = format!("see {head}{tail} there\n");
            assert_eq!(check(&file("README.md", &line)).len(), 1, "{line}");
            assert_eq!(check(&file("README.md", &format!("<!-- tidy: allow text, quoted -->\n{line}"))), [""; 0]);
        }
    }

    #[test]
    fn links_lead_somewhere() {
        let text = "[a](b.md#part) [c](../README.md) [d](https://example.org/x) [e](#here) `f`\n```\n[g](none.md)\n```\n";
        let exists = |path: &str| ["docs/b.md", "README.md"].contains(&path);
        assert_eq!(check_links(&[file("docs/a.md", text)], &exists), [""; 0]);
        assert_eq!(check_links(&[file("docs/a.md", "\n[a](c.md)")], &exists), ["docs/a.md:2: the link to c.md leads nowhere"]);
        assert_eq!(check_links(&[file("docs/a.md", "[a](/b.md)")], &exists).len(), 1);
    }

    #[test]
    fn paths_in_backquotes_lead_somewhere() {
        let errors = |text: &str| {
            let files = [file("docs/a.md", text), file("crates/ring/tests/ring/sleeping.rs", ""), file("docs/models/b.c", "")];
            check_paths(&files, &|path| ["crates/ring/tests", "docs/models/b.c"].contains(&path))
        };
        for good in [
            "`crates/ring/tests`, `crates/ring/tests/`, `models/b.c`, `ring/sleeping.rs`, `a/b`, `tests.rs`, `crates/NAME/tests`",
            "`docs/models/b.c` and `docs/*.md`, `crates/none.jsonl`, crates/none",
            "```\n`crates/none`\n```\n    `crates/none`",
            "<!-- tidy: allow path, it was there -->\n`crates/none`",
        ] {
            assert_eq!(errors(good), [""; 0], "{good}");
        }
        for bad in ["crates/ring/tests/sleeping.rs", "crates/none", "block/sleeping.rs", "ring/loom.rs"] {
            let expected = format!("docs/a.md:2: `{bad}` is not in the repository: name where it is now");
            assert_eq!(errors(&format!("\n`crates/ring/tests` and `{bad}`")), [expected]);
        }
        let record = file("bench/results/a.md", "`docs/none.rs`");
        assert_eq!(check_paths(&[record, file("docs/a.md", "")], &|_| false), [""; 0]);
    }

    #[test]
    fn decisions_are_linked() {
        let architecture = file("ARCHITECTURE.md", "[one](docs/decisions/0001-a.md)");
        let files = [architecture, file("docs/decisions/0001-a.md", ""), file("docs/decisions/0002-b.md", "")];
        let errors = check_decisions(&files);
        assert_eq!(errors.len(), 1);
        assert!(errors[0].starts_with("docs/decisions/0002-b.md:1:"), "{errors:?}");
        assert_eq!(check_decisions(&files[1..]), [""; 0], "without ARCHITECTURE.md there is nothing to link from");
    }

    #[test]
    fn wire_change_without_its_document_is_a_warning() {
        let changed = |paths: &[&str]| wire_without_protocol(&paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>());
        assert!(changed(&["crates/block/src/wire.rs", "README.md"]).is_some());
        assert_eq!(changed(&["crates/block/src/wire.rs", "docs/protocol.md"]), None);
        assert_eq!(changed(&["README.md"]), None);
    }
}
