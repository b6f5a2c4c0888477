//! The C reference: what a header declares, each with the comment before it.

use std::collections::BTreeSet;

use super::html::{escape, prose};

/// A comment, the declarations below it up to an empty line or the next comment, and what these declare.
#[derive(Default)]
struct Item<'a> {
    comment: Vec<&'a str>,
    code: Vec<&'a str>,
    names: Vec<&'a str>,
}

/// A header.
#[derive(Default)]
pub(super) struct Header<'a> {
    items: Vec<Item<'a>>,
    /// Functions of a library.
    pub(super) functions: BTreeSet<&'a str>,
    /// Functions that are here as a whole.
    pub(super) inline_functions: BTreeSet<&'a str>,
}

impl<'a> Header<'a> {
    pub(super) fn parse(text: &'a str) -> Self {
        let mut header = Self::default();
        // The first line is the licence.
        let mut lines = text.lines().skip(1);
        let mut in_comment = false;
        while let Some(line) = lines.next() {
            if line.is_empty() || line.starts_with("/*") {
                header.items.push(Item::default());
            }
            let Some(item) = header.items.last_mut() else { continue };
            in_comment |= line.starts_with("/*");
            if in_comment {
                item.comment.extend(comment(line));
                in_comment = !line.contains("*/");
            } else if line == "{" {
                // A function's body.
                lines.find(|line| *line == "}");
            } else if line.starts_with('}') && !item.code.is_empty() || line.starts_with([' ', '\t']) {
                item.code.push(line);
            } else if let Some((name, is_function)) = declared(line) {
                item.code.push(line);
                item.names.push(name);
                if is_function {
                    let functions = if line.starts_with("static") { &mut header.inline_functions } else { &mut header.functions };
                    functions.insert(name);
                }
            }
        }
        header
    }

    /// Its page.
    pub(super) fn body(&self, path: &str) -> String {
        let link = |name: &&str| format!("<a href=\"#{name}\">{name}</a>\n");
        let functions: String = self.functions.iter().chain(&self.inline_functions).map(link).collect();
        let mut body = format!("<h1>{path}</h1>\n<details><summary>Functions</summary>\n{functions}</details>\n");
        let mut seen = BTreeSet::new();
        for item in &self.items {
            if let [title] = item.comment.as_slice()
                && title.starts_with("----")
            {
                body += &format!("<h2>{}</h2>\n", title.trim_matches(['-', ' ']));
                continue;
            }
            let names: Vec<&str> = item.names.iter().copied().filter(|name| seen.insert(*name)).collect();
            if let [first, more @ ..] = names.as_slice() {
                let more: String = more.iter().map(|name| format!(", <span id=\"{name}\">{name}</span>")).collect();
                body += &format!("<h3 id=\"{first}\">{first}{more}</h3>\n");
            }
            body += &prose(&item.comment);
            if !item.code.is_empty() {
                body += &format!("<pre><code>{}</code></pre>\n", escape(&item.code.join("\n")));
            }
        }
        body
    }
}

/// The text of a line of a comment, unless the line is there for the comment's form only.
fn comment(line: &str) -> Option<&str> {
    let text = line.strip_prefix("/*").or_else(|| line.strip_prefix(" *")).unwrap_or(line);
    let is_form = text.is_empty() && line.starts_with('/') || text == "/";
    let text = text.split("*/").next().unwrap_or_default().trim_end();
    (!is_form).then(|| text.strip_prefix(' ').unwrap_or(text))
}

/// What a line declares that is not indented, and whether that is a function.
fn declared(line: &str) -> Option<(&str, bool)> {
    let is_other = |character: char| !character.is_ascii_alphanumeric() && character != '_';
    let code = line.split("/*").next().unwrap_or_default().trim_end();
    let before = code.split('(').next().unwrap_or_default();
    if let Some(rest) = code.strip_prefix("#define ") {
        let name = rest.split(is_other).next()?;
        // An include guard has no value.
        (name != rest).then_some((name, false))
    } else if !code.starts_with(|first: char| first.is_ascii_lowercase()) || code.starts_with("extern") {
        None
    } else if code.starts_with("typedef") {
        Some((code.trim_end_matches(';').rsplit(is_other).next()?, false))
    } else if before == code {
        Some((code.split_whitespace().nth(1)?.trim_end_matches(';'), false))
    } else {
        Some((before.rsplit(is_other).next()?, true))
    }
}
