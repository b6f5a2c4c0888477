//! The error of a subcommand: one line for a person, which says what to do.

use std::fmt;
use std::io;
use std::path::Path;

use fipsee_block::client;
use rustix::io::Errno;

use crate::no_daemon;

/// One line that ends with what to do; `main` puts `error: ` before it.
#[derive(Debug)]
pub(crate) struct Error {
    text: String,
    exit_code: u8,
}

/// What a shell reports of a process that a signal ended.
pub(crate) fn exit_code_of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128))
}

impl Error {
    /// A signal ended the command early.
    pub(crate) fn interrupted(signal: i32, text: impl fmt::Display) -> Self {
        Self { text: format!("interrupted: {text}"), exit_code: exit_code_of_signal(signal) }
    }

    pub(crate) const fn exit_code(&self) -> u8 {
        self.exit_code
    }

    /// An operation of the system failed: `what` completes "cannot ...".
    pub(crate) fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        format!("cannot {what}: {error}; {}", advice(error)).into()
    }

    /// Likewise for a file to be made or written at `path`: it may be its folder that is missing.
    pub(crate) fn io_at(what: impl fmt::Display, path: &Path, error: &io::Error) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        match folder.filter(|_| error.kind() == io::ErrorKind::NotFound) {
            Some(folder) => format!("the folder {} does not exist; create it, or name a file elsewhere", folder.display()).into(),
            None => Self::io(format_args!("{what} {}", path.display()), error),
        }
    }

    /// The same error with the place where it happened before it.
    pub(crate) fn at(place: impl fmt::Display, error: impl fmt::Display) -> Self {
        format!("{place}: {error}").into()
    }
}

fn advice(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => "make room there and repeat the command",
        Some(Errno::NOENT) => "check the name",
        Some(Errno::ACCESS | Errno::PERM) => "ask for the permission, or run as a user who has it",
        Some(Errno::ISDIR) => "name a file, not a directory",
        Some(Errno::ROFS) => "choose a place that can be written",
        Some(Errno::IO) => "see the kernel's log for the device",
        Some(Errno::NOMEM | Errno::MFILE | Errno::NFILE) => "raise the limit (ulimit -a shows them)",
        _ => "remove the cause and repeat the command",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl From<String> for Error {
    fn from(text: String) -> Self {
        Self { text, exit_code: 1 }
    }
}

impl From<&str> for Error {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<fipsee_net::Error> for Error {
    fn from(error: fipsee_net::Error) -> Self {
        match error {
            fipsee_net::Error::Connect { path, source } => client::Error::Connect { path, source }.into(),
            error => error.to_string().into(),
        }
    }
}

impl From<client::Error> for Error {
    fn from(error: client::Error) -> Self {
        no_daemon::cannot_connect(&error)
    }
}
