//! Processes of this program that start it again.

use std::path::Path;
use std::process::Command;

use fipsee_testkit::wait_for;

use crate::program::{Fipsee, assert_success, json, serve, skip, text};

#[test]
fn a_mount_in_the_background_has_its_name_among_the_processes() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return skip("the name of a mount in the background", "needs root and /dev/fuse");
    }
    let daemon = serve(&["a=memory:1M"]);
    let file = text(&daemon.dir.path("disk.img"));
    assert_success(&daemon.fipsee(&["mount", "a", &file, "--background"]));
    let pid = json(&daemon.fipsee(&["info", "a", "--json"]))["clients"][0]["pid"].clone();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("a process");
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).expect("a process");
    assert_success(&Command::new("umount").arg(&file).output().expect("umount runs"));
    wait_for("the mount ends", || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    assert_eq!(name, "fipsee\n");
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    assert_eq!(words[0], "fipsee");
    assert_eq!(words[3..7], ["mount", "a", &*file, "--background"], "after --connect: {words:?}");
}
