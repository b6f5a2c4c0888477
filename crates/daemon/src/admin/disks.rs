//! Disks that are added, removed and set at run time.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use fipsee_block::disk::DiskSpec;
use fipsee_ring::notify::{Policy, Wanted};
use fipsee_serve::Which;
use serde_json::Value;

use super::Admin;
use super::methods::{AddDisk, SetDisk, SetNotify};
use super::rpc::RpcError;
use crate::config::DiskConfig;
use crate::disk_limits::{DiskLimits, Limit};
use crate::disk_text;
use crate::export::{AllowList, Export, Opened};
use crate::notification::{self, Notify};
use crate::notify;
use crate::overlay::Settings;
use crate::reload::serving;
use crate::shares::disk_key;

impl Admin {
    pub(super) fn add(&mut self, add: AddDisk, files: &mut Vec<OwnedFd>) -> Result<Value, RpcError> {
        let AddDisk {
            spec,
            path,
            allow_uids,
            allow_gids,
            allow_everyone,
            vhost_user,
            file_passed,
            max_clients,
            max_queues,
            max_depth,
        } = add;
        let passed = match (file_passed, files.is_empty()) {
            (false, _) => None,
            (true, true) => {
                return Err("file_passed is set, and no descriptor came with the request; send one".to_owned().into());
            }
            (true, false) => Some(files.remove(0)),
        };
        let spec = disk_text::parse(&spec, path.as_deref())?;
        let (name, was_passed) = (spec.name.clone(), passed.is_some());
        let served = self.live.now();
        if served.exports.iter().any(|export| export.name() == name) {
            return Err(format!("disk '{name}' is served already; remove it first, or choose another name").into());
        }
        spec.kind.file().into_iter().chain(vhost_user.iter().map(AsRef::as_ref)).try_for_each(check_absolute)?;
        if was_passed && spec.kind.file().is_none() {
            return Err(format!("disk '{name}' has no file; leave out file_passed").into());
        }
        let allow = AllowList { everyone: allow_everyone, uids: allow_uids, gids: allow_gids };
        let limits = DiskLimits { max_clients, max_queues, max_depth };
        limits.check(&served.settings)?;
        let disk = DiskConfig { limits, ..DiskConfig::new(spec, allow) };
        let export = match passed {
            Some(file) => Export::open_with(&disk, Some(file))?,
            // The client may be able to open what this process cannot.
            None => self.open(&disk).map_err(|text| match disk.spec.kind.file() {
                Some(_) => RpcError::pass_file(text),
                None => text.into(),
            })?,
        };
        let mut opened = Opened(vec![Arc::clone(&export)]);
        let sockets = vhost_user.iter().map(|path| self.new_socket(&export, path)).collect::<Result<Vec<_>, _>>()?;
        // From here on nothing can fail.
        opened.keep();
        let exports = served.exports.iter().cloned().chain([Arc::clone(&export)]).collect();
        self.live.replace(exports, served.settings);
        self.vms.add(sockets);
        self.overlay.add(&disk, was_passed);
        tracing::info!(disk = name, "added");
        notify::status(&serving(&self.live));
        Ok(self.describe(&export))
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<Value, RpcError> {
        let served = self.live.now();
        let export = served.find(name)?.clone();
        export.retire().map_err(|pid| format!("disk '{name}' is in use by process {pid}; end that first"))?;
        // Sockets without a machine have no client at the disk.
        self.vms.retire(|target, _| target.is(&export)).inspect_err(|_| export.reinstate())?;
        let description = self.describe(&export);
        let others = served.exports.iter().filter(|other| !Arc::ptr_eq(other, &export)).cloned().collect();
        self.live.replace(others, served.settings);
        self.vms.remove_retired();
        let _ = self.scaling.set_dedicated(&disk_key(name), false);
        self.overlay.remove(name, &self.running.disks);
        tracing::info!(disk = name, "removed");
        notify::status(&serving(&self.live));
        Ok(description)
    }

    pub(super) fn set(&mut self, set: SetDisk) -> Result<Value, RpcError> {
        let SetDisk { disk: name, allow_uids, allow_gids, allow_everyone, shared, max_clients, max_queues, max_depth, dedicated } =
            set;
        let served = self.live.now();
        let export = served.find(&name)?.clone();
        let sets_list = allow_uids.is_some() || allow_gids.is_some() || allow_everyone.is_some();
        let sets_limits = max_clients.is_some() || max_queues.is_some() || max_depth.is_some();
        if !sets_list && !sets_limits && shared.is_none() && dedicated.is_none() {
            let possible = "allow_uids, allow_gids, allow_everyone, shared, max_clients, max_queues, max_depth or dedicated";
            return Err(format!("nothing is set: name {possible}").into());
        }
        let mut limits = export.limits();
        Limit::apply(max_clients, &mut limits.max_clients);
        Limit::apply(max_queues, &mut limits.max_queues);
        Limit::apply(max_depth, &mut limits.max_depth);
        if sets_limits {
            limits.check(&served.settings)?;
        }
        let spec = DiskSpec { shared: shared.unwrap_or_else(|| export.shared()), ..export.spec.clone() };
        spec.check_sharing().map_err(|text| format!("disk '{name}': {text}"))?;
        let AllowList { everyone, uids, gids } = export.allow();
        let allow = AllowList {
            everyone: allow_everyone.unwrap_or(everyone),
            uids: allow_uids.unwrap_or(uids),
            gids: allow_gids.unwrap_or(gids),
        };
        if let Some(dedicated) = dedicated {
            self.scaling.set_dedicated(&disk_key(&name), dedicated)?;
        }
        export.set_allow(&allow);
        if let Some(shared) = shared {
            export.set_shared(shared);
        }
        export.set_limits(limits);
        tracing::info!(disk = name, ?allow, shared = export.shared(), ?limits, ?dedicated, "set");
        let (allow, limits) = (sets_list.then_some(allow), sets_limits.then_some(limits));
        self.overlay.set(&name, Settings { allow, shared, limits, rates: None, notify: None, dedicated });
        Ok(self.describe(&export))
    }

    pub(super) fn set_notify(&mut self, set: &SetNotify) -> Result<Value, RpcError> {
        let SetNotify { disk: ref name, client, max_rate, min_completions, max_delay_us, auto, off } = *set;
        let export = self.live.now().find(name)?.clone();
        let wanted = Wanted { max_rate, min_completions, max_delay_us, auto };
        let notify = match off {
            true if wanted == Wanted::default() => Notify(None),
            true => {
                let given = [
                    ("max_rate", max_rate.is_some()),
                    ("min_completions", min_completions.is_some()),
                    ("max_delay_us", max_delay_us.is_some()),
                    ("auto", auto),
                ];
                let others: Vec<_> = given.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name).collect();
                return Err(format!("off contradicts {}; leave one out", others.join(", ")).into());
            }
            false => Notify(Some(Policy::new(&wanted)?)),
        };
        let which = match client {
            Some(client) if !export.set_notify_of(client, notify) => {
                return Err(format!("disk '{name}' has no client {client}; `fipsee info {name}` lists them").into());
            }
            Some(client) => Which::Client(client),
            None => {
                export.set_notify(notify);
                self.overlay.set(name, Settings { notify: Some(notify), ..Settings::default() });
                Which::All
            }
        };
        self.policies_changed(which);
        let policy = notify.0.map_or_else(|| "off".to_owned(), |policy| policy.to_string());
        tracing::info!(disk = name, client, policy, "notifications set");
        Ok(self.describe_with_clients(&export))
    }

    /// Have the queues read their policies of notifications.
    pub(crate) fn policies_changed(&self, which: Which) {
        for worker in &self.workers {
            worker.mailbox.send_all(notification::changed(which));
        }
    }
}

pub(super) fn check_absolute(path: &Path) -> Result<(), String> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(format!("{} is no absolute path; the daemon has another working directory", path.display()))
}
