//! What a service declares to the program that serves it: what it needs when that program confines itself, and what it counts.

use std::path::PathBuf;

use libc::c_long;

/// What a service uses, beside what the runtime uses for every service.
#[derive(Debug, Default)]
pub struct Needs {
    /// Numbers of system calls.
    pub calls: Vec<c_long>,
    /// Those of which only some arguments are needed. All of an entry must be as it says; any entry of a call allows it.
    pub calls_with: Vec<(c_long, Vec<Argument>)>,
    /// Paths. One that does not exist when the program confines itself cannot be used later.
    pub files: Vec<(PathBuf, FileUse)>,
}

/// What an argument of a system call must be: `argument & mask == value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Counted from 0.
    pub index: u8,
    pub mask: u64,
    pub value: u64,
}

impl Argument {
    /// An `int`: the kernel looks at no more of it.
    pub const fn int(index: u8, value: u32) -> Self {
        Self { index, mask: 0xffff_ffff, value: value as u64 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    Read,
    /// Reads, writes, makes and removes files.
    Write,
    /// Likewise, and with other files in the same folder, which a changed configuration may name.
    WriteBeside,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metric {
    Number(u64),
    /// A text: what numbers beside it are about.
    Text(String),
    /// One for each of several things of a kind.
    List(Vec<Metric>),
    Named(Vec<(&'static str, Metric)>),
}

impl From<u64> for Metric {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Metric {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}
