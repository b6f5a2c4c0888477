//! Requests to the daemon's admin socket: JSON-RPC 2.0, one object per line.

use std::io::{self, BufRead, BufReader};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fipsee_block::client;
use fipsee_daemon::admin::{admin_path, send};
use fipsee_ring::seqpacket::socket_address;
use serde_json::{Value, json};

use crate::error::Error;
use crate::no_daemon;

/// The daemon answers in microseconds unless another request keeps it busy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// It opens, makes or locks disks for these.
const SLOW: [&str; 3] = ["disk.add", "disk.resize", "reload"];
const SLOW_TIMEOUT: Duration = Duration::from_secs(120);

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

/// An answer that is an error.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    /// The daemon cannot open the disk's file, and would take it open.
    pub(crate) wants_file: bool,
}

/// Ask the daemon whose client socket is `socket`; returns the result.
pub(crate) fn ask(socket: &Path, method: &str, params: &Value) -> Result<Value, NoAnswer> {
    exchange(socket, method, params, &[])?.map_err(|refusal| NoAnswer::Other(refusal.message.into()))
}

/// Likewise, with open files for it.
pub(crate) fn exchange(
    socket: &Path,
    method: &str,
    params: &Value,
    files: &[BorrowedFd<'_>],
) -> Result<Result<Value, Refusal>, NoAnswer> {
    let path = admin_path(socket);
    let shown = path.display().to_string();
    let stream = connect(socket, &path)?;
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let talk = || -> io::Result<String> {
        stream.set_read_timeout(Some(if SLOW.contains(&method) { SLOW_TIMEOUT } else { ANSWER_TIMEOUT }))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        send(&stream, format!("{request}\n").as_bytes(), files)?;
        let mut line = String::new();
        match BufReader::new(&stream).read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line),
        }
    };
    let line = talk().map_err(|error| NoAnswer::Other(no_daemon::no_answer(socket, &error)))?;
    let mut answer: Value = serde_json::from_str(&line).map_err(|error| {
        let text =
            format!("the daemon at {shown} did not answer in JSON ({error}); is {} another program's socket?", socket.display());
        NoAnswer::Other(text.into())
    })?;
    if answer.get("error").is_none()
        && let Some(result) = answer.get_mut("result")
    {
        return Ok(Ok(result.take()));
    }
    match answer.get("error") {
        Some(Value::Object(error)) => {
            let message = error.get("message").and_then(Value::as_str).unwrap_or("refused").to_owned();
            let wants_file = error.get("data").is_some_and(|data| data["pass_file"] == true);
            Ok(Err(Refusal { message, wants_file }))
        }
        _ => {
            let text =
                format!("the daemon at {shown} is of another version: it speaks another protocol; use its fipsee, or restart it");
            Err(NoAnswer::Other(text.into()))
        }
    }
}

fn connect(socket: &Path, path: &Path) -> Result<UnixStream, NoAnswer> {
    socket_address(path).map_err(|error| NoAnswer::Other(Error::from(error.to_string())))?;
    UnixStream::connect(path).map_err(|source| {
        let denied = source.kind() == io::ErrorKind::PermissionDenied;
        if denied {
            return NoAnswer::NoPermission(no_daemon::no_permission(path));
        }
        // Without a daemon, the client socket is the one that the user knows.
        let missing = if socket.exists() { path.to_owned() } else { socket.to_owned() };
        NoAnswer::Other(client::Error::Connect { path: missing, source }.into())
    })
}

/// An absolute path as text, for the daemon, which has another working directory.
pub(crate) fn absolute(path: &Path) -> Result<String, Error> {
    let absolute =
        std::path::absolute(path).map_err(|error| Error::io(format_args!("use the path {}", path.display()), &error))?;
    let text = absolute.into_os_string().into_string();
    text.map_err(|path| format!("the path {} is not UTF-8; give the file another name", PathBuf::from(path).display()).into())
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
