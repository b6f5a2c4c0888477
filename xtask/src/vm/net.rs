//! Two machines at ports of a network that `fipseed` serves.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::back_end::await_socket;
use super::machine::{self, Group, Next, Outcome};
use super::unready::Unready;
use crate::{files, step};

/// The MTU of the network.
const MTU: u16 = 1500;

/// A port, and the machine that has it.
pub(super) struct MachinePort {
    pub(super) name: &'static str,
    pub(super) mac: &'static str,
    own: &'static str,
    other: &'static str,
}

const PORTS: [MachinePort; 2] = [
    MachinePort { name: "m1", mac: "02:00:00:00:00:11", own: "192.0.2.1", other: "192.0.2.2" },
    MachinePort { name: "m2", mac: "02:00:00:00:00:12", own: "192.0.2.2", other: "192.0.2.1" },
];

impl MachinePort {
    pub(super) fn socket(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.sock", self.name))
    }

    /// Further settings of its script.
    pub(super) fn settings(&self) -> String {
        let Self { mac, own, other, .. } = self;
        format!("fip.mac={mac} fip.mtu={MTU} fip.own={own} fip.other={other}")
    }
}

fn serve(folder: &Path, programs: &Path) -> Result<Group, String> {
    let mut text = format!("[[network]]\nname = \"lan\"\nmtu = {MTU}\n");
    for port in &PORTS {
        let MachinePort { name, mac, .. } = port;
        let socket = port.socket(folder).display().to_string();
        text.push_str(&format!("[[network.port]]\nname = \"{name}\"\nmac = \"{mac}\"\nvhost_user = \"{socket}\"\n"));
    }
    let config = folder.join("net.toml");
    files::write(&config, text)?;
    let log = File::create(folder.join("back-end.log")).and_then(|log| Ok((log.try_clone()?, log)));
    let (output, errors) = log.map_err(|error| format!("cannot write a log in {}: {error}", folder.display()))?;
    let mut command = Command::new(programs.join("fipseed"));
    command.arg("--config").arg(config).arg("--listen").arg(folder.join("fipsee.sock"));
    let mut daemon = Group::spawn(command.stdin(Stdio::null()).stdout(output).stderr(errors))?;
    PORTS.iter().try_for_each(|port| await_socket(&port.socket(folder), &mut daemon))?;
    Ok(daemon)
}

/// Take the port of a machine down, or up again.
fn set_link(folder: &Path, programs: &Path, port: &MachinePort, to: &str) -> Result<(), String> {
    let mut command = Command::new(programs.join("fipsee"));
    command.arg("--connect").arg(folder.join("fipsee.sock"));
    step::succeed(command.args(["net", "set", &format!("lan/{}", port.name), &format!("--{to}")])).map(drop)
}

/// Serve the network, and run both machines to their ends; `command` starts one.
pub(super) fn run(
    folder: &Path,
    programs: &Path,
    limit: Duration,
    command: impl Fn(&MachinePort) -> Result<Command, Unready>,
) -> Result<Vec<Outcome>, Unready> {
    let mut daemon = serve(folder, programs)?;
    let commands: Vec<Command> = PORTS.iter().map(command).collect::<Result<_, _>>()?;
    let run = |port: &MachinePort, mut command: Command| {
        let act = |event: &str| match event {
            "down" | "up" => set_link(folder, programs, port, event).map(|()| Next::GoesOn),
            _ => Err("this scenario does not expect it".to_owned()),
        };
        machine::run(&mut command, limit, &mut std::io::sink(), act)
    };
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> = PORTS.iter().zip(commands).map(|(port, command)| scope.spawn(move || run(port, command))).collect();
        let ended = running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("its thread panicked".to_owned())));
        ended.collect::<Result<_, String>>()
    })?;
    match daemon.ended() {
        Some(status) => Err(Unready::Broken(format!("fipseed ended with {status} while the guests ran"))),
        None => Ok(outcomes),
    }
}
