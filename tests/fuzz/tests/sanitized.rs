//! The corpus through the C parsers, under gcc's sanitizers: no access beyond a buffer, nothing undefined.

use std::path::Path;
use std::process::Command;

use fipsee_fuzz::corpus;

const PARSERS: [&str; 6] = ["control", "region", "info", "reap", "request", "received_by_c"];

#[test]
fn c_parsers_are_clean_under_address_and_undefined_behaviour_sanitizers() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replay");
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
    compiler.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    for include in ["../../include", "../../c/fio", "../../c/net"] {
        compiler.arg("-I").arg(here.join(include));
    }
    compiler.arg("-o").arg(&program);
    for source in
        ["replay.c", "control.c", "channel.c", "queue.c", "net.c", "../../interop/c/control.c", "../../interop/c/block.c"]
    {
        compiler.arg(here.join("c").join(source));
    }
    let compiled = compiler.output().unwrap_or_else(|error| panic!("cannot run gcc: {error}; install it (Debian: gcc)"));
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    for parser in PARSERS {
        let mut replay = Command::new(&program);
        let output = replay.arg(parser).arg(corpus::path(parser)).output().expect("it was just made");
        let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.ends_with(" inputs\n"), "{parser}: {}: {said}{wrong}", output.status);
    }
}
