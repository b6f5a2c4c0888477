//! Another process: this test program again, as the ignored test `child`, which does what the environment says.
#![allow(unreachable_pub, reason = "a module of test programs")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const ROLE: &str = "FIPSEE_CALL_TEST_ROLE";
const SOCKET: &str = "FIPSEE_CALL_TEST_SOCKET";

/// A process that is killed when dropped.
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Start the child in a role and wait until it says that it is ready.
pub fn start(role: &str, socket: &Path) -> Guard {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "child", "--ignored", "--nocapture"]).env(ROLE, role).env(SOCKET, socket);
    let mut child = Guard(command.stdout(Stdio::piped()).spawn().expect("another process"));
    let output = BufReader::new(child.0.stdout.take().expect("a pipe from it"));
    let mut lines = output.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with("ready")), "the child in role {role} is ready");
    child
}

/// In the child: its role and the socket.
pub fn role() -> Option<(String, std::path::PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(SOCKET)?.into()))
}

/// In the child: the parent may go on.
pub fn say_ready() {
    println!("\nready");
}
