//! Limits of requests and bytes per second: set, looked at, and tested as what each is, an upper bound.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Daemon;

pub fn limit_request(limit: &Value) -> Value {
    let mut request = json!({ "method": "limit.set" });
    request.as_object_mut().expect("an object").extend(limit.as_object().expect("an object").clone());
    request
}

#[track_caller]
pub fn set_limit(daemon: &Daemon, limit: &Value) -> Value {
    daemon.ask(&limit_request(limit))
}

/// What is in force for this: `("disk", "a")`.
pub fn limit_of(daemon: &Daemon, key: &str, name: impl Into<Value>) -> Value {
    let (list, name) = (daemon.ask(&json!({ "method": "limit.list" })), name.into());
    let limits = list["limits"].as_array().expect("a list");
    limits.iter().find(|limit| limit[key] == name).cloned().unwrap_or(Value::Null)
}

pub fn rates_of(limit: &Value) -> [&Value; 3] {
    [&limit["iops"], &limit["bytes_per_second"], &limit["burst_ms"]]
}

/// So many take at least this long at `per_second`, of which `burst` may be taken at once, and one may be begun before there is
/// room for all of it.
#[track_caller]
pub fn assert_limited(amount: u64, per_second: u64, (burst, one): (u64, u64), work: impl FnOnce()) {
    let began = Instant::now();
    work();
    let elapsed = began.elapsed();
    // Within the accuracy to which the daemon has measured its clock, in 20 ms.
    let least = Duration::from_nanos(amount.saturating_sub(burst + one) * 980_000_000 / per_second);
    assert!(elapsed >= least, "{amount} in {elapsed:?}, and {per_second} per second are allowed: at least {least:?}");
}

/// None of this waits for a limit.
#[track_caller]
pub fn assert_unlimited(daemon: &Daemon, work: impl FnOnce()) {
    let throttled = || -> u64 {
        let list = daemon.ask(&json!({ "method": "limit.list" }));
        list["limits"].as_array().expect("a list").iter().map(|limit| limit["throttled"].as_u64().expect("a count")).sum()
    };
    let before = throttled();
    work();
    assert_eq!(throttled(), before, "it has waited");
}
