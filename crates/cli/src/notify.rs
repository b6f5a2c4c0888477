//! `fipsee notify DISK`: when sleeping clients and guests of a disk are notified of completions.

use std::fmt::Write as _;
use std::path::Path;

use fipsee_block::disk::wrap::duration;
use fipsee_ring::notify::{Policy, Wanted};
use serde_json::{Value, json};

use crate::error::Error;
use crate::output::{self, Table};
use crate::{admin, units};

/// Without a policy every sleeping client is notified as soon as a completion is published. The maximum rate takes precedence over
/// the maximum delay. With no option of a policy, the policies in force and the counters are shown.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Name of the disk
    disk: String,
    /// Most notifications per second and queue, 1 to 10M, for example 10k
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    max_rate: Option<u64>,
    /// So many completions are worth a notification; no more are waited for than are in flight
    #[arg(long, value_name = "COUNT")]
    min_completions: Option<u64>,
    /// What fewer completions wait at most, 1us to 1s [default with --min-completions: 100us]
    #[arg(long, value_name = "TIME", value_parser = parse_delay)]
    max_delay: Option<u64>,
    /// Rate and occupancy of the queue decide how many completions are waited for
    #[arg(long, conflicts_with = "min_completions")]
    auto: bool,
    /// Without a policy: each notification is sent at once
    #[arg(long, conflicts_with_all = ["max_rate", "min_completions", "max_delay", "auto"])]
    off: bool,
    /// Only the queues of this client, by its number in fipsee info, in place of all queues, attached and future ones
    #[arg(long, value_name = "NUMBER")]
    client: Option<u64>,
    /// Print JSON: the disk's description, as info does
    #[arg(long)]
    json: bool,
}

/// A rate per second, with k or M (powers of 1000).
fn parse_rate(text: &str) -> Result<u64, String> {
    let (number, factor) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1000),
        None => text.strip_suffix('M').map_or((text, 1), |number| (number, 1_000_000)),
    };
    let rate = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    rate.ok_or_else(|| "write a whole number per second, or one with k or M, for example 10k".to_owned())
}

fn parse_delay(text: &str) -> Result<u64, String> {
    u64::try_from(duration(text)?.as_micros()).map_err(|_| "use 1us to 1s".to_owned())
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let &Arguments { ref disk, max_rate, min_completions, max_delay, auto, off, client, json } = arguments;
    let wanted = Wanted { max_rate, min_completions, max_delay_us: max_delay, auto };
    if !off && wanted == Wanted::default() {
        return show(socket, arguments);
    }
    let policy = if off { None } else { Some(Policy::new(&wanted)?) };
    let mut params = json!({ "disk": disk, "off": off, "auto": auto });
    let numbers = [("client", client), ("max_rate", max_rate), ("min_completions", min_completions), ("max_delay_us", max_delay)];
    for (key, value) in numbers.into_iter().filter_map(|(key, value)| Some((key, value?))) {
        params[key] = value.into();
    }
    let answer = admin::ask(socket, "notify.set", &params)?;
    if json {
        return output::print_json(&answer);
    }
    let whose = client.map_or_else(|| format!("disk '{disk}'"), |client| format!("client {client} of disk '{disk}'"));
    output::print(&format!("{whose} has its notifications {}\n{}", in_words(policy.as_ref()), contradiction(policy.as_ref())))
}

/// From JSON.
fn policy_of(policy: &Value) -> Option<Policy> {
    let number = |key| policy.get(key).and_then(Value::as_u64);
    let auto = policy.get("auto").and_then(Value::as_bool).unwrap_or(false);
    let (max_rate, min_completions, max_delay_us) = (number("max_rate"), number("min_completions"), number("max_delay_us"));
    Policy::new(&Wanted { max_rate, min_completions, max_delay_us, auto }).ok()
}

/// A policy in JSON, or null.
pub(crate) fn describe(policy: &Value) -> String {
    in_words(policy_of(policy).as_ref())
}

fn in_words(policy: Option<&Policy>) -> String {
    policy.map_or_else(|| "at once".to_owned(), Policy::to_string)
}

fn contradiction(policy: Option<&Policy>) -> String {
    let spacing = policy.and_then(Policy::delay_of_rate);
    spacing.map_or_else(String::new, |spacing| {
        let late = units::nanoseconds(u64::try_from(spacing.as_nanos()).unwrap_or(u64::MAX));
        format!("the maximum rate wins over the maximum delay: a notification may be {late} late\n")
    })
}

fn show(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let name = &arguments.disk;
    let disk = admin::ask(socket, "disk.info", &json!({ "disk": name }))?;
    if arguments.json {
        return output::print_json(&disk);
    }
    let stat = admin::ask(socket, "stat", &json!({}))?;
    output::print(&render(name, &disk, &stat, arguments.client))
}

fn render(name: &str, disk: &Value, stat: &Value, client: Option<u64>) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "disk '{name}' has its notifications {}", describe(&disk["notify"]));
    text.push_str(&contradiction(policy_of(&disk["notify"]).as_ref()));
    let mut table = Table::new(0, &["CLIENT", "QUEUE", "NOTIFICATIONS", "SUPPRESSED", "SPURIOUS", "POLICY"]);
    for of_client in admin::list(disk, "clients") {
        let number = admin::number(of_client, "client");
        let is_its = |queue: &&Value| admin::text(queue, "disk") == name && admin::number(queue, "client") == number;
        for queue in admin::list(stat, "queues").iter().filter(is_its).filter(|_| client.is_none_or(|only| only == number)) {
            let counts = ["client", "queue", "doorbells", "suppressed", "spurious"];
            let counts = counts.map(|key| admin::number(queue, key).to_string());
            table.push(counts.into_iter().chain([describe(&of_client["notify"])]).collect());
        }
    }
    text + &table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units_of_a_thousand() {
        assert_eq!(["7", "10k", "2M"].map(parse_rate), [Ok(7), Ok(10_000), Ok(2_000_000)]);
        for wrong in ["", "k", "1.5k", "-1", "10 k", "99999999999999M"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn policies_and_counters_are_shown_by_queue() {
        let policy = json!({ "max_rate": 1000, "min_completions": null, "max_delay_us": 100, "auto": false });
        let disk = json!({ "notify": policy, "clients": [{ "client": 7, "notify": policy }, { "client": 8, "notify": null }] });
        let queue =
            |client: u64| json!({ "disk": "a", "client": client, "queue": 0, "doorbells": 5, "suppressed": 90, "spurious": 1 });
        let stat = json!({ "queues": [queue(7), queue(8), { "disk": "b", "client": 7, "queue": 0 }] });
        let text = render("a", &disk, &stat, None);
        assert!(text.contains("at most 1000/s, at most 100us late\n"), "{text}");
        assert!(text.contains("the maximum rate wins over the maximum delay: a notification may be 1 ms late"), "{text}");
        let rows: Vec<Vec<_>> = text.lines().rev().take(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1][..5], ["7", "0", "5", "90", "1"], "{text}");
        assert_eq!(rows[0], ["8", "0", "5", "90", "1", "at", "once"], "{text}");
        assert_eq!(render("a", &disk, &stat, Some(8)).lines().count(), 4);
    }
}
