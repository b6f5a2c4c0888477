//! Command lines that the program completes itself, asked as bash asks.

use std::path::Path;
use std::process::Command;

use fipsee_testkit::{Daemon, Scratch};

use crate::program::{FIPSEE, assert_success, serve};

/// What bash offers for the last of `words`, with the program's own registration; `current` is the part that bash replaces.
fn offered(socket: &Path, directory: &Path, words: &[&str], current: &str) -> Vec<String> {
    let script = r#"source <(COMPLETE=bash "$0") || exit
        current=$1; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9
        _clap_complete_fipsee fipsee "$current" "" 2>/dev/null
        printf '%s\n' "${COMPREPLY[@]}""#;
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", script, FIPSEE, current]).args(words).env("FIPSEE_SOCKET", socket).current_dir(directory);
    let output = bash.output().expect("bash runs");
    assert_success(&output);
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn at(daemon: &Daemon, words: &[&str]) -> Vec<String> {
    offered(&daemon.socket(), &daemon.dir.path(""), words, words.last().expect("a word"))
}

#[test]
fn names_of_disks_are_those_of_the_daemon() {
    let daemon = serve(&["alpha=null:1M", "beta=null:1M"]);
    for command in ["info", "bench", "resize", "attach", "mount", "vm-args"] {
        assert_eq!(at(&daemon, &["fipsee", command, "al"]), ["alpha"], "{command}");
        let all = at(&daemon, &["fipsee", command, ""]);
        assert!(all.iter().any(|word| word == "alpha") && all.iter().any(|word| word == "beta"), "{command}: {all:?}");
    }
    assert_eq!(at(&daemon, &["fipsee", "vm-args", "alpha", "be"]), ["beta"]);
    let second = serve(&["gamma=null:1M"]);
    let socket = second.socket();
    let socket = socket.to_str().expect("text");
    assert_eq!(at(&daemon, &["fipsee", "--connect", socket, "info", "ga"]), ["gamma"]);
    assert_eq!(at(&daemon, &["fipsee", "info", "--connect", "=", socket, "ga"]), ["gamma"]);
}

#[test]
fn a_copy_has_files_and_disks_although_bash_splits_words_at_colons() {
    let daemon = serve(&["alpha=null:1M", "beta=null:1M"]);
    daemon.dir.file("final.img", b"");
    let first = at(&daemon, &["fipsee", "cp", "fi"]);
    assert_eq!(first, ["fip:alpha", "fip:beta", "final.img"]);
    // What bash replaces begins after the colon.
    assert_eq!(at(&daemon, &["fipsee", "cp", "fip", ":", "al"]), ["alpha"]);
    let empty = offered(&daemon.socket(), &daemon.dir.path(""), &["fipsee", "cp", "fip", ":"], "");
    assert_eq!(empty, ["alpha", "beta"]);
    assert_eq!(at(&daemon, &["fipsee", "cp", "fip", ":", "alpha", "fina"]), ["final.img"]);
}

#[test]
fn subcommands_options_and_their_values_are_completed_without_a_daemon() {
    let directory = Scratch::new();
    let at = |words: &[&str]| offered(&directory.path("none"), &directory.path(""), words, words.last().expect("a word"));
    assert_eq!(at(&["fipsee", "vm-"]), ["vm-args"]);
    assert_eq!(at(&["fipsee", "bench", "a", "--dep"]), ["--depth"]);
    assert_eq!(at(&["fipsee", "bench", "a", "--rw", "randr"]), ["randread", "randrw"]);
    assert_eq!(at(&["fipsee", "info", "a"]), Vec::<String>::new());
}

#[test]
fn every_shell_is_given_what_makes_it_ask() {
    for (shell, part) in [("bash", "-F _clap_complete_fipsee fipsee"), ("zsh", "#compdef fipsee"), ("fish", "--command fipsee")] {
        let output = Command::new(FIPSEE).env("COMPLETE", shell).output().expect("fipsee runs");
        assert_success(&output);
        let script = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(script.contains(part), "{script}");
        assert!(shell != "bash" || script.contains("== [:=] ]] || words"), "the empty word after a colon: {script}");
    }
    let directory = Scratch::new();
    let generate = Command::new(FIPSEE).arg("generate").arg(directory.path("")).args(["--date", "2026-01-02"]).output();
    assert_success(&generate.expect("fipsee runs"));
    for path in ["bash-completion/completions/fipsee", "zsh/vendor-completions/_fipsee", "fish/vendor_completions.d/fipsee.fish"]
    {
        let script = std::fs::read_to_string(directory.path(path)).expect(path);
        assert!(script.contains("COMPLETE=") && !script.contains(FIPSEE), "{path} asks the installed program: {script}");
    }
}
