//! Folders of tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::system;

/// A directory that is removed with its content, unless it was there before.
#[derive(Debug)]
pub struct Scratch(pub PathBuf, bool);

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    pub fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    pub fn within(parent: &Path) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("fipsee-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        std::fs::create_dir_all(&path).expect("a directory for the test's files");
        Self(path, true)
    }

    /// A directory of the caller's, which is kept.
    pub fn existing(path: &Path) -> Self {
        Self(path.to_owned(), false)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A file with this content.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a file is written");
        path
    }

    /// A copy of a program, to run. Another process makes it: a child that another thread forks while this one has the copy open to write
    /// inherits that descriptor, and until that child executes its own program the kernel refuses to execute the copy (ETXTBSY).
    pub fn program(&self, name: &str, original: impl AsRef<Path>) -> PathBuf {
        let copy = self.path(name);
        let mut install = Command::new("install");
        system::run(install.args(["-m", "755"]).arg(original.as_ref()).arg(&copy)).expect("a copy");
        copy
    }

    /// Write the configuration file `f.toml`, with this directory in place of `{dir}`.
    pub fn configure(&self, text: &str) {
        self.file("f.toml", self.fill(text));
    }

    /// `text` with this directory in place of `{dir}`.
    pub fn fill(&self, text: &str) -> String {
        text.replace("{dir}", self.0.to_str().expect("an ordinary path"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.1 {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
