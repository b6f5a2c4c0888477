//! Pages: their frame, the anchors of headings, links, the index of the search.

use std::collections::BTreeMap;

use crate::tidy::text::join;

/// Groups of pages: path in the site, title.
pub(super) type Navigation = Vec<(String, Vec<(String, String)>)>;

pub(super) struct Page {
    /// In the site.
    pub(super) path: String,
    pub(super) title: String,
    pub(super) body: String,
}

impl Page {
    pub(super) fn new(path: &str, title: &str, body: String) -> Self {
        Self { path: path.to_owned(), title: title.to_owned(), body: with_anchors(&body) }
    }
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A comment: paragraphs, lines that are indented as they are, and `code`.
pub(super) fn prose(lines: &[&str]) -> String {
    let is_verbatim = |line: &str| line.starts_with([' ', '\t']);
    let runs = lines.chunk_by(|one, next| is_verbatim(one) == is_verbatim(next) && !one.is_empty() && !next.is_empty());
    let run = |run: &[&str]| match run {
        [""] => String::new(),
        [first, ..] if is_verbatim(first) => format!("<pre>{}</pre>\n", escape(&run.join("\n"))),
        _ => {
            let text = escape(&run.join("\n"));
            let piece = |(index, piece)| if index % 2 == 1 { format!("<code>{piece}</code>") } else { String::from(piece) };
            format!("<p>{}</p>\n", text.split('`').enumerate().map(piece).collect::<String>())
        }
    };
    runs.map(run).collect()
}

/// Headings with the anchors that GitHub gives them.
fn with_anchors(html: &str) -> String {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut out = String::new();
    for (index, piece) in html.split("<h").enumerate() {
        if index > 0 {
            out += "<h";
        }
        match piece.split_once('>') {
            Some((level, rest)) if index > 0 && level.len() == 1 && level.as_bytes()[0].is_ascii_digit() => {
                let heading = text_of(rest.split("</h").next().unwrap_or_default()).to_lowercase();
                let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
                let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
                let count = seen.entry(anchor.clone()).or_default();
                let anchor = if *count == 0 { anchor } else { format!("{anchor}-{count}") };
                *count += 1;
                out += &format!("{level} id=\"{anchor}\">{rest}");
            }
            _ => out += piece,
        }
    }
    out
}

/// The text of a piece of HTML.
fn text_of(html: &str) -> String {
    let mut pieces = html.split('<');
    let first = pieces.next().unwrap_or_default().to_owned();
    let text = pieces.fold(first, |text, piece| text + piece.split_once('>').map_or("", |(_, after)| after));
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// Replace every target of a link or picture.
pub(super) fn map_links(html: &str, map: &mut dyn FnMut(&str) -> String) -> String {
    let mut out = String::new();
    let mut rest = html;
    while let Some(start) = [" href=\"", " src=\""].iter().filter_map(|mark| Some(rest.find(mark)? + mark.len())).min() {
        let (link, after) = rest[start..].split_once('"').unwrap_or((&rest[start..], ""));
        out += &rest[..start];
        out += &map(link);
        out.push('"');
        rest = after;
    }
    out + rest
}

/// Does a link lead out of the site?
pub(super) fn is_elsewhere(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:")
}

/// What is wrong with the links of the pages; `exists` knows the other files of the site.
pub(super) fn dead_links(pages: &BTreeMap<String, Page>, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut errors = Vec::new();
    for page in pages.values() {
        let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        map_links(&page.body, &mut |link| {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { page.path.clone() } else { join(folder, file) };
            let has_anchor = |page: &Page| anchor.is_empty() || page.body.contains(&format!("id=\"{anchor}\""));
            let leads_somewhere = pages.get(&path).map_or_else(|| exists(&path), has_anchor);
            if !is_elsewhere(link) && !leads_somewhere {
                errors.push(format!("{}: the link to {link} leads nowhere", page.path));
            }
            String::new()
        });
    }
    errors
}

/// What the search looks through: of each part of a page below a heading where it is, its title and its text.
pub(super) fn index(pages: &BTreeMap<String, Page>) -> String {
    let mut index = String::from("const INDEX = [\n");
    for page in pages.values() {
        let mut parts = vec![(page.path.clone(), page.title.clone(), String::new())];
        for (count, piece) in page.body.split("<h").enumerate() {
            let heading = piece.split_once(" id=\"").filter(|(level, _)| count > 0 && level.len() == 1);
            if let Some((anchor, rest)) = heading.and_then(|(_, rest)| rest.split_once('"')) {
                let (title, text) = rest.split_once("</h").unwrap_or((rest, ""));
                let title = text_of(&format!("<{title}"));
                let whole = if title == page.title { title } else { format!("{}: {title}", page.title) };
                parts.push((format!("{}#{anchor}", page.path), whole, text_of(&format!("<{text}"))));
            } else if let Some((_, _, text)) = parts.last_mut() {
                *text += &text_of(&format!("<h{piece}"));
            }
        }
        for (path, title, text) in parts.iter().filter(|(_, _, text)| !text.trim().is_empty()) {
            let words: Vec<&str> = text.split_whitespace().collect();
            // What Rust escapes in a text, JavaScript reads.
            index += &format!("[{path:?}, {title:?}, {:?}],\n", words.join(" "));
        }
    }
    index + "];\n"
}

/// A page in its frame.
pub(super) fn whole(page: &Page, navigation: &Navigation) -> String {
    let up = "../".repeat(page.path.matches('/').count());
    let mut groups = String::new();
    for (group, entries) in navigation {
        let is_here = entries.iter().any(|(path, _)| *path == page.path);
        groups += &format!("<details{}><summary>{group}</summary>\n", if is_here { " open" } else { "" });
        for (path, title) in entries {
            let current = if *path == page.path { " aria-current=\"page\"" } else { "" };
            groups += &format!("<a href=\"{up}{path}\"{current}>{}</a>\n", escape(title));
        }
        groups += "</details>\n";
    }
    let frame = include_str!("page.html").replace("{title}", &escape(&page.title)).replace("{up}", &up);
    frame.replacen("{navigation}", &groups, 1).replacen("{body}", &page.body, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(bodies: [(&str, &str); 2]) -> BTreeMap<String, Page> {
        bodies.map(|(path, body)| (path.to_owned(), Page::new(path, path, body.to_owned()))).into()
    }

    #[test]
    fn links_to_no_page_and_to_no_anchor_are_found() {
        let other = ("a/two.html", "<h2>Of <code>x_y</code>, &amp; more</h2>");
        let link = |target: &str| {
            let body = format!("<h1>One</h1> <a href=\"{target}\">x</a>");
            dead_links(&pages([("a/b/one.html", &body), other]), &|path| path == "a/plot.svg").len()
        };
        for right in ["../two.html", "../two.html#of-x_y--more", "#one", "../plot.svg", "https://example.org/#x", "one.html"] {
            assert_eq!(link(right), 0, "{right}");
        }
        for dead in ["two.html", "../two.html#of", "#two", "../plot.png", "/a/two.html", "../../a"] {
            assert_eq!(link(dead), 1, "{dead}");
        }
        assert_eq!(dead_links(&pages([("b.html", "<img src=\"c.svg\">"), other]), &|_| false).len(), 1, "a picture");
    }

    #[test]
    fn headings_of_one_name_have_anchors_of_their_own() {
        assert_eq!(with_anchors("<h2>A b</h2><hr><h3>A b</h3>"), "<h2 id=\"a-b\">A b</h2><hr><h3 id=\"a-b-1\">A b</h3>");
    }

    #[test]
    fn search_knows_where_a_part_of_a_page_is() {
        let text = index(&pages([("a.html", "<h1>T</h1> x &lt; \"y\"<h2>Two</h2><p>z</p>"), ("b.html", "")]));
        let expected = "[\"a.html#t\", \"a.html: T\", \"x < \\\"y\\\"\"],\n[\"a.html#two\", \"a.html: Two\", \"z\"],\n";
        assert_eq!(text, format!("const INDEX = [\n{expected}];\n"));
    }

    #[test]
    fn comments_become_paragraphs() {
        let html = prose(&["One `a<b`", "more.", "", "Two", "  code  here"]);
        assert_eq!(html, "<p>One <code>a&lt;b</code>\nmore.</p>\n<p>Two</p>\n<pre>  code  here</pre>\n");
    }
}
