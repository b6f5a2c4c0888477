//! What is served, as the admin socket's answers describe it (docs/admin.md).

use fipsee_block::wire::{BlockInfo, CAPABILITY_NAMES, CAPABILITY_WRITE};
use fipsee_serve::Metric;
use serde_json::{Value, json};

use super::Admin;
use crate::disk_limits::DiskLimits;
use crate::export::{AllowList, AttachedClient, Export, Role};
use crate::notification::Notify;
use crate::services::block::declared::faults;
use crate::shares::{Shares, client_key, disk_key};
use crate::transport::unix::ClientSettings;

impl Admin {
    pub(super) fn describe(&self, export: &Export) -> Value {
        let info: BlockInfo = export.info(false);
        let (io, unit_bytes) = export.io().unzip();
        let settings = self.live.now().settings;
        let own = export.limits().within(&settings);
        let AllowList { everyone, uids, gids } = export.allow();
        let mut description = json!({
            "disk": export.name(),
            "kind": export.disk.kind(),
            "kinds": export.disk.kinds(),
            "path": export.spec.kind.file().map(|path| path.to_string_lossy()),
            "size_bytes": info.size_bytes(),
            "first_sector": info.first_sector,
            "last_sector": info.first_sector + info.sector_count - 1,
            "block_bytes": info.block_bytes,
            "io": io,
            "direct_unit_bytes": unit_bytes.flatten(),
            "optimal_bytes": info.optimal_bytes,
            "max_transfer_bytes": info.max_transfer_bytes,
            "max_range_bytes": u64::from(info.max_range_sectors) * 512,
            "max_segments": info.max_segments,
            "read_only": !info.can(CAPABILITY_WRITE),
            "exclusive": export.spec.exclusive,
            "shared": export.shared(),
            "dedicated": self.scaling.is_dedicated(&disk_key(export.name())),
            "allow": { "everyone": everyone, "uids": uids, "gids": gids },
            "limits": limits(&settings, &own),
            "own_limits": own,
            "notify": export.notify(),
            "rates": export.rates(),
            "claimed": export.attached().iter().any(|client| client.role == Role::SoleWriter),
            "capabilities": CAPABILITY_NAMES.iter().filter(|(bit, _)| info.can(*bit)).map(|(_, name)| *name).collect::<Vec<_>>(),
            "attached": export.attached().len(),
            "vhost_user": self.vms.paths_of(export).iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
            "errors": null,
            "stalled": null,
        });
        for (name, metric) in faults(&export.disk).into_iter().flatten() {
            description[name] = to_json(metric);
        }
        description
    }

    pub(super) fn describe_with_clients(&self, export: &Export) -> Value {
        let mut description = self.describe(export);
        description["clients"] = export.attached().iter().map(|client| describe_client(client, &self.live.shares)).collect();
        description
    }

    pub(super) fn stat(&self) -> Value {
        let workers = self.describe_workers();
        let mut stat = json!({ "uptime_s": self.started.elapsed().as_secs(), "workers": workers["workers"] });
        for (name, metric) in self.registry.metrics() {
            stat[name] = to_json(metric);
        }
        stat
    }
}

/// Of one client, as this disk has them; and of all clients of all disks.
fn limits(settings: &ClientSettings, own: &DiskLimits) -> Value {
    let &ClientSettings { max_clients, max_clients_per_user, max_memory_bytes_per_user, limits } = settings;
    let limits = own.of_client(limits);
    json!({
        "max_queues": limits.max_queues,
        "max_depth": limits.max_depth,
        "max_pool_bytes": limits.max_pool_bytes,
        "max_memory_bytes": limits.max_memory_bytes,
        "max_clients": max_clients,
        "max_clients_per_user": max_clients_per_user,
        "max_memory_bytes_per_user": max_memory_bytes_per_user,
    })
}

fn describe_client(client: &AttachedClient, shares: &Shares) -> Value {
    let own = shares.settings(&client_key(client.client));
    let mut description = json!({
        "client": client.client,
        "kind": client.kind.name(),
        "pid": client.pid,
        "uid": client.uid,
        "queues": client.queues.len(),
        "worker_cpus": client.worker_cpus,
        "busy_ns": client.busy_ns(),
        "sole_writer": client.role == Role::SoleWriter,
        "leaving": client.leaving,
        "notify": Notify(client.notify.get()),
        "share": client.share.as_ref().map(|share| share.group.key()),
        "weight": own.weight_in_force(),
        "rates": own.rates,
        "dedicated": own.dedicated,
    });
    for (name, count) in client.counts().named() {
        description[name] = count.into();
    }
    description
}

fn to_json(metric: Metric) -> Value {
    match metric {
        Metric::Number(number) => number.into(),
        Metric::Text(text) => text.into(),
        Metric::List(list) => list.into_iter().map(to_json).collect(),
        Metric::Named(named) => named.into_iter().map(|(name, metric)| (name, to_json(metric))).collect(),
    }
}
