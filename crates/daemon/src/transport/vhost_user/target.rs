//! What the machines at a socket use: a disk, or a port of a network.

use std::sync::Arc;
use std::time::Duration;

use fipsee_net::server::{Holder, ServedPort};
use fipsee_serve::session::Credentials;

use super::device::{Device, DiskDescription, PortDescription};
use crate::export::{AttachRequest, Export, Kind, Role};
use crate::live::Live;

/// What has this name.
pub(super) fn kind_of(name: &str) -> &'static str {
    if name.contains('/') { "port" } else { "disk" }
}

/// The name as the log has it: of a disk, or of a port.
pub(super) fn disk_or_port(name: &str) -> (Option<&str>, Option<&str>) {
    if kind_of(name) == "disk" { (Some(name), None) } else { (None, Some(name)) }
}

#[derive(Clone)]
pub(crate) enum Target {
    Disk(Arc<Export>),
    /// A port, by the names of its network and its own.
    Port(String, ServedPort),
}

impl Target {
    /// The disk or port of this name. A port's has a slash, and a disk's has none.
    pub(crate) fn find(live: &Live, name: &str) -> Result<Self, String> {
        if kind_of(name) == "disk" {
            return live.now().find(name).cloned().map(Self::Disk);
        }
        let port = live.switches.port(name);
        port.map(|port| Self::Port(name.to_owned(), port)).ok_or_else(|| format!("no port '{name}' here; see fipsee net ls"))
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Disk(export) => export.name(),
            Self::Port(name, _) => name,
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        kind_of(self.name())
    }

    /// Its name as the log has it.
    pub(super) fn disk_or_port(&self) -> (Option<&str>, Option<&str>) {
        disk_or_port(self.name())
    }

    pub(super) const fn disk(&self) -> Option<&Arc<Export>> {
        match self {
            Self::Disk(export) => Some(export),
            Self::Port(..) => None,
        }
    }

    pub(crate) fn is(&self, export: &Export) -> bool {
        self.disk().is_some_and(|own| std::ptr::eq(&raw const **own, export))
    }

    /// As its machines see it, with so many queues; a port has at least one pair.
    pub(super) fn device(&self, queues: u16) -> Device {
        match self {
            Self::Disk(export) => {
                let (name, info, read_only) = (export.name().to_owned(), export.info(false), export.spec.ro);
                let mut device = Device::new(DiskDescription { name, info, read_only }, queues);
                device.attachment.max_depth = export.limits().max_depth;
                device
            }
            Self::Port(name, port) => Device::of_port(PortDescription::new(name, port, queues)),
        }
    }

    /// # Errors
    /// A machine with these credentials may not use it, or not now.
    pub(super) fn admit(&self, client: u64, credentials: &Credentials) -> Result<(), String> {
        match self {
            Self::Disk(export) => {
                // The destination of a migration connects while the source still writes: a device claims when its first queue is served.
                let request =
                    AttachRequest { kind: Kind::VhostUser, exclusive: false, role: Role::Reader, ignores_claims: false };
                export.admit(client, credentials, request).map_err(|denied| denied.into_text())
            }
            Self::Port(name, port) => {
                if !port.allows(credentials) {
                    let uid = credentials.uid;
                    return Err(format!("port '{name}' does not allow user {uid}; see allow_users and allow_groups of it"));
                }
                port.claim(Holder::Machine).map_err(|held| held.to_string())
            }
        }
    }

    /// The machine hung up.
    pub(super) fn is_leaving(&self, client: u64) {
        match self {
            Self::Disk(export) => export.is_leaving(client),
            Self::Port(_, port) => port.leave(),
        }
    }

    /// Nothing of the machine is left.
    pub(super) fn leave(&self, client: u64, live: &Live) {
        match self {
            Self::Disk(export) => export.leave(client),
            Self::Port(_, port) => {
                live.set_fixed(client, None);
                port.release();
            }
        }
    }

    /// The first queue of the machine is about to be served.
    pub(super) fn claim(&self, client: u64, timeout: Duration) -> Result<(), String> {
        self.disk().map_or(Ok(()), |export| export.claim(client, timeout))
    }

    /// None is served any more.
    pub(super) fn end_claim(&self, client: u64) {
        self.disk().into_iter().for_each(|export| export.end_claim(client));
    }
}
