//! Network namespaces of tests: interfaces and addresses that no other program sees.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::process::{await_word, die_with_parent};
use crate::system::{find_program, run};
use crate::{is_root, skip};

/// A network namespace, which goes with this and what is in it.
#[derive(Debug)]
pub struct Namespace {
    holder: Child,
    _alive: ChildStdin,
}

impl Namespace {
    /// As many as are wanted. `None`: they cannot be made here, which is reported, as the reason that `what` is not tested.
    pub fn several<const COUNT: usize>(what: &str, programs: &[&str]) -> Option<[Self; COUNT]> {
        let missing = programs.iter().chain(&["ip", "unshare", "nsenter"]).find(|program| find_program(program).is_none());
        if let Some(program) = missing {
            skip(what, &format!("{program} is not installed; run `cargo xtask setup` as root"));
            return None;
        }
        if !is_root() {
            skip(what, "only root can make network namespaces");
            return None;
        }
        if let Err(reason) = run(Command::new("unshare").args(["--net", "sh", "-c", "exec 3<>/dev/net/tun"])) {
            skip(what, &reason);
            return None;
        }
        Some(std::array::from_fn(|_| Self::new()))
    }

    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"]);
        let mut holder = die_with_parent(&mut command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        await_word(&mut holder, "ready");
        let alive = holder.stdin.take().expect("it is piped");
        Self { holder, _alive: alive }
    }

    /// What a command line begins with to be carried out in it.
    pub fn prefix(&self) -> [String; 3] {
        ["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.holder.id()), "--".to_owned()]
    }

    /// The calling thread is in it from now on, with the sockets that it opens.
    pub fn enter(&self) -> Result<(), String> {
        let path = format!("/proc/{}/ns/net", self.holder.id());
        let entered = File::open(&path).and_then(|space| {
            Ok(rustix::thread::move_into_link_name_space(space.as_fd(), Some(rustix::thread::LinkNameSpaceType::Network))?)
        });
        entered.map_err(|error| format!("cannot enter {path}: {error}"))
    }

    /// A command in it.
    pub fn command(&self, program: &str) -> Command {
        let [enter, place, end] = self.prefix();
        let mut command = Command::new(enter);
        command.args([place, end, program.to_owned()]);
        command
    }

    /// Run a command line in it, of words between spaces, to its successful end.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        self.try_run(line).unwrap_or_else(|error| panic!("{error}"))
    }

    pub fn try_run(&self, line: &str) -> Result<String, String> {
        let mut words = line.split_whitespace();
        run(self.command(words.next().expect("a program")).args(words))
    }

    /// Likewise a line of the shell.
    pub fn run_script(&self, line: &str) -> Result<String, String> {
        run(self.command("sh").args(["-c", line]))
    }

    /// An interface of this one is of the other from now on, with this address, and up.
    #[track_caller]
    pub fn give(&self, interface: &str, to: &Self, address: &str) {
        self.run(&format!("ip link set dev {interface} netns {}", to.holder.id()));
        to.up(interface, address);
    }

    /// An interface has this address, and is up.
    #[track_caller]
    pub fn up(&self, interface: &str, address: &str) {
        self.run(&format!("ip address add {address} dev {interface}"));
        self.run(&format!("ip link set dev {interface} up"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
