//! What happens when a process is killed, and what is said when something is wrong.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use fipsee_acceptance::{Daemon, Guard, eventually, has_program, run};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use super::support::{
    Detached, Loop, Mount, bytes_at, daemon, fails, fipsee, fipsee_output, mount_command, pattern, unmount, wait,
};

/// Start the daemon again. The kernel ends the last requests of a killed one after the process is gone, and keeps its lock on
/// the file so long.
fn restart(daemon: &mut Daemon) {
    let file = File::open(daemon.dir.path("b.img")).expect("a working system");
    eventually("the lock", || flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok());
    // Whatever another thread is about to start may have the file open, too.
    flock(&file, FlockOperation::Unlock).expect("a working system");
    daemon.restart();
}

fn signal(mount: &Mount, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(mount.pid()).expect("a working system")).expect("a working system");
    kill_process(pid, signal).expect("a working system");
}

#[test]
fn errors_say_what_is_wrong_and_what_to_do() {
    let Some(daemon) = daemon("errors", &["a=memory:1M"]) else { return };
    let directory = daemon.dir.path("");
    let tries = |arguments: &[&str]| fails(&mut mount_command(&daemon, arguments));
    let file = daemon.dir.path("new");
    let file = file.to_str().expect("a working system");
    assert!(tries(&["a", directory.to_str().expect("a working system")]).contains("is a directory; name a regular file"));
    assert!(tries(&["a", "/dev/null"]).contains("is no regular file"));
    assert!(tries(&["a", "/no/such/place"]).contains("the folder /no/such does not exist; create it"));
    let words = tries(&["b", file]);
    assert!(words.contains("'b'") && !daemon.dir.path("new").exists(), "{words}");
    assert!(tries(&["a", file, "--threads=0"]).contains("threads"));
    let mut unconnected = mount_command(&daemon, &["a", file]);
    assert!(fails(unconnected.args(["--connect", "/no/socket"])).contains("no daemon at /no/socket"));
    assert!(fails(mount_command(&daemon, &["--background", "b", file]).stdout(Stdio::piped())).contains("'b'"));
    let mut mount = Mount::new(&daemon, "a", &[]);
    let words = tries(&["a", mount.file.to_str().expect("a working system")]);
    assert!(words.contains("is a mount already; `umount` it first"), "{words}");
    mount.unmount();
}

#[test]
fn death_of_the_daemon_is_an_error_at_once_and_unmounting_works() {
    let Some(mut daemon) = daemon("death", &["a=memory:64M"]) else { return };
    let mut mount = Mount::new(&daemon, "a", &["--reconnect=0"]);
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let file = mount.open();
            std::thread::spawn(move || {
                let bytes = pattern(writer, 1 << 20);
                // Until it fails.
                (0_u64..)
                    .find_map(|round| file.write_all_at(&bytes, (writer * 20 + round % 20) << 20).err())
                    .expect("a working system")
            })
        })
        .collect();
    daemon.kill_9();
    for writer in writers {
        assert_eq!(Errno::from_io_error(&writer.join().expect("a working system")), Some(Errno::IO));
    }
    let file = mount.open();
    assert_eq!(Errno::from_io_error(&file.read_at(&mut [0; 512], 0).unwrap_err()), Some(Errno::IO));
    assert_eq!(Errno::from_io_error(&file.sync_all().unwrap_err()), Some(Errno::IO));
    assert_eq!(file.metadata().expect("a working system").len(), 64 << 20);
    // A daemon with another disk of that name, empty memory, is not taken for the old one.
    daemon.restart();
    assert_eq!(Errno::from_io_error(&file.read_at(&mut [0; 512], 0).unwrap_err()), Some(Errno::IO));
    drop(file);
    unmount(&mount.file);
    assert!(!mount.wait().success(), "what was written may be lost, which is no success");
    let words = mount.words();
    assert!(words.contains("connection to the daemon lost") && words.contains("requests fail with EIO"), "{words}");
}

