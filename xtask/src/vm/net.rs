//! Two machines at ports of a network that `fipseed` serves.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::back_end::await_socket;
use super::machine::{self, Group, Next, Outcome};
use super::unready::Unready;
use crate::files;

/// The MTU of the network.
const MTU: u16 = 1500;

/// A port, and the machine that has it.
struct Seat {
    name: &'static str,
    mac: &'static str,
    own: &'static str,
    other: &'static str,
}

const SEATS: [Seat; 2] = [
    Seat { name: "m1", mac: "02:00:00:00:00:11", own: "192.0.2.1", other: "192.0.2.2" },
    Seat { name: "m2", mac: "02:00:00:00:00:12", own: "192.0.2.2", other: "192.0.2.1" },
];

impl Seat {
    fn socket(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.sock", self.name))
    }

    /// Further settings of its script.
    fn settings(&self) -> String {
        let Self { mac, own, other, .. } = self;
        format!("fip.mac={mac} fip.mtu={MTU} fip.own={own} fip.other={other}")
    }
}

fn serve(folder: &Path, programs: &Path) -> Result<Group, String> {
    let mut text = format!("[[network]]\nname = \"lan\"\nmtu = {MTU}\n");
    for seat in &SEATS {
        let Seat { name, mac, .. } = seat;
        let socket = seat.socket(folder).display().to_string();
        text.push_str(&format!("[[network.port]]\nname = \"{name}\"\nmac = \"{mac}\"\nvhost_user = \"{socket}\"\n"));
    }
    let config = folder.join("net.toml");
    files::write(&config, text)?;
    let log = File::create(folder.join("back-end.log")).and_then(|log| Ok((log.try_clone()?, log)));
    let (output, errors) = log.map_err(|error| format!("cannot write a log in {}: {error}", folder.display()))?;
    let mut command = Command::new(programs.join("fipseed"));
    command.arg("--config").arg(config).arg("--listen").arg(folder.join("fipsee.sock"));
    let mut daemon = Group::spawn(command.stdin(Stdio::null()).stdout(output).stderr(errors))?;
    SEATS.iter().try_for_each(|seat| await_socket(&seat.socket(folder), &mut daemon))?;
    Ok(daemon)
}

/// Serve the network, and run both machines to their ends; `command` starts one with its device at a path and these further settings.
pub(super) fn run(
    folder: &Path,
    programs: &Path,
    limit: Duration,
    command: impl Fn(&Path, &str) -> Result<Command, Unready>,
) -> Result<Vec<Outcome>, Unready> {
    let mut daemon = serve(folder, programs)?;
    let commands: Vec<Command> =
        SEATS.iter().map(|seat| command(&seat.socket(folder), &seat.settings())).collect::<Result<_, _>>()?;
    let run = |mut command: Command| {
        let unexpected = |_: &str| Err::<Next, _>("this scenario does not expect it".to_owned());
        machine::run(&mut command, limit, &mut std::io::sink(), unexpected)
    };
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let running: Vec<_> = commands.into_iter().map(|command| scope.spawn(|| run(command))).collect();
        let ended = running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("its thread panicked".to_owned())));
        ended.collect::<Result<_, String>>()
    })?;
    match daemon.ended() {
        Some(status) => Err(Unready::Broken(format!("fipseed ended with {status} while the guests ran"))),
        None => Ok(outcomes),
    }
}
