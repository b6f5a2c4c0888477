//! Messages for a person while the disk is mounted: on standard error, or in the system's log once in the background.

use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;

static SYSTEM_LOG: OnceLock<Option<UnixDatagram>> = OnceLock::new();

/// Facility daemon, severity notice (RFC 5424).
const PRIORITY: u8 = 3 * 8 + 5;

/// From now on, write to the system's log instead of standard error.
pub(super) fn use_system_log() {
    let connect = || {
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect("/dev/log").ok()?;
        Some(socket)
    };
    SYSTEM_LOG.get_or_init(connect);
}

/// One line.
pub(super) fn log(text: &str) {
    match SYSTEM_LOG.get() {
        Some(Some(socket)) => {
            // A failed log is no reason to stop serving.
            let _ = socket.send(format!("<{PRIORITY}>fipsee[{}]: {text}", std::process::id()).as_bytes());
        }
        Some(None) => {}
        None => eprintln!("note: {text}"),
    }
}
