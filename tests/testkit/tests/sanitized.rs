//! The guest's half in C under gcc's sanitizers: no access beyond a ring, nothing undefined, whatever the daemon writes.

use std::path::Path;
use std::process::Command;

#[test]
fn c_rings_are_clean_under_address_and_undefined_behaviour_sanitizers() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest-sanitized");
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    compiler.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I"]).arg(here.join("../../include"));
    compiler.arg("-o").arg(&program).arg(here.join("c/sanitized.c"));
    let compiled = compiler.output().unwrap_or_else(|error| panic!("cannot run gcc: {error}; install it (Debian: gcc)"));
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    for seed in ["1", "2", "3"] {
        let output = Command::new(&program).arg(seed).output().expect("it was just made");
        let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said == "400 rings\n", "seed {seed}: {}: {said}{wrong}", output.status);
    }
}
