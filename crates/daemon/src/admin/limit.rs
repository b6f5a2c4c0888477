//! Rates and weights of disks, ports and clients that the admin socket shows and changes.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::Arc;

use fipsee_serve::Share;
use fipsee_serve::share::DEFAULT_WEIGHT;
use serde_json::{Value, json};

use super::Admin;
use super::methods::{MachineName, SetLimit};
use super::rpc::RpcError;
use crate::config::{ShareConfig, user_key};
use crate::disk_limits::Limit;
use crate::export::{AttachedClient, Export};
use crate::live::FixedQueues;
use crate::overlay::{Overlay, Settings};
use crate::rates::{MAX_WEIGHT, RateChanges, RateLimits, ShareSettings};
use crate::shares::{apply_to_client, client_key, machine_key};

/// What a limit is of.
enum Target {
    Disk(Arc<Export>),
    /// By its name and that of its network.
    Port(String),
    /// A user, group or virtual machine, by its key.
    Share(String),
    Client(u64),
}

const OF_DISK: &str = "of_disk";
const OF_PORT: &str = "of_port";

/// A client of a disk or port.
struct LimitedClient {
    client: u64,
    /// [`OF_DISK`] or [`OF_PORT`], and its name.
    of: (&'static str, String),
    /// `None`: it is not served yet.
    share: Option<Share>,
}

/// What is to be changed beside rates.
#[derive(Clone, Copy)]
struct ShareChanges {
    weight: Option<Limit<NonZeroU16>>,
    dedicated: Option<bool>,
}

impl Admin {
    pub(super) fn limit(&mut self, limit: SetLimit) -> Result<Value, RpcError> {
        let SetLimit { iops, bytes_per_second, burst_ms, weight, dedicated, .. } = limit;
        let target = self.target(&limit)?;
        let of_share = ShareChanges { weight, dedicated };
        let changes = RateChanges { iops, bytes_per_second, burst_ms };
        let is_empty = iops.is_none() && bytes_per_second.is_none() && burst_ms.is_none();
        if is_empty && weight.is_none() && dedicated.is_none() {
            return Err("nothing is set: name iops, bytes_per_second, burst_ms, weight or dedicated".to_owned().into());
        }
        match &target {
            Target::Disk(export) => {
                if weight.is_some() {
                    let text = "a disk has no weight; name a user, a group, a virtual machine or a client";
                    return Err(text.to_owned().into());
                }
                if dedicated.is_some() {
                    let text =
                        format!("whether a worker is for a disk alone is set by fipsee disk set {} --dedicated", export.name());
                    return Err(text.into());
                }
                let rates = export.rates().changed(changes)?;
                export.set_rates(rates);
                self.overlay.set(export.name(), Settings { rates: Some(rates), ..Settings::default() });
                tracing::info!(disk = export.name(), ?rates, "limited");
            }
            Target::Port(name) => self.set_port_rates(name, (weight.is_some(), dedicated.is_some()), changes)?,
            Target::Share(key) => self.set_share(key.clone(), of_share, changes)?,
            Target::Client(client) => {
                self.check_may_be_dedicated(*client, dedicated)?;
                self.set_share(client_key(*client), of_share, changes)?;
                let settings = self.live.shares.settings(&client_key(*client));
                for attached in self.attached().iter().filter(|attached| attached.client == *client) {
                    attached.share.iter().for_each(|share| apply_to_client(settings, share));
                }
            }
        }
        self.apply_shares();
        Ok(match target {
            Target::Disk(export) => describe_disk(&export),
            Target::Port(name) => {
                let rates = self.port_rates().remove(&name).unwrap_or_default();
                self.describe_port(&name, rates, &self.attached())
            }
            Target::Share(key) => self.describe_share(&key),
            Target::Client(client) => self.describe_limited_client(client),
        })
    }

