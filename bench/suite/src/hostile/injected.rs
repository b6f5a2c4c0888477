//! What is injected, beside which victim, and its baseline.

use std::path::{Path, PathBuf};

use fipsee_testkit::faulty::fault::{InjectedFault, Until, Way};
use fipsee_testkit::faulty::ports::{self, PortFault};
use fipsee_testkit::faulty::{faults as clients, guests};

/// Ports of the network `lan`: those of the victim, that of the neighbour, and that which sends to it. Each with the last byte of its address.
pub(super) const VICTIMS: [(&str, u8); 2] = [("lan/a", 1), ("lan/b", 2)];
const NEIGHBOUR: (&str, u8) = ("lan/c", 3);
const SENDER: (&str, u8) = ("lan/d", 4);

/// As many broadcasts per second as a careful administrator lets a port send that nothing is known of.
const FLOOD_LIMIT: u32 = 1000;

/// The network's part of the configuration.
pub(super) fn network() -> String {
    let mut text = "[[network]]\nname = \"lan\"\n".to_owned();
    for (name, number) in VICTIMS.into_iter().chain([NEIGHBOUR, SENDER]) {
        let (_, name) = name.split_once('/').unwrap_or_default();
        text += &format!(
            "[[network.port]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:0{number}\"\nvlan = 10\nflood_limit = {FLOOD_LIMIT}\n"
        );
    }
    text
}

const fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

/// A fault, or a baseline.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Injected {
    /// Of a client of a disk, or a guest.
    Disk(&'static InjectedFault),
    /// Of a client of a port.
    Port(&'static PortFault),
}

impl Injected {
    pub(super) fn faults() -> impl Iterator<Item = Self> {
        clients::FAULTS.iter().chain(guests::FAULTS).map(Self::Disk).chain(ports::FAULTS.iter().map(Self::Port))
    }

    /// The fault or baseline of this name.
    pub(super) fn find(name: &str) -> Option<Self> {
        Self::faults().flat_map(|fault| std::iter::once(fault).chain(fault.baseline())).find(|found| found.name() == name)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Disk(fault) => fault.name,
            Self::Port(fault) => fault.name,
        }
    }

    pub(super) const fn gets(self) -> &'static str {
        match self {
            Self::Disk(fault) => fault.gets,
            Self::Port(fault) => fault.gets,
        }
    }

    pub(super) fn baseline(self) -> Option<Self> {
        match self {
            Self::Disk(fault) => fault.baseline.map(Self::Disk),
            Self::Port(fault) => fault.baseline.map(Self::Port),
        }
    }

    /// Where its peer connects: to the daemon's socket, or as a hypervisor.
    pub(super) fn socket(self, clients: PathBuf, guests: &Path) -> PathBuf {
        match self {
            Self::Disk(InjectedFault { way: Way::Guest, .. }) => guests.to_owned(),
            _ => clients,
        }
    }

    pub(super) fn inject(self, socket: &Path, until: &mut Until<'_>) -> std::io::Result<()> {
        match self {
            Self::Disk(fault) => fault.inject(socket, "neighbour", until),
            Self::Port(fault) => fault.inject_beside(socket, [NEIGHBOUR.0, SENDER.0], [mac(NEIGHBOUR.1), mac(SENDER.1)], until),
        }
    }
}

/// Whose requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    DiskClient,
    Pair,
}

/// A fault beside a victim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) fault: Injected,
    pub(super) beside: Beside,
}

impl Case {
    /// Faults of disks beside a client of a disk; those of ports beside a pair of ports and beside that.
    pub(super) fn all() -> Vec<Self> {
        let of = |fault: Injected| match fault {
            Injected::Disk(_) => vec![Self { fault, beside: Beside::DiskClient }],
            Injected::Port(_) => [Beside::Pair, Beside::DiskClient].map(|beside| Self { fault, beside }).to_vec(),
        };
        Injected::faults().flat_map(of).collect()
    }

    pub(super) fn name(&self) -> String {
        match (self.fault, self.beside) {
            (Injected::Disk(fault), _) => fault.name.to_owned(),
            (Injected::Port(fault), Beside::Pair) => format!("port: {}", fault.name),
            (Injected::Port(fault), Beside::DiskClient) => format!("port, beside a disk's client: {}", fault.name),
        }
    }

    pub(super) const fn is_of_port(&self) -> bool {
        matches!(self.fault, Injected::Port(_))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_fault_has_a_baseline_and_is_found_by_a_name_of_its_own() {
        let faults: Vec<Injected> = Injected::faults().collect();
        let names: BTreeSet<&str> = faults.iter().map(|fault| fault.name()).collect();
        assert_eq!(names.len(), faults.len());
        for fault in faults {
            let baseline = fault.baseline().unwrap_or_else(|| panic!("{} has no baseline", fault.name()));
            assert!(baseline.baseline().is_none() && !names.contains(baseline.name()), "{}", fault.name());
            for one in [fault, baseline] {
                assert_eq!(Injected::find(one.name()).map(Injected::name), Some(one.name()));
            }
        }
        let cases: BTreeSet<String> = Case::all().iter().map(Case::name).collect();
        assert_eq!(cases.len(), Case::all().len());
    }
}
