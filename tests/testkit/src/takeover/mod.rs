//! Takeovers with a test in place of a daemon, or between the two.

pub mod between;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::SendFlags;
use serde_json::Value;

use crate::{Daemon, TIMEOUT, packets};

/// The pauses that new daemons logged, in microseconds.
pub fn pauses_us(log: &str) -> Vec<u64> {
    let lines = log.lines().filter(|line| line.contains("took over from another daemon"));
    let of_line = |line: &str| line.split("paused_us=").nth(1)?.split_whitespace().next()?.parse().ok();
    lines.filter_map(of_line).collect()
}

/// The request of a new daemon at the admin socket.
pub fn takeover_request(wait_ms: u64) -> String {
    crate::daemon::json_rpc(&serde_json::json!({ "method": "takeover", "version": 10, "wait_ms": wait_ms }))
}

/// A test in place of the new daemon, which may send the old one anything.
pub struct FakeNew {
    line: OwnedFd,
    _stream: UnixStream,
}

impl FakeNew {
    /// Ask for a takeover as a new daemon does.
    pub fn connect(daemon: &Daemon) -> Self {
        let stream = UnixStream::connect(fipsee_daemon::admin::admin_path(&daemon.socket())).expect("an admin socket");
        (&stream).write_all(takeover_request(1000).as_bytes()).expect("it reads");
        let (answer, line) = receive_with_descriptors(&stream).expect("it answers");
        let line = line.into_iter().next().unwrap_or_else(|| panic!("no line: {}", String::from_utf8_lossy(&answer)));
        Self { line, _stream: stream }
    }

    /// The next packet and its descriptors; `None` when the old daemon has hung up.
    pub fn receive(&self) -> Option<(Value, Vec<OwnedFd>)> {
        assert!(packets::is_readable(&self.line, TIMEOUT), "nothing within {TIMEOUT:?}");
        let (bytes, descriptors) = receive_with_descriptors(&self.line)?;
        Some((serde_json::from_slice(&bytes).expect("JSON"), descriptors))
    }

    /// `false` when the old daemon has hung up.
    pub fn try_send(&self, bytes: &[u8]) -> bool {
        rustix::net::send(&self.line, bytes, SendFlags::NOSIGNAL).is_ok()
    }

    pub fn send(&self, bytes: &[u8]) {
        assert!(self.try_send(bytes), "the old daemon has hung up");
    }

    /// The kind of the last packet before the old daemon hangs up.
    pub fn last_packet(&self) -> Option<String> {
        let mut last = None;
        while let Some((packet, _)) = self.receive() {
            last = packet["packet"].as_str().map(str::to_owned);
        }
        last
    }
}

/// One message with its descriptors; `None` at the end.
pub fn receive_with_descriptors(socket: impl AsFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; 64 << 10];
    let (length, descriptors) = packets::receive(socket, &mut bytes).ok()?;
    bytes.truncate(length);
    (length > 0).then_some((bytes, descriptors))
}
