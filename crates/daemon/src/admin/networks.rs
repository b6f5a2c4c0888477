//! Changes of networks and their ports that the admin socket requests.

use fipsee_net::frame::Mac;
use serde_json::{Value, json};

use super::Admin;
use super::methods::{SetMtu, SetPort};

impl Admin {
    pub(super) fn set_port(&mut self, SetPort { port: name, down, mac }: &SetPort) -> Result<Value, String> {
        let port = self.live.switches.port(name);
        let port = port.ok_or_else(|| format!("no port '{name}' here; `fipsee net stat` names them, for example lan/a"))?;
        let mac = mac.as_deref().map(str::parse::<Mac>).transpose()?;
        if down.is_none() && mac.is_none() {
            return Err(format!("nothing is to be set of port '{name}'; give down or mac"));
        }
        if let Some(mac) = mac {
            port.set_mac(mac)?;
            self.overlay.set_port_mac(name, mac);
        }
        if let Some(down) = *down {
            port.set_down(down);
            self.vms.changed(name);
            self.overlay.set_port_down(name, down);
        }
        let (link, mac) = (port.link().text(), port.mac().to_string());
        tracing::info!(port = name, link, mac, "the port was set");
        Ok(json!({ "port": name, "link": link, "mac": mac }))
    }

    pub(super) fn set_mtu(&mut self, SetMtu { network, mtu }: &SetMtu) -> Result<Value, String> {
        self.live.switches.set_mtu(network, *mtu)?;
        self.overlay.set_mtu(network, *mtu);
        tracing::info!(network, mtu, "the network was set");
        Ok(json!({ "network": network, "mtu": mtu }))
    }
}
