//! The error with which the daemon ends, in the format of its log.

use std::process::Command;

use fipsee_testkit::{Scratch, assert_says};
use serde_json::Value;

/// Its exit code, and its standard error.
fn end(dir: &Scratch, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fipseed"));
    command.env_remove("FIPSEE_SOCKET").args(arguments.iter().map(|argument| dir.fill(argument)));
    let output = command.output().expect("it can be started");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn fatal_error_is_one_json_object_if_the_log_is_json_and_text_otherwise() {
    let dir = Scratch::new();
    let disk = "[[disk]]\nname = \"a\"\nspec = \"null:1M\"\n";
    for (name, text) in [
        ("json.toml", format!("log_format = \"json\"\n{disk}wrong = 1\n")),
        ("syntax.toml", format!("log_format = \"json\"\n{disk}[[disk\n")),
        ("text.toml", format!("log_format = \"text\"\n{disk}wrong = 1\n")),
        ("missing.toml", "log_format = \"json\"\n[[disk]]\nname = \"a\"\nspec = \"file:/nowhere/a\"\n".to_owned()),
    ] {
        dir.file(name, text);
    }
    for (arguments, code, is_json, pieces) in [
        (&["--disk", "a=tape:1M"][..], 1, false, ["disk 'a'", "unknown kind 'tape'"]),
        (&["--disk", "a=tape:1M", "--log-format", "json"], 1, true, ["disk 'a'", "unknown kind 'tape'"]),
        (&["--config", "{dir}/json.toml"], 1, true, ["json.toml: line 5, column 1", "unknown key 'wrong'"]),
        (&["--config", "{dir}/syntax.toml"], 1, true, ["syntax.toml: line 5", ""]),
        (&["--config", "{dir}/text.toml"], 1, false, ["text.toml: line 5, column 1", "unknown key 'wrong'"]),
        // The option takes precedence.
        (&["--config", "{dir}/text.toml", "--log-format=json"], 1, true, ["unknown key 'wrong'", ""]),
        (&["--config", "{dir}/json.toml", "--log-format=text"], 1, false, ["unknown key 'wrong'", ""]),
        (&["--config", "{dir}/none.toml", "--log-format=json"], 1, true, ["cannot read", "none.toml"]),
        // After the log has begun.
        (&["--config", "{dir}/missing.toml", "--listen", "{dir}/s"], 1, true, ["disk 'a'", "/nowhere/a does not exist"]),
        // Of the command line itself.
        (&["--log-format", "json", "--wokers", "2"], 2, true, ["unexpected argument '--wokers'", "--workers"]),
        (&["--workers", "two", "--log-format=json"], 2, true, ["'two' for '--workers <N>'", "write an integer"]),
        (&["--wokers", "2"], 2, false, ["unexpected argument '--wokers'", "--workers"]),
    ] {
        let (status, text) = end(&dir, arguments);
        assert_eq!(status, Some(code), "{arguments:?}: {text}");
        if !is_json {
            assert_says(&text, &[&["error: "], &pieces[..]].concat());
            continue;
        }
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let last = lines.last().unwrap_or_else(|| panic!("{arguments:?} ends without a word"));
        assert_eq!(last["level"], "ERROR", "{last}");
        assert!(last["timestamp"].is_string(), "{last}");
        assert_says(last["fields"]["message"].as_str().expect("a message"), &pieces);
        assert_eq!(lines.iter().filter(|line| line["level"] == "ERROR").count(), 1, "{text}");
    }
}
