//! A refused start is reported with what to do about it, and harms no running daemon.

use std::os::unix::fs::FileTypeExt;
use std::process::Command;

use fipsee_ring::wait::WaitMode;
use fipsee_testkit::{CorrectClient, Daemon, Scratch, assert_says, refused, refused_in, skip, stamp};

/// Run with both limits of a resource lowered; the hard one, too, because the daemon raises the soft one.
const fn with_limit(option_and_value: &'static str) -> [&'static str; 4] {
    ["sh", "-c", option_and_value, "sh"]
}

#[test]
fn unknown_kinds_options_and_names_are_refused_with_the_possible_ones() {
    for (disk, pieces) in [
        ("a=cloud:1G", ["disk 'a'", "unknown kind 'cloud'", "use null, memory or file"]),
        ("a=memory:1G,fast", ["disk 'a'", "unknown option 'fast'", "a memory disk takes"]),
        ("a b=memory:1G", ["disk 'a b'", "this name is not possible", "use 1 to 64 letters"]),
        ("memory:1G", ["disk 'memory:1G'", "there is no '='", "for example a=memory:256M"]),
        ("a=file:", ["disk 'a'", "the path is missing", "write file:PATH"]),
        ("a=", ["disk 'a'", "the kind is missing", "write KIND:ARGS, for example memory:256M"]),
        ("a=null:1M,exclusive,shared", ["disk 'a'", "exclusive and shared contradict each other", "remove one of them"]),
        ("a=file:{dir}/none", ["disk 'a'", "does not exist", "add size=SIZE to create it"]),
        ("a=file:{dir}", ["disk 'a'", "is a directory", "give the path of a file"]),
    ] {
        assert_says(&refused(&["--disk", disk]), &pieces);
    }
}

#[test]
fn impossible_sizes_are_refused_with_a_possible_one() {
    for (disk, pieces) in [
        ("a=memory:0", ["disk 'a'", "the size is 0", "at least one block of 512 bytes"]),
        ("a=null:0", ["disk 'a'", "the size is 0", "at least one block of"]),
        ("a=file:{dir}/f,size=0", ["disk 'a'", "the size is 0", "at least one block of 512 bytes"]),
        ("a=memory:1000", ["disk 'a'", "not a multiple of the block size, 512 bytes", "use 512 or 1024"]),
        ("a=memory:512,block=4096", ["disk 'a'", "not a multiple of the block size, 4096 bytes", "4096 bytes; use 4096"]),
        ("a=file:{dir}/f,size=5000,block=4096", ["disk 'a'", "not a multiple of the block size", "use 4096 or 8192"]),
        ("a=memory:1X", ["disk 'a'", "'1X' is not a size", "with K, M, G or T"]),
    ] {
        assert_says(&refused(&["--disk", disk]), &pieces);
    }
}

#[test]
fn file_of_impossible_size_is_left_as_it_is() {
    let dir = Scratch::new();
    for (length_bytes, pieces) in
        [(0_u64, ["disk 'a'", "is empty", "truncate -s"]), (777, ["disk 'a'", "not a multiple of the block size", "truncate -s"])]
    {
        let path = dir.path("disk");
        std::fs::File::create(&path).and_then(|file| file.set_len(length_bytes)).expect("a file");
        assert_says(&refused_in(&dir, &[], &["--disk", "a=file:{dir}/disk"]), &pieces);
        assert_eq!(std::fs::metadata(&path).expect("still there").len(), length_bytes);
    }
}

#[test]
fn bad_configuration_is_refused_with_file_line_and_column() {
    let dir = Scratch::new();
    let refuse = |toml: &str| {
        std::fs::write(dir.path("fip.toml"), toml).expect("a file");
        refused_in(&dir, &[], &["--config", "{dir}/fip.toml"])
    };
    let syntax = refuse("workers = 1\n\n[[disk]]\nname = \"a\nspec = \"memory:1M\"\n");
    assert_says(&syntax, &["fip.toml", "line 4, column", "name = \"a"]);
    let unknown = refuse("workers = 1\nwokers = 2\n[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\n");
    assert_says(&unknown, &["fip.toml", "line 2, column 1", "unknown key 'wokers'", "workers"]);
    let unknown = refuse("[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\n  readonly = true\n");
    assert_says(&unknown, &["fip.toml", "line 4, column 3", "unknown key 'readonly'"]);
    let kind = refuse("workers = \"two\"\n");
    assert_says(&kind, &["fip.toml", "line 1, column 11", "write an integer"]);
    let path = refuse("[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\npath = \"/x\"\n");
    assert_says(&path, &["disk 'a'", "only a file disk has a path; remove it"]);
    let missing = refused_in(&dir, &[], &["--config", "{dir}/none.toml"]);
    assert_says(&missing, &["cannot read", "none.toml: there is no such file; check the path"]);
}

#[test]
fn wait_mode_that_the_cpu_lacks_is_refused_with_those_it_has() {
    let dir = Scratch::new();
    for mode in WaitMode::ALL.into_iter().filter(|mode| mode.available().is_err()) {
        let pieces = ["this CPU has no ", "CPUID leaf", "use adaptive, pause, spin, yield"];
        assert_says(&refused(&["--disk", "a=memory:1M", "--wait", mode.name()]), &pieces);
        let toml = format!("wait = \"{mode}\"\n[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\n");
        std::fs::write(dir.path("fip.toml"), toml).expect("a file");
        assert_says(&refused_in(&dir, &[], &["--config", "{dir}/fip.toml"]), &pieces);
    }
}

