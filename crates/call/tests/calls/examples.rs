//! The examples run unchanged, are short, and are what the guide shows.

use std::process::{Command, Stdio};

use fipsee_testkit::eventually;
use fipsee_testkit::process::Guard;

use crate::service::Socket;

const COUNTER: &str = include_str!("../../examples/counter.rs");
const GUIDE: &str = include_str!("../../../../docs/guide/calls.md");

/// Built with all of the workspace, as its tests have built it already: one package alone would have fewer features.
fn example(name: &str) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--workspace", "--example", name]);
    assert!(cargo.status().expect("cargo").success(), "{cargo:?}");
    let test = std::env::current_exe().expect("this test");
    let target = test.ancestors().nth(3).expect("tests are in PROFILE/deps");
    Command::new(target.join("debug/examples").join(name))
}

#[test]
fn the_counter_counts_for_several_processes() {
    let socket = Socket::new();
    let path = socket.0.to_str().expect("a temporary path");
    let mut serve = example("counter");
    let _server = Guard(serve.args(["serve", path]).stdout(Stdio::null()).spawn().expect("the example"));
    eventually("the server listens", || socket.0.exists());
    let call = |arguments: [&str; 3]| {
        let output = example("counter").args(arguments).output().expect("cargo");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).expect("text"))
    };
    assert_eq!(call(["add", path, "40"]), (true, "40\n".to_owned()));
    assert_eq!(call(["add", path, "2"]), (true, "42\n".to_owned()));
    assert_eq!(call(["divide", path, "0"]), (true, "42, unchanged: that cannot be done\n".to_owned()));
    let (succeeded, said) = call(["add", "/nowhere/s", "1"]);
    assert!(!succeeded && said.contains("no server at /nowhere/s"), "{said}");
}

#[test]
fn the_latency_example_checks_every_reply() {
    let output = example("latency").args(["0.05"]).output().expect("cargo");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("p50"), "{said} {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_counter_is_short_and_is_what_the_guide_shows() {
    assert!(COUNTER.lines().count() <= 80);
    let mut shown = 0;
    for block in GUIDE.split("```rust\n").skip(1) {
        let code = block.split("```").next().expect("a closed block");
        assert!(COUNTER.contains(code), "the guide shows what is not in the example:\n{code}");
        shown += 1;
    }
    assert!(shown >= 5, "{shown} blocks");
}
