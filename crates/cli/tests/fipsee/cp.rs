//! `fipsee cp` between files, streams and disks of a real daemon.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use fipsee_block::client::{AttachOptions, Claim};
use fipsee_testkit::{Daemon, Guard, TIMEOUT, wait_for};

use crate::program::{FIPSEE, Fipsee, assert_error, assert_success, json, noise, serve, text};

const MIB: usize = 1 << 20;

#[test]
fn files_of_odd_sizes_come_back_identical() {
    let daemon = serve(&["a=memory:8M", "b=file:{dir}/disk,size=8M"]);
    for (disk, size) in [("a", 1), ("a", 511), ("a", 512), ("b", 4097), ("a", MIB + 1), ("b", 5 * MIB - 3), ("a", 8 * MIB)] {
        let content = noise(size, size as u64);
        let source = text(&daemon.dir.file("source", &content));
        let (target, back) = (format!("fip:{disk}"), daemon.dir.path("back"));
        assert_success(&daemon.fipsee(&["cp", "--verify", &source, &target]));
        assert_success(&daemon.fipsee(&["cp", "--verify", &target, &text(&back)]));
        let read = std::fs::read(&back).expect("the copy");
        assert_eq!(read.len(), 8 * MIB, "a disk is copied whole");
        assert!(read[..size] == content, "{size} bytes through {disk}");
        let block_end = size.next_multiple_of(512);
        assert!(read[size..block_end].iter().all(|byte| *byte == 0), "the rest of the last block is zero");
    }
}

#[test]
fn file_of_a_served_disk_is_neither_overwritten_nor_read_past_the_daemon() {
    let daemon = serve(&["a=file:{dir}/a.img,size=4M", "b=memory:4M"]);
    let content = noise(4 * MIB, 17);
    daemon.blocking("a").write_at(&content, 0).expect("content");
    let image = text(&daemon.dir.path("a.img"));
    for source in ["fip:a", "fip:b"] {
        let pid = format!("process {}", daemon.pid());
        let output = daemon.fipsee(&["cp", source, &image]);
        assert_error(&output, &[&image, "in use", &pid, "choose another destination"]);
        let output = daemon.fipsee(&["cp", &image, source]);
        assert_error(&output, &[&image, "in use", &pid, "copy what it serves"]);
    }
    let (mut again, back) = (daemon.blocking("a"), &mut vec![0; 4 * MIB]);
    again.read_at(back, 0).expect("content");
    assert!(*back == content, "nothing of it is lost");
    assert!(std::fs::read(&image).expect("the file") == content);
}

#[test]
fn requests_of_any_size_give_the_same_disk() {
    let daemon = serve(&["a=memory:4M,block=4096"]);
    let content = noise(3 * MIB + 77, 3);
    let source = text(&daemon.dir.file("source", &content));
    for block_size in ["4K", "12K", "1M", "16M", "64M"] {
        assert_success(&daemon.fipsee(&["cp", "--block-size", block_size, "--verify", &source, "fip:a"]));
        let output = daemon.fipsee(&["cp", "--block-size", block_size, "fip:a", "-"]);
        assert_success(&output);
        assert!(output.stdout[..content.len()] == content, "--block-size {block_size}");
        daemon.blocking("a").write_zeroes(0, 4 * MIB as u64, true).expect("zeroes");
    }
    let output = daemon.fipsee(&["cp", "--block-size", "1000", &source, "fip:a"]);
    assert_eq!(output.status.code(), Some(2), "a usage error");
}

#[test]
fn zeroes_overwrite_what_the_disk_had_and_become_holes_in_files() {
    let daemon = serve(&["a=memory:16M", "b=memory:16M"]);
    daemon.blocking("a").write_at(&noise(16 * MIB, 9), 0).expect("old content");
    let path = daemon.dir.path("sparse");
    let file = std::fs::File::create(&path).expect("a file");
    let data = noise(5000, 5);
    file.set_len(16 * MIB as u64).expect("a hole");
    std::os::unix::fs::FileExt::write_all_at(&file, &data, 9 * MIB as u64 + 123).expect("data in the hole");
    let expected = std::fs::read(&path).expect("the source");
    assert_success(&daemon.fipsee(&["cp", "--verify", &text(&path), "fip:a"]));
    assert_success(&daemon.fipsee(&["cp", "--verify", "fip:a", "fip:b"]));
    let back = daemon.dir.path("back");
    assert_success(&daemon.fipsee(&["cp", "--verify", "fip:b", &text(&back)]));
    assert!(std::fs::read(&back).expect("the copy") == expected);
    let allocated_bytes = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&back).expect("metadata")) * 512;
    assert!(allocated_bytes < MIB as u64, "{allocated_bytes} bytes allocated for 5000 bytes of data");
}

