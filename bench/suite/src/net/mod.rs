//! `cargo xtask bench net`: frames between programs through the switch, beside the null disk, the kernel's sockets, and
//! dpdk-testpmd; and TCP of a guest beside its vector TAP.

mod copies;
mod crowd;
mod exchange;
mod forwarding;
mod guest;
mod kernel;
mod paths;
mod picture;
mod ports;
mod stages;
mod taps;

use self::copies::Copies;
use self::crowd::{Idle, Misbehaviour};
use self::exchange::{Exchange, SMALLEST, candidate};
use self::forwarding::Forwarding;
use self::guest::GuestTcp;
use self::paths::Paths;
use self::stages::Stages;
use crate::Settings;
use crate::parts::{self, Kind};
use crate::table::{P50, Results};

const KINDS: [Kind; 7] = [
    Kind { name: "paths", is_chosen: Paths::are_chosen, start: |settings| Ok(Box::new(Paths::start(settings)?)) },
    Kind { name: "forwarding", is_chosen: Forwarding::is_chosen, start: |_| Ok(Box::new(Forwarding::start()?)) },
    Kind { name: "copies", is_chosen: Copies::are_chosen, start: |_| Ok(Box::new(Copies::start()?)) },
    Kind { name: "stages", is_chosen: Stages::are_chosen, start: |_| Ok(Box::new(Stages::start()?)) },
    Kind { name: "idle", is_chosen: Idle::is_chosen, start: |settings| Ok(Box::new(Idle::start(settings)?)) },
    Kind { name: "misbehaviour", is_chosen: Misbehaviour::is_chosen, start: |_| Ok(Box::new(Misbehaviour::start()?)) },
    Kind { name: "guest", is_chosen: GuestTcp::is_chosen, start: |settings| Ok(Box::new(GuestTcp::start(settings))) },
];

pub(crate) fn run(settings: &Settings) -> Result<(), String> {
    parts::run("net", &KINDS, settings, quoted)
}

/// The rounds of what documents quote first.
fn quoted(results: &Results) -> Vec<(String, Vec<f64>)> {
    let names = [Exchange::OneWay, Exchange::RoundTrip].map(|exchange| candidate(paths::OURS, exchange, SMALLEST));
    names.into_iter().filter_map(|name| Some((name.clone(), results.get(&name, P50)?.values.clone()))).collect()
}
