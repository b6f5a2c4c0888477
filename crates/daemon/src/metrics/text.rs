//! Families as text: in OpenMetrics 1.0, and in the older format of Prometheus for what does not ask for it.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::families::{Family, Value};
use crate::latency::{BOUNDS_NS, Latency};

const PREFIX: &str = "fipsee";
const NS_PER_SECOND: f64 = 1e9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    Plain,
}

impl Format {
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        for family in &self.0 {
            let mut values = encoder.encode_descriptor(family.name, family.help, family.unit.as_ref(), family.kind)?;
            for (labels, value) in &family.samples {
                match value {
                    // Its labels are its value.
                    Value::Info => values.encode_info(labels)?,
                    value => encode(&mut values.encode_family(labels)?, family.kind, value)?,
                }
            }
        }
        Ok(())
    }
}

fn encode(to: &mut MetricEncoder<'_>, kind: MetricType, value: &Value) -> Result<(), Error> {
    match (value, kind) {
        (Value::Number(number), MetricType::Counter) => to.encode_counter::<NoLabelSet, _, u64>(number, None),
        (Value::Number(number), _) => to.encode_gauge(number),
        (Value::Seconds(time), MetricType::Counter) => to.encode_counter::<NoLabelSet, _, u64>(&time.as_secs_f64(), None),
        (Value::Seconds(time), _) => to.encode_gauge(&time.as_secs_f64()),
        (Value::Histogram(latency), _) => encode_histogram(to, latency),
        (Value::Info, _) => Ok(()),
    }
}

#[allow(clippy::cast_precision_loss, reason = "sums below 104 days are exact to the nanosecond")]
fn encode_histogram(to: &mut MetricEncoder<'_>, latency: &Latency) -> Result<(), Error> {
    let bounds = BOUNDS_NS.iter().map(|ns| *ns as f64 / NS_PER_SECOND).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(latency.counts).collect();
    let count = latency.counts.iter().sum();
    to.encode_histogram::<NoLabelSet>(latency.sum_ns as f64 / NS_PER_SECOND, count, &buckets, None)
}

/// # Errors
/// None that is known: the text is in memory.
pub(super) fn render(families: Vec<Family>, format: Format) -> Result<String, Error> {
    // In this order, and no empty ones: a parser may refuse a name without values.
    let families: Vec<_> = families.into_iter().filter(|family| !family.samples.is_empty()).collect();
    let suffixes: Vec<_> = families.iter().filter_map(|family| Some((full_name(family), suffix(family.kind)?))).collect();
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Families(families)));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    match format {
        Format::OpenMetrics => Ok(text),
        Format::Plain => Ok(plain(&text, &suffixes)),
    }
}

fn full_name(family: &Family) -> String {
    let unit = family.unit.as_ref().map_or_else(String::new, |unit| format!("_{}", unit.as_str()));
    format!("{PREFIX}_{}{unit}", family.name)
}

/// In OpenMetrics, the part of a value's name that is not in its family's.
const fn suffix(kind: MetricType) -> Option<&'static str> {
    match kind {
        MetricType::Counter => Some("_total"),
        MetricType::Info => Some("_info"),
        _ => None,
    }
}

/// The older format describes values by their whole names, and has no units, no end and no type for information.
fn plain(open_metrics: &str, suffixes: &[(String, &'static str)]) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("UNIT" | "EOF"), ..) => continue,
            (Some("#"), Some(what), Some(name), Some(rest)) => {
                let suffix = suffixes.iter().find(|(known, _)| known == name).map_or("", |(_, suffix)| suffix);
                let rest = if what == "TYPE" && rest == "info" { "gauge" } else { rest };
                text.push_str(&format!("# {what} {name}{suffix} {rest}"));
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Unit;

    use super::*;

    fn families() -> Vec<Family> {
        let family = |name, unit, kind, samples| Family { name, help: "Some help", unit, kind, samples };
        let label = |value: &str| vec![("disk", value.to_owned())];
        let mut latency = Latency::default();
        (latency.counts[0], latency.counts[2], latency.sum_ns) = (3, 1, 1_500);
        vec![
            family("build", None, MetricType::Info, vec![(label("x"), Value::Info)]),
            family("moved", Some(Unit::Bytes), MetricType::Counter, vec![(label("a"), Value::Number(7))]),
            family("wait", Some(Unit::Seconds), MetricType::Histogram, vec![(label("a"), Value::Histogram(latency.into()))]),
            family("empty", None, MetricType::Gauge, Vec::new()),
        ]
    }

    #[test]
    fn both_formats_have_their_names() {
        let open = render(families(), Format::OpenMetrics).expect("text");
        let expected = "# HELP fipsee_build Some help\n# TYPE fipsee_build info\nfipsee_build_info{disk=\"x\"} 1\n\
                        # HELP fipsee_moved_bytes Some help\n# TYPE fipsee_moved_bytes counter\n# UNIT fipsee_moved_bytes bytes\n\
                        fipsee_moved_bytes_total{disk=\"a\"} 7\n";
        assert!(open.starts_with(expected), "{open}");
        for line in [
            "fipsee_wait_seconds_bucket{le=\"2.5e-7\",disk=\"a\"} 3",
            "fipsee_wait_seconds_bucket{le=\"+Inf\",disk=\"a\"} 4",
            "fipsee_wait_seconds_count{disk=\"a\"} 4",
            "fipsee_wait_seconds_sum{disk=\"a\"} 0.0000015",
        ] {
            assert!(open.lines().any(|found| found == line), "{line} in {open}");
        }
        assert!(open.ends_with("# EOF\n") && !open.contains("empty"), "{open}");

        let plain = render(families(), Format::Plain).expect("text");
        let expected = "# HELP fipsee_build_info Some help\n# TYPE fipsee_build_info gauge\nfipsee_build_info{disk=\"x\"} 1\n\
                        # HELP fipsee_moved_bytes_total Some help\n# TYPE fipsee_moved_bytes_total counter\n\
                        fipsee_moved_bytes_total{disk=\"a\"} 7\n# HELP fipsee_wait_seconds Some help\n";
        assert!(plain.starts_with(expected) && !plain.contains("# EOF"), "{plain}");
    }
}
