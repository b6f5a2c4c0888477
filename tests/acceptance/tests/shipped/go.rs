//! The Go package as it ships, built against the installed C library: its own tests, in go/, and what its tools say.

use std::path::Path;
use std::process::Command;

use fipsee_acceptance::{has_program, run, shipped};

#[test]
fn go_package_passes_its_tests() {
    let what = "go package";
    let Some(package) = shipped(what, "share/fipsee/go") else { return };
    let Some(prefix) = package.ancestors().nth(3) else { return };
    if !["go", "gofmt", "gcc", "pkg-config"].iter().all(|program| has_program(what, program)) {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../go");
    let tool = |program: &str| {
        let mut command = Command::new(program);
        command.current_dir(&source).env("FIPSEE_DIST", prefix);
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).env("LD_LIBRARY_PATH", prefix.join("lib"));
        // Nothing is downloaded, and what was compiled is kept beside the prefix, whether there is a home or not.
        command.env("GOPROXY", "off").env("GOTOOLCHAIN", "local").env("GOCACHE", prefix.with_file_name("go-cache"));
        command
    };
    assert_eq!(run(tool("gofmt").args(["-l", "."])), "", "gofmt -w makes them as they should be");
    run(tool("go").args(["vet", "."]));
    let said = run(tool("go").args(["test", "-count=1", "-timeout=10m", "-v", "."]));
    assert!(said.contains("--- PASS: TestDataComesBack") && !said.contains("--- SKIP"), "{said}");
    for entry in source.read_dir().expect("the package's folder").flatten() {
        let name = entry.file_name();
        let ships = !name.to_string_lossy().ends_with("_test.go");
        assert_eq!(package.join(&name).exists(), ships, "{name:?}");
    }
}
