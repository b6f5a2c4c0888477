//! The registry of services: what clients can attach to, compiled in.

pub mod block;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fipsee_ring::control::RefusalCode;
use fipsee_ring::handshake::{Wanted, refuse};
use fipsee_serve::session::{Adopted, Client, Denial, Granted, Part, Service};

use crate::live::Live;
use crate::worker::{DiskEngine, WorkerHandle};

/// Services that a program adds to those of `fipseed`, for these workers.
pub type Services = fn(&[WorkerHandle]) -> Vec<Box<dyn Service<DiskEngine>>>;

/// All services of the daemon, by their numbers in ATTACH.
pub struct Registry(Vec<Box<dyn Service<DiskEngine>>>);

impl Registry {
    /// One line per service, and those that are added.
    #[must_use]
    pub fn new(live: &Arc<Live>, workers: &[WorkerHandle], added: Services) -> Self {
        let mut services: Vec<Box<dyn Service<DiskEngine>>> =
            vec![Box::new(block::Block::new(Arc::clone(live), workers.to_vec()))];
        services.extend(added(workers));
        Self(services)
    }

    /// Feature bits of all of them.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.0.iter().fold(0, |features, service| features | service.features())
    }

    /// ATTACH, to the service that it names.
    ///
    /// # Errors
    /// There is none of that number, or it refuses.
    pub fn attach(&self, client: &Client<'_>, wanted: &Wanted<'_>) -> Result<Granted<DiskEngine>, Denial> {
        let service = self.0.iter().find(|service| service.number() == wanted.service);
        match service.filter(|_| wanted.queue_count > 0 && wanted.depth > 0) {
            Some(service) => service.attach(client, wanted),
            None => Err(not_served()),
        }
    }

    /// Go on with a client of another daemon, of the service of this number.
    ///
    /// # Errors
    /// There is none, or it cannot.
    pub fn adopt(&self, service: u16, client: &Client<'_>, parts: Vec<Part<OwnedFd>>) -> Result<Adopted<DiskEngine>, String> {
        let found = self.0.iter().find(|known| known.number() == service);
        found.ok_or_else(|| format!("its service {service} is not known here"))?.adopt(client, parts)
    }
}

/// An ATTACH that no version of a service here understands.
fn not_served() -> Denial {
    let text = "ATTACH asks for an unknown service or flag, or for no queue or depth 0; upgrade the daemon or mend the client";
    refuse(RefusalCode::Malformed, text).into()
}