#[test]
fn restart_of_the_daemon_is_not_noticed_by_programs() {
    let Some(mut daemon) = daemon("restart", &["b=file:{dir}/b.img,size=16M"]) else { return };
    if !has_program("restart", "fio") {
        return;
    }
    let mut mount = Mount::new(&daemon, "b", &["--reconnect=60", "--threads=2"]);
    let mut fio = Command::new("fio");
    fio.args(["--name=job", "--rw=randwrite", "--bs=4k", "--size=16m", "--loops=20", "--ioengine=libaio", "--iodepth=16"]);
    fio.args(["--direct=1", "--verify=crc32c", "--verify_fatal=1", "--fsync=32"])
        .arg(format!("--filename={}", mount.file.display()));
    let fio = fio.stdout(Stdio::null()).stderr(Stdio::piped()).current_dir(daemon.dir.path("")).spawn();
    let mut fio = Guard(fio.expect("a working system"));
    let mut restarts = 0;
    while restarts < 5 {
        // A new daemon counts from its start.
        let is_used = || {
            let stat = fipsee_output(&daemon, &["stat", "--json"]).unwrap_or_default();
            stat.split("\"writes\":").skip(1).any(|rest| !rest.starts_with('0'))
        };
        let mut is_over = false;
        eventually("writes", || {
            is_over = fio.0.try_wait().expect("a working system").is_some();
            is_over || is_used()
        });
        if is_over {
            break;
        }
        daemon.kill_9();
        restart(&mut daemon);
        restarts += 1;
    }
    assert!(restarts > 0, "it was over before anything happened");
    let status = wait(&mut fio.0);
    let mut words = String::new();
    fio.0.stderr.take().expect("a working system").read_to_string(&mut words).expect("a working system");
    assert!(status.success(), "{status}: {words}");
    mount.unmount();
    assert!(mount.words().contains("connected again"));
}

#[test]
fn disk_that_was_given_up_comes_back_without_the_writes_that_failed() {
    let Some(mut daemon) = daemon("comeback", &["b=file:{dir}/b.img,size=1M"]) else { return };
    let mut mount = Mount::new(&daemon, "b", &["--reconnect=0"]);
    let file = mount.open();
    file.write_all_at(&[1; 4096], 0).expect("a working system");
    daemon.kill_9();
    eventually("the loss", || file.write_at(&[2; 4096], 0).is_err());
    restart(&mut daemon);
    eventually("the disk's return", || file.read_at(&mut [0; 1], 0).is_ok());
    assert_eq!(bytes_at(&file, 0, 4096), [1; 4096]);
    file.write_all_at(&[3; 4096], 0).expect("a working system");
    file.sync_all().expect("a working system");
    assert_eq!(bytes_at(&file, 0, 4096), [3; 4096]);
    drop(file);
    mount.unmount();
}

#[test]
fn synced_data_survives_the_death_of_all_processes() {
    let Some(mut daemon) = daemon("survives", &["b=file:{dir}/b.img,size=8M"]) else { return };
    let mut wanted = vec![0; 8 << 20];
    for round in 0..4_u64 {
        let mut mount = Mount::new(&daemon, "b", &[]);
        let file = mount.open();
        assert!(bytes_at(&file, 0, 8 << 20) == wanted, "round {round}");
        wanted = pattern(round, 8 << 20);
        file.write_all_at(&wanted, 0).expect("a working system");
        file.sync_all().expect("a working system");
        // A write in flight while it is killed, of what is there already.
        let again = mount.open();
        let bytes = wanted.clone();
        let writer = std::thread::spawn(move || while again.write_all_at(&bytes[..1 << 20], 0).is_ok() {});
        signal(&mount, Signal::KILL);
        daemon.kill_9();
        writer.join().expect("a working system");
        assert!(!mount.wait().success());
        assert!(file.read_at(&mut [0; 512], 0).is_err());
        drop(file);
        // The daemon is not there yet, and the name is in the way.
        let words = fails(&mut mount_command(&daemon, &["b", mount.file.to_str().expect("a working system")]));
        assert!(words.contains("run `umount` on it"), "{words}");
        unmount(&mount.file);
        restart(&mut daemon);
    }
}

