//! Reading the configuration again while clients are served: all changes take effect at once, or none does.

mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fipsee_block::disk::DiskSpec;
use fipsee_serve::Which;
use fipsee_serve::governor::Mode;
use fipsee_serve::unix::listener::Listener;
use serde::Serialize;

pub(crate) use self::ports::Behind;
use self::ports::keep_networks;
use crate::admin::Admin;
use crate::config::{Config, DiskConfig, ShareConfig};
use crate::export::{Export, Opened};
use crate::live::Live;
use crate::log::parse_level;
use crate::notification::Notify;
use crate::notify;
use crate::overlay::{Overlay, is_same};
use crate::rates::ShareSettings;
use crate::shares::disk_key;
use crate::transport::vhost_user::{Socket, Target};
use crate::worker::Command;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Outcome {
    /// Disks that are served now and were not before, and ports (`port 'lan/a'`).
    pub(crate) added: Vec<String>,
    /// Disks that are no longer served, and ports.
    pub(crate) removed: Vec<String>,
    /// Settings, and disks (`disk 'a'`) whose lists or limits changed.
    pub(crate) changed: Vec<String>,
    /// Settings, disks (`disk 'a'`), networks and ports that stay as they were until the daemon is restarted.
    pub(crate) needs_restart: Vec<String>,
}

impl Admin {
    /// Read the file again and apply it. The log and the service manager are notified.
    pub(crate) fn reload(&mut self) -> Result<Outcome, String> {
        notify::reloading();
        let outcome = self.change();
        match &outcome {
            Ok(Outcome { added, removed, changed, needs_restart }) => {
                tracing::info!(?added, ?removed, ?changed, "reloaded");
                if !needs_restart.is_empty() {
                    tracing::warn!(settings = ?needs_restart, "changed in the file, and needs a restart");
                }
            }
            Err(reason) => tracing::error!(reason, "not reloaded; everything stays as it was"),
        }
        notify::ready(&serving(&self.live));
        outcome
    }

    fn change(&mut self) -> Result<Outcome, String> {
        let arguments = self.running.arguments.clone();
        if arguments.config.is_none() {
            return Err("there is no configuration file to read again; start fipseed with --config FILE.toml".to_owned());
        }
        let mut next = arguments.into_config()?;
        let level = parse_level(&next.log_level)?;
        let mut kept = Vec::new();
        keep_networks(&mut next.networks, &self.running.networks, &mut kept);
        let mut overlay = self.overlay.rebased(&next.disks, &next.networks)?;
        self.forget_departed(&mut overlay);
        overlay.retain_groups(&next.shares);
        let (before, disks) = (self.disks(), overlay.over(&next.disks));
        let served = self.live.now();
        let (mut exports, mut opened) = (Vec::new(), Opened::default());
        for disk in &disks {
            let open = |_| self.open(disk).inspect(|new| opened.0.push(Arc::clone(new)));
            exports.push(served.find(&disk.spec.name).cloned().or_else(open)?);
        }
        let is_gone = |old: &&Arc<Export>| exports.iter().all(|export| !Arc::ptr_eq(export, old));
        let removed: Vec<_> = served.exports.iter().filter(is_gone).collect();
        let sockets = self.new_sockets(&disks, &exports)?;
        let dedicated = dedicated(&disks, &next.shares, &overlay);
        self.scaling.check_dedicated(&dedicated)?;
        let ports = self.plan_ports(&overlay.ports.over(&next.networks))?;
        retire(&removed)?;
        let put_back = |_: &String| removed.iter().for_each(|export| export.reinstate());
        let retired = self.retire_ports(&ports).inspect_err(put_back)?;
        let removed_ports = ports.removed().to_vec();
        let new_ports = self.add_ports(ports).inspect_err(put_back);
        let new_ports = new_ports.inspect_err(|_| self.live.switches.put_back(retired.clone()))?;
        let unwanted = self.vms.retire(|target, path| match target {
            Target::Disk(export) => is_unwanted(&before, &disks, export, path),
            Target::Port(name, _) => removed_ports.contains(name),
        });
        if let Err(reason) = unwanted {
            put_back(&reason);
            self.take_back(new_ports);
            self.live.switches.put_back(retired);
            return Err(reason);
        }
        // From here on nothing can fail.
        let name = |export: &Arc<Export>| export.name().to_owned();
        let (added, removed) = (opened.0.iter().map(name).collect(), removed.into_iter().map(name).collect());
        opened.keep();
        let mut outcome = Outcome { added, removed, needs_restart: kept, ..Outcome::default() };
        self.keep_workers(&mut next, &mut outcome.needs_restart);
        keep_what_cannot_change(&mut next, &self.running, &before, &mut outcome.needs_restart);
        outcome.changed = self.changed_settings(&next);
        let stay = disks.iter().zip(&exports).filter(|(disk, _)| !outcome.added.contains(&disk.spec.name));
        outcome.changed.extend(self.change_disks(stay, &before, &disks));
        self.scaling.dedicate(&dedicated);
        self.live.replace(exports, next.clients);
        self.policies_changed(Which::All);
        self.vms.remove_retired();
        self.vms.add(sockets);
        self.log.set(level);
        self.scaling.set_mode(overlay.workers().unwrap_or(next.workers));
        outcome.changed.extend(changed_shares(&self.running.shares, &next.shares));
        let networks_before = self.networks_in_force();
        overlay.forget_ports(&removed_ports);
        let (added, removed) = self.change_ports(new_ports, &removed_ports);
        outcome.added.extend(added);
        outcome.removed.extend(removed);
        let networks = overlay.over_networks(&overlay.ports.over(&next.networks));
        outcome.changed.extend(self.change_rates(&networks_before, &networks));
        (self.running, self.overlay) = (next, overlay);
        self.apply_shares();
        Ok(outcome)
    }

