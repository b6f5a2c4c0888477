//! `fipsee net`: networks, their ports, and frames to try them with.

mod attach;
mod capture;
mod frames;
mod pcapng;

use std::path::Path;

use fipsee_net::list;
use serde_json::{Value, json};

use self::attach::{AttachArguments, DetachArguments};
pub(crate) use self::capture::CaptureArguments;
pub(crate) use self::frames::{EchoArguments, PingArguments};
use crate::error::Error;
use crate::output::{self, Table};
use crate::{admin, units};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the ports that you may attach to
    Ls {
        /// Print JSON: {"ports": [{"port", "mac", "mtu", "in_use"}]}
        #[arg(long)]
        json: bool,
    },
    /// Describe a network and its ports
    Info {
        network: String,
        /// Print JSON: {"network", "mtu", "macs_learned", "ports": [...]}
        #[arg(long)]
        json: bool,
    },
    /// Change a port or a network, until the daemon is restarted; clients are notified
    #[command(group = clap::ArgGroup::new("what").args(["down", "up", "mac", "mtu"]).required(true).multiple(true))]
    Set {
        /// Network and port, for example lan/a; with --mtu a network
        port: String,
        /// It neither sends nor gets frames
        #[arg(long, conflicts_with = "up")]
        down: bool,
        /// It does again
        #[arg(long)]
        up: bool,
        /// Its address from now on, for example 02:00:00:00:00:01
        #[arg(long)]
        mac: Option<String>,
        /// No port of the network sends longer packets from now on; at most the MTU that is configured
        #[arg(long, conflicts_with_all = ["down", "up", "mac"])]
        mtu: Option<u16>,
        /// Print JSON: {"port", "link", "mac"} or {"network", "mtu"}
        #[arg(long)]
        json: bool,
    },
    /// Show what ports have sent, received and dropped since the daemon started
    Stat {
        /// Print JSON: {"networks": [{"network", "ports": [{"port", "sent", "received", "dropped", "refused", ...}]}]}
        #[arg(long)]
        json: bool,
    },
    /// Add a port to a network, until the daemon is restarted; a reload or a takeover leaves it
    Attach(AttachArguments),
    /// Remove a port; refused while a client is attached to it
    Detach(DetachArguments),
    /// Send frames from one port to another, where fipsee net echo runs, and measure how long they take there and back
    Ping(PingArguments),
    /// Send every frame of fipsee net ping back to where it came from
    Echo(EchoArguments),
    /// Write the frames that come to a port into a file, for tcpdump or Wireshark
    Capture(CaptureArguments),
}

pub(crate) fn run(socket: &Path, command: &Command) -> Result<(), Error> {
    match command {
        Command::Ls { json } => ls(socket, *json),
        Command::Info { network, json } => info(socket, network, *json),
        Command::Set { port: network, mtu: Some(mtu), json, .. } => {
            let set = admin::ask(socket, "net.set_mtu", &json!({ "network": network, "mtu": mtu }))?;
            if *json { output::print_json(&set) } else { output::print(&format!("{network} has an MTU of {mtu}\n")) }
        }
        Command::Set { port, down, up, mac, json, .. } => {
            let down = (*down || *up).then_some(*down);
            let set = admin::ask(socket, "net.set", &json!({ "port": port, "down": down, "mac": mac }))?;
            if *json {
                return output::print_json(&set);
            }
            let address = mac.as_ref().map(|_| format!(", its address {}", admin::text(&set, "mac"))).unwrap_or_default();
            output::print(&format!("{port} is {}{address}\n", admin::text(&set, "link")))
        }
        Command::Stat { json } => {
            let networks = networks(socket)?;
            if *json { output::print_json(&json!({ "networks": networks })) } else { output::print(&render_stat(&networks)) }
        }
        Command::Attach(arguments) => attach::attach(socket, arguments),
        Command::Detach(arguments) => attach::detach(socket, arguments),
        Command::Ping(arguments) => frames::ping(socket, arguments),
        Command::Echo(arguments) => frames::echo(socket, arguments),
        Command::Capture(arguments) => capture::capture(socket, arguments),
    }
}

