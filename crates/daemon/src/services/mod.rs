//! The registry of services for clients, compiled in.

pub(crate) mod block;
pub(crate) mod net;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fipsee_ring::control::{Page, Refusal, RefusalCode, Wanted};
use fipsee_ring::handshake::refuse;
use fipsee_serve::session::{Adopted, Client, Denial, Granted, Part, Service};
use fipsee_serve::{Metric, Needs};

use crate::config::Config;
use crate::live::Live;
use crate::worker::{DiskEngine, WorkerHandle};

type Boxed = Box<dyn Service<DiskEngine>>;

/// A service of the daemon, before it is created.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its needs under a configuration: the daemon gives up everything else before it has workers.
    pub needs: fn(&Config) -> Needs,
    pub make: fn(&Config, &Arc<Live>, &[WorkerHandle]) -> Boxed,
}

/// Services that a program adds to those of `fipseed`.
pub type Services = &'static [Entry];

const SERVICES: [Entry; 2] = [block::ENTRY, net::ENTRY];

pub fn needs(config: &Config, added: Services) -> Needs {
    let mut all = Needs::default();
    for entry in SERVICES.iter().chain(added) {
        let Needs { calls, calls_with, files } = (entry.needs)(config);
        all.calls.extend(calls);
        all.calls_with.extend(calls_with);
        all.files.extend(files);
    }
    all
}

/// All services of the daemon, by their numbers in ATTACH.
#[derive(Clone)]
pub(crate) struct Registry(Arc<[Boxed]>);

impl Registry {
    pub(crate) fn new(config: &Config, live: &Arc<Live>, workers: &[WorkerHandle], added: Services) -> Self {
        Self(SERVICES.iter().chain(added).map(|entry| (entry.make)(config, live, workers)).collect())
    }

    pub(crate) fn features(&self) -> u64 {
        self.0.iter().fold(0, |features, service| features | service.features())
    }

    pub(crate) fn metrics(&self) -> impl Iterator<Item = (&'static str, Metric)> {
        self.0.iter().flat_map(|service| service.metrics())
    }

    /// Those of the service of this number.
    pub(crate) fn metrics_of(&self, number: u16) -> Vec<(&'static str, Metric)> {
        self.0.iter().filter(|service| service.number() == number).flat_map(|service| service.metrics()).collect()
    }

    /// LIST, for the service that it names.
    pub(crate) fn list(&self, client: &Client<'_>, service: u16, after: &str) -> Result<Page, Refusal> {
        let found = self.0.iter().find(|known| known.number() == service);
        let page = found.and_then(|service| service.list(client, after));
        page.ok_or_else(|| {
            refuse(RefusalCode::Malformed, "LIST asks for an unknown service; upgrade the daemon or fix the client")
        })
    }

    /// ATTACH, for the service that it names.
    pub(crate) fn attach(&self, client: &Client<'_>, wanted: &Wanted) -> Result<Granted<DiskEngine>, Denial> {
        let service = self.0.iter().find(|service| service.number() == wanted.service);
        match service.filter(|_| wanted.queue_count > 0 && wanted.depth > 0) {
            Some(service) => service.attach(client, wanted),
            None => Err(not_served()),
        }
    }

    /// Adopt a client of another daemon, of the service of this number.
    pub(crate) fn adopt(
        &self,
        service: u16,
        client: &Client<'_>,
        parts: Vec<Part<OwnedFd>>,
    ) -> Result<Adopted<DiskEngine>, String> {
        let found = self.0.iter().find(|known| known.number() == service);
        found.ok_or_else(|| format!("its service {service} is not known here"))?.adopt(client, parts)
    }
}

/// An ATTACH that no service here accepts.
fn not_served() -> Denial {
    let text = "ATTACH asks for an unknown service or flag, or for no queue or depth 0; upgrade the daemon or fix the client";
    refuse(RefusalCode::Malformed, text).into()
}
