//! Networks: their configuration as the service takes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fipsee_net::server::tap;
use fipsee_net::server::{Assigned, NetworkSetup, Networks, PortSetup, Reservation, Switches};
use fipsee_serve::session::Credentials;
use fipsee_serve::{Argument, Needs};

use super::Entry;
use crate::config::{NetworkConfig, PortConfig};
use crate::live::FixedQueues;

/// They answer from memory, and devices of the host were opened before; of one that is passed later the daemon asks what it is.
pub(super) const ENTRY: Entry = Entry {
    needs: |_| {
        let ioctl = |number| (libc::SYS_ioctl, vec![Argument::int(1, number)]);
        Needs { calls_with: tap::IOCTLS_OF_PASSED.map(ioctl).to_vec(), ..Needs::default() }
    },
    make: |_, live, workers| {
        let switches = live.switches.clone();
        let live = Arc::clone(live);
        let follow = Arc::new(move |client, assigned: Option<Assigned<'_>>| {
            let fixed = assigned.map(|Assigned { port, worker, queues, share }| {
                live.shares.attached(client, share);
                FixedQueues { port: port.to_owned(), worker, queues, share: Some(share.clone()) }
            });
            live.set_fixed(client, fixed);
            if assigned.is_none() {
                live.departures.fetch_add(1, Ordering::Relaxed);
            }
        });
        Box::new(Networks::new(switches, workers.to_vec(), follow))
    },
};

pub(crate) fn switches(networks: &[NetworkConfig]) -> Switches {
    Switches::new(networks.iter().map(setup).collect())
}

/// The rates of ports.
pub(crate) fn set_rates(switches: &Switches, networks: &[NetworkConfig]) {
    for NetworkConfig { name, ports, .. } in networks {
        for port in ports {
            let rates = port.rates.in_force();
            switches.port(&port.full_name(name)).into_iter().for_each(|port| port.limiter().set(rates));
        }
    }
}

fn setup(network: &NetworkConfig) -> NetworkSetup {
    let NetworkConfig { name, mtu, learning, ports } = network.clone();
    NetworkSetup { name, mtu, learning, ports: ports.into_iter().map(port).collect() }
}

pub(crate) fn port(PortConfig { name, rules, allow, vhost_user, .. }: PortConfig) -> PortSetup {
    let allow = move |client: &Credentials| allow.allows(client.uid, client.gid, &client.more_gids);
    let reserved = vhost_user.map(|path| {
        let path = std::path::absolute(&path).unwrap_or(path);
        Reservation::Machine(path.to_string_lossy().into())
    });
    PortSetup { name, rules, allow: Box::new(allow), reserved }
}