#[test]
fn signal_unmounts() {
    let Some(daemon) = daemon("signal", &["a=memory:1M"]) else { return };
    for number in [Signal::TERM, Signal::INT] {
        let mut mount = Mount::new(&daemon, "a", &[]);
        signal(&mount, number);
        assert!(mount.wait().success());
        assert_eq!(mount.words(), "");
        assert!(!mount.file.exists());
    }
}

#[test]
fn signal_while_in_use_takes_only_the_name() {
    let Some(daemon) = daemon("busy", &["a=memory:1M"]) else { return };
    let mut mount = Mount::new(&daemon, "a", &[]);
    let file = mount.open();
    let device = Loop::new(&mount.file, false);
    signal(&mount, Signal::TERM);
    eventually("the name is gone", || mount.file.metadata().map_or(true, |metadata| metadata.len() == 0));
    file.write_all_at(&[5; 4096], 0).expect("a working system");
    assert_eq!(bytes_at(&File::open(&device.0).expect("a working system"), 0, 512), [5; 512]);
    assert!(mount.child.0.try_wait().expect("a working system").is_none());
    drop(device);
    drop(file);
    assert!(mount.wait().success());
    assert!(mount.words().contains("is in use; its name is gone"));
    // And at once, when asked twice.
    let mut mount = Mount::new(&daemon, "a", &[]);
    let file = mount.open();
    signal(&mount, Signal::TERM);
    eventually("the name is gone", || mount.file.metadata().map_or(true, |metadata| metadata.len() == 0));
    signal(&mount, Signal::TERM);
    assert!(!mount.wait().success());
    assert!(file.read_at(&mut [0; 512], 0).is_err());
}

#[test]
fn background_returns_when_mounted_and_ends_when_unmounted() {
    let Some(daemon) = daemon("background", &["a=memory:1M"]) else { return };
    let file = daemon.dir.path("relative");
    let _detached = Detached(file.clone());
    let mut command = mount_command(&daemon, &["--background", "--threads=2", "a", "relative"]);
    // Its output ends although the process stays: else this would wait for ever.
    let said = run(command.current_dir(daemon.dir.path("")));
    assert!(said.starts_with("mounted a on "), "{said}");
    let opened = File::options().read(true).write(true).open(&file).expect("a working system");
    opened.write_all_at(&[4; 512], 0).expect("a working system");
    assert_eq!(bytes_at(&opened, 0, 512), [4; 512]);
    drop(opened);
    unmount(&file);
    let gone = || fipsee(&daemon, &["info", "a", "--json"]).contains("\"attached\":0");
    eventually("the process has let go of the disk", gone);
    eventually("its file is gone", || !file.exists());
}

#[test]
fn file_that_was_made_is_removed_unless_it_is_in_use() {
    let Some(daemon) = daemon("made", &["a=memory:1M"]) else { return };
    let file = daemon.dir.path("a.mounted");
    for round in 0..20_u8 {
        // As a script does: at once, while the process before still ends.
        let mut mount = Mount::new(&daemon, "a", &[]);
        mount.open().write_all_at(&[round; 512], 0).expect("a working system");
        unmount(&mount.file);
        let mut next = Mount::new(&daemon, "a", &[]);
        assert_eq!(bytes_at(&next.open(), 0, 512), [round; 512]);
        let status = mount.wait();
        assert!(status.success(), "round {round}: {status}: {}", mount.words());
        next.unmount();
        assert!(!file.exists());
    }
    let mut mount = Mount::new(&daemon, "a", &[]);
    let in_use = mount.open();
    signal(&mount, Signal::TERM);
    eventually("the name is free", || file.metadata().is_ok_and(|metadata| metadata.len() == 0));
    std::fs::write(&file, "another's").expect("a working system");
    drop(in_use);
    let status = mount.wait();
    assert!(status.success(), "{status}: {}", mount.words());
    assert_eq!(std::fs::read(&file).expect("a working system"), b"another's");
}