#[test]
fn standard_streams_are_sources_and_destinations() {
    let daemon = serve(&["a=memory:4M"]);
    let content = noise(2 * MIB + 100, 2);
    let output = daemon.fipsee_with_input(&["cp", "--verify", "-", "fip:a"], &content);
    assert_success(&output);
    assert!(String::from_utf8_lossy(&output.stderr).contains("filled up with 412 zero bytes"));
    let output = daemon.fipsee(&["cp", "fip:a", "-"]);
    assert_success(&output);
    assert_eq!(output.stdout.len(), 4 * MIB);
    assert!(output.stdout[..content.len()] == content);
    let nothing = daemon.fipsee_with_input(&["cp", "--verify", "-", "fip:a"], b"");
    assert_success(&nothing);
}

#[test]
fn verify_sees_what_another_client_wrote_meanwhile() {
    let daemon = serve(&["a=memory:8M"]);
    let content = noise(3 * MIB, 7);
    let mut copy = daemon.command(&["cp", "--verify", "-", "fip:a"]);
    let mut copy = Guard(copy.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fipsee runs"));
    let mut stdin = copy.0.stdin.take().expect("its standard input");
    stdin.write_all(&content).expect("it reads");
    // The copy cannot end while its input is open: wait until the last block of the second MiB is on the disk.
    let mut reader = daemon.blocking_as(&AttachOptions { read_only: true, ..AttachOptions::new("a") });
    let (offset, mut block) = (2 * MIB - 512, [0; 512]);
    let deadline = Instant::now() + TIMEOUT;
    while block != content[offset..offset + 512] {
        assert!(Instant::now() < deadline, "the second MiB is not written");
        reader.read_at(&mut block, offset as u64).expect("a read");
    }
    block[17] ^= 1;
    // Without `Claim::Ignore` the copy's claim would refuse this client.
    let mut other = daemon.blocking_as(&AttachOptions { claim: Claim::Ignore, ..AttachOptions::new("a") });
    other.write_at(&block, offset as u64).expect("a write");
    drop(stdin);
    let mut errors = String::new();
    std::io::Read::read_to_string(copy.0.stderr.as_mut().expect("its standard error"), &mut errors).expect("text");
    assert_eq!(copy.0.wait().expect("it ends").code(), Some(1), "{errors}");
    assert!(errors.contains("fip:a differs from the source between offset 1048576 and 2097152"), "{errors}");
}

#[test]
fn verify_names_the_first_byte_that_differs() {
    // A null disk reads as zeroes to a client whose memory is fresh.
    let daemon = serve(&["n=null:8M"]);
    let mut content = vec![0; 3 * MIB];
    content[MIB + 12_345] = 1;
    content[MIB + 12_346] = 1;
    let source = text(&daemon.dir.file("source", &content));
    let output = daemon.fipsee(&["cp", "--verify", &source, "fip:n"]);
    assert_error(&output, &["fip:n differs from the source at offset 1060921"]);
    let zeroes = text(&daemon.dir.file("zeroes", vec![0; 3 * MIB]));
    assert_success(&daemon.fipsee(&["cp", "--verify", &zeroes, "fip:n"]));
}

#[test]
fn a_source_larger_than_the_disk_changes_nothing() {
    let daemon = serve(&["a=memory:1M"]);
    let old = noise(MIB, 1);
    daemon.blocking("a").write_at(&old, 0).expect("old content");
    let content = noise(MIB + 1, 8);
    let source = text(&daemon.dir.file("source", &content));
    let output = daemon.fipsee(&["cp", &source, "fip:a"]);
    assert_error(&output, &["has 1048577 bytes", "disk 'a' only 1048576", "fipsee resize a 1052672"]);
    let mut now = vec![0; MIB];
    daemon.blocking("a").read_at(&mut now, 0).expect("a read");
    assert!(now == old);
    let output = daemon.fipsee_with_input(&["cp", "-", "fip:a"], &content);
    assert_error(&output, &["standard input has more than the 1048576 bytes of disk 'a'"]);
}

#[test]
fn every_refusal_says_what_to_do() {
    let daemon = serve(&["a=memory:1M", "r=memory:1M,ro"]);
    let source = text(&daemon.dir.file("source", b"data"));
    let missing = text(&daemon.dir.path("missing"));
    assert_error(&daemon.fipsee(&["cp", &source, "fip:zz"]), &["no disk 'zz' that user", "`fipsee ls` lists those"]);
    assert_error(&daemon.fipsee(&["cp", &source, "fip:r"]), &["'r' is exported for reading only", "serve it without ro"]);
    assert_error(&daemon.fipsee(&["cp", &missing, "fip:a"]), &["cannot read", "missing", "check the name"]);
    assert_error(&daemon.fipsee(&["cp", &source, &missing]), &["is a disk", "write fip:NAME"]);
    assert_error(&daemon.fipsee(&["cp", "fip:a", "fip:a"]), &["the same disk", "name two"]);
    assert_error(&daemon.fipsee(&["cp", "fip:a", "-", "--verify"]), &["--verify cannot read standard output back"]);
    assert_error(&daemon.fipsee(&["cp", "fip:a", "/dev/full"]), &["No space left", "make room"]);
    let folder = text(&daemon.dir.path("folder"));
    let beyond = format!("{folder}/file");
    for arguments in [["cp", "fip:a", &beyond], ["mount", "a", &beyond]] {
        assert_error(&daemon.fipsee(&arguments), &[&format!("the folder {folder} does not exist; create it")]);
    }
    assert_error(&daemon.fipsee(&["mount", "a", &missing, "--cpus", "1000"]), &["CPU 1000 is not one", "choose from"]);
    for (arguments, sentence) in [
        (&["resize", "a", "-5M"][..], "'-5M' is negative; write a size without a sign"),
        (&["resize", "a", "--shrnk", "5M"], "a similar argument exists: '--shrink'"),
        (&["cp", "--block-size", "-4K", &source, "fip:a"], "'-4K' is negative"),
        (&["cp", "--reconnect", "-1", &source, "fip:a"], "write a whole number of seconds"),
        (&["mount", "a", &missing, "--threads", "-1"], "-1 is not in 1..=16"),
    ] {
        let output = daemon.fipsee(arguments);
        assert_eq!(output.status.code(), Some(2), "a usage error: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(sentence), "{sentence}: {output:?}");
    }
    let absent = format!("fip:a@{missing}");
    assert_error(&daemon.fipsee(&["cp", &source, &absent]), &["no daemon at", "start fipseed"]);
}

#[test]
fn copy_that_finds_no_room_says_how_much_it_left() {
    let daemon = serve(&["a=memory:4M"]);
    let content = noise(4 * MIB, 11);
    daemon.blocking("a").write_at(&content, 0).expect("content");
    let copy = daemon.dir.path("copy");
    // A limit of the process acts as a full file system.
    let mut command = Command::new("env");
    command.args(["--ignore-signal=XFSZ", "prlimit", "--fsize=2097152", FIPSEE, "cp", "--block-size=64K", "fip:a"]);
    let output = command.arg(&copy).arg("--connect").arg(daemon.socket()).output().expect("env runs");
    let left = format!("at least the first 2 MiB (2097152 bytes) were written to {}, not flushed", text(&copy));
    assert_error(&output, &["at offset 2097152", "make room", &left]);
    assert!(std::fs::read(&copy).expect("the copy") == content[..2 * MIB], "as it was said");
}

/// Start a copy from standard input to disk 'f', write `part` to it, and wait until its first block is on the disk.
fn begin_copy(daemon: &Daemon, arguments: &[&str], part: &[u8]) -> (Guard, std::process::ChildStdin) {
    let mut copy = daemon.command(arguments);
    let mut copy = Guard(copy.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fipsee runs"));
    let mut stdin = copy.0.stdin.take().expect("its standard input");
    stdin.write_all(part).expect("it reads");
    let mut other = daemon.blocking_as(&AttachOptions { read_only: true, ..AttachOptions::new("f") });
    let (mut block, deadline) = ([0; 512], Instant::now() + TIMEOUT);
    while block != part[..512] {
        assert!(Instant::now() < deadline, "the first part is not written");
        other.read_at(&mut block, 0).expect("a read");
    }
    (copy, stdin)
}

#[test]
fn a_copy_survives_a_daemon_that_is_killed_and_comes_back() {
    let mut daemon = serve(&["f=file:{dir}/disk,size=8M"]);
    let content = noise(6 * MIB, 6);
    let arguments = ["cp", "--verify", "--reconnect", "100", "-", "fip:f"];
    let (mut copy, mut stdin) = begin_copy(&daemon, &arguments, &content[..2 * MIB]);
    daemon.kill_9();
    daemon.restart();
    stdin.write_all(&content[2 * MIB..]).expect("it reads on");
    drop(stdin);
    let mut errors = String::new();
    std::io::Read::read_to_string(copy.0.stderr.as_mut().expect("its standard error"), &mut errors).expect("text");
    assert!(copy.0.wait().expect("it ends").success(), "{errors}");
    assert!(errors.contains("connection lost") && errors.contains("connected again"), "{errors}");
    let mut now = vec![0; 6 * MIB];
    daemon.blocking("f").read_at(&mut now, 0).expect("a read");
    assert!(now == content);
}

#[test]
fn a_copy_fails_clearly_when_the_daemon_is_killed() {
    let mut daemon = serve(&["f=file:{dir}/disk,size=8M"]);
    let content = noise(6 * MIB, 6);
    let (mut copy, mut stdin) = begin_copy(&daemon, &["cp", "-", "fip:f"], &content[..2 * MIB]);
    wait_for("both requests are answered", || {
        let stat = json(&daemon.fipsee(&["stat", "--json"]));
        let mut queues = stat["queues"].as_array().expect("a list").iter();
        queues.any(|queue| queue["writes"].as_u64() == Some(2)).then_some(())
    });
    daemon.kill_9();
    // The copy may end before it has read everything.
    let _ = stdin.write_all(&content[2 * MIB..]);
    drop(stdin);
    let mut errors = String::new();
    std::io::Read::read_to_string(copy.0.stderr.as_mut().expect("its standard error"), &mut errors).expect("text");
    assert_eq!(copy.0.wait().expect("it ends").code(), Some(1), "{errors}");
    assert!(errors.contains("disk 'f'") && errors.contains("--reconnect SECONDS"), "{errors}");
    assert!(errors.contains("at least the first 2 MiB (2097152 bytes) were written to fip:f, not flushed"), "{errors}");
}
