//! The admin socket: JSON-RPC 2.0, one object per line (docs/admin.md).

mod change;
mod disks;
mod dump;
mod limit;
mod methods;
mod networks;
mod ports;
mod rpc;
mod server;
mod view;
mod workers;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fipsee_ring::mailbox::Mailbox;
use fipsee_serve::unix::listener::Listener;
use serde_json::{Value, json};

pub(crate) use self::dump::quoted;
use self::methods::{Call, SCHEMA, Takeover};
use self::rpc::RpcError;
pub(crate) use self::server::HandingOver;
use crate::config::Config;
use crate::confine::Confinement;
pub use crate::descriptors::send;
pub use crate::disk_text::parse as parse_disk;
use crate::live::Live;
use crate::log::LogLevel;
use crate::metrics::MetricsListener;
use crate::overlay::Overlay;
use crate::scaling::Scaling;
use crate::services::Registry;
use crate::takeover::give::Asked;
use crate::transport::tap::Taps;
use crate::transport::unix::HandOver;
use crate::transport::vhost_user::VhostUserSockets;
use crate::worker::WorkerHandle;

/// The admin socket that belongs to the client socket `path`.
pub fn admin_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".admin");
    name.into()
}

/// What requests show and change: one at a time.
pub(crate) struct Admin {
    pub(crate) live: Arc<Live>,
    pub(crate) vms: Arc<VhostUserSockets>,
    pub(crate) taps: Arc<Taps>,
    pub(crate) workers: Vec<WorkerHandle>,
    pub(crate) scaling: Arc<Scaling>,
    pub(crate) registry: Registry,
    pub(crate) started: Instant,
    /// The configuration of the start or the last reload.
    pub(crate) running: Config,
    /// What was changed since.
    pub(crate) overlay: Overlay,
    pub(crate) log: LogLevel,
    pub(crate) confinement: Confinement,
    pub(crate) listeners: (Arc<Listener>, Arc<Listener>),
    /// Those of scrapers.
    pub(crate) metrics: Arc<[MetricsListener]>,
    /// Requests to the main thread to hand over.
    pub(crate) clients: Arc<Mailbox<HandOver>>,
    pub(crate) handing_over: Arc<HandingOver>,
}

impl Admin {
    /// `files`: descriptors that came with the request, or one before it, and that were not used yet.
    fn answer(&mut self, call: Call, files: &mut Vec<OwnedFd>) -> Result<Value, RpcError> {
        Ok(match call {
            Call::List(_) => {
                json!({ "disks": self.live.now().exports.iter().map(|export| self.describe(export)).collect::<Vec<_>>() })
            }
            Call::Info(of) => {
                let export = self.live.now().find(&of.disk)?.clone();
                self.describe_with_clients(&export)
            }
            Call::Stat(_) => self.stat(),
            Call::Add(disk) => self.add(disk, files)?,
            Call::Remove(of) => self.remove(&of.disk)?,
            Call::Set(set) => self.set(set)?,
            Call::Limits(_) => self.limits(),
            Call::Limit(limit) => self.limit(limit)?,
            Call::Resize(resize) => self.resize(&resize)?,
            Call::Attach(attach) => self.attach(&attach.disk, &attach.vhost_user)?,
            Call::Detach(detach) => self.detach(&detach.vhost_user)?,
            Call::AttachPort(attach) => self.attach_port(&attach, files)?,
            Call::DetachPort(of) => self.detach_port(&of.port)?,
            Call::Notify(set) => self.set_notify(&set)?,
            Call::SetPort(set) => self.set_port(&set)?,
            Call::SetMtu(set) => self.set_mtu(&set)?,
            Call::Workers(_) => self.describe_workers(),
            Call::SetWorkers(wanted) => self.set_workers(&wanted.workers)?,
            Call::Reload(_) => json!(self.reload()?),
            Call::Dump(_) => json!({ "toml": self.dump() }),
            Call::Discover(_) => serde_json::from_str(SCHEMA).map_err(|error| format!("the schema of this build: {error}"))?,
            Call::Takeover(_) => return Err("a takeover has a connection of its own; this is a bug".to_owned().into()),
        })
    }

    /// Returns when it failed: this daemon goes on. An error: it was not even started.
    fn answer_takeover(&self, asked: &Asked<'_>, &Takeover { version, wait_ms }: &Takeover) -> Result<(), RpcError> {
        Ok(self.hand_over(asked, version, Duration::from_millis(wait_ms))?)
    }
}

/// What is wrong with a line, if anything. For tests and the fuzzer: nothing is done.
///
/// # Errors
/// The line that answers it.
pub fn check(line: &str) -> Result<(), String> {
    match rpc::parse(line.as_bytes())? {
        rpc::Message::Notification => Ok(()),
        rpc::Message::Call { id, method, params } => {
            Call::parse(&method, params).map(drop).map_err(|error| rpc::failure(&id, error))
        }
    }
}
