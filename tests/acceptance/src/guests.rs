//! Virtual machines that a page of the guide starts, in a network namespace of its own, and what is typed in them.
//!
//! A page finds the options of each, apart from memory and network, in an array of the shell with the machine's name.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Command;

use fipsee_testkit::netns::Namespace;

use crate::guide::Block;
use crate::{shipped, skip};

/// Where they are started.
#[derive(Debug)]
pub struct Guests {
    space: Namespace,
    /// What the script of the page begins with.
    pub prologue: String,
}

impl Guests {
    /// For the machines in these blocks. `None` if there are none, or, with a message, if this machine can have none.
    #[must_use]
    pub fn prepare(what: &str, blocks: &[Block]) -> Option<Self> {
        let names: BTreeSet<&str> = blocks.iter().filter_map(|block| block.guest.as_deref()).collect();
        if names.is_empty() {
            return None;
        }
        let folder = shipped(what, "")?.join("../vm/guide");
        if !folder.join("initrd").exists() {
            skip(what, "no kernel for guests; `cargo xtask vm --guide` fetches one");
            return None;
        }
        let [space] = Namespace::several(what, &["qemu-system-x86_64", "ping", "mkfifo"])?;
        let mut prologue = format!("guide_guest='{}'\n{}", folder.display(), include_str!("guests.sh"));
        for name in names {
            let _ = writeln!(prologue, "machine {name}");
        }
        Some(Self { space, prologue })
    }

    /// A program that sees only the page's interfaces and mounts.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.space.command("unshare");
        command.args(["--mount", "--", program]);
        command
    }
}

/// Commands of the shell that have these carried out in a machine.
#[must_use]
pub fn typed_in(guest: &str, commands: &str) -> String {
    format!("in_guest {guest} <<'@@ typed'\n{commands}@@ typed\n")
}
