//! How many threads the guest's driver uses (`c/kmod/rules.h`), simulated without a kernel.

use std::path::Path;
use std::process::Command;

#[test]
fn threads_of_the_guest_driver_follow_the_load_and_a_constant_load_changes_nothing() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../c/kmod/tests/rules.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest-rules");
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined,address", "-o"]);
    let built = compiler.arg(&program).arg(&source).status().expect("gcc can be run (Debian: gcc)");
    assert!(built.success(), "{} does not compile", source.display());
    let run = Command::new(&program).output().expect("what was built can be run");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
