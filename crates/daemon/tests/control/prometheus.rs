//! Debian's Prometheus scrapes a daemon under load, and every query of the dashboard that ships returns values.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use fipsee_testkit::load::Load;
use fipsee_testkit::process::Guard;
use fipsee_testkit::{Daemon, Scratch, TIMEOUT, assert_says, eventually, skip, wait_for};
use serde_json::Value;

use crate::metrics::{is_missing, tcp_address};

const DASHBOARD: &str = include_str!("../../../../packaging/grafana/fipsee.json");

/// GET from the server at this port: a JSON document, or `None` until it listens.
fn get(port: u16, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    // 1.0: an answer without chunks.
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// GET of what begins with `path`, with `expression` as its last argument.
fn ask(port: u16, path: &str, expression: &str) -> Value {
    let mut encoded = String::new();
    for byte in expression.bytes() {
        let _ = write!(encoded, "%{byte:02x}");
    }
    let mut answer = get(port, &format!("{path}={encoded}")).expect("an answer");
    assert_eq!(answer["status"], "success", "{expression}: {answer}");
    answer["data"].take()
}

/// The results of a query.
fn query(port: u16, expression: &str) -> Vec<Value> {
    ask(port, "/api/v1/query?query", expression)["result"].as_array().expect("a list").clone()
}

/// What a variable of the dashboard may be, as Grafana finds it out: `label_values(METRIC, LABEL)`.
fn choices(port: u16, variable: &Value) -> Vec<Value> {
    let text = variable["query"]["query"].as_str().expect("a query");
    let arguments = text.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
    let (metric, label) = arguments.and_then(|arguments| arguments.rsplit_once(", ")).expect("of values of a label");
    ask(port, &format!("/api/v1/label/{label}/values?match[]"), metric).as_array().expect("a list").clone()
}

/// The variables of the dashboard whose values are found by a query, and are not of the data source.
fn variables() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let variables = dashboard["templating"]["list"].as_array().expect("variables").iter();
    variables.filter(|variable| variable["type"] == "query").cloned().collect()
}

fn has_values(results: &[Value]) -> bool {
    !results.is_empty() && results.iter().all(|result| result["value"][1].as_str().is_some_and(|value| value != "NaN"))
}

/// Every query of every panel, as Grafana would send it.
fn expressions() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let as_sent = |target: &Value| {
        let text = target["expr"].as_str().expect("a query");
        let text = text.replace("$__rate_interval", "5s").replace("$disk", ".*");
        assert!(!text.contains('$'), "a variable that is not known: {text}");
        text
    };
    targets.map(as_sent).collect()
}

#[test]
fn every_query_of_the_dashboard_returns_values() {
    if is_missing("prometheus") {
        return skip("the dashboard against Prometheus", "there is no prometheus");
    }
    let dir = Scratch::new();
    dir.configure("[[network]]\nname = \"lan\"\n[[network.port]]\nname = \"a\"\n");
    let arguments =
        ["--disk", "m=memory:16M", "--disk", "f=file:{dir}/f,size=16M", "--metrics", "127.0.0.1:0", "--config", "{dir}/f.toml"];
    let daemon = Daemon::start_in(dir, &[], &arguments);
    let endpoint = tcp_address(&daemon);
    let loads = ["m", "f"].map(|disk| Load::start(&daemon, disk, 16));
    let configuration = format!(
        "global:\n  scrape_interval: 250ms\n  scrape_timeout: 250ms\nscrape_configs:\n  - job_name: fipsee\n    static_configs:\n      - targets: ['{endpoint}']\n"
    );
    std::fs::write(daemon.dir.path("prometheus.yml"), configuration).expect("a file");
    let mut server = Command::new("prometheus");
    server.arg(format!("--config.file={}", daemon.dir.path("prometheus.yml").display()));
    server.arg(format!("--storage.tsdb.path={}", daemon.dir.path("tsdb").display()));
    // At any port: it says at which.
    server.arg("--web.listen-address=127.0.0.1:0");
    let log = std::fs::File::create(daemon.dir.path("prometheus.log")).expect("a file");
    let _server = Guard(server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("prometheus"));
    let port: u16 = wait_for("it listens", || {
        let log = std::fs::read_to_string(daemon.dir.path("prometheus.log")).expect("its log");
        let line = log.lines().find(|line| line.contains("\"Listening on\""))?;
        line.split_once("address=127.0.0.1:")?.1.split_whitespace().next()?.parse().ok()
    });
    eventually("it has scraped", || {
        let targets = get(port, "/api/v1/targets");
        targets.is_some_and(|targets| targets["data"]["activeTargets"][0]["health"] == "up")
    });
    let expressions = expressions();
    assert!(expressions.len() > 20, "{expressions:?}");
    for expression in &expressions {
        eventually(expression, || has_values(&query(port, expression)));
    }
    let variables = variables();
    assert_eq!(variables.iter().map(|variable| &variable["name"]).collect::<Vec<_>>(), ["disk"]);
    assert_eq!(choices(port, &variables[0]), ["f", "m"]);
    // It asks for OpenMetrics, and refuses what is not well-formed.
    let metadata = get(port, "/api/v1/metadata?metric=fipsee_transferred_bytes").expect("an answer");
    assert_says(&metadata.to_string(), &["\"type\":\"counter\"", "\"unit\":\"bytes\""]);
    assert!(!has_values(&query(port, "fipsee_no_such_metric")), "what is not there has no value");
    loads.into_iter().for_each(|load| assert!(load.finish() > 0));
}
