//! The C library for tests: how programs are compiled, linked and run with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{has_program, run, shipped};

/// The repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// How a program is linked with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// With `libfipsee.so`.
    Shared,
    /// With `libfipsee.a`.
    Static,
    /// The whole program, libc included.
    AllStatic,
}

/// What ships, and the tools to use it with.
#[derive(Debug)]
pub struct Library {
    /// Where it was installed.
    pub prefix: PathBuf,
}

impl Library {
    /// `None`, with a message, when something of it is not here.
    #[must_use]
    pub fn new(what: &str) -> Option<Self> {
        let library = shipped(what, "lib/libfipsee.so")?;
        let prefix = library.parent()?.parent()?.canonicalize().ok()?;
        ["gcc", "clang", "pkg-config"].iter().all(|program| has_program(what, program)).then_some(Self { prefix })
    }

    /// What pkg-config says.
    #[must_use]
    pub fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig")).args(arguments).arg("fipsee");
        run(&mut command).split_whitespace().map(str::to_owned).collect()
    }

    /// Compile `source` of the repository as strictly as our users might.
    pub fn compile(&self, compiler: &str, link: Link, extra: &[&str], source: &str, program: &Path) {
        let mut command = Command::new(compiler);
        command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"]).args(extra);
        command.args(self.pkg_config(&["--cflags"])).arg(root().join(source)).arg("-o").arg(program);
        match link {
            Link::Shared => command.args(self.pkg_config(&["--libs"])),
            Link::AllStatic => command.arg("-static").args(self.pkg_config(&["--static", "--libs"])),
            Link::Static => {
                let libraries = self.pkg_config(&["--static", "--libs"]);
                command.args(libraries.iter().map(|name| if name == "-lfipsee" { "-l:libfipsee.a" } else { name }))
            }
        };
        run(&mut command);
    }

    /// `command`, able to find the shared library.
    pub fn able<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("LD_LIBRARY_PATH", self.prefix.join("lib"))
    }
}

/// What a test program runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// As it is.
    Nothing,
    /// AddressSanitizer, UndefinedBehaviorSanitizer, LeakSanitizer.
    Sanitizers,
    /// Valgrind's memory checker.
    Valgrind,
}

impl Under {
    /// The command that runs `program` so.
    #[must_use]
    pub fn command(self, program: &Path) -> Command {
        let mut command = match self {
            Self::Valgrind => {
                let mut command = Command::new("valgrind");
                command.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite,possible"]);
                // Spinning threads must not keep the others from running.
                command.args(["--fair-sched=yes", "--track-fds=no"]).arg(program);
                command
            }
            _ => Command::new(program),
        };
        command.env("ASAN_OPTIONS", "detect_leaks=1").env("UBSAN_OPTIONS", "print_stacktrace=1");
        command
    }
}

/// The compiler's options for [`Under::Sanitizers`].
pub const UNDEFINED: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
