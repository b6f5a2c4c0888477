//! Requests to the daemon's admin socket: one JSON request per line, one JSON answer per line.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use fipsee_block::client;
use fipsee_daemon::admin::admin_path;
use fipsee_ring::seqpacket::socket_address;
use serde_json::Value;

use crate::error::Error;
use crate::no_daemon;

/// The daemon answers in microseconds unless another request keeps it busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason that there is no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// The admin socket is for the daemon's own user.
    NoPermission(Error),
    /// Everything else.
    Other(Error),
}

impl From<NoAnswer> for Error {
    fn from(no_answer: NoAnswer) -> Self {
        match no_answer {
            NoAnswer::NoPermission(error) | NoAnswer::Other(error) => error,
        }
    }
}

/// Ask the daemon whose client socket is `socket`.
pub(crate) fn ask(socket: &Path, request: &Value) -> Result<Value, NoAnswer> {
    let path = admin_path(socket);
    let shown = path.display().to_string();
    socket_address(&path).map_err(|error| NoAnswer::Other(Error::from(error.to_string())))?;
    let stream = UnixStream::connect(&path).map_err(|source| {
        let denied = source.kind() == io::ErrorKind::PermissionDenied;
        if denied {
            return NoAnswer::NoPermission(no_daemon::no_permission(&path));
        }
        // Without a daemon, the client socket is the one that the user knows.
        let missing = if socket.exists() { path.clone() } else { socket.to_owned() };
        NoAnswer::Other(client::Error::Connect { path: missing, source }.into())
    })?;
    let exchange = || -> io::Result<String> {
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let mut writer = &stream;
        writer.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        match BufReader::new(&stream).read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line),
        }
    };
    let line = exchange().map_err(|error| NoAnswer::Other(no_daemon::no_answer(socket, &error)))?;
    let answer: Value = serde_json::from_str(&line).map_err(|error| {
        let text =
            format!("the daemon at {shown} did not answer in JSON ({error}); is {} another program's socket?", socket.display());
        NoAnswer::Other(text.into())
    })?;
    match answer.get("error").and_then(Value::as_str) {
        Some(text) => Err(NoAnswer::Other(text.into())),
        None => Ok(answer),
    }
}

/// The unsigned number under `key`; 0 when a daemon of another version omits it.
pub(crate) fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}

/// The text under `key`; empty when a daemon of another version omits it.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

/// The list under `key`; empty when a daemon of another version omits it.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
