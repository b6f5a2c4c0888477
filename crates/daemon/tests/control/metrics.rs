//! The metrics endpoint: what Prometheus gets, and what no scraper can do.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use fipsee_block::wire::Status;
use fipsee_net::{AttachOptions, Port};
use fipsee_testkit::{Daemon, Scratch, TIMEOUT, assert_says, eventually, finish_one, refused, skip, wait_for};
use serde_json::json;

const OPEN_METRICS: &str = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3\r\n";

/// Head and text of the answer.
fn ask(stream: &mut (impl Read + Write), request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, text) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {answer}"));
    (head.to_owned(), text.to_owned())
}

fn connect(daemon: &Daemon) -> UnixStream {
    let stream = UnixStream::connect(daemon.dir.path("m")).expect("it listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}

fn scrape(daemon: &Daemon, headers: &str) -> (String, String) {
    ask(&mut connect(daemon), &format!("GET /metrics HTTP/1.1\r\nHost: fipsee\r\n{headers}\r\n"))
}

/// The value of a time series, by its whole name.
pub(crate) fn value_of(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

/// Where a daemon listens that was started with `--metrics 127.0.0.1:0`: no other test can take a port before it.
pub(crate) fn tcp_address(daemon: &Daemon) -> String {
    wait_for("the log has the address", || {
        let log = daemon.log();
        let line = log.lines().find(|line| line.contains("metrics") && line.contains("at=127.0.0.1:"))?;
        Some(line.split_once("at=")?.1.split_whitespace().next()?.to_owned())
    })
}

pub(crate) fn is_missing(tool: &str) -> bool {
    std::env::var("FIPSEE_MISSING_TOOLS").unwrap_or_default().split_whitespace().any(|missing| missing == tool)
}

#[test]
fn scrape_has_what_disks_users_clients_and_workers_have_done() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--disk", "f=file:{dir}/f,size=1M", "--metrics", "{dir}/m"]);
    let mode = daemon.dir.path("m").metadata().expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let mut client = daemon.blocking("f");
    client.write_at(&[1; 4096], 0).expect("written");
    client.read_at(&mut [0; 8192], 0).expect("read");
    client.flush().expect("flushed");
    client.discard(0, 4096).expect("discarded");
    client.write_zeroes(4096, 4096, false).expect("zeroed");
    client.read_at(&mut [0; 512], 1 << 20).expect_err("beyond the end");
    let has = |series: &str, value: f64| {
        eventually(&format!("{series} is {value}"), || value_of(&scrape(&daemon, "").1, series) == Some(value));
    };
    for (op, value) in [("read", 1.0), ("write", 1.0), ("flush", 1.0), ("discard", 1.0), ("write_zeroes", 1.0), ("other", 1.0)] {
        has(&format!("fipsee_requests_total{{disk=\"f\",op=\"{op}\"}}"), value);
        has(&format!("fipsee_requests_total{{disk=\"a\",op=\"{op}\"}}"), 0.0);
    }
    has("fipsee_request_errors_total{disk=\"f\"}", 1.0);
    has("fipsee_transferred_bytes_total{disk=\"f\",op=\"read\"}", 8192.0);
    has("fipsee_transferred_bytes_total{disk=\"f\",op=\"write\"}", 4096.0);
    has("fipsee_request_duration_seconds_count{disk=\"f\"}", 5.0);
    has("fipsee_disk_size_bytes{disk=\"a\"}", 1_048_576.0);
    has("fipsee_attached_clients{disk=\"f\"}", 1.0);
    has("fipsee_disk_faults_total{disk=\"f\",op=\"write_zeroes\"}", 0.0);
    let uid = rustix::process::geteuid().as_raw();
    has(&format!("fipsee_user_requests_total{{disk=\"f\",uid=\"{uid}\",op=\"write\"}}"), 1.0);
    let number = daemon.admin(&json!({ "method": "stat" }))["disks"][1]["clients"][0]["client"].clone();
    let of_client = format!("disk=\"f\",client=\"{number}\",uid=\"{uid}\",kind=\"ring\"");
    has(&format!("fipsee_client_requests_total{{{of_client},op=\"read\"}}"), 1.0);
    has("fipsee_worker_queues{worker=\"0\"}", 1.0);
    let text = scrape(&daemon, "").1;
    assert!(value_of(&text, "fipsee_worker_cpu_seconds_total{worker=\"0\"}").is_some_and(|time| time > 0.0), "{text}");
    drop(client);
    has("fipsee_attached_clients{disk=\"f\"}", 0.0);
    has("fipsee_request_duration_seconds_count{disk=\"f\"}", 5.0);
    let text = scrape(&daemon, "").1;
    assert!(!text.contains("fipsee_client_requests_total"), "it is gone: {text}");
}

const NETWORK: &str = "[[network]]\nname = \"lan\"\n[[network.port]]\nname = \"a\"\n[[network.port]]\nname = \"b\"\n";

#[test]
fn scrape_has_what_ports_have_done() {
    let dir = Scratch::new();
    dir.configure(NETWORK);
    let daemon = Daemon::start_in(dir, &[], &["--config", "{dir}/f.toml", "--metrics", "{dir}/m"]);
    let mut a = Port::attach(&daemon.socket(), &AttachOptions::new("lan/a")).expect("attached");
    // It receives nothing: the first frame takes its only buffer.
    let options = AttachOptions { posted: Some(1), ..AttachOptions::new("lan/b") };
    let b = Port::attach(&daemon.socket(), &options).expect("attached");
    let to_b = [&b.mac().0[..], &a.mac().0, &[0x88, 0xb5], &[1; 86]].concat();
    (0..3).for_each(|_| a.send(&to_b).expect("sent"));
    a.send(&[&to_b[..6], &b.mac().0, &to_b[12..]].concat()).expect("sent");
    assert!(a.wait_sent(None).expect("the daemon is there"));
    b.detach().expect("detached");
    a.send(&to_b).expect("sent");
    assert!(a.wait_sent(None).expect("the daemon is there"));
    let has = |series: &str, value: f64| {
        eventually(&format!("{series} is {value}"), || value_of(&scrape(&daemon, "").1, series) == Some(value));
    };
    for (port, direction, frames) in [("a", "sent", 4.0), ("a", "received", 0.0), ("b", "sent", 0.0), ("b", "received", 1.0)] {
        let labels = format!("network=\"lan\",port=\"{port}\",direction=\"{direction}\"");
        has(&format!("fipsee_port_frames_total{{{labels}}}"), frames);
        has(&format!("fipsee_port_transferred_bytes_total{{{labels}}}"), 100.0 * frames);
    }
    has("fipsee_port_dropped_total{network=\"lan\",port=\"b\"}", 2.0);
    has("fipsee_port_refused_total{network=\"lan\",port=\"a\",reason=\"wrong_source\"}", 1.0);
    has("fipsee_port_refused_total{network=\"lan\",port=\"a\",reason=\"limited\"}", 0.0);
    has("fipsee_port_attached{network=\"lan\",port=\"a\"}", 1.0);
    has("fipsee_port_attached{network=\"lan\",port=\"b\"}", 0.0);
    has("fipsee_network_macs_learned{network=\"lan\"}", 0.0);
}

#[test]
fn both_formats_are_well_formed() {
    let dir = Scratch::new();
    dir.configure(NETWORK);
    let arguments =
        ["--disk", "a=memory:1M", "--disk", "f=file:{dir}/f,size=1M", "--metrics", "{dir}/m", "--config", "{dir}/f.toml"];
    let daemon = Daemon::start_in(dir, &[], &arguments);
    let mut client = daemon.blocking("f");
    client.write_at(&[1; 4096], 0).expect("written");
    let (head, text) = scrape(&daemon, OPEN_METRICS);
    assert_says(&head, &["200 OK", "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8"]);
    assert_says(&text, &["# TYPE fipsee_requests counter\n", "# UNIT fipsee_transferred_bytes bytes\n"]);
    assert!(text.ends_with("# EOF\n"));
    let (head, text) = scrape(&daemon, "");
    assert_says(&head, &["200 OK", "Content-Type: text/plain; version=0.0.4", &format!("Content-Length: {}", text.len())]);
    assert_says(&text, &["# TYPE fipsee_requests_total counter\n"]);
    if is_missing("promtool") {
        return skip("metrics against promtool", "there is no promtool");
    }
    let mut tool = Command::new("promtool");
    let mut tool = tool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("promtool");
    tool.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("it reads");
    let output = tool.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

#[test]
fn silent_and_malformed_scrapers_delay_no_other() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M", "--metrics", "{dir}/m"]);
    // More than may be connected.
    let silent: Vec<_> = (0..40).map(|_| connect(&daemon)).collect();
    let mut half = connect(&daemon);
    half.write_all(b"GET /metrics HTT").expect("it reads");
    for (request, answer) in [
        ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        ("GET /other HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stat\"}\n", "400 Bad Request"),
        ("HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK"),
    ] {
        let (head, text) = ask(&mut connect(&daemon), request);
        assert_says(&head, &[answer]);
        assert!(text.is_empty() == request.starts_with("HEAD"), "{text}");
    }
    assert_says(&scrape(&daemon, "").1, &["fipsee_build_info"]);
    // It was not the oldest.
    assert_says(&ask(&mut half, "P/1.0\r\n\r\n").1, &["fipsee_build_info"]);
    let closed = |stream: &UnixStream| matches!((&*stream).read(&mut [0; 1]), Ok(0));
    assert!(closed(&silent[0]), "the oldest gave its place");
}

#[test]
fn endpoints_that_other_hosts_reach_are_refused() {
    let text = refused(&["--disk", "a=null:1M", "--metrics", "0.0.0.0:9760"]);
    assert_says(&text, &["0.0.0.0:9760 can be reached from other hosts", "127.0.0.1:9760"]);
    let dir = Scratch::new();
    let file = "metrics = [\"127.0.0.1:9760\", \"[::]:9760\"]\n[[disk]]\nname = \"a\"\nspec = \"null:1M\"\n";
    std::fs::write(dir.path("f.toml"), file).expect("a file");
    let text = fipsee_testkit::refused_in(&dir, &[], &["--config", "{dir}/f.toml"]);
    assert_says(&text, &["line 1", "[::]:9760 can be reached from other hosts"]);
    let port = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = port.local_addr().expect("its address").to_string();
    let text = refused(&["--disk", "a=null:1M", "--metrics", &taken]);
    assert_says(&text, &[&format!("cannot listen at {taken}"), "choose another port (--metrics, metrics; "]);
}

#[test]
fn takeover_keeps_the_sockets_and_the_counts() {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M", "--metrics", "{dir}/m", "--metrics", "127.0.0.1:0"]);
    let address = tcp_address(&daemon);
    daemon.replace_argument("127.0.0.1:0", &address);
    let mut client = daemon.blocking("a");
    client.write_at(&[1; 4096], 0).expect("written");
    daemon.blocking("a").write_at(&[1; 4096], 0).expect("written by one that is gone");
    let written = |text: &str| value_of(text, "fipsee_requests_total{disk=\"a\",op=\"write\"}");
    for writes in [2.0, 3.0] {
        let mut tcp = TcpStream::connect(&address).expect("it listens");
        let (_, text) = ask(&mut tcp, &format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n"));
        assert_eq!(written(&text), Some(writes));
        assert_eq!(written(&scrape(&daemon, "").1), Some(writes));
        daemon.take_over();
        client.write_at(&[1; 4096], 0).expect("written");
    }
    daemon.signal_term();
    drop(client);
    assert!(daemon.await_exit().success());
    assert!(!daemon.dir.path("m").exists(), "the last one removes the path");
}

#[test]
fn sockets_that_a_new_daemon_is_not_to_have_are_removed() {
    let mut daemon = Daemon::start(&["--disk", "a=memory:1M", "--metrics", "{dir}/m"]);
    std::fs::write(daemon.dir.path("f.toml"), "metrics = []\n[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\n").expect("a file");
    let mut without = Command::new(fipsee_testkit::daemon::program());
    without.arg("--listen").arg(daemon.socket()).arg("--config").arg(daemon.dir.path("f.toml")).arg("--takeover");
    let log = std::fs::File::options().append(true).open(daemon.dir.path("log")).expect("a file");
    let new = without.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("a daemon");
    assert!(daemon.await_exit().success(), "{}", daemon.log());
    daemon.replace(new);
    eventually("the path is gone", || !daemon.dir.path("m").exists());
    let (_disk, mut queue) = daemon.client(&Daemon::options("a"));
    queue.flush(1).expect("room");
    assert_eq!(finish_one(&mut queue), Status::Ok);
}