fn ls(socket: &Path, as_json: bool) -> Result<(), Error> {
    let ports = list(socket)?;
    if as_json {
        let port = |port: &fipsee_net::ListedPortInfo| json!({ "port": port.name, "mac": port.mac.to_string(), "mtu": port.mtu, "in_use": port.in_use });
        return output::print_json(&json!({ "ports": ports.iter().map(port).collect::<Vec<_>>() }));
    }
    let mut table = Table::new(2, &["PORT", "MAC", "MTU", "IN USE"]);
    for port in ports {
        let in_use = if port.in_use { "yes" } else { "no" };
        table.push(vec![port.name, port.mac.to_string(), port.mtu.to_string(), in_use.to_owned()]);
    }
    output::print(&table.render())
}

/// As the daemon's `stat` has them.
fn networks(socket: &Path) -> Result<Vec<Value>, Error> {
    let stat = admin::ask(socket, "stat", &json!({}))?;
    Ok(admin::list(&stat, "networks").to_vec())
}

fn info(socket: &Path, name: &str, as_json: bool) -> Result<(), Error> {
    let networks = networks(socket)?;
    let Some(network) = networks.iter().find(|network| admin::text(network, "network") == name) else {
        let names: Vec<&str> = networks.iter().map(|network| admin::text(network, "network")).collect();
        let there = if names.is_empty() { "there is none".to_owned() } else { format!("there are: {}", names.join(", ")) };
        return Err(format!("no network '{name}' here; {there}").into());
    };
    if as_json { output::print_json(network) } else { output::print(&render_info(network)) }
}

fn render_info(network: &Value) -> String {
    let [mtu, learned, moved, not_learned] =
        ["mtu", "macs_learned", "macs_moved", "macs_not_learned"].map(|key| admin::number(network, key));
    let mut text = format!("network  {}\nmtu      {mtu}\n", admin::text(network, "network"));
    text.push_str(&format!(
        "learned  {learned} addresses beside those of ports; {moved} have moved, {not_learned} had no place\n\n"
    ));
    let mut table = Table::new(5, &["PORT", "MAC", "VLANS", "MAY", "LINK", "CLIENT"]);
    for port in admin::list(network, "ports") {
        let number = || port.get("client").and_then(Value::as_u64).map(|client| client.to_string());
        let device = || port.get("device").and_then(Value::as_str).map(|device| format!("device {device}"));
        let holder = || port.get("holder").and_then(Value::as_str).map(str::to_owned);
        let client = number().or_else(device).or_else(holder).unwrap_or_else(|| "-".to_owned());
        let words = ["port", "mac", "vlans", "may", "link"].map(|key| admin::text(port, key).to_owned());
        table.push(words.into_iter().chain([client]).collect());
    }
    text + &table.render()
}

fn render_stat(networks: &[Value]) -> String {
    let mut table = Table::new(1, &["PORT", "SENT", "BYTES", "RECEIVED", "BYTES", "DROPPED", "REFUSED"]);
    for network in networks {
        for port in admin::list(network, "ports") {
            let number = |key| admin::number(port, key);
            let refused = port.get("refused").and_then(Value::as_object);
            let refused: u64 = refused.into_iter().flat_map(|counts| counts.values()).filter_map(Value::as_u64).sum();
            table.push(vec![
                format!("{}/{}", admin::text(network, "network"), admin::text(port, "port")),
                number("sent").to_string(),
                units::bytes(number("sent_bytes")),
                number("received").to_string(),
                units::bytes(number("received_bytes")),
                number("dropped").to_string(),
                refused.to_string(),
            ]);
        }
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_shown_as_tables() {
        let port = json!({
            "port": "a", "mac": "02:00:00:00:00:01", "vlans": "10", "may": "isolated", "link": "up", "client": 3,
            "sent": 5, "sent_bytes": 300, "received": 2, "received_bytes": 2048, "dropped": 1, "refused": { "invalid": 2, "limited": 3 },
        });
        let network =
            json!({ "network": "lan", "mtu": 1500, "macs_learned": 4, "macs_moved": 1, "macs_not_learned": 0, "ports": [port] });
        let cells = |text: &str| text.lines().last().expect("a line").split_whitespace().collect::<Vec<_>>().join(" ");
        let info = render_info(&network);
        assert_eq!(cells(&info), "a 02:00:00:00:00:01 10 isolated up 3");
        assert!(info.contains("learned  4 addresses beside those of ports; 1 have moved, 0 had no place"), "{info}");
        assert_eq!(cells(&render_stat(&[network])), "lan/a 5 300 B 2 2 KiB 1 5");
    }
}
