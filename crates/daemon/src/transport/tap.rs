//! Devices of the host as ports of networks. Each is open before the daemon confines itself, or was passed; the workers of the networks
//! serve them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fipsee_net::server::ServedPort;
use fipsee_net::server::tap::{self, Settings, Tap, TapEnd, TapQueue, TapReceiver};
use fipsee_net::switch::Rules;
use fipsee_ring::doorbell::EventDoorbell;
use fipsee_serve::{Assignment, NotAdded, QueueName, Which};

use crate::config::{NetworkConfig, PortConfig, TapConfig};
use crate::live::{FixedQueues, Live};
use crate::worker::{Command, DiskEngine, WorkerHandle};

/// What the interface of a port is to have; `is_new`: it was made for that.
pub(crate) fn settings(mtu: u16, rules: &Rules, is_new: bool) -> Settings {
    // A bridge, or what else is behind such a port, has addresses of its own.
    Settings { mtu, mac: (!rules.any_source).then_some(rules.mac), up: is_new }
}

/// Open the device of a port.
pub(crate) fn open(tap: &TapConfig, mtu: u16, rules: &Rules) -> Result<Tap, String> {
    let opened = tap::open(&tap.name, tap.queues)?;
    tap::set_up(&tap.name, settings(mtu, rules, opened.is_new))?;
    Ok(opened)
}

/// Devices that the service manager has opened, by their ports.
pub(crate) fn inherited(
    networks: &[NetworkConfig],
    devices: BTreeMap<String, Vec<OwnedFd>>,
) -> Result<Vec<(String, Tap)>, String> {
    let ports =
        || networks.iter().flat_map(|network| network.ports.iter().map(move |port| (port, port.full_name(&network.name))));
    let of_port = |(device, queues): (String, Vec<OwnedFd>)| {
        let is_its = |port: &PortConfig| port.tap.as_ref().is_some_and(|tap| tap.name == device);
        let (_, port) = ports().find(|(port, _)| is_its(port)).ok_or_else(|| {
            format!("descriptor 'tap-{device}' of the service manager is of no port; configure one with tap = \"{device}\"")
        })?;
        Ok((port, tap::passed(queues).map_err(|text| format!("descriptor 'tap-{device}' of the service manager: {text}"))?))
    };
    devices.into_iter().map(of_port).collect()
}

/// The devices of these networks, by their ports. Those that were not `given`, there or gone, are opened.
pub(crate) fn open_all(networks: &[NetworkConfig], mut given: Vec<(String, Tap)>) -> Result<Vec<(String, Tap)>, String> {
    let mut all = Vec::new();
    for NetworkConfig { name, mtu, ports, .. } in networks {
        for port in ports {
            let Some(wanted) = &port.tap else { continue };
            let name = port.full_name(name);
            let index = given.iter().position(|(other, tap)| *other == name && tap.name == wanted.name);
            let found = index.map(|index| given.swap_remove(index).1);
            let tap = found.map_or_else(|| open(wanted, *mtu, &port.rules), Ok);
            all.push((name.clone(), tap.map_err(|text| format!("port '{name}': {text}"))?));
        }
    }
    match given.first() {
        Some((port, tap)) => {
            Err(format!("port '{port}' was passed as device '{}', and the configuration has none or another there", tap.name))
        }
        None => Ok(all),
    }
}

/// All devices. Only the admin thread adds and removes them while the daemon serves.
pub(crate) struct Taps {
    workers: Vec<WorkerHandle>,
    live: Arc<Live>,
    served: Mutex<Vec<ServedTap>>,
    /// Rings when a device is gone.
    pub(crate) notified: EventDoorbell,
}

/// A device that has its port. When dropped, the port is free.
pub(crate) struct ServedTap {
    port: ServedPort,
    name: String,
    /// Its number among the clients.
    client: u64,
    ends: Vec<Arc<TapEnd>>,
    live: Arc<Live>,
    assignments: Vec<Assignment>,
}

impl Drop for ServedTap {
    fn drop(&mut self) {
        self.live.set_fixed(self.client, None);
        self.port.release();
    }
}

impl Taps {
    /// None are served yet; these have their ports.
    pub(crate) fn with(
        workers: Vec<WorkerHandle>,
        live: Arc<Live>,
        taps: Vec<(String, Tap)>,
    ) -> Result<(Arc<Self>, Vec<ServedTap>), String> {
        let notified = EventDoorbell::new().map_err(|error| format!("cannot watch devices: {error}"))?;
        let all = Arc::new(Self { workers, live, served: Mutex::default(), notified });
        let prepared = taps.into_iter().map(|(port, tap)| all.prepare(&port, tap)).collect::<Result<_, _>>()?;
        Ok((all, prepared))
    }

    fn served(&self) -> MutexGuard<'_, Vec<ServedTap>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Have the port for a device, which is served from [`begin`](Self::begin) on.
    fn prepare(&self, port: &str, tap: Tap) -> Result<ServedTap, String> {
        let port = self.live.switches.port(port).ok_or_else(|| format!("no port '{port}' here"))?;
        port.claim(tap.holder()).map_err(|held| held.to_string())?;
        Ok(self.held(port, tap))
    }

