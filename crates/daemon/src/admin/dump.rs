//! The configuration in force, as a file that `fipseed --config` takes.

use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use fipsee_block::disk::DiskSpec;
use fipsee_ring::notify::{Policy, Wanted};
use fipsee_serve::governor::Mode;

use super::Admin;
use crate::config::{Config, ShareConfig, dump_networks};
use crate::disk_text;
use crate::export::Export;
use crate::metrics::Endpoint;
use crate::rates::ShareSettings;
use crate::shares::disk_key;

impl Admin {
    pub(super) fn dump(&self) -> String {
        let mut text = String::from("# The configuration in force (fipsee config dump).\n");
        text.push_str(&settings(&self.running, self.scaling.mode(), self.listeners.0.path()));
        for share in &self.running.shares {
            text.push_str(&self.share_table(share));
        }
        let configured: Vec<String> = self.running.shares.iter().map(ShareConfig::key).collect();
        for (key, settings) in self.overlay.shares().iter().filter(|(key, _)| !configured.contains(key)) {
            // Those of clients have no place in the file.
            if let Some(uid) = key.strip_prefix("user:") {
                let _ = writeln!(text, "\n# set at run time\n[[user]]\nname = {}", quoted(uid));
                text.push_str(&share_keys(settings));
            }
        }
        let served = self.live.now();
        for export in &served.exports {
            text.push_str(&self.disk_table(export));
        }
        let networks = self.networks_in_force();
        text.push_str(&dump_networks(&networks, |port| self.overlay.ports.was_added(port).then_some("added at run time")));
        if served.exports.is_empty() && networks.is_empty() {
            text.push_str("\n# No disk is served: fipseed wants one.\n");
        }
        text
    }

    /// A `[[user]]` or `[[group]]`.
    fn share_table(&self, share: &ShareConfig) -> String {
        let ShareConfig { group, uids, gids, machines, .. } = share;
        let mut text = String::from("\n");
        if self.overlay.shares().contains_key(&share.key()) {
            text.push_str("# set at run time\n");
        }
        match group {
            None => _ = writeln!(text, "[[user]]\nname = {}", quoted(&uids.first().copied().unwrap_or_default().to_string())),
            Some(name) => {
                // The file must define a disk or port that it names.
                let served = self.live.now();
                let has_disk = |name: &String| served.exports.iter().any(|export| export.name() == *name);
                let is_served = |name: &&String| has_disk(name) || self.live.switches.port(name).is_some();
                let machines: Vec<String> = machines.iter().filter(is_served).map(|name| quoted(name)).collect();
                if uids.is_empty() && gids.is_empty() && machines.is_empty() {
                    return format!("\n# No disk or port of the group {} is served.\n", quoted(name));
                }
                let _ = writeln!(text, "[[group]]\nname = {}\nusers = {uids:?}\ngroups = {gids:?}", quoted(name));
                let _ = writeln!(text, "machines = [{}]", machines.join(", "));
            }
        }
        text + &share_keys(&self.live.shares.settings(&share.key()))
    }

    /// A `[[disk]]`.
    fn disk_table(&self, export: &Export) -> String {
        let name = export.name();
        let mut text = String::from("\n");
        if let Some(origin) = self.overlay.origin_of(name) {
            let _ = writeln!(text, "# {origin}");
        }
        let (spec, path) = disk_text::text_of(&spec_in_force(export));
        // The name is a key of its own.
        let spec = spec.split_once('=').map_or("", |(_, rest)| rest);
        let _ = writeln!(text, "[[disk]]\nname = {}\nspec = {}", quoted(name), quoted(spec));
        if let Some(path) = path {
            let _ = writeln!(text, "path = {}", quoted_path(&path));
        }
        let allow = export.allow();
        for (key, ids) in [("allow_uids", allow.uids), ("allow_gids", allow.gids)] {
            if !ids.is_empty() {
                let _ = writeln!(text, "{key} = {ids:?}");
            }
        }
        if self.scaling.is_dedicated(&disk_key(name)) {
            text.push_str("dedicated = true\n");
        }
        if allow.everyone {
            text.push_str("allow_everyone = true\n");
        }
        for (key, limit) in export.limits().within(&self.live.now().settings).keys() {
            let _ = writeln!(text, "{key} = {limit}");
        }
        if let Some(policy) = export.notify().0 {
            let _ = writeln!(text, "notify = {{ {} }}", notify_keys(&policy));
        }
        for (key, rate) in export.rates().keys() {
            let _ = writeln!(text, "{key} = {rate}");
        }
        for (index, path) in self.vms.paths_of(export).iter().enumerate() {
            match index {
                0 => _ = writeln!(text, "vhost_user = {}", quoted_path(path)),
                _ => _ = writeln!(text, "# the file has one socket for each disk: --vhost-user {name}={}", path.display()),
            }
        }
        text
    }
}

