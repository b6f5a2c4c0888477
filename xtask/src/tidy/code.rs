//! Rust text without its comments and literals, line for line.

/// `text` with comments and the insides of string and character literals replaced by spaces. Lines stay where they
/// are. Knows nested block comments, raw strings and lifetimes; that is all a line-based check needs.
pub(crate) fn without_comments_and_literals(text: &str) -> String {
    let mut rest = text;
    let mut out = String::with_capacity(text.len());
    while let Some(first) = rest.chars().next() {
        let starts_word = !out.ends_with(|last: char| last.is_alphanumeric() || last == '_');
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment_length(rest)
        } else if let Some(length) = raw_string_length(rest).filter(|_| starts_word) {
            length
        } else if first == '"' {
            quoted_length(rest, '"')
        } else if first == '\'' {
            character_length(rest)
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        let (blanked, after) = rest.split_at(length);
        out.extend(blanked.chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
        rest = after;
    }
    out
}

fn block_comment_length(text: &str) -> usize {
    let (mut depth, mut position) = (0_u32, 0);
    while let Some(rest) = text.get(position..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with("/*") {
            depth += 1;
            position += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            position += 2;
            if depth == 0 {
                return position;
            }
        } else {
            position += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn raw_string_length(text: &str) -> Option<usize> {
    let body = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inside = body[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let prefix_length = text.len() - inside.len();
    Some(inside.find(&end).map_or(text.len(), |position| prefix_length + position + end.len()))
}

fn quoted_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (position, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return position + character.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// Length of a character literal, or of the quote alone where a lifetime begins.
fn character_length(text: &str) -> usize {
    let mut inside = text.chars().skip(1);
    let is_literal = match (inside.next(), inside.next()) {
        (Some('\\'), _) => true,
        (_, second) => second == Some('\''),
    };
    if is_literal { quoted_length(text, '\'') } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_vanish_and_lines_stay() {
        let text =
            "let a = \"unsafe { \\\" }\"; // unsafe {\n/* unsafe /* { */ unsafe */ let b = r#\"dbg!(\"x\")\"#;\nlet c = b\"x\";";
        let code = without_comments_and_literals(text);
        assert_eq!(code.lines().count(), 3);
        assert!(!code.contains("unsafe") && !code.contains("dbg"), "{code}");
        assert!(code.contains("let a =") && code.contains("let b =") && code.contains("let c ="), "{code}");
    }

    #[test]
    fn lifetimes_and_quotes_do_not_swallow_code() {
        let code = without_comments_and_literals("fn f<'a>(x: &'a str) { g('\"', '\\'', b'\"'); unsafe { h() } }");
        assert!(code.contains("unsafe { h() }"), "{code}");
        assert!(code.contains("str) { g("), "{code}");
    }
}
