//! The two ends of a copy, as the command line names them.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The source or destination of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `fip:NAME`, `fip:NAME@SOCKET`
    Disk {
        /// Name of the disk.
        name: String,
        /// Its daemon's socket.
        socket: PathBuf,
    },
    /// A path.
    File(PathBuf),
    /// `-`
    Standard,
}

impl Endpoint {
    pub(super) fn parse(text: &str, default_socket: &Path) -> Result<Self, Error> {
        let Some(disk) = text.strip_prefix("fip:") else {
            return match text {
                "" => Err("a name is empty; write a file, fip:NAME or -".into()),
                "-" => Ok(Self::Standard),
                path => Ok(Self::File(path.into())),
            };
        };
        let (name, socket) = disk.split_once('@').map_or((disk, default_socket), |(name, socket)| (name, Path::new(socket)));
        if name.is_empty() || socket.as_os_str().is_empty() {
            return Err(format!("'{text}' names no disk; write fip:NAME or fip:NAME@SOCKET").into());
        }
        Ok(Self::Disk { name: name.to_owned(), socket: socket.to_owned() })
    }

    /// For messages about the source.
    pub(super) fn shown_as_source(&self) -> String {
        if *self == Self::Standard { "standard input".to_owned() } else { self.to_string() }
    }

    const fn is_disk(&self) -> bool {
        matches!(self, Self::Disk { .. })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk { name, .. } => write!(f, "fip:{name}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Standard => f.write_str("-"),
        }
    }
}

/// Check that one can be copied to the other.
pub(super) fn check_pair(source: &Endpoint, destination: &Endpoint, verify: bool) -> Result<(), Error> {
    if !source.is_disk() && !destination.is_disk() {
        return Err(
            format!("neither '{source}' nor '{destination}' is a disk; write fip:NAME for a disk, or use cp for files").into()
        );
    }
    if source == destination {
        return Err(format!("source and destination are the same disk, {source}; name two").into());
    }
    if verify && *destination == Endpoint::Standard {
        return Err("--verify cannot read standard output back; copy to a file, or leave --verify out".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Endpoint {
        Endpoint::parse(text, Path::new("/default")).expect("an endpoint")
    }

    #[test]
    fn disks_files_and_standard_streams_are_distinguished() {
        assert_eq!(parse("fip:a"), Endpoint::Disk { name: "a".into(), socket: "/default".into() });
        assert_eq!(parse("fip:a@/other"), Endpoint::Disk { name: "a".into(), socket: "/other".into() });
        assert_eq!(parse("./fip:a"), Endpoint::File("./fip:a".into()));
        assert_eq!(parse("-"), Endpoint::Standard);
        assert!(Endpoint::parse("fip:", Path::new("/default")).is_err());
        assert!(Endpoint::parse("fip:a@", Path::new("/default")).is_err());
    }

    #[test]
    fn two_files_and_one_disk_twice_are_refused() {
        assert!(check_pair(&parse("x"), &parse("y"), false).is_err());
        assert!(check_pair(&parse("fip:a"), &parse("fip:a@/default"), false).is_err());
        assert!(check_pair(&parse("fip:a"), &parse("fip:a@/other"), false).is_ok());
        assert!(check_pair(&parse("fip:a"), &parse("-"), true).is_err());
    }
}