    /// Have what is configured of disks that stay take effect. Returns those of which something is different.
    fn change_disks<'a>(
        &self,
        stay: impl Iterator<Item = (&'a DiskConfig, &'a Arc<Export>)>,
        before: &[DiskConfig],
        next: &[DiskConfig],
    ) -> Vec<String> {
        let mut changed = Vec::new();
        for (disk, export) in stay {
            let dedicated_changes = disk.dedicated != self.scaling.is_dedicated(&disk_key(export.name()));
            let sockets_change = sockets_of(before, export.name()) != sockets_of(next, export.name());
            let limits_change = export.set_limits(disk.limits) | export.set_rates(disk.rates);
            let notify_change = set_notify(export, disk.notify);
            let lists_change = export.set_allow(&disk.allow) | export.set_shared(disk.spec.shared);
            if lists_change | limits_change | notify_change | sockets_change | dedicated_changes {
                changed.push(format!("disk '{}'", disk.spec.name));
            }
        }
        changed
    }

    /// Have weights and rates of users, groups, clients and disks take effect.
    pub(crate) fn apply_shares(&self) {
        self.live.shares.replace(&self.running.shares, self.overlay.shares());
        self.workers.iter().for_each(|worker| worker.mailbox.send(Command::LimitsChanged));
    }

    /// The disks as they are configured and have been changed since.
    pub(crate) fn disks(&self) -> Vec<DiskConfig> {
        self.overlay.over(&self.running.disks)
    }

    pub(crate) fn open(&self, disk: &DiskConfig) -> Result<Arc<Export>, String> {
        let explain = |text: String| match disk.spec.kind.file() {
            Some(path) => self.confinement.explain(text, path, false),
            None => text,
        };
        Export::open(disk).map_err(explain)
    }

    /// Bind the sockets of `disks`, which are `exports`, that do not exist yet. Undone when dropped.
    fn new_sockets(&self, disks: &[DiskConfig], exports: &[Arc<Export>]) -> Result<Vec<Socket>, String> {
        let mut sockets = Vec::new();
        for (disk, export) in disks.iter().zip(exports) {
            let there = self.vms.paths_of(export);
            for path in disk.vhost_user.iter().filter(|path| !there.contains(path)) {
                sockets.push(self.new_socket(export, path)?);
            }
        }
        Ok(sockets)
    }

    pub(crate) fn new_socket(&self, export: &Arc<Export>, path: &Path) -> Result<Socket, String> {
        self.vms.serve_at(Target::Disk(Arc::clone(export)), self.new_listener(export.name(), path)?)
    }

    /// For hypervisors that use the disk or port of this name.
    pub(crate) fn new_listener(&self, name: &str, path: &Path) -> Result<Listener, String> {
        self.vms.bind(name, path).map_err(|text| self.confinement.explain(text, path, true))
    }

    /// More workers than were started need a restart.
    fn keep_workers(&self, next: &mut Config, kept: &mut Vec<String>) {
        let is_auto = |mode: Mode| mode.most().is_none();
        let too_many = next.workers.most().is_some_and(|most| most > self.workers.len());
        if next.workers != self.running.workers && (too_many || is_auto(next.workers) && !is_auto(self.running.workers)) {
            next.workers = self.running.workers;
            kept.push("workers".to_owned());
        }
    }

    fn changed_settings(&self, next: &Config) -> Vec<String> {
        let (old, new) = (&self.running.clients, &next.clients);
        let settings = [
            ("workers", self.running.workers != next.workers),
            ("log_level", self.running.log_level != next.log_level),
            ("max_clients", old.max_clients != new.max_clients),
            ("max_clients_per_user", old.max_clients_per_user != new.max_clients_per_user),
            ("max_queues", old.limits.max_queues != new.limits.max_queues),
            ("max_depth", old.limits.max_depth != new.limits.max_depth),
            ("max_pool_bytes", old.limits.max_pool_bytes != new.limits.max_pool_bytes),
            ("max_memory_bytes_per_user", old.max_memory_bytes_per_user != new.max_memory_bytes_per_user),
            ("max_memory_bytes", old.limits.max_memory_bytes != new.limits.max_memory_bytes),
        ];
        settings.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name.to_owned()).collect()
    }
}

