//! Child processes of a test: its own program again, which runs one function in place of libtest.

use std::ffi::OsStr;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NAME: &str = "FIPSEE_TESTKIT_CHILD";
const SOCKET: &str = "FIPSEE_TESTKIT_SOCKET";

/// This program as its child `name`, one of those that [`children`](crate::children) declares.
pub fn command(name: &str) -> Command {
    command_through(&[], name)
}

/// As [`command`], by way of a command line before it.
pub fn command_through(prefix: &[&str], name: &str) -> Command {
    let own = std::env::current_exe().expect("a running program");
    let mut words = prefix.iter().map(OsStr::new).chain([own.as_os_str()]);
    let mut command = Command::new(words.next().expect("ours at least"));
    command.args(words).env(NAME, name).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// As [`command`], with the socket of a daemon.
pub fn command_at(name: &str, socket: &Path) -> Command {
    let mut command = command(name);
    command.env(SOCKET, socket);
    command
}

/// In a child: the socket.
pub fn socket() -> PathBuf {
    std::env::var_os(SOCKET).expect("the parent gives a socket").into()
}

/// Become the child that the environment names, if it names one.
pub fn run(children: &[(&str, fn())]) {
    let Ok(name) = std::env::var(NAME) else { return };
    let (_, child) = children.iter().find(|(other, _)| *other == name).unwrap_or_else(|| panic!("no child '{name}'"));
    std::process::exit(if catch_unwind(child).is_ok() { 0 } else { 101 });
}

/// The child processes of a program of tests, by name: `children! { "client" => death::client }`. They are functions and no tests:
/// the program looks for the name of one before `main`, which is libtest's.
#[macro_export]
macro_rules! children {
    ($($name:literal => $child:path),+ $(,)?) => {
        extern "C" fn become_child() {
            $crate::child::run(&[$(($name, $child)),+]);
        }

        #[used]
        #[unsafe(link_section = ".init_array")]
        static BECOME_CHILD: extern "C" fn() = become_child;
    };
}
