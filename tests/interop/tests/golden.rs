//! The bytes printed in `docs/protocol.md` are those that the Rust encoders and the C structures produce.

use std::collections::BTreeMap;

use fipsee_interop::{ffi, golden};

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");

/// The bytes of one line: two hexadecimal digits each, `00*12` for twelve zeroes, `#` before the comment.
fn line_bytes(line: &str) -> Vec<u8> {
    let (hex, comment) = line.split_once('#').unwrap_or_else(|| panic!("no comment says what these bytes are: {line}"));
    assert!(!comment.trim().is_empty(), "the comment is empty: {line}");
    let byte = |digits: &str| u8::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("'{digits}' is no byte: {line}"));
    let token_bytes = |token: &str| match token.split_once('*') {
        Some((digits, times)) => vec![byte(digits); times.parse().unwrap_or_else(|_| panic!("'{times}' is no count: {line}"))],
        None => vec![byte(token)],
    };
    hex.split_whitespace().flat_map(token_bytes).collect()
}

fn document_examples() -> BTreeMap<String, Vec<u8>> {
    let mut examples = BTreeMap::new();
    let mut lines = DOCUMENT.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```golden ") else { continue };
        let bytes = lines.by_ref().take_while(|line| *line != "```").flat_map(line_bytes).collect();
        assert!(examples.insert(name.to_owned(), bytes).is_none(), "{name} is twice in the document");
    }
    examples
}

fn compare(left: (&str, &BTreeMap<String, Vec<u8>>), right: (&str, &BTreeMap<String, Vec<u8>>)) {
    let names = |examples: &BTreeMap<String, Vec<u8>>| examples.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(left.1), names(right.1), "the examples of {} and of {}", left.0, right.0);
    for (name, bytes) in left.1 {
        assert_eq!(bytes, &right.1[name], "{name}: {} on the left, {} on the right", left.0, right.0);
    }
}

#[test]
fn the_document_the_rust_encoders_and_the_c_structures_give_the_same_bytes() {
    let rust: BTreeMap<String, Vec<u8>> = golden::examples().into_iter().collect();
    let c: BTreeMap<String, Vec<u8>> = ffi::golden().into_iter().collect();
    compare(("Rust", &rust), ("C", &c));
    compare(("Rust", &rust), ("docs/protocol.md", &document_examples()));
    assert_eq!(rust.len(), 57, "examples were lost");
}