#[test]
fn missing_duplicate_and_unknown_settings_are_refused() {
    assert_says(&refused(&[]), &["no disk to serve", "--disk a=memory:256M"]);
    assert_says(
        &refused(&["--disk", "a=memory:1M", "--disk", "a=null:1M"]),
        &["disk 'a' is defined twice", "give each its own name"],
    );
    assert_says(
        &refused(&["--disk", "a=memory:1M", "--wait", "nap"]),
        &["unknown wait mode 'nap'", "use adaptive, pause, spin, yield, sleep, umwait, tpause or monitorx"],
    );
    assert_says(&refused(&["--disk", "a=memory:1M", "--workers", "0"]), &["0 workers", "use 1 to 512"]);
    let dir = Scratch::new();
    std::fs::write(dir.path("w.toml"), "wait = \"nap\"\n[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\n").expect("a file");
    let text = refused_in(&dir, &[], &["--config", "{dir}/w.toml"]);
    assert_says(&text, &["unknown wait mode 'nap'", "use adaptive, pause, spin, yield, sleep, umwait, tpause or monitorx"]);
}

#[test]
fn second_daemon_on_the_same_socket_is_refused_and_the_first_goes_on() {
    let daemon = Daemon::start(&["--disk", "a=memory:1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "a");
    let socket = daemon.socket();
    let mut second = Command::new(env!("CARGO_BIN_EXE_fipseed"));
    let output = second.args(["--disk", "b=memory:1M", "--listen"]).arg(&socket).output().expect("it can be started");
    assert!(!output.status.success(), "two daemons on one socket");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_says(&text, &["another server already listens at", "stop it, or choose another path with --listen"]);
    correct_client.check();
    CorrectClient::new(&daemon, "a").check();
}

#[test]
fn socket_of_a_killed_daemon_is_taken_over_and_the_file_disk_is_as_it_was() {
    let mut daemon = Daemon::start(&["--disk", "f=file:{dir}/disk,size=8M"]);
    let data = stamp(128 << 10, 3, 1);
    let mut client = daemon.blocking("f");
    client.write_at(&data, 1 << 20).expect("written");
    daemon.kill_9();
    assert!(daemon.socket().exists(), "the socket file is still there");
    daemon.restart();
    let mut read = vec![0; data.len()];
    daemon.blocking("f").read_at(&mut read, 1 << 20).expect("read");
    assert!(read == data, "what was written before the kill is on the disk");
    assert_says(&daemon.log(), &["taking over the socket of a daemon that is gone"]);
}

#[test]
fn socket_path_that_is_a_file_a_directory_or_too_long_is_refused_and_kept() {
    let dir = Scratch::new();
    std::fs::write(dir.path("s"), "precious").expect("a file");
    let text = refused_in(&dir, &[], &["--disk", "a=memory:1M"]);
    assert_says(&text, &["exists and is not a socket", "remove it or choose another path with --listen"]);
    assert_eq!(std::fs::read(dir.path("s")).expect("still there"), b"precious");
    std::fs::remove_file(dir.path("s")).expect("removed");
    std::fs::create_dir(dir.path("s")).expect("a directory");
    let text = refused_in(&dir, &[], &["--disk", "a=memory:1M"]);
    assert_says(&text, &["s is a folder; name a socket in it, or choose another path with --listen"]);
    assert!(!text.contains("remove"), "{text}");
    let long = dir.path(&"d".repeat(120));
    std::fs::create_dir(&long).expect("a directory");
    let text = refused_in(&Scratch::existing(&long), &[], &["--disk", "a=memory:1M"]);
    assert_says(&text, &["a Unix socket path holds at most 107", "choose a shorter one"]);
}

#[test]
fn file_disk_that_another_daemon_serves_is_refused_and_that_one_goes_on() {
    let daemon = Daemon::start(&["--disk", "f=file:{dir}/disk,size=1M"]);
    let mut correct_client = CorrectClient::new(&daemon, "f");
    let spec = format!("g=file:{}", daemon.dir.path("disk").display());
    let text = refused(&["--disk", &spec]);
    assert_says(&text, &["disk 'g'", "is in use by process", &daemon.pid().to_string(), "stop the other one"]);
    correct_client.check();
}

#[test]
fn too_low_limit_of_open_files_is_reported() {
    let prefix = with_limit("ulimit -n 64; exec \"$@\"");
    let text = refused_in(&Scratch::new(), &prefix, &["--disk", "a=memory:1M"]);
    assert_says(&text, &["only 64 files may be open", "at least 128", "ulimit -n", "LimitNOFILE="]);
}

#[test]
fn too_low_limit_of_locked_memory_is_reported() {
    // Root has CAP_IPC_LOCK, which no limit binds.
    let drop = "ulimit -l 64; if [ \"$(id -u)\" = 0 ]; then exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \"$@\"; fi; exec \"$@\"";
    let dir = Scratch::new();
    let text = refused_in(&dir, &with_limit(drop), &["--disk", "a=memory:8M,lock"]);
    assert_says(&text, &["disk 'a'", "8388608", "ulimit -l", "LimitMEMLOCK="]);
}

#[test]
fn missing_huge_pages_are_reported() {
    let pool = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = pool.lines().find_map(|line| line.strip_prefix("HugePages_Free:")).map(|count| count.trim().to_owned());
    match free.as_deref() {
        Some("0") => {}
        Some(_) => return skip("missing huge pages", "the pool has some free"),
        None => return skip("missing huge pages", "the kernel has no huge pages at all"),
    }
    assert_says(&refused(&["--disk", "a=memory:8M,huge"]), &["disk 'a'", "4", "nr_hugepages"]);
}

#[test]
fn failed_start_leaves_no_socket_behind() {
    let dir = Scratch::new();
    refused_in(&dir, &[], &["--disk", "a=file:{dir}/none"]);
    let left: Vec<_> = std::fs::read_dir(&dir.0)
        .expect("the directory")
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.file_type().expect("a type").is_socket() || entry.file_name() != "log")
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}
