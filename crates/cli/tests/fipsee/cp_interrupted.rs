//! `fipsee cp` that a signal ends says what the destination has; its notes have lines of their own.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};

use fipsee_block::client::AttachOptions;
use fipsee_testkit::{Daemon, Guard, skip, wait_for};
use rustix::process::{Signal, kill_process};

use crate::program::{FIPSEE, Fipsee, ending, errors_of, json, noise, pid, serve, text};

const MIB: usize = 1 << 20;

fn start(daemon: &Daemon, arguments: &[&str]) -> Guard {
    let mut command = daemon.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Guard(command.spawn().expect("fipsee runs"))
}

/// A copy from standard input to disk 'a', of which the first two MiB are on the disk.
fn start_copy_of_a_stream(daemon: &Daemon, content: &[u8]) -> (Guard, ChildStdin) {
    let mut copy = start(daemon, &["cp", "-", "fip:a"]);
    let mut stdin = copy.0.stdin.take().expect("its standard input");
    // Not a whole piece more, so that it waits for the rest.
    stdin.write_all(&content[..2 * MIB + 1000]).expect("it reads");
    let mut reader = daemon.blocking_as(&AttachOptions { read_only: true, ..AttachOptions::new("a") });
    let mut block = [0; 512];
    wait_for("the second MiB is written", || {
        reader.read_at(&mut block, 2 * MIB as u64 - 512).expect("a read");
        (block == content[2 * MIB - 512..2 * MIB]).then_some(())
    });
    (copy, stdin)
}

#[test]
fn an_interrupted_copy_to_a_disk_says_how_much_of_it_is_new() {
    let daemon = serve(&["a=memory:4M"]);
    let (old, new) = (noise(4 * MIB, 1), noise(4 * MIB, 2));
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        daemon.blocking("a").write_at(&old, 0).expect("old content");
        let (mut copy, _stdin) = start_copy_of_a_stream(&daemon, &new);
        kill_process(pid(&copy), signal).expect("a signal");
        assert_eq!(ending(&mut copy).code(), Some(code));
        let said = errors_of(&mut copy);
        let error = "error: interrupted: disk 'a' has the first 2 MiB (2097152 bytes), flushed; the rest of its 4 MiB is as it was; \
                     repeat the command for all of it\n";
        assert!(said.ends_with(error), "{said}");
        let mut now = vec![0; 4 * MIB];
        daemon.blocking("a").read_at(&mut now, 0).expect("a read");
        assert!(now[..2 * MIB] == new[..2 * MIB] && now[2 * MIB..] == old[2 * MIB..], "as it was said");
    }
}

#[test]
fn an_interrupted_copy_to_a_file_says_where_the_file_ends() {
    let daemon = serve(&["s=delay:20ms:memory:64M"]);
    // All of the disk: how far the copy comes is open.
    let content = noise(64 * MIB, 3);
    daemon.blocking("s").write_at(&content, 0).expect("content");
    let file = daemon.dir.path("copy");
    let mut copy = start(&daemon, &["cp", "--block-size", "4K", "fip:s", &text(&file)]);
    wait_for("something is copied", || std::fs::metadata(&file).ok().filter(|metadata| metadata.len() > 0));
    kill_process(pid(&copy), Signal::INT).expect("a signal");
    assert_eq!(ending(&mut copy).code(), Some(130));
    let said = errors_of(&mut copy);
    let copied = std::fs::read(&file).expect("the copy");
    let length = copied.len();
    assert!(
        said.contains("copy has the first ") && said.contains(&format!("({length} bytes), flushed, and ends there")),
        "{said}"
    );
    assert!(length < content.len() && copied == content[..length], "{length} bytes are right");
}

#[test]
fn a_verification_that_is_interrupted_leaves_a_whole_copy() {
    let daemon = serve(&["s=delay:20ms:memory:4M"]);
    let source = text(&daemon.dir.file("source", noise(4 * MIB, 4)));
    let mut copy = start(&daemon, &["cp", "--verify", "--block-size", "4K", &source, "fip:s"]);
    wait_for("it is read back", || {
        let stat = json(&daemon.fipsee(&["stat", "--json"]));
        stat["queues"][0]["reads"].as_u64().filter(|reads| *reads > 0)
    });
    kill_process(pid(&copy), Signal::INT).expect("a signal");
    assert_eq!(ending(&mut copy).code(), Some(130));
    let said = errors_of(&mut copy);
    assert!(
        said.contains("fip:s has all 4 MiB (4194304 bytes), flushed; the first ") && said.contains(" were compared"),
        "{said}"
    );
}

#[test]
fn a_second_signal_ends_a_copy_that_waits_for_the_daemon() {
    let daemon = serve(&["a=memory:4M"]);
    let (mut copy, _stdin) = start_copy_of_a_stream(&daemon, &noise(4 * MIB, 5));
    daemon.freeze();
    kill_process(pid(&copy), Signal::INT).expect("a signal");
    let mut said = BufReader::new(copy.0.stderr.take().expect("its errors")).lines();
    let mut line = || said.next().expect("a line").expect("text");
    assert!(line().starts_with("note: interrupted; finishing what is in flight"));
    kill_process(pid(&copy), Signal::INT).expect("a signal");
    let (last, code) = (line(), ending(&mut copy).code());
    daemon.signal(Signal::CONT);
    assert_eq!(code, Some(130), "{last}");
    // How many completions it has seen by then is open; it may say less than what was written.
    let seen = ["2 MiB (2097152 bytes)", "1 MiB (1048576 bytes)", "0 bytes"];
    let seen = seen.map(|seen| format!("error: interrupted: fip:a has at least the first {seen}, not flushed"));
    assert!(seen.iter().any(|seen| last.starts_with(seen)), "{last}");
}

#[test]
fn notes_have_lines_of_their_own_beside_the_progress_bar() {
    let daemon = serve(&["a=memory:1M"]);
    let source = text(&daemon.dir.file("source", noise(100, 6)));
    let line = format!("'{FIPSEE}' --connect '{}' cp '{source}' fip:a", text(&daemon.socket()));
    let output = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
    let Ok(output) = output else {
        return skip("notes beside the progress bar", "script is missing; install bsdutils");
    };
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && shown.contains("100 B/100 B"), "a bar was shown: {shown:?}");
    let notes: Vec<usize> = shown.match_indices("note: ").map(|(at, _)| at).collect();
    assert_eq!(notes.len(), 2, "the filling and the rest: {shown:?}");
    for at in notes {
        // The bar's line is erased first: carriage return, CSI 2 K.
        let before = &shown[..at];
        assert!(before.ends_with("\r\u{1b}[2K") || before.ends_with("\r\n"), "{shown:?}");
    }
}
