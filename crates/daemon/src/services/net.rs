//! Networks: their configuration as the service takes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fipsee_net::server::{NetworkSetup, Networks, PortSetup};
use fipsee_serve::Needs;
use fipsee_serve::session::Credentials;

use super::Entry;
use crate::config::{NetworkConfig, PortConfig};

/// They answer from memory: nothing is declared.
pub(super) const ENTRY: Entry = Entry {
    needs: |_| Needs::default(),
    make: |config, live, workers| {
        let live = Arc::clone(live);
        let attached = Arc::new(move |client, is_attached| {
            live.set_stays(client, is_attached);
            if !is_attached {
                live.departures.fetch_add(1, Ordering::Relaxed);
            }
        });
        Box::new(Networks::new(config.networks.iter().map(setup).collect(), workers.to_vec(), attached))
    },
};

fn setup(network: &NetworkConfig) -> NetworkSetup {
    let NetworkConfig { name, mtu, learning, ports } = network.clone();
    let port = |PortConfig { name, rules, allow }| {
        let allow = move |client: &Credentials| allow.allows(client.uid, client.gid, &client.more_gids);
        PortSetup { name, rules, allow: Box::new(allow) }
    };
    NetworkSetup { name, mtu, learning, ports: ports.into_iter().map(port).collect() }
}