    /// A device that [holds](Tap::holder) its port, which is served from [`begin`](Self::begin) on.
    pub(crate) fn held(&self, port: ServedPort, tap: Tap) -> ServedTap {
        let ends = self.ends(tap.queues);
        ServedTap { port, name: tap.name, client: 0, ends, live: Arc::clone(&self.live), assignments: Vec::new() }
    }

    fn ends(&self, queues: Vec<OwnedFd>) -> Vec<Arc<TapEnd>> {
        queues.into_iter().map(|file| Arc::new(TapEnd::new(file, self.notified.clone()))).collect()
    }

    /// The device of a port that [was gone](Self::is_gone) is there again. Nothing else can have the port in between.
    pub(crate) fn serve_again(&self, port: &str, tap: Tap) {
        if let Some(mut gone) = self.take(port) {
            gone.ends = self.ends(tap.queues);
            self.begin(gone);
        }
    }

    pub(crate) fn begin(&self, mut tap: ServedTap) {
        let (port, device) = (tap.port.name(), tap.name.clone());
        if tap.ends.is_empty() {
            tracing::warn!(port, device, "the device is gone, as it was before the takeover: the port stays down");
            return self.served().push(tap);
        }
        tap.client = self.live.next_client();
        tap.assignments = tap.port.assign(&self.workers, tap.ends.len());
        let share = self.live.shares.of_device(&tap.name).with(tap.port.limiter());
        for ((pair, end), assignment) in tap.ends.iter().enumerate().zip(&tap.assignments) {
            let name = QueueName { client: tap.client, index: u16::try_from(pair).unwrap_or(u16::MAX) };
            tap.port.add(pair, Box::new(TapReceiver::new(Arc::clone(end))));
            let (end, of) = (Arc::clone(end), tap.port.clone());
            let (port, device) = (port.clone(), device.clone());
            let added = move |added: Result<(), NotAdded<DiskEngine>>| {
                if let Err(error) = added {
                    tracing::error!(port, device, ?error, "a queue of a device is not served");
                }
            };
            let add = Command::add(name, share.clone(), move |_| Ok(TapQueue::new(end, of)), added);
            self.workers[assignment.worker].mailbox.send(add);
        }
        if let Some(worker) = tap.assignments.first().map(|first| first.worker) {
            let queues = FixedQueues { port: port.clone(), worker, queues: tap.ends.len(), share: None };
            self.live.set_fixed(tap.client, Some(queues));
        }
        tracing::info!(port, device, queues = tap.ends.len(), "a device of the host is a port");
        self.served().push(tap);
    }

    /// Serve it no more, and wait until no worker has it.
    fn end(&self, tap: &mut ServedTap) {
        let (removed, ended) = channel::<()>();
        for assignment in tap.assignments.drain(..) {
            let removed = removed.clone();
            let keep = move |_, _| _ = &removed;
            let which = Which::Client(tap.client);
            self.workers[assignment.worker].mailbox.send(Command::Remove { which, finish: false, removed: Box::new(keep) });
        }
        drop(removed);
        // An error: every worker has dropped its end.
        let _ = ended.recv();
        // Not before: what it sends meanwhile would be learned for a port that is down.
        (0..tap.ends.len()).for_each(|pair| drop(tap.port.remove(pair)));
        tap.ends.clear();
        self.live.set_fixed(tap.client, None);
    }

    fn take(&self, port: &str) -> Option<ServedTap> {
        let mut served = self.served();
        let index = served.iter().position(|tap| tap.port.name() == port)?;
        Some(served.remove(index))
    }

    /// The port is to be free: its device is served no more.
    pub(crate) fn remove(&self, port: &str) -> bool {
        self.take(port).map(|mut tap| self.end(&mut tap)).is_some()
    }

    /// Was the device deleted that this port is?
    pub(crate) fn is_gone(&self, port: &str) -> bool {
        self.served().iter().any(|tap| tap.port.name() == port && tap.ends.is_empty())
    }

    /// Ports whose devices are gone are down from now on: log that.
    pub(crate) fn end_gone(&self) {
        for tap in self.served().iter_mut().filter(|tap| tap.ends.iter().any(|end| end.is_gone())) {
            self.end(tap);
            tracing::error!(
                port = tap.port.name(),
                device = tap.name,
                "the device is gone, and the port is down; make it again (fipsee net attach), or restart the daemon"
            );
        }
    }

    /// Ports, their devices, and the descriptors of those that are not gone, for another daemon.
    pub(crate) fn each(&self, mut give: impl FnMut(String, &str, &[BorrowedFd<'_>]) -> Result<(), String>) -> Result<(), String> {
        self.served().iter().try_for_each(|tap| {
            let is_gone = tap.ends.iter().any(|end| end.is_gone());
            let files: Vec<_> = tap.ends.iter().filter(|_| !is_gone).map(|end| end.as_fd()).collect();
            give(tap.port.name(), &tap.name, &files)
        })
    }

    /// The daemon ends.
    pub(crate) fn stop(&self) {
        let served = std::mem::take(&mut *self.served());
        for mut tap in served {
            self.end(&mut tap);
        }
    }
}
