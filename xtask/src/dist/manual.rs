//! Manual pages and completions: what the programs write about themselves, and the page about the configuration file,
//! made from docs/configuration.md.

use std::process::Command;

use super::Dist;
use crate::{files, step};

pub(super) fn build(dist: &Dist) -> Result<String, String> {
    let date = dist.date("%F")?;
    let share = dist.prefix.join("share");
    let mut generate = Command::new(dist.prefix.join("bin/fipsee"));
    step::succeed(generate.arg("generate").arg(&share).args(["--date", &date]))?;
    let text = files::read_text(&dist.root.join("docs/configuration.md"))?;
    let page = page(&text, &date, env!("CARGO_PKG_VERSION"));
    files::write(&share.join("man/man5/fipseed.toml.5"), page).map(|()| String::new())
}

/// The few things that docs/configuration.md is made of, for man(1): headings, paragraphs, lists, tables and code.
fn page(markdown: &str, date: &str, version: &str) -> String {
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
        } else if line.starts_with('|') {
            let cells = cells(line);
            // The first two lines are the titles of the columns, and a rule.
            if in_table
                && !line.starts_with("|---")
                && let [first, rest @ ..] = cells.as_slice()
            {
                roff.push_str(&format!(".TP\n{}\n{}\n", inline(first), inline(&rest.join("; "))));
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
    roff.push_str(".SH FILES\n/etc/fipsee/fipseed.toml\n.SH \"SEE ALSO\"\nfipseed(8), fipsee(1)\n");
    roff
}

fn last_is_heading(roff: &str) -> bool {
    roff.lines().last().is_some_and(|line| line.starts_with(".SH"))
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
        let page = page(text, "2026-01-02", "1.2");
        let body = page.split_once("fipseed\n").expect("a name").1;
        let expected = ".SH DESCRIPTION\nUse \\fBa\\-b\\fR and this.\nMore.\n.PP\n.EX\n\\&.x = 1 # \\e\n.EE\n.SH \"TWO WORDS\"\n\
                        .TP\n\\fBa|b\\fR\nc\n.IP \\(bu 2\none\nmore\n.IP \\(bu 2\ntwo\n.PP\nEnd.\n.SH FILES\n";
        assert!(body.starts_with(expected), "{body}");
    }
}
