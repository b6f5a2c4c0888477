//! Manual pages and completions: what the programs write about themselves, and the page about the configuration file,
//! made from docs/configuration.md.

use std::process::Command;

use super::Dist;
use crate::{files, step};

const DOCUMENT: &str = "docs/configuration.md";

pub(super) fn build(dist: &Dist) -> Result<String, String> {
    let date = dist.date("%F")?;
    let share = dist.prefix.join("share");
    let mut generate = Command::new(dist.prefix.join("bin/fipsee"));
    step::succeed(generate.arg("generate").arg(&share).args(["--date", &date]))?;
    let text = files::read_text(&dist.root.join(DOCUMENT))?;
    let example = files::read_text(&dist.root.join("packaging/fipseed.toml"))?;
    let page = page(&text, &example, &date, env!("CARGO_PKG_VERSION"));
    let dropped = dropped(&text, &page);
    if !dropped.is_empty() {
        return Err(dropped.join("\n"));
    }
    files::write(&share.join("man/man5/fipseed.toml.5"), page).map(|()| String::new())
}

/// The few things that docs/configuration.md is made of, for man(1): headings, paragraphs, lists, tables and code.
fn page(markdown: &str, example: &str, date: &str, version: &str) -> String {
    let mut roff =
        format!(".TH fipseed.toml 5 {date} \"Fip-see {version}\" Fip-see\n.SH NAME\nfipseed.toml \\- configuration of fipseed\n");
    let (mut in_code, mut in_paragraph, mut in_table) = (false, false, false);
    for line in markdown.lines() {
        if line.starts_with("```") {
            roff.push_str(if in_code { ".EE\n" } else { ".PP\n.EX\n" });
            in_code = !in_code;
        } else if in_code {
            roff.push_str(&format!("{}\n", escape(line)));
        } else if line.starts_with("# ") {
            roff.push_str(".SH DESCRIPTION\n");
            in_paragraph = true;
        } else if let Some(heading) = line.strip_prefix("## ") {
            roff.push_str(&format!(".SH \"{}\"\n", escape(&heading.to_uppercase())));
            in_paragraph = true;
        } else if let Some(heading) = line.strip_prefix("### ") {
            roff.push_str(&format!(".SS \"{}\"\n", escape(heading)));
            in_paragraph = true;
        } else if line.starts_with('|') {
            // The first two lines are the titles of the columns, and a rule.
            if in_table && !line.starts_with("|---") {
                roff.push_str(&row(line));
            }
            in_table = in_table || line.starts_with("|---");
        } else if line.trim().is_empty() {
            (in_paragraph, in_table) = (false, false);
        } else if let Some(item) = line.strip_prefix("- ") {
            roff.push_str(&format!(".IP \\(bu 2\n{}\n", inline(item)));
            in_paragraph = true;
        } else {
            // A paragraph begins after an empty line, except right below a heading.
            let is_first = !in_paragraph && !roff.ends_with("\n.SH DESCRIPTION\n") && !last_is_heading(&roff);
            if is_first {
                roff.push_str(".PP\n");
            }
            in_paragraph = true;
            roff.push_str(&format!("{}\n", inline(line.trim_start())));
        }
    }
    roff.push_str(".SH \"EXIT STATUS\"\n\\fBfipseed \\-\\-config\\fR \\fIFILE\\fR \\fB\\-\\-check\\-config\\fR ends with 0 if it could start with \
                   this file, with 1 and the first error if not.\n.SH EXAMPLES\n.EX\n");
    example.lines().for_each(|line| roff.push_str(&format!("{}\n", escape(line))));
    roff.push_str(".EE\n.SH FILES\n/etc/fipsee/fipseed.toml\n.SH \"SEE ALSO\"\nfipseed(8), fipsee(1)\n");
    roff
}

