//! The glossary: words that it replaces, and names that belong to one type.

use super::text::{is_source, prose};
use super::{File, at, is_allowed};

/// What explains the words of this project, the forbidden ones included.
const GLOSSARY: &str = "docs/glossary.md";
const THIS_FILE: &str = "xtask/src/tidy/words.rs";
/// Reports of measurements: they say what was said then.
const RECORDS: &str = "bench/results/";

/// Words that sources and documents do not use, and what they say instead: those of the glossary's second section that have no
/// other use here. The usual endings belong to each.
const FORBIDDEN_WORDS: [(&str, &str); 42] = [
    ("abuser", "greedy user"),
    ("anybody", "a client, a process"),
    ("asker", "upgrade forwarder"),
    ("contestant", "mechanism"),
    ("desk", "upgrade controller"),
    ("doors", "acceptance tests"),
    ("everybody", "all clients, all processes"),
    ("facts", "request limits, machine information"),
    ("habits", "parameters"),
    ("hear", "receive"),
    ("hog", "greedy user"),
    ("honest", "correct"),
    ("inbox", "receive buffer"),
    ("keeper", "socket thread"),
    ("latch", "deferred doorbell"),
    ("liar", "faulty peer"),
    ("lied", "was faulty"),
    ("lies", "is; faults"),
    ("lying", "faulty"),
    ("meddler", "fault proxy"),
    ("nobody", "no client, no process"),
    ("obey", "handle"),
    ("obituary", "exit error"),
    ("parked", "pending"),
    ("patience", "timeout"),
    ("referee", "oracle"),
    ("rig", "fixture"),
    ("rival", "baseline"),
    ("roster", "list"),
    ("seat", "slot, port"),
    ("somebody", "a client, a process"),
    ("sorter", "say what it orders"),
    ("standing", "queue state"),
    ("standstill", "is quiesced"),
    ("tells", "says, reports"),
    ("told", "sent, notified"),
    ("twin", "baseline, counterpart"),
    ("visitor", "front end, client"),
    ("whoever", "the client that, the process that"),
    ("whom", "to which"),
    ("wish", "attach request"),
    ("witness", "correct client"),
];
const ENDINGS: [&str; 5] = ["", "s", "es", "ed", "ing"];

/// Names of which the glossary says what they are. Another type with one of them would have readers guess which is meant.
const TYPES: [&str; 12] = [
    "Attached",
    "AttachedChannel",
    "AttachedClient",
    "Channel",
    "Export",
    "MountedDisk",
    "Moderator",
    "Place",
    "PollSet",
    "ReconnectPolicy",
    "Region",
    "WorkerPlacement",
];

pub(crate) fn check(file: &File) -> Vec<String> {
    let is_document = file.path.ends_with(".md") && !file.path.starts_with(RECORDS);
    let is_checked = is_document || is_source(&file.path) || file.path.ends_with("Cargo.toml");
    if !is_checked || [GLOSSARY, THIS_FILE].contains(&file.path.as_str()) {
        return Vec::new();
    }
    let lines: Vec<&str> = file.text.lines().collect();
    let mut errors = Vec::new();
    let mut in_code = false;
    for (index, line) in lines.iter().enumerate() {
        in_code ^= is_document && line.starts_with("```");
        if in_code || (is_document && line.starts_with("    ")) || is_allowed(&lines, index, "words") {
            continue;
        }
        // Of sources whole names and all words of comments and texts.
        let text = if is_document { prose(line) } else { (*line).to_owned() }.to_lowercase();
        let words = text.split(|character: char| !character.is_alphanumeric() && (is_document || character != '_'));
        for (word, instead) in words.filter_map(|word| Some((word, instead_of(word)?))) {
            errors.push(at(file, index, &format!("'{word}' is not a term of {GLOSSARY}: say {instead}")));
        }
    }
    errors
}

fn instead_of(word: &str) -> Option<&'static str> {
    let is_it = |forbidden: &str| word.strip_prefix(forbidden).is_some_and(|ending| ENDINGS.contains(&ending));
    FORBIDDEN_WORDS.iter().find(|(forbidden, _)| is_it(forbidden)).map(|(_, instead)| *instead)
}

