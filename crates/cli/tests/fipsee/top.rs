//! `fipsee top` against a real daemon, with and without a terminal.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use fipsee_testkit::{Guard, assert_says, wait_for};

use crate::program::{FIPSEE, Fipsee, assert_error, assert_success, serve};

#[test]
fn without_a_terminal_there_are_tables() {
    let daemon = serve(&["a=memory:1M", "other=null:1M"]);
    let _client = daemon.blocking("a");
    let run = |arguments: &[&str]| {
        let output = daemon.fipsee(&[&["top", "--interval", "0.01", "--once"], arguments].concat());
        assert_success(&output);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = run(&[]);
    assert_says(&text, &["DISK   CLIENTS  QUEUES", "a            1       1", "KIND  CLIENT", "ring", "WORKER  CPU"]);
    let text = run(&["--view", "disks", "--sort", "disk", "--filter", "oth"]);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines.len() == 2 && lines[1].starts_with("other"), "{text}");
    let refused = daemon.fipsee(&["top", "--once", "--view", "workers", "--sort", "p99"]);
    assert_error(&refused, &["workers have no column 'p99'", "sort by one of worker, cpu"]);
    let nowhere = Command::new(FIPSEE).args(["--connect", "/nonexistent/s", "top"]).output().expect("fipsee runs");
    assert_error(&nowhere, &["/nonexistent/s"]);
}

/// What a terminal got until the program ended, after `keys` were pressed once its first screen was there.
fn on_a_terminal(keys: &[u8]) -> String {
    let daemon = serve(&["a=memory:1M"]);
    let line = format!("stty cols 100 rows 20; exec {FIPSEE} --connect {} top --interval 0.01", daemon.socket().display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Guard(command.spawn().expect("script(1)"));
    let (mut output, mut received) = (child.0.stdout.take().expect("a pipe"), Vec::new());
    while !String::from_utf8_lossy(&received).contains("Tab view") {
        let mut bytes = [0; 4096];
        let count = output.read(&mut bytes).expect("output");
        assert!(count > 0, "it ended: {}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&bytes[..count]);
    }
    let mut input = child.0.stdin.take().expect("a pipe");
    input.write_all(keys).expect("it reads");
    output.read_to_end(&mut received).expect("output");
    let status = wait_for("it ends", || child.0.try_wait().expect("a child to ask"));
    let text = String::from_utf8_lossy(&received).into_owned();
    assert!(status.success(), "{status}: {text}");
    text
}

#[test]
fn screen_is_taken_and_given_back() {
    for (keys, view) in [(&b"q"[..], "disks"), (b"4\x03", "workers"), (b"/a\r\tq", "clients")] {
        let text = on_a_terminal(keys);
        assert_says(&text, &["\x1b[?1049h", &format!("\x1b[7m {view}")]);
        let end = text.rfind("\x1b[?1049l").unwrap_or_else(|| panic!("the screen is not restored: {text:?}"));
        assert!(text[end..].len() < 40, "nothing is drawn after that: {text:?}");
    }
}
