//! Who stands between a machine and its back end, and meddles when a test asks for it (`tests/vm/meddler.py`).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::back_end::is_listening;
use super::machine::Group;

const SCRIPT: &str = "tests/vm/meddler.py";
const START_LIMIT: Duration = Duration::from_secs(150);
const LOOK: Duration = Duration::from_millis(20);

/// A meddler that listens.
pub(super) struct Meddler {
    socket: PathBuf,
    input: ChildStdin,
    answers: BufReader<ChildStdout>,
    _process: Group,
}

impl Meddler {
    pub(super) fn start(root: &Path, folder: &Path, back_end: &Path) -> Result<Self, String> {
        let socket = folder.join("meddler.sock");
        let log = folder.join("meddler.log");
        let log = File::create(&log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let mut command = Command::new("python3");
        command.arg(root.join(SCRIPT)).arg(&socket).arg(back_end);
        let mut process = Group::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log))?;
        let (input, answers) = process.pipes().ok_or("the meddler has no pipes")?;
        let deadline = Instant::now() + START_LIMIT;
        while !is_listening(&socket) {
            if process.ended().is_some() || Instant::now() > deadline {
                return Err(format!("{SCRIPT} opens no socket {}; see meddler.log (--keep)", socket.display()));
            }
            // tidy: allow sleep, another program's socket cannot be waited for
            thread::sleep(LOOK);
        }
        Ok(Self { socket, input, answers: BufReader::new(answers), _process: process })
    }

    /// Where the machine connects.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Have it do something, until it is done.
    pub(super) fn tell(&mut self, words: &str) -> Result<(), String> {
        let mut answer = String::new();
        let asked = writeln!(self.input, "{words}").and_then(|()| self.answers.read_line(&mut answer));
        asked.map_err(|error| format!("cannot tell the meddler '{words}': {error}"))?;
        if answer.trim() == "done" { Ok(()) } else { Err(format!("the meddler, told '{words}', says '{}'", answer.trim())) }
    }
}