    fn target(&self, limit: &SetLimit) -> Result<Target, String> {
        let groups = || self.running.shares.iter().filter(|share| share.group.is_some());
        match (&limit.disk, &limit.port, limit.user, &limit.group, &limit.machine, limit.client) {
            (Some(disk), None, None, None, None, None) => Ok(Target::Disk(self.live.now().find(disk)?.clone())),
            (None, Some(port), None, None, None, None) => match self.live.switches.port(port) {
                Some(_) => Ok(Target::Port(port.clone())),
                None => Err(format!("no port '{port}' here; `fipsee net stat` names them, for example lan/a")),
            },
            (None, None, Some(uid), None, None, None) => match groups().find(|share| share.uids.contains(&uid)) {
                Some(group) => {
                    let name = group.group.as_deref().unwrap_or_default();
                    Err(format!(
                        "user {uid} is in group '{name}', whose weight and rates count; limit the group (--group {name})"
                    ))
                }
                None => Ok(Target::Share(user_key(uid))),
            },
            (None, None, None, Some(name), None, None) => {
                let found = groups().find(|share| share.group.as_deref() == Some(name)).map(ShareConfig::key);
                found.map(Target::Share).ok_or_else(|| {
                    let names: Vec<&str> = groups().filter_map(|share| share.group.as_deref()).collect();
                    let there =
                        if names.is_empty() { "there are none".to_owned() } else { format!("there are: {}", names.join(", ")) };
                    format!("no group '{name}' is configured; {there} ([[group]] in the configuration, and a reload)")
                })
            }
            (None, None, None, None, Some(machine), None) => {
                let key = match machine {
                    MachineName::Process(pid) => machine_key(pid),
                    MachineName::Socket(path) => machine_key(path),
                };
                match self.live.shares.present().iter().any(|group| group.key() == key) {
                    true => Ok(Target::Share(key)),
                    false => Err(format!(
                        "no {} is connected and has a share of its own; `fipsee limit` lists those that have (one that belongs to a \
                         user or group has that one's)",
                        key.replacen("machine:", "virtual machine of process ", 1)
                    )),
                }
            }
            (None, None, None, None, None, Some(client)) => {
                match self.attached().iter().any(|attached| attached.client == client) {
                    true => Ok(Target::Client(client)),
                    false => Err(format!(
                        "no client {client} is attached; `fipsee info DISK` has the numbers of a disk's, `fipsee net info NETWORK` those \
                         of a network's"
                    )),
                }
            }
            _ => Err("name one of disk, port, user, group, machine and client".to_owned()),
        }
    }

    fn set_port_rates(&mut self, name: &str, (weight, dedicated): (bool, bool), changes: RateChanges) -> Result<(), String> {
        if weight || dedicated {
            let what = if weight { "weight" } else { "worker of its own" };
            return Err(format!("a port has no {what}; name a user, a group, a virtual machine or a client"));
        }
        let rates = self.port_rates().remove(name).unwrap_or_default().changed(changes)?;
        self.overlay.set_port_rates(name, rates);
        self.live.switches.port(name).into_iter().for_each(|port| port.limiter().set(rates.in_force()));
        tracing::info!(port = name, ?rates, "limited");
        Ok(())
    }

    /// All queues of a network are served by one worker.
    fn check_may_be_dedicated(&self, client: u64, dedicated: Option<bool>) -> Result<(), String> {
        match self.live.fixed().get(&client).filter(|_| dedicated == Some(true)) {
            None => Ok(()),
            Some(FixedQueues { port, .. }) => Err(format!(
                "client {client} has port '{port}', and one worker serves all ports of a network: it cannot have a worker to itself; \
                 dedicate one to a disk, user or group whose clients are to leave that worker"
            )),
        }
    }

    fn set_share(
        &mut self,
        key: String,
        ShareChanges { weight, dedicated }: ShareChanges,
        changes: RateChanges,
    ) -> Result<(), String> {
        let mut settings = self.live.shares.settings(&key);
        Limit::apply(weight, &mut settings.weight);
        if let Some(weight) = settings.weight.filter(|weight| weight.get() > MAX_WEIGHT) {
            return Err(format!(
                "a weight of {weight} is too great; write 1 to {MAX_WEIGHT} (the usual one is {DEFAULT_WEIGHT})"
            ));
        }
        settings.rates = settings.rates.changed(changes)?;
        if let Some(dedicated) = dedicated {
            self.scaling.set_dedicated(&key, dedicated)?;
            settings.dedicated = dedicated;
        }
        tracing::info!(of = key, ?settings, "limited");
        self.overlay.set_share(key, settings);
        let mut overlay = std::mem::take(&mut self.overlay);
        self.forget_departed(&mut overlay);
        self.overlay = overlay;
        // What follows reads it there.
        self.live.shares.replace(&self.running.shares, self.overlay.shares());
        Ok(())
    }

    /// What was set for clients and virtual machines goes with them.
    pub(crate) fn forget_departed(&self, overlay: &mut Overlay) {
        let clients = self.attached().iter().map(|attached| client_key(attached.client)).collect();
        overlay.retain_shares(&client_key(""), &clients);
        let machines = self.live.shares.present().iter().map(|group| group.key().to_owned()).collect();
        overlay.retain_shares(&machine_key(""), &machines);
    }

    /// Clients of disks and ports.
    fn attached(&self) -> Vec<LimitedClient> {
        let mut all = Vec::new();
        for export in &self.live.now().exports {
            let of = || (OF_DISK, export.name().to_owned());
            all.extend(export.attached().into_iter().map(|AttachedClient { client, share, .. }| LimitedClient {
                client,
                of: of(),
                share,
            }));
        }
        for (client, FixedQueues { port, share, .. }) in &*self.live.fixed() {
            let of = (OF_PORT, port.clone());
            let share = share.clone().map(|share| LimitedClient { client: *client, of, share: Some(share) });
            all.extend(share);
        }
        all
    }