/// Unless it is the same: then what was set for one client stays.
fn set_notify(export: &Export, notify: Notify) -> bool {
    export.notify() != notify && export.set_notify(notify)
}

/// The keys of those that have a worker each: disks, and what is configured or set of those that share workers.
pub(crate) fn dedicated(disks: &[DiskConfig], shares: &[ShareConfig], overlay: &Overlay) -> Vec<String> {
    let disks = disks.iter().filter(|disk| disk.dedicated).map(|disk| disk_key(&disk.spec.name));
    let mut settings: BTreeMap<String, ShareSettings> = shares.iter().map(|share| (share.key(), share.settings)).collect();
    settings.extend(overlay.shares().clone());
    disks.chain(settings.into_iter().filter(|(_, settings)| settings.dedicated).map(|(key, _)| key)).collect()
}

/// The users and groups that are in one of the files only, or with other settings.
fn changed_shares(old: &[ShareConfig], new: &[ShareConfig]) -> Vec<String> {
    let differs = |share: &&ShareConfig, others: &[ShareConfig]| !others.contains(share);
    let changed = new.iter().filter(|share| differs(share, old)).chain(old.iter().filter(|share| differs(share, new)));
    changed.map(ShareConfig::shown).collect::<BTreeSet<_>>().into_iter().collect()
}

fn sockets_of<'a>(disks: &'a [DiskConfig], name: &str) -> &'a [PathBuf] {
    disks.iter().find(|disk| disk.spec.name == name).map_or(&[], |disk| &disk.vhost_user)
}

/// Is a socket to be removed? All of a removed disk; of one that stays, those that the file no longer names: sockets attached
/// by hand stay.
fn is_unwanted(before: &[DiskConfig], next: &[DiskConfig], export: &Export, path: &Path) -> bool {
    let named = |disks| sockets_of(disks, export.name()).iter().any(|other| other == path);
    let stays = next.iter().any(|disk| disk.spec.name == export.name());
    !stays || named(before) && !named(next)
}

pub(crate) fn serving(live: &Live) -> String {
    let served = live.now();
    let names: Vec<_> = served.exports.iter().take(8).map(|export| export.name()).collect();
    if names.is_empty() {
        return "serving no disk".to_owned();
    }
    let more = served.exports.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("serving {}{more}", names.join(", "))
}

/// Refuse further clients of these, if none of them is in use.
fn retire(exports: &[&Arc<Export>]) -> Result<(), String> {
    for (index, export) in exports.iter().enumerate() {
        if let Err(pid) = export.retire() {
            exports[..index].iter().for_each(|retired| retired.reinstate());
            return Err(format!(
                "disk '{}' is gone from the configuration and in use by process {pid}; end that, or keep the disk",
                export.name()
            ));
        }
    }
    Ok(())
}

/// Settings that only a restart can change keep their values and are reported. `before`: the disks that are served.
fn keep_what_cannot_change(next: &mut Config, running: &Config, before: &[DiskConfig], kept: &mut Vec<String>) {
    fn keep<T: PartialEq + Clone>(name: &str, next: &mut T, running: &T, kept: &mut Vec<String>) {
        if next != running {
            next.clone_from(running);
            kept.push(name.to_owned());
        }
    }
    keep("listen", &mut next.listen, &running.listen, kept);
    keep("cpus", &mut next.cpus, &running.cpus, kept);
    keep("placement", &mut next.placement, &running.placement, kept);
    keep("wait", &mut next.wait, &running.wait, kept);
    keep("look_us", &mut next.look, &running.look, kept);
    keep("metrics", &mut next.metrics, &running.metrics, kept);
    keep("confine", &mut next.confine, &running.confine, kept);
    keep("confine_paths", &mut next.confine_paths, &running.confine_paths, kept);
    keep("log_format", &mut next.log_format, &running.log_format, kept);
    for disk in &mut next.disks {
        let old = before.iter().find(|old| old.spec.name == disk.spec.name);
        if let Some(old) = old.filter(|old| !is_same(&old.spec, &disk.spec)) {
            kept.push(format!("disk '{}'", old.spec.name));
            disk.spec = DiskSpec { shared: disk.spec.shared, ..old.spec.clone() };
        }
    }
}
