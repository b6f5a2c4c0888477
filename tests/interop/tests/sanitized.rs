//! The C half under gcc's sanitizers: no access beyond a buffer, nothing undefined. (The C peer of tests/rings.rs is built with them, too.)

use std::path::Path;
use std::process::Command;

const SOURCES: [&str; 8] = ["sanitized.c", "control.c", "block.c", "golden.c", "layout.c", "messages.c", "pace.c", "trace.c"];

#[test]
fn c_half_is_clean_under_address_and_undefined_behaviour_sanitizers() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("interop-sanitized");
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    compiler.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I"]).arg(here.join("../../include"));
    compiler.arg("-o").arg(&program).args(SOURCES.map(|source| here.join("c").join(source)));
    let compiled = compiler.output().unwrap_or_else(|error| panic!("cannot run gcc: {error}; install it (Debian: gcc)"));
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().expect("it was just made");
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said == "done\n", "{}: {said}{wrong}", output.status);
}
