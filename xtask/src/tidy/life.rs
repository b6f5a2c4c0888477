//! The functions that a request passes, as ARCHITECTURE.md lists them.

use super::code::without_comments_and_literals;
use super::{File, at};

const DOCUMENT: &str = "ARCHITECTURE.md";
const SECTION: &str = "## The life of a request";
/// Of a request that is answered at once: rows with a plain number.
const MAX_FUNCTIONS: usize = 25;
/// What a disk in a file adds: rows `+1`, `+2` and so on.
const MAX_ADDED: usize = 14;
const MAX_FILES: usize = 10;

/// One line of a table: `| number | function | file |`, the last two in backquotes.
struct Row<'a> {
    index: usize,
    is_of_all: bool,
    function: &'a str,
    path: &'a str,
}

fn rows(text: &str) -> Vec<Row<'_>> {
    let section = text.lines().enumerate().skip_while(|(_, line)| *line != SECTION).skip(1);
    let section = section.take_while(|(_, line)| !line.starts_with("## "));
    section
        .filter_map(|(index, line)| {
            let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
            let number = cells.next().filter(|number| number.ends_with(|last: char| last.is_ascii_digit()))?;
            let mut name = || cells.next()?.strip_prefix('`')?.strip_suffix('`');
            Some(Row { index, is_of_all: !number.starts_with('+'), function: name()?, path: name()? })
        })
        .collect()
}

/// Does the file have this function, of this type if one is named?
fn has_function(code: &str, function: &str) -> bool {
    let (of, name) = function.rsplit_once("::").unwrap_or(("", function));
    let is_there = |line: &str| {
        let after = line.split_once(&format!("fn {name}")).map(|(_, after)| after);
        after.is_some_and(|after| after.starts_with(['(', '<']))
    };
    let mut in_type = of.is_empty();
    code.lines().any(|line| {
        if line.starts_with("impl") || line.starts_with("unsafe impl") {
            let implemented = line.rsplit_once(" for ").map_or(line, |(_, implemented)| implemented);
            in_type = of.is_empty() || implemented.split(|part: char| !part.is_alphanumeric()).any(|word| word == of);
        }
        in_type && is_there(line)
    })
}

pub(crate) fn check(files: &[File]) -> Vec<String> {
    let Some(document) = files.iter().find(|file| file.path == DOCUMENT) else { return Vec::new() };
    let rows = rows(&document.text);
    let mut errors = Vec::new();
    for row in &rows {
        let code = files.iter().find(|file| file.path == row.path).map(|file| without_comments_and_literals(&file.text));
        if !code.is_some_and(|code| has_function(&code, row.function)) {
            errors.push(at(
                document,
                row.index,
                &format!("{} is not in {}: list where requests pass now", row.function, row.path),
            ));
        }
    }
    let of_all = || rows.iter().filter(|row| row.is_of_all);
    let mut paths: Vec<&str> = of_all().map(|row| row.path).collect();
    paths.sort_unstable();
    paths.dedup();
    if of_all().count() == 0 || of_all().count() > MAX_FUNCTIONS || paths.len() > MAX_FILES {
        let what = format!("{} functions in {} files", of_all().count(), paths.len());
        errors.push(format!("{DOCUMENT}: a request passes {what}; it is to pass at most {MAX_FUNCTIONS} in {MAX_FILES}"));
    }
    let added = rows.len() - of_all().count();
    if added > MAX_ADDED {
        errors.push(format!("{DOCUMENT}: a disk in a file adds {added} functions; it is to add at most {MAX_ADDED}"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(rows: &str, code: &str) -> Vec<String> {
        let file = |path: &str, text: String| File { path: path.to_owned(), text };
        check(&[
            file(DOCUMENT, format!("# A\n\n{SECTION}\n\n{rows}\n## B\n| 9 | `gone` | `a.rs` |\n")),
            file("a.rs", code.to_owned()),
        ])
    }

    #[test]
    fn functions_are_where_they_are_said_to_be() {
        let code =
            "impl<T> Queue for Ring<T> {\n    fn submit<D>(&self) {}\n}\nimpl Other {\n    fn reap() {}\n}\n// fn gone()\n";
        assert_eq!(errors("| 1 | `Ring::submit` | `a.rs` |\n| +1 | `reap` | `a.rs` |", code), [""; 0]);
        for wrong in ["`Ring::reap` | `a.rs`", "`gone` | `a.rs`", "`Ring::sub` | `a.rs`", "`Ring::submit` | `b.rs`"] {
            assert_eq!(errors(&format!("| 1 | {wrong} |"), code).len(), 1, "{wrong}");
        }
    }

    #[test]
    fn there_are_few_and_some() {
        let row = |number: &str| format!("| {number} | `reap` | `a.rs` |\n");
        assert_eq!(errors(&(row("1").repeat(25) + &row("+1").repeat(9)), "fn reap() {}"), [""; 0]);
        assert_eq!(errors(&row("1").repeat(26), "fn reap() {}").len(), 1);
        assert_eq!(errors("| +1 | `reap` | `a.rs` |", "fn reap() {}").len(), 1);
        assert_eq!(errors(&(row("1") + &row("+1").repeat(15)), "fn reap() {}").len(), 1);
    }
}