    /// The ports that have a limit, by their names and those of their networks.
    fn port_rates(&self) -> BTreeMap<String, RateLimits> {
        let mut rates = BTreeMap::new();
        for network in self.networks_in_force() {
            let limited = network.ports.iter().filter(|port| !port.rates.is_off());
            rates.extend(limited.map(|port| (port.full_name(&network.name), port.rates)));
        }
        rates
    }

    /// Of all disks; of ports that have one; of users, groups and machines that are configured, set or have clients; and of clients that
    /// have some.
    pub(super) fn limits(&self) -> Value {
        let disks = self.live.now().exports.iter().map(|export| describe_disk(export)).collect::<Vec<_>>();
        let attached = self.attached();
        let rates = self.port_rates();
        let ports = rates.iter().map(|(name, rates)| self.describe_port(name, *rates, &attached)).collect::<Vec<_>>();
        let configured = self.running.shares.iter().map(ShareConfig::key);
        let set = self.overlay.shares().keys().filter(|key| !key.starts_with(&client_key(""))).cloned();
        let present = self.live.shares.present();
        let keys: BTreeSet<String> = configured.chain(set).chain(present.iter().map(|group| group.key().to_owned())).collect();
        let shares = keys.iter().map(|key| self.describe_share(key));
        let clients = attached.iter().map(|attached| attached.client);
        let is_limited = |client: &u64| self.live.shares.settings(&client_key(*client)) != ShareSettings::default();
        let clients = clients.filter(is_limited).map(|client| self.describe_limited_client(client));
        json!({ "limits": disks.into_iter().chain(ports).chain(shares).chain(clients).collect::<Vec<_>>() })
    }

    fn describe_port(&self, name: &str, rates: RateLimits, attached: &[LimitedClient]) -> Value {
        let throttled = self.live.switches.port(name).map_or(0, |port| port.limiter().throttled());
        let mut described = describe_rates(rates, throttled);
        described["port"] = name.into();
        let clients = attached.iter().filter(|client| client.of.0 == OF_PORT && client.of.1 == name);
        described["clients"] = clients.map(|client| client.client).collect::<Vec<_>>().into();
        described
    }

    /// `key`: as `user:1000`.
    fn describe_share(&self, key: &str) -> Value {
        let settings = self.live.shares.settings(key);
        let (kind, name) = key.split_once(':').unwrap_or(("group", key));
        let present = self.live.shares.present();
        let throttled = present.iter().find(|group| group.key() == key).map_or(0, |group| group.limiter.throttled());
        let mut described = self.describe_settings(key, settings, throttled);
        described[kind] = match (kind, name.parse::<u64>()) {
            ("user" | "machine", Ok(number)) => number.into(),
            _ => name.into(),
        };
        let is_of = |client: &LimitedClient| client.share.as_ref().is_some_and(|share| share.group.key() == key);
        let clients = self.attached().into_iter().filter(is_of);
        described["clients"] = clients.map(|client| client.client).collect::<Vec<_>>().into();
        described
    }

    fn describe_limited_client(&self, client: u64) -> Value {
        let found = self.attached().into_iter().find(|attached| attached.client == client);
        let (of, share) = found.map(|LimitedClient { of, share, .. }| (of, share)).unzip();
        let throttled = share.flatten().map_or(0, |share| share.limiter.throttled());
        let key = client_key(client);
        let mut described = self.describe_settings(&key, self.live.shares.settings(&key), throttled);
        described["client"] = client.into();
        of.into_iter().for_each(|(key, name)| described[key] = name.into());
        described
    }

    /// As [`describe_rates`].
    fn describe_settings(&self, key: &str, settings: ShareSettings, throttled: u64) -> Value {
        let mut described = describe_rates(settings.rates, throttled);
        described["weight"] = settings.weight_in_force().into();
        described["dedicated"] = self.scaling.is_dedicated(key).into();
        described
    }
}

fn describe_disk(export: &Export) -> Value {
    let mut described = describe_rates(export.rates(), export.limiter.throttled());
    described["disk"] = export.name().into();
    described["clients"] = export.attached().iter().map(|client| client.client).collect::<Vec<_>>().into();
    described
}

/// `throttled`: how often a queue had to wait for it.
fn describe_rates(RateLimits { iops, bytes_per_second, burst_ms }: RateLimits, throttled: u64) -> Value {
    json!({ "iops": iops, "bytes_per_second": bytes_per_second, "burst_ms": burst_ms, "throttled": throttled })
}
