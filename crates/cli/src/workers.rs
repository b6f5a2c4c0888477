//! `fipsee workers`: how busy the daemon's workers are, and how many are in use.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::Error;
use crate::output::{self, Table};
use crate::{admin, units};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Have so many of the workers that were started serve, until the daemon is restarted: a number; a range of which as many are used as the
    /// load needs (1..4); auto, all that the load needs; or off, nothing changes any more
    #[arg(value_name = "N")]
    workers: Option<String>,
    /// Print JSON: {"mode", "workers": [...]}, as the method workers of the admin socket
    #[arg(long)]
    json: bool,
    /// Seconds over which the busy share is measured
    #[arg(long, value_name = "SECONDS", default_value = "0.25", value_parser = units::parse_seconds, conflicts_with = "workers")]
    interval: Duration,
}

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let ask = || admin::ask(socket, "workers", &json!({}));
    if let Some(workers) = &arguments.workers {
        let answer = admin::ask(socket, "workers.set", &json!({ "workers": workers }))?;
        return if arguments.json { output::print_json(&answer) } else { output::print(&render_mode(&answer)) };
    }
    let before = ask()?;
    std::thread::sleep(arguments.interval); // tidy: allow sleep, the time between two looks is what the caller asked for
    let mut now = ask()?;
    add_shares(&before, &mut now);
    if arguments.json { output::print_json(&now) } else { output::print(&render(&now)) }
}

/// Put `busy`, the share of the time between two answers, beside the counters of the second.
fn add_shares(before: &Value, now: &mut Value) {
    let old = admin::list(before, "workers");
    let workers = now.get_mut("workers").and_then(Value::as_array_mut);
    for (worker, old) in workers.into_iter().flatten().zip(old) {
        let [busy, measured] =
            ["busy_ns", "measured_ns"].map(|key| admin::number(worker, key).saturating_sub(admin::number(old, key)));
        #[allow(clippy::cast_precision_loss, reason = "a share needs few digits")]
        let share = (busy as f64 / measured.max(1) as f64).min(1.0);
        worker["busy"] = json!((share * 1000.0).round() / 1000.0);
    }
}

/// What a mode means. Dedicated workers are not counted: the mode is for the others.
fn render_mode(answer: &Value) -> String {
    let (mode, workers) = (admin::text(answer, "mode"), admin::list(answer, "workers"));
    let dedicated = workers.iter().filter(|worker| admin::text(worker, "state") == "dedicated").count();
    let others = workers.len() - dedicated;
    // More than there are serve as all that there are.
    let bound = |count: &str| count.parse::<usize>().map_or(others, |count| count.min(others)).to_string();
    let text = match (mode, mode.split_once("..")) {
        ("off", _) => "workers and the queues of each stay as they are (off)".to_owned(),
        ("auto", _) => format!("1 to {others} workers serve, as the load needs (auto)"),
        (_, Some((least, most))) => {
            format!("{} to {} workers serve, as the load needs, of {others}", bound(least), bound(most))
        }
        (count, None) => format!("{} of {others} workers serve", bound(count)),
    };
    let besides = if dedicated > 0 { format!(", and {dedicated} more, each dedicated") } else { String::new() };
    format!("{text}{besides}\n")
}

/// In a word, or its owner.
pub(crate) fn state(worker: &Value) -> String {
    match worker.get("dedicated_to").and_then(Value::as_str).and_then(|owner| owner.split_once(':')) {
        Some((kind, name)) => format!("for {kind} {name}"),
        None => admin::text(worker, "state").to_owned(),
    }
}

fn render(answer: &Value) -> String {
    let mut table = Table::new(0, &["WORKER", "CPU", "STATE", "BUSY", "QUEUES", "SLEEPS"]);
    for worker in admin::list(answer, "workers") {
        let cpu = worker.get("cpu").and_then(Value::as_u64).map_or_else(|| "any".to_owned(), |cpu| cpu.to_string());
        let [index, queues, sleeps] = ["worker", "queues", "sleeps"].map(|key| admin::number(worker, key).to_string());
        let state = state(worker);
        let busy = worker.get("busy").and_then(Value::as_f64).unwrap_or_default() * 100.0;
        table.push(vec![index, cpu, state, format!("{busy:.1} %"), queues, sleeps]);
    }
    format!("{}{}", render_mode(answer), table.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_shares_are_those_of_the_interval() {
        let answer = |busy: u64, measured: u64| {
            json!({ "mode": "1..2", "workers": [
                { "worker": 0, "cpu": 1, "state": "in use", "queues": 3, "sleeps": 9, "busy_ns": busy, "measured_ns": measured },
                { "worker": 1, "cpu": null, "state": "unused", "queues": 0, "sleeps": 1, "busy_ns": 7, "measured_ns": measured },
                { "worker": 2, "state": "dedicated", "dedicated_to": "client:7", "queues": 4, "busy_ns": 7, "measured_ns": measured },
            ] })
        };
        let mut now = answer(1750, 3000);
        add_shares(&answer(1000, 2000), &mut now);
        let text = render(&now);
        let cells = |line: usize| text.lines().nth(line).expect("a line").split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(cells(0), "1 to 2 workers serve, as the load needs, of 2, and 1 more, each dedicated");
        assert_eq!(cells(2), "0 1 in use 75.0 % 3 9");
        assert_eq!(cells(3), "1 any unused 0.0 % 0 1");
        assert_eq!(cells(4), "2 any for client 7 0.0 % 4 0");
    }

    #[test]
    fn dedicated_workers_are_not_among_those_that_the_mode_is_for() {
        let of = |mode: &str| {
            let states = ["in use", "in use", "dedicated"].map(|state| json!({ "state": state }));
            render_mode(&json!({ "mode": mode, "workers": states }))
        };
        let more = ", and 1 more, each dedicated\n";
        assert_eq!(of("3"), format!("2 of 2 workers serve{more}"));
        assert_eq!(of("1"), format!("1 of 2 workers serve{more}"));
        assert_eq!(of("auto"), format!("1 to 2 workers serve, as the load needs (auto){more}"));
        assert_eq!(of("1..3"), format!("1 to 2 workers serve, as the load needs, of 2{more}"));
    }
}
