//! The fault proxy between a machine and its back end; it acts when a test asks for it (`tests/vm/fault_proxy.py`).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use super::back_end::await_socket;
use super::machine::Group;

const SCRIPT: &str = "tests/vm/fault_proxy.py";

/// A fault proxy that listens.
pub(super) struct FaultProxy {
    socket: PathBuf,
    input: ChildStdin,
    answers: BufReader<ChildStdout>,
    _process: Group,
}

impl FaultProxy {
    pub(super) fn start(root: &Path, folder: &Path, back_end: &Path) -> Result<Self, String> {
        let socket = folder.join("fault_proxy.sock");
        let log = folder.join("fault_proxy.log");
        let log = File::create(&log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let mut command = Command::new("python3");
        command.arg(root.join(SCRIPT)).arg(&socket).arg(back_end);
        let mut process = Group::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log))?;
        let (input, answers) = process.pipes().ok_or("the fault proxy has no pipes")?;
        await_socket(&socket, &mut process).map_err(|error| format!("{SCRIPT}: {error}; see fault_proxy.log (--keep)"))?;
        Ok(Self { socket, input, answers: BufReader::new(answers), _process: process })
    }

    /// Where the machine connects.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Have it do something, until it is done.
    pub(super) fn report(&mut self, words: &str) -> Result<(), String> {
        let mut answer = String::new();
        let asked = writeln!(self.input, "{words}").and_then(|()| self.answers.read_line(&mut answer));
        asked.map_err(|error| format!("cannot send '{words}' to the fault proxy: {error}"))?;
        if answer.trim() == "done" { Ok(()) } else { Err(format!("the fault proxy answers '{words}' with '{}'", answer.trim())) }
    }
}
