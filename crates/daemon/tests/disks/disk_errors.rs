//! Disk errors are in the log, with what an administrator needs to know, and in `fipsee stat` and `info`. A disk that fails all
//! the time does not fill the log.

use std::time::Instant;

use fipsee_block::client::{DiskError, Error};
use fipsee_block::wire::Status;
use fipsee_testkit::{Daemon, assert_says, eventually, stamp};
use serde_json::{Value, json};

fn lines(daemon: &Daemon, what: &str) -> Vec<String> {
    daemon.log().lines().filter(|line| line.contains(what)).map(str::to_owned).collect()
}

/// A number in a line of the log.
fn field(line: &str, name: &str) -> f64 {
    let (_, after) = line.split_once(&format!(" {name}=")).unwrap_or_else(|| panic!("no {name} in: {line}"));
    after.split(' ').next().expect("a word").parse().unwrap_or_else(|error| panic!("{name}: {error}: {line}"))
}

fn info(daemon: &Daemon, disk: &str) -> Value {
    daemon.admin(&json!({ "method": "disk.info", "disk": disk }))
}

#[test]
fn injected_errors_are_logged_at_once_and_then_at_most_once_a_second_and_all_are_counted() {
    const WRITES: u64 = 500;
    let disks = ["--disk", "e=error:op=write,sectors=16-31:memory:1M", "--disk", "m=memory:1M"];
    let mut daemon = Daemon::start(&disks);
    let mut client = daemon.blocking("e");
    let started = Instant::now();
    let data = stamp(512, 1, 1);
    client.write_at(&data, 0).expect("not a failing sector");
    assert!(lines(&daemon, "disk error").is_empty());
    let mut fail = |sector: u64| {
        let error = client.write_at(&data, sector * 512).expect_err("a failing sector");
        assert!(matches!(error, Error::Service(DiskError::Request(Status::IoError))), "{error}");
    };
    fail(17);
    eventually("the first error is logged", || !lines(&daemon, "disk error").is_empty());
    let first = lines(&daemon, "disk error").remove(0);
    let pieces = ["ERROR", "disk=\"e\"", "operation=\"write\"", "sector=17", "EIO", "(os error 5)", "errors=1"];
    assert_says(&first, &pieces);
    (1..WRITES).for_each(|number| fail(16 + number % 16));
    assert_eq!(info(&daemon, "e")["errors"]["write"], json!(WRITES));
    assert_eq!(info(&daemon, "e")["errors"]["read"], json!(0));
    assert_eq!(info(&daemon, "m")["errors"], Value::Null, "a memory disk has none");
    let stat = daemon.admin(&json!({ "method": "stat" }));
    let of = |name: &str| stat["disks"].as_array().expect("a list").iter().find(|disk| disk["disk"] == name).expect("listed");
    assert_eq!((&of("e")["errors"]["write"], &of("e")["totals"]["errors"]), (&json!(WRITES), &json!(WRITES)));
    assert_eq!(of("m")["errors"], Value::Null, "a memory disk has none");
    eventually("a second line", || lines(&daemon, "disk error").len() > 1);
    drop(client);
    daemon.signal_term();
    assert!(daemon.await_exit().success());
    let logged = lines(&daemon, "disk error");
    let allowed = started.elapsed().as_secs_f64() + 2.0;
    assert!((logged.len() as f64) < allowed, "{} lines, {allowed} allowed", logged.len());
    let counted: f64 = logged.iter().map(|line| field(line, "errors")).sum();
    assert_eq!(counted, WRITES as f64, "{logged:?}");
}

#[test]
fn file_that_is_cut_under_a_disk_is_logged_with_its_path() {
    let daemon = Daemon::start(&["--disk", "f=file:{dir}/disk,size=1M"]);
    let path = daemon.dir.path("disk");
    let mut client = daemon.blocking("f");
    client.write_at(&stamp(64 << 10, 1, 1), 0).expect("written");
    std::fs::File::options().write(true).open(&path).expect("open").set_len(64 << 10).expect("cut");
    let error = client.read_at(&mut vec![0; 4096], 512 << 10).expect_err("beyond the end of the file");
    assert!(matches!(error, Error::Service(DiskError::Request(Status::IoError))), "{error}");
    eventually("the error is logged", || !lines(&daemon, "disk error").is_empty());
    let path = path.display().to_string();
    assert_says(
        &lines(&daemon, "disk error")[0],
        &["disk=\"f\"", "operation=\"read\"", "sector=1024", &path, "the file ends before the disk does"],
    );
}

/// With workers that sleep while a request is in flight, and with workers that never sleep.
#[test]
fn request_in_flight_for_too_long_is_shown_and_logged_once_and_when_it_ends() {
    let check = |wait: &str| {
        let disk = ["--disk", "d=delay:3s:memory:1M", "--stalled-after-ms", "200", "--wait", wait];
        let daemon = Daemon::start(&disk);
        let mut client = daemon.blocking("d");
        let reader = std::thread::spawn(move || client.read_at(&mut vec![0; 4096], 8 * 512).map(|()| client));
        eventually("the stalled request is shown", || info(&daemon, "d")["stalled"] == json!(1));
        let stat = daemon.admin(&json!({ "method": "stat" }));
        assert_eq!(stat["disks"][0]["stalled"], json!(1), "{stat}");
        reader.join().expect("the reader").expect("it completes");
        eventually("its end is logged", || !lines(&daemon, "a stalled request has ended").is_empty());
        let [stalled, ended] =
            ["stalled: in flight for too long", "a stalled request has ended"].map(|what| lines(&daemon, what));
        assert_eq!((stalled.len(), ended.len()), (1, 1), "{stalled:?} {ended:?}");
        assert_says(&stalled[0], &["WARN", "disk=\"d\"", "operation=\"read\"", "sector=8", "requests=1"]);
        assert!((0.2..3.0).contains(&field(&stalled[0], "age_s")), "{stalled:?}");
        assert!(field(&ended[0], "took_s") >= 3.0, "{ended:?}");
        assert_eq!(info(&daemon, "d")["stalled"], json!(0));
        assert!(lines(&daemon, "disk error").is_empty(), "a late request is no error");
    };
    std::thread::scope(|scope| {
        for wait in ["sleep", "yield"] {
            scope.spawn(move || check(wait));
        }
    });
}