/// What the document says and the page does not: a row that an empty line has cut off its table, above all. The titles of a table are
/// not in the page.
fn dropped(markdown: &str, page: &str) -> Vec<String> {
    let lines: Vec<&str> = markdown.lines().collect();
    let mut in_code = false;
    let mut is_dropped = |index: usize, line: &str| {
        let is_title = || lines.get(index + 1).is_some_and(|next| next.starts_with("|---"));
        let piece = if line.starts_with("```") {
            in_code = !in_code;
            return false;
        } else if in_code {
            escape(line)
        } else if line.starts_with('|') {
            if line.starts_with("|---") || is_title() {
                return false;
            }
            row(line)
        } else if line.starts_with("# ") {
            return false;
        } else if let Some(heading) = line.strip_prefix("## ") {
            escape(&heading.to_uppercase())
        } else {
            inline(line.trim_start_matches("### ").trim_start_matches("- ").trim_start())
        };
        !page.contains(&piece)
    };
    let found = lines.iter().enumerate().filter(|(index, line)| is_dropped(*index, line));
    found.map(|(index, line)| format!("{DOCUMENT}:{}: not in fipseed.toml(5): {line}", index + 1)).collect()
}

/// A row of a table, as an item of a list.
fn row(line: &str) -> String {
    let cells = cells(line);
    let (first, rest) = cells.split_first().map_or(("", String::new()), |(first, rest)| (first.as_str(), rest.join("; ")));
    format!(".TP\n{}\n{}\n", inline(first), inline(&rest))
}

fn last_is_heading(roff: &str) -> bool {
    roff.lines().last().is_some_and(|line| line.starts_with(".SH") || line.starts_with(".SS"))
}

/// The cells of a row; a bar with a backslash before it belongs to its cell.
fn cells(row: &str) -> Vec<String> {
    let row = row.replace("\\|", "\u{0}");
    row.trim_matches('|').split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect()
}

/// A line with `code` in bold, and only the words of its links.
fn inline(line: &str) -> String {
    let mut roff = String::new();
    for (index, piece) in line.split('`').enumerate() {
        let is_code = index % 2 == 1;
        match is_code {
            true => roff.push_str(&format!("\\fB{}\\fR", escape(piece))),
            false => roff.push_str(&escape(&without_links(piece))),
        }
    }
    roff
}

fn without_links(text: &str) -> String {
    let mut rest = text;
    let mut out = String::new();
    while let Some((before, words, after)) = rest.split_once('[').and_then(|(before, rest)| {
        let (words, rest) = rest.split_once("](")?;
        Some((before, words, rest.split_once(')')?.1))
    }) {
        out.push_str(before);
        out.push_str(words);
        rest = after;
    }
    out + rest
}

fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // Nothing of the document is a request to roff.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_becomes_a_page() {
        let text = "# Title\n\nUse `a-b` and [this](x.md).\nMore.\n\n```toml\n.x = 1 # \\\n```\n\n## Two words\n\n| k | v |\n|---|---|\n| `a\\|b` | c |\n\n- one\n  more\n- two\n\nEnd.\n";
        let page = page(text, "a = 1\n", "2026-01-02", "1.2");
        assert_eq!(dropped(text, &page), [""; 0]);
        let body = page.split_once("fipseed\n").expect("a name").1;
        let expected = ".SH DESCRIPTION\nUse \\fBa\\-b\\fR and this.\nMore.\n.PP\n.EX\n\\&.x = 1 # \\e\n.EE\n.SH \"TWO WORDS\"\n\
                        .TP\n\\fBa|b\\fR\nc\n.IP \\(bu 2\none\nmore\n.IP \\(bu 2\ntwo\n.PP\nEnd.\n.SH \"EXIT STATUS\"\n";
        assert!(body.starts_with(expected), "{body}");
        assert!(body.contains(".SH EXAMPLES\n.EX\na = 1\n.EE\n"), "{body}");
    }

    #[test]
    fn what_the_page_drops_is_named_with_its_line() {
        let text = "# Title\n\n| k | v |\n|---|---|\n| a | b |\n\n| c | d |\n| e | f |\n\n### Less\n\n- one\n";
        let whole = page(text, "", "2026-01-02", "1.2");
        assert!(whole.contains(".SS \"Less\"\n"), "{whole}");
        let expected = [7, 8]
            .map(|line| format!("{DOCUMENT}:{line}: not in fipseed.toml(5): {}", text.lines().nth(line - 1).unwrap_or_default()));
        assert_eq!(dropped(text, &whole), expected);
        assert_eq!(dropped(text, &whole.replace("\none\n", "\n")).len(), 3);
    }
}
