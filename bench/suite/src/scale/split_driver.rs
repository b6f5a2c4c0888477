//! The file server of the report, `bench/c/split_driver.c`, compiled when it is needed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fipsee_measure::cpus::Cpus;
use fipsee_testkit::Scratch;
use fipsee_testkit::process::{Guard, die_with_parent};

use super::figures::ClientTimes;
use crate::place::{Placement, on, on_both};

const SOURCE: &str = "bench/c/split_driver.c";

/// The program, in a folder that goes with it.
pub(super) struct SplitDriver {
    folder: Scratch,
    program: PathBuf,
}

impl SplitDriver {
    /// Its shared memory goes below `memory_directory`.
    pub(super) fn build(memory_directory: &Path) -> Result<Self, String> {
        let folder = Scratch::within(memory_directory);
        let program = std::env::temp_dir().join(format!("fipsee-split-driver-{}", std::process::id()));
        let mut compile = Command::new("cc");
        compile.args(["-std=gnu11", "-O2", "-pthread", SOURCE, "-o"]).arg(&program);
        let output = compile.output().map_err(|error| format!("cannot run cc: {error}; install gcc"))?;
        if !output.status.success() {
            return Err(format!("cannot compile {SOURCE}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(Self { folder, program })
    }

    /// A server and its client process with so many threads, from start to end.
    pub(super) fn run(
        &self,
        (slots, threads, requests): (u32, usize, usize),
        file: &Path,
        placement: Placement,
        cpus: Cpus,
    ) -> Result<Vec<ClientTimes>, String> {
        let folder = Scratch::within(&self.folder.0);
        let _server = self.serve(&folder.0, slots, file, placement, cpus)?;
        let output = folder.path("latencies");
        let mut client = Command::new(&self.program);
        client.arg("client").arg(&folder.0).args([threads.to_string(), requests.to_string()]).arg(&output);
        let mut start =
            || die_with_parent(&mut client).output().map_err(|error| format!("cannot run {}: {error}", self.program.display()));
        let ended = match placement {
            Placement::Free => on_both(cpus, &mut start)?,
            _ => on(cpus.client, &mut start)?,
        };
        if !ended.status.success() {
            return Err(format!("a client of the report's server failed: {}", String::from_utf8_lossy(&ended.stderr).trim()));
        }
        let bytes = std::fs::read(&output).map_err(|error| format!("cannot read {}: {error}", output.display()))?;
        parse(&bytes).ok_or_else(|| format!("{} has fewer figures than it says", output.display()))
    }

    fn serve(&self, folder: &Path, slots: u32, file: &Path, placement: Placement, cpus: Cpus) -> Result<Guard, String> {
        let mut command = Command::new(&self.program);
        command.arg("server").arg(folder).arg(slots.to_string()).arg(file).stdin(Stdio::null()).stdout(Stdio::piped());
        let child =
            die_with_parent(&mut command).spawn().map_err(|error| format!("cannot run {}: {error}", self.program.display()))?;
        let mut server = Guard(child);
        placement.apply(server.0.id(), cpus)?;
        let mut line = String::new();
        let said = server.0.stdout.as_mut().map(|out| BufReader::new(out).read_line(&mut line));
        if matches!(said, Some(Ok(1..))) { Ok(server) } else { Err("the report's server ended before it served".to_owned()) }
    }
}

impl Drop for SplitDriver {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.program);
    }
}

/// What a client process wrote: for each thread the number of its requests, its time, and theirs.
fn parse(bytes: &[u8]) -> Option<Vec<ClientTimes>> {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
    let mut clients = Vec::new();
    while let Some(count) = words.next() {
        let elapsed_ns = words.next()?;
        let count = usize::try_from(count).ok()?;
        let latencies_ns: Vec<u64> = words.by_ref().take(count).collect();
        if latencies_ns.len() < count {
            return None;
        }
        clients.push(ClientTimes { elapsed_ns, latencies_ns });
    }
    rest.is_empty().then_some(clients)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_threads_are_read_and_missing_ones_are_noticed() {
        let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let clients = parse(&bytes(&[2, 900, 400, 500, 1, 700, 600])).expect("two threads");
        assert_eq!(clients.iter().map(|client| client.elapsed_ns).collect::<Vec<_>>(), [900, 700]);
        assert_eq!((&clients[0].latencies_ns[..], &clients[1].latencies_ns[..]), (&[400, 500][..], &[600][..]));
        assert!(parse(&bytes(&[2, 900, 400])).is_none() && parse(&[0; 7]).is_none());
    }
}
