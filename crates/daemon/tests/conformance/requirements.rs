//! Every requirement of docs/protocol.md has a test that names it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::document::{ids, protocol, root};

/// The folders of tests.
const FOLDERS: [&str; 2] = ["crates", "tests"];
/// The mark above a test that checks requirements.
const MARK: &str = "checks: ";

/// The requirements that the document defines: their ids in bold.
fn defined() -> Vec<String> {
    let document = protocol();
    let is_bold = |offset: usize, id: &str| document[..offset].ends_with("**") && document[offset + id.len()..].starts_with("**");
    ids(&document).into_iter().filter(|(offset, id)| is_bold(*offset, id)).map(|(_, id)| id).collect()
}

fn rust_files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the project") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The requirements named above each test, by test.
fn checked() -> BTreeMap<String, Vec<String>> {
    let mut paths = Vec::new();
    FOLDERS.iter().for_each(|folder| rust_files(&root().join(folder), &mut paths));
    let mut checked = BTreeMap::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a source");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(list) = line.strip_prefix("/// ").and_then(|comment| comment.strip_prefix(MARK)) else { continue };
            let place = format!("{}:{}", path.display(), index + 1);
            let rest = &lines[index + 1..];
            let is_above_test = rest.iter().find(|line| !line.starts_with("///")).is_some_and(|line| *line == "#[test]");
            assert!(is_above_test, "{place}: '{MARK}' must be above a test");
            let name = rest.iter().find(|line| line.starts_with("fn ")).unwrap_or_else(|| panic!("{place}: no test follows"));
            let named: Vec<String> = ids(list).into_iter().map(|(_, id)| id).collect();
            assert_eq!(list.split(", ").count(), named.len(), "{place}: ids, separated by ', ': {list}");
            checked.insert(format!("{place} {name}"), named);
        }
    }
    checked
}

#[test]
fn every_requirement_is_checked_by_a_test() {
    let defined = defined();
    let all: BTreeSet<&String> = defined.iter().collect();
    assert_eq!(all.len(), defined.len(), "an id is given twice: {:?}", twice(&defined));
    assert!(all.len() > 150, "only {} requirements were found in the document", all.len());
    let checked = checked();
    for (test, named) in &checked {
        let unknown: Vec<_> = named.iter().filter(|id| !all.contains(id)).collect();
        assert!(unknown.is_empty(), "{test} checks {unknown:?}, which the document does not have");
    }
    let covered: BTreeSet<&String> = checked.values().flatten().collect();
    let missing: Vec<_> = defined.iter().filter(|id| !covered.contains(id)).collect();
    assert!(missing.is_empty(), "no test checks {missing:?}; name them above one ('/// {MARK}R-..') or write it");
}

fn twice(ids: &[String]) -> Vec<&String> {
    ids.iter().enumerate().filter(|(index, id)| ids[..*index].contains(id)).map(|(_, id)| id).collect()
}

/// Every reference in the document to a requirement is to one that exists.
#[test]
fn references_in_the_document_lead_to_requirements() {
    let defined: BTreeSet<String> = defined().into_iter().collect();
    let document = protocol();
    let unknown: Vec<String> = ids(&document).into_iter().map(|(_, id)| id).filter(|id| !defined.contains(id)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
