//! The machine, its costs and the recommendation, for people.

use std::fmt::Write as _;

use fipsee_topology::cpu_list;
use fipsee_topology::machine::{Cpu, Distance, Machine};
use fipsee_topology::matrix::Matrix;

use super::{Known, Shown, choices};
use crate::output::Table;
use crate::units;

/// A table with more columns does not fit a terminal.
const MOST_COLUMNS: usize = 16;

pub(super) fn render(shown: &Shown) -> String {
    let mut text = machine(&shown.machine);
    match &shown.known {
        Some(known) => text.push_str(&costs(&shown.machine, known)),
        None => text.push_str("\nWhat moving a cache line costs was not measured; this is by the words of the kernel.\n"),
    }
    // Another machine's files do not identify its CPU.
    if !shown.is_recorded {
        text.push_str(&choices::render(&shown.machine, shown.known.as_ref().map(|known| &known.choices)));
    }
    text.push_str("\nRecommended:\n");
    for (index, poller) in shown.plan.pollers.iter().enumerate() {
        let _ = writeln!(text, "  worker {index} on CPU {}: {}", poller.cpu, poller.reason);
        let _ = writeln!(text, "    its clients on CPUs {}, best first", first_of(&poller.clients));
    }
    if shown.plan.pollers.is_empty() {
        text.push_str("  no thread is bound to a CPU\n");
    }
    for note in shown.notes() {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// A list in order, cut to a readable length.
fn first_of(cpus: &[usize]) -> String {
    const MOST: usize = 16;
    let first: Vec<String> = cpus.iter().take(MOST).map(ToString::to_string).collect();
    let more = if cpus.len() > MOST { ", .." } else { "" };
    format!("{}{more}", first.join(", "))
}

fn machine(machine: &Machine) -> String {
    let numbers: Vec<usize> = machine.cpus.iter().map(|cpu| cpu.number).collect();
    let mut text = format!("{}: CPUs {} online", machine.model, cpu_list::format(&numbers));
    if !machine.offline.is_empty() {
        let _ = write!(text, ", {} offline", cpu_list::format(&machine.offline));
    }
    if machine.usable != numbers {
        let _ = write!(text, "; this process may use {}", cpu_list::format(&machine.usable));
    }
    text.push('\n');
    groups(&mut text, "socket", machine, |cpu| cpu.socket);
    groups(&mut text, "NUMA node", machine, |cpu| cpu.node);
    let mut lists = |title: &str, key: fn(&Cpu) -> Option<usize>| {
        let shared = machine.groups(key).into_values().filter(|cpus| cpus.len() > 1);
        let shared: Vec<String> = shared.map(|cpus| cpu_list::format(&cpus)).collect();
        let shared = if shared.is_empty() { "none".to_owned() } else { shared.join("  ") };
        let _ = writeln!(text, "  {:<28}{shared}", format!("{title}:"));
    };
    lists("share a last-level cache", |cpu| cpu.cache);
    lists("threads of one core", |cpu| Some(cpu.core));
    let small: Vec<usize> = machine.cpus.iter().filter(|cpu| cpu.is_small).map(|cpu| cpu.number).collect();
    if !small.is_empty() {
        let _ = writeln!(text, "  {:<28}{}", "slow cores:", cpu_list::format(&small));
    }
    text
}

fn groups(text: &mut String, name: &str, machine: &Machine, key: fn(&Cpu) -> Option<usize>) {
    for (number, cpus) in machine.groups(key) {
        let _ = writeln!(text, "  {:<28}{}", format!("{name} {number}:"), cpu_list::format(&cpus));
    }
}

fn costs(machine: &Machine, known: &Known) -> String {
    let matrix = &known.matrix;
    let mut text = format!(
        "\nMoving a modified cache line, in cycles of {}Hz and ns, medians ({}):\n",
        units::count(units::to_f64(matrix.tsc_hz)),
        known.source
    );
    if machine.usable.len() <= MOST_COLUMNS {
        text.push_str(&table(machine, matrix));
        text.push_str("From the row's CPU to the column's.\n");
    }
    let mut summary = Table::new(1, &["BETWEEN", "MEDIAN", "LEAST", "NS"]);
    for distance in Distance::ALL {
        if let Some(cost) = matrix.at_distance(machine, distance) {
            let (median, least) = (format!("{:.0}", cost.median_ticks), format!("{:.0}", cost.least_ticks));
            summary.push(vec![distance.text().to_owned(), median, least, format!("{:.0}", matrix.to_ns(cost.median_ticks))]);
        }
    }
    if let Some(own) = matrix.own_ticks {
        summary.push(vec![
            "(none: one's own line)".to_owned(),
            format!("{own:.0}"),
            String::new(),
            format!("{:.0}", matrix.to_ns(own)),
        ]);
    }
    text.push('\n');
    text.push_str(&summary.render());
    text
}

fn table(machine: &Machine, matrix: &Matrix) -> String {
    let heads: Vec<String> = std::iter::once("CPU".to_owned()).chain(machine.usable.iter().map(ToString::to_string)).collect();
    let mut table = Table::new(0, &heads.iter().map(String::as_str).collect::<Vec<_>>());
    for from in &machine.usable {
        let cell = |to: &usize| match matrix.get(*from, *to) {
            Some(cost) => format!("{:.0} / {:.0}", cost.median_ticks, matrix.to_ns(cost.median_ticks)),
            None => "-".to_owned(),
        };
        table.push(std::iter::once(from.to_string()).chain(machine.usable.iter().map(cell)).collect());
    }
    table.render()
}