/// One name is one type.
pub(crate) fn check_types(files: &[File]) -> Vec<String> {
    let mut found: Vec<(&str, String)> = Vec::new();
    let mut errors = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        for (index, line) in file.text.lines().enumerate() {
            let Some(name) = defined_type(line).and_then(|name| TYPES.into_iter().find(|listed| *listed == name)) else {
                continue;
            };
            match found.iter().find(|(known, _)| *known == name) {
                Some((_, first)) => {
                    let what =
                        format!("`{name}` is a type of {first} already, and a term of {GLOSSARY}: name this by what it is");
                    errors.push(at(file, index, &what));
                }
                None => found.push((name, format!("{}:{}", file.path, index + 1))),
            }
        }
    }
    errors
}

/// The type that this line of Rust defines. An indented alias is an associated type.
fn defined_type(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let code = match code.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or("", |(_, rest)| rest),
        Some(rest) => rest.trim_start(),
        None => code,
    };
    let (keyword, rest) = code.split_once(' ')?;
    let is_definition = ["struct", "enum", "union", "trait"].contains(&keyword) || keyword == "type" && !line.starts_with(' ');
    let name = rest.split(|character: char| !character.is_alphanumeric() && character != '_').next()?;
    (is_definition && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn forbidden_words_are_errors_in_sources_and_in_the_prose_of_documents() {
        for (word, _) in FORBIDDEN_WORDS {
            let line = format!("The {word}, again\n");
            for path in ["docs/a.md", "CONTRIBUTING.md", "bench/README.md", "Cargo.toml", "crates/ring/Cargo.toml", "a.sh"] {
                assert_eq!(check(&file(path, &line)).len(), 1, "{path}: {line}");
            }
            assert_eq!(check(&file("README.md", &line.to_uppercase())).len(), 1, "{line}");
            assert_eq!(check(&file("a.rs", &format!("let {word} = 1; // the {word}\n"))).len(), 2, "{word}");
            assert_eq!(check(&file("a.py", &format!("as_{word}()\n"))), [""; 0], "a name that has it is not it: {word}");
            for path in ["docs/a.svg", "bench/results/ping-report/report.md", GLOSSARY] {
                assert_eq!(check(&file(path, &line)), [""; 0], "{path}: {line}");
            }
        }
        let allowed =
            "`liar` \"no twin\" [a](liar.md) b\n```sh\nhear\n```\n    obey\n<!-- tidy: allow words, a title -->\ndoors\n";
        assert_eq!(check(&file("docs/a.md", allowed)), [""; 0]);
        assert_eq!(check(&file("docs/a.md", "`a` liar \"b\" [c](d.md) twin\n")).len(), 2);
    }

    #[test]
    fn endings_belong_to_words_and_longer_words_are_others() {
        for word in ["obeys", "obeyed", "visitors", "witnesses", "keepers", "hearing", "Hogs", "latched"] {
            assert_eq!(check(&file("a.md", word)).len(), 1, "{word}");
        }
        for word in ["right", "rigid", "heart", "notwithstanding", "latchkey"] {
            assert_eq!(check(&file("a.md", word)), [""; 0], "{word}");
        }
    }

    #[test]
    fn a_name_of_the_glossary_is_one_type() {
        let errors = |one: &str, other: &str| check_types(&[file("a.rs", one), file("b.rs", other)]);
        for other in
            ["enum Place {\n", "pub(super) struct Place<T> {\n", "mod a {\n    pub struct Place;\n}\n", "type Place = u8;\n"]
        {
            let errors = errors("/// A place.\npub struct Place {\n", other);
            assert!(errors.len() == 1 && errors[0].contains("a.rs:2 already"), "{other}: {errors:?}");
        }
        for other in ["impl Place {\n", "struct Places;\n", "// struct Place;\n", "    type Place = u8;\n", "use a::Place;\n"] {
            assert_eq!(errors("pub struct Place {\n", other), [""; 0], "{other}");
        }
        assert_eq!(errors("struct Queue;\n", "struct Queue;\n"), [""; 0], "each service has its own");
    }
}