fn notify_keys(policy: &Policy) -> String {
    let Wanted { max_rate, min_completions, max_delay_us, auto } = policy.wanted();
    let keys = [
        max_rate.map(|rate| format!("max_rate = {rate}")),
        min_completions.map(|count| format!("min_completions = {count}")),
        max_delay_us.map(|delay_us| format!("max_delay = \"{delay_us}us\"")),
        auto.then(|| "auto = true".to_owned()),
    ];
    keys.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn share_keys(settings: &ShareSettings) -> String {
    let weight = settings.weight.map(|weight| ("weight", weight.to_string()));
    let dedicated = settings.dedicated.then(|| ("dedicated", "true".to_owned()));
    weight.into_iter().chain(settings.rates.keys()).chain(dedicated).map(|(key, value)| format!("{key} = {value}\n")).collect()
}

/// As configured, with the size of now where it has one, and with what was set.
fn spec_in_force(export: &Export) -> DiskSpec {
    let mut spec = DiskSpec { shared: export.shared(), ..export.spec.clone() };
    let size_bytes = export.info(false).size_bytes();
    spec.kind.set_size(size_bytes);
    if let Some(options) = spec.kind.file_mut() {
        options.path = absolute(&options.path);
    }
    spec
}

/// `workers`: in use.
fn settings(config: &Config, workers: Mode, listen: &Path) -> String {
    let Config { cpus, placement, wait, look, clients, metrics, confine, confine_paths, log_level, log_format, .. } = config;
    let limits = clients.limits;
    let paths: Vec<String> = confine_paths.iter().map(|path| quoted_path(path)).collect();
    let mut text = String::new();
    let mut line = |key: &str, value: &dyn Display| _ = writeln!(text, "{key} = {value}");
    line("listen", &quoted_path(listen));
    // How many are started: `cpus` and disks with a worker of their own may need more than are in use.
    line("workers", &of_mode(config.workers));
    if workers != config.workers {
        line("# in use now: workers", &of_mode(workers));
    }
    line("cpus", &format_args!("{cpus:?}"));
    line("placement", &named(placement));
    line("wait", &quoted(&wait.to_string()));
    line("look_us", &look.as_micros());
    line("max_clients", &clients.max_clients);
    if let Some(limit) = clients.max_clients_per_user {
        line("max_clients_per_user", &limit);
    }
    line("max_queues", &limits.max_queues);
    line("max_depth", &limits.max_depth);
    line("max_pool_bytes", &limits.max_pool_bytes);
    line("max_memory_bytes", &limits.max_memory_bytes);
    if let Some(limit) = clients.max_memory_bytes_per_user {
        line("max_memory_bytes_per_user", &limit);
    }
    let endpoints: Vec<String> = metrics.iter().map(quoted_endpoint).collect();
    line("metrics", &format_args!("[{}]", endpoints.join(", ")));
    line("confine", &named(confine));
    line("confine_paths", &format_args!("[{}]", paths.join(", ")));
    line("log_level", &quoted(log_level));
    line("log_format", &named(log_format));
    text
}

fn of_mode(workers: Mode) -> String {
    if let Mode::Fixed(count) = workers { count.to_string() } else { quoted(&workers.to_string()) }
}

/// A value that has the same name on the command line and in the file.
fn named(value: &impl ValueEnum) -> String {
    quoted(value.to_possible_value().as_ref().map_or("", |value| value.get_name()))
}

/// A basic string of TOML: escaped as in JSON, and DEL, too.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\x7f', "\\u007f")
}

/// Paths are UTF-8 in the file, whose reader may have another working directory.
fn quoted_path(path: &Path) -> String {
    quoted(&absolute(path).to_string_lossy())
}

fn quoted_endpoint(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Unix(path) => quoted_path(path),
        Endpoint::Tcp(address) => quoted(&address.to_string()),
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
