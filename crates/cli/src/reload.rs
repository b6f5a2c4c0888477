//! `fipsee reload`: have the daemon read its configuration file again.

use std::path::Path;

use serde_json::{Value, json};

use crate::error::Error;
use crate::{admin, output};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print JSON: {"added", "removed", "changed", "needs_restart"}, lists of names
    #[arg(long)]
    json: bool,
}

/// The meaning of the answer's lists.
const LISTS: [(&str, &str); 4] =
    [("added", "added"), ("removed", "removed"), ("changed", "changed"), ("needs_restart", "unchanged until a restart")];

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let answer = admin::ask(socket, "reload", &json!({}))?;
    if arguments.json { output::print_json(&answer) } else { output::print(&render(&answer)) }
}

fn render(answer: &Value) -> String {
    let lines = LISTS.iter().filter_map(|(key, title)| {
        let names: Vec<&str> = admin::list(answer, key).iter().filter_map(Value::as_str).collect();
        (!names.is_empty()).then(|| format!("{title}: {}\n", names.join(", ")))
    });
    let text: String = lines.collect();
    if text.is_empty() { "nothing has changed\n".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_happened_is_printed() {
        let answer =
            json!({ "added": ["b", "c"], "removed": [], "changed": ["log_level"], "needs_restart": ["workers", "disk 'a'"] });
        let text = "added: b, c\nchanged: log_level\nunchanged until a restart: workers, disk 'a'\n";
        assert_eq!(render(&answer), text);
        assert_eq!(render(&json!({ "added": [] })), "nothing has changed\n");
    }
}
