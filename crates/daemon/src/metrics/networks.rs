//! What the metrics of networks are, from what the service says of them. Ports are bounded by the configuration.

use fipsee_serve::Metric;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::families::Family;

fn found<'a>(metric: &'a Metric, key: &str) -> Option<&'a Metric> {
    let Metric::Named(named) = metric else { return None };
    named.iter().find(|(name, _)| *name == key).map(|(_, metric)| metric)
}

fn list(metric: Option<&Metric>) -> &[Metric] {
    if let Some(Metric::List(list)) = metric { list } else { &[] }
}

fn text<'a>(metric: &'a Metric, key: &str) -> &'a str {
    if let Some(Metric::Text(text)) = found(metric, key) { text } else { "" }
}

fn number(metric: &Metric, key: &str) -> u64 {
    if let Some(Metric::Number(number)) = found(metric, key) { *number } else { 0 }
}

pub(super) fn families(metrics: &[(&'static str, Metric)]) -> [Family; 6] {
    let help = "Frames that a port's client sent and the switch took, and frames that the client received";
    let mut frames = Family::counter("port_frames", help);
    let help = "Bytes of the frames that a port's client sent and received";
    let mut bytes = Family::new("port_transferred", Some(Unit::Bytes), MetricType::Counter, help);
    let help = "Frames to a port that were lost because its client had no buffers posted";
    let mut dropped = Family::counter("port_dropped", help);
    let mut refused = Family::counter("port_refused", "Frames of a port's client that the switch did not take, by reason");
    let mut attached = Family::gauge("port_attached", "1: a client has the port");
    let mut learned = Family::gauge("network_macs_learned", "Addresses of a network that are known beside those of ports");
    let networks = metrics.iter().find(|(name, _)| *name == "networks").map(|(_, networks)| networks);
    for network in list(networks) {
        let name = ("network", text(network, "network"));
        learned.push(&[name], number(network, "macs_learned"));
        for port in list(found(network, "ports")) {
            let labels = [name, ("port", text(port, "port"))];
            for (direction, count, count_bytes) in [("sent", "sent", "sent_bytes"), ("received", "received", "received_bytes")] {
                let labels = [&labels[..], &[("direction", direction)]].concat();
                frames.push(&labels, number(port, count));
                bytes.push(&labels, number(port, count_bytes));
            }
            dropped.push(&labels, number(port, "dropped"));
            attached.push(&labels, found(port, "client").is_some().into());
            if let Some(Metric::Named(reasons)) = found(port, "refused") {
                for (reason, count) in reasons {
                    if let Metric::Number(count) = count {
                        refused.push(&[&labels[..], &[("reason", reason)]].concat(), *count);
                    }
                }
            }
        }
    }
    [frames, bytes, dropped, refused, attached, learned]
}
