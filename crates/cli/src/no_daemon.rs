//! What to do about a daemon that is not there, or does not answer.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use fipsee_block::client;
use fipsee_daemon::config::group_name;

use crate::error::Error;

/// The socket of the packages' unit.
const SYSTEM_SOCKET: &str = "/run/fipsee/fipsee.sock";

/// What was named as the daemon's socket must be one.
pub(crate) fn check_socket(path: &Path) -> Result<(), Error> {
    match path.metadata() {
        Ok(found) if !found.file_type().is_socket() => {
            Err(format!("{} is not a socket; name the one that fipseed listens at", path.display()).into())
        }
        _ => Ok(()),
    }
}

/// Does the service manager start the daemon at this socket?
fn is_a_service(socket: &Path) -> bool {
    socket == Path::new(SYSTEM_SOCKET) && Path::new("/run/systemd/system").is_dir()
}

/// It cannot be connected to.
pub(crate) fn cannot_connect(error: &client::Error) -> Error {
    match error {
        client::Error::Connect { path, source }
            if is_a_service(path) && matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
        {
            format!("{error}; systemctl status fipseed.socket fipseed says why it does not run").into()
        }
        _ => error.to_string().into(),
    }
}

/// This user may not open its admin socket.
pub(crate) fn no_permission(admin: &Path) -> Error {
    let group = admin.metadata().ok().filter(|found| found.mode() & 0o020 != 0).and_then(|found| group_name(found.gid()));
    let group = group.map_or_else(String::new, |name| format!(", or join the group {name},"));
    format!("no permission to open {}; use the daemon's user or root{group} for this command", admin.display()).into()
}

/// It did not answer, or ended (an error of end of file) before it did.
pub(crate) fn no_answer(socket: &Path, error: &io::Error) -> Error {
    let shown = socket.display();
    let (look, log) =
        if is_a_service(socket) { ("systemctl status fipseed", "journalctl -u fipseed") } else { ("ps", "its log") };
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
            "the daemon at {shown} did not answer in time, it is stopped or overloaded; look at its process ({look}) and at {log}, or \
             restart it"
        )
        .into(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            format!("the daemon at {shown} ended before it answered; {log} says why").into()
        }
        _ => Error::io(format_args!("talk to the daemon at {shown}"), error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_for_no_answer_says_what_to_do() {
        for (kind, part) in [
            (io::ErrorKind::WouldBlock, "look at its process (ps) and at its log, or restart it"),
            (io::ErrorKind::ConnectionReset, "ended before it answered; its log says why"),
            (io::ErrorKind::UnexpectedEof, "ended before it answered; its log says why"),
            (io::ErrorKind::Other, "cannot talk to the daemon at /s"),
        ] {
            let text = no_answer(Path::new("/s"), &kind.into()).to_string();
            assert!(text.contains(part) && !text.contains(".admin"), "{text}");
        }
    }
}
