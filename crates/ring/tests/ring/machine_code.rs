//! What the compiler made of an example's functions.

use std::process::Command;

/// Is objdump known to be missing? Then a test that wants it says so and ends.
pub(crate) fn is_objdump_missing() -> bool {
    std::env::var("FIPSEE_MISSING_TOOLS").unwrap_or_default().split_whitespace().any(|tool| tool == "objdump")
}

/// Build an example of this crate as it would be shipped; returns the path of the program.
pub(crate) fn build_example(name: &str) -> String {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--profile", "production", "--quiet", "--package", "fipsee-ring", "--example", name]);
    let messages = run(build.arg("--message-format=json"), "install Rust");
    let (_, rest) = messages.split_once("\"executable\":\"").expect("cargo names what it built");
    let (program, _) = rest.split_once('"').expect("a string ends");
    program.to_owned()
}

/// The instructions of `function`, one a line, as objdump shows them.
pub(crate) fn disassemble(program: &str, function: &str, options: &[&str]) -> String {
    let mut disassemble = Command::new("objdump");
    disassemble.args(options).args([&format!("--disassemble={function}"), program]);
    let listing = run(&mut disassemble, "install binutils: `cargo xtask setup` as root, or `apt-get install binutils`");
    let (_, body) = listing.split_once(&format!("<{function}>:")).expect("the probe keeps its name");
    body.split_once("\n\n").unwrap_or((body, "")).0.to_owned()
}

fn run(command: &mut Command, if_missing: &str) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}; {if_missing}"));
    assert!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("tools print UTF-8")
}
