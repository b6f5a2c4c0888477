//! `fipsee mount`: its process in the background, and its end without a daemon.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use fipsee_testkit::{Guard, skip, wait_for};

use crate::program::{Fipsee, assert_success, ending, errors_of, json, serve, text};

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

#[test]
fn a_mount_that_ends_without_its_daemon_says_what_may_be_lost() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return skip("a mount without its daemon", "needs root and /dev/fuse");
    }
    let mut daemon = serve(&["a=memory:1M"]);
    let file = text(&daemon.dir.path("disk.img"));
    let mut command = daemon.command(&["mount", "a", &file, "--reconnect", "0"]);
    let mut mount = Guard(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fipsee runs"));
    let mut line = String::new();
    BufReader::new(mount.0.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("mounted a on"), "{line}");
    daemon.kill_9();
    assert_success(&Command::new("umount").arg(&file).output().expect("umount runs"));
    assert_eq!(ending(&mut mount).code(), Some(1));
    let said = errors_of(&mut mount);
    let error =
        "error: the daemon of disk 'a' is gone: what was written and not flushed before may be lost; start fipseed and check";
    assert!(said.contains(error), "{said}");
}
