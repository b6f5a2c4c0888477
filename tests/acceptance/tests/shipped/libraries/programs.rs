//! The programs that ship know each other.

use std::process::Command;

use fipsee_acceptance::{run, serve, shipped};

#[test]
fn shipped_programs_list_the_disks_that_are_served() {
    let Some(fipsee) = shipped("programs", "bin/fipsee") else { return };
    let Some(daemon) = serve("programs", &["a=memory:1M", "b=file:{dir}/b.img,size=1M"]) else { return };
    let listed = run(Command::new(fipsee).arg("--connect").arg(daemon.socket()).arg("ls"));
    assert!(listed.contains("a ") && listed.contains("b "), "{listed}");
}
