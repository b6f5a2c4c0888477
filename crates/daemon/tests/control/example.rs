//! The example of the client library runs unchanged, and is as short as it claims.

use std::process::Command;

use fipsee_testkit::Daemon;

const SOURCE: &str = include_str!("../../../block/examples/copy_blocks.rs");

#[test]
fn example_of_the_client_library_runs_against_memory_and_file_disks() {
    let daemon = Daemon::start(&["--disk", "m=memory:1M", "--disk", "f=file:{dir}/disk,size=1M"]);
    for disk in ["m", "f"] {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["run", "--quiet", "--package", "fipsee-block"]);
        cargo.args(["--profile", "test", "--example", "copy_blocks", "--"]).arg(daemon.socket()).arg(disk);
        let output = cargo.output().expect("cargo");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "64 blocks written, flushed and read back\n", "{text}");
        let mut block = [0; 4096];
        daemon.blocking(disk).read_at(&mut block, 5 * 4096).expect("read");
        assert_eq!(block[..4], [5, 6, 7, 8], "{disk}: block 5 has its pattern");
    }
}

#[test]
fn example_fits_a_screen() {
    let lines = SOURCE.lines().count();
    assert!(lines <= 40, "{lines} lines");
}
