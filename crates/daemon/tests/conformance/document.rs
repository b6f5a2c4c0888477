//! The machine-readable parts of docs/protocol.md: fenced blocks of bytes, and requirements.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The project's folder.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn protocol() -> String {
    std::fs::read_to_string(root().join("docs/protocol.md")).expect("the document")
}

/// The bytes of one line, `None` where any is allowed (`..`): two hexadecimal digits each, `00*12` for twelve, `#` before the
/// comment.
fn line_bytes(line: &str) -> Vec<Option<u8>> {
    let (hex, comment) = line.split_once('#').unwrap_or_else(|| panic!("no comment says what these bytes are: {line}"));
    assert!(!comment.trim().is_empty(), "the comment is empty: {line}");
    let byte = |digits: &str| match digits {
        ".." => None,
        _ => Some(u8::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("'{digits}' is no byte: {line}"))),
    };
    let token_bytes = |token: &str| match token.split_once('*') {
        Some((digits, times)) => vec![byte(digits); times.parse().unwrap_or_else(|_| panic!("'{times}' is no count: {line}"))],
        None => vec![byte(token)],
    };
    hex.split_whitespace().flat_map(token_bytes).collect()
}

/// The blocks that begin with this word, by name.
pub(crate) fn blocks(word: &str) -> BTreeMap<String, Vec<Option<u8>>> {
    let document = protocol();
    let mut blocks = BTreeMap::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```").and_then(|fence| fence.strip_prefix(word)?.strip_prefix(' ')) else { continue };
        let bytes = lines.by_ref().take_while(|line| *line != "```").flat_map(line_bytes).collect();
        assert!(blocks.insert(name.to_owned(), bytes).is_none(), "{name} is twice in the document");
    }
    blocks
}

/// Every id in `text`, with its offset: `R-`, a section, `-`, a number.
pub(crate) fn ids(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (offset, _) in text.match_indices("R-") {
        let is_id = |character: char| character.is_ascii_digit() || matches!(character, '.' | '-');
        let id: String = text[offset + 2..].chars().take_while(|character| is_id(*character)).collect();
        let id = id.trim_end_matches(['.', '-']);
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let is_whole = id.split_once('-').is_some_and(|(section, number)| section.split('.').all(is_number) && is_number(number));
        if is_whole && !text[..offset].ends_with(|character: char| character.is_alphanumeric()) {
            found.push((offset, format!("R-{id}")));
        }
    }
    found
}
