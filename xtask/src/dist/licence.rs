//! Licences of what ships: which may be linked, by the expressions that crates give (SPDX).

/// What a binary of ours may contain. A licence that asks for more than its text in the notices is not here: its crate needs a decision.
const ALLOWED: [&str; 7] =
    ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "Unicode-3.0", "Zlib"];

/// Does an expression leave a choice of licences that are all allowed?
pub(super) fn is_allowed(expression: &str) -> bool {
    let text = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = text.split_whitespace().peekable();
    any(&mut words) == Some(true) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// `None`: it is no expression.
fn any(words: &mut Words) -> Option<bool> {
    let mut is_allowed = all(words)?;
    while words.next_if_eq(&"OR").is_some() {
        is_allowed |= all(words)?;
    }
    Some(is_allowed)
}

fn all(words: &mut Words) -> Option<bool> {
    let mut is_allowed = one(words)?;
    while words.next_if_eq(&"AND").is_some() {
        is_allowed &= one(words)?;
    }
    Some(is_allowed)
}

fn one(words: &mut Words) -> Option<bool> {
    let word = words.next()?;
    if word == "(" {
        let is_allowed = any(words)?;
        return (words.next()? == ")").then_some(is_allowed);
    }
    match words.next_if_eq(&"WITH") {
        Some(_) => Some(ALLOWED.contains(&format!("{word} WITH {}", words.next()?).as_str())),
        None => Some(ALLOWED.contains(&word)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choice_of_allowed_licences_is_allowed() {
        for expression in [
            "MIT",
            "MIT/Apache-2.0",
            "Unlicense OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
            "GPL-2.0-only AND MIT OR BSD-3-Clause",
        ] {
            assert!(is_allowed(expression), "{expression}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for expression in [
            "",
            "MPL-2.0",
            "MIT AND GPL-2.0-only",
            "MIT AND (GPL-2.0-only OR MPL-2.0)",
            "GPL-2.0-only WITH Classpath-exception-2.0",
            "Apache-2.0 WITH Classpath-exception-2.0",
            "(MIT",
            "MIT OR",
            "MIT MIT",
        ] {
            assert!(!is_allowed(expression), "{expression}");
        }
    }
}
