//! Changes of ports of networks that the admin socket requests.

use serde_json::{Value, json};

use super::Admin;
use super::methods::SetPort;

impl Admin {
    pub(super) fn set_port(&mut self, SetPort { port: name, down }: &SetPort) -> Result<Value, String> {
        let port = self.live.switches.port(name);
        let port = port.ok_or_else(|| format!("no port '{name}' here; `fipsee net stat` names them, for example lan/a"))?;
        port.set_down(*down);
        self.vms.changed(name);
        self.overlay.set_port_down(name, *down);
        tracing::info!(port = name, down, "the port was set");
        Ok(json!({ "port": name, "link": port.link().text() }))
    }
}
