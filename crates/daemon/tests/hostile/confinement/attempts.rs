//! A process confines itself as the daemon does and tries one thing; another checks the outcome.

use std::io::{Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Parser;
use fipsee_daemon::config::{Arguments, Config};
use fipsee_daemon::confine::{Confine, Confinement};
use fipsee_testkit::{Scratch, child, is_root, skip};
use rustix::fs::{MemfdFlags, SealFlags};

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Errno(i32),
    /// By this signal.
    Ended(i32),
}

const KILLED: Outcome = Outcome::Ended(libc::SIGSYS);

/// The outcome as the trying process prints it.
const ANSWER: &str = "the attempt: ";
const SAYS_WHICH: &str = "FIPSEED_TEST_ATTEMPT";
const SAYS_WHERE: &str = "FIPSEED_TEST_DIR";

/// The folders of a daemon: `disks`, `run`, `conf`; `elsewhere` is not one of them.
fn prepare() -> Scratch {
    let dir = Scratch::new();
    for folder in ["disks", "run", "conf", "elsewhere"] {
        std::fs::create_dir(dir.path(folder)).expect("a folder");
    }
    for file in ["disks/there", "conf/fip.toml", "elsewhere/there"] {
        std::fs::write(dir.path(file), "[[disk]]\nname = \"m\"\nspec = \"memory:1M\"\n").expect("a file");
    }
    dir
}

fn config(dir: &Path) -> Config {
    let path = |name: &str| dir.join(name).to_str().expect("an ordinary path").to_owned();
    let disk = format!("d=file:{}", path("disks/there"));
    let arguments = ["fipseed", "--disk", &disk, "--listen", &path("run/s"), "--config", &path("conf/fip.toml")];
    Arguments::parse_from(arguments).into_config().expect("a configuration")
}

/// Have a separate process confine itself and try `name`.
#[track_caller]
fn attempt(dir: &Scratch, name: &str) -> Outcome {
    let mut command = child::command("try_what_is_asked_for");
    command.env(SAYS_WHICH, name).env(SAYS_WHERE, &dir.0).stderr(Stdio::null());
    let output = command.output().expect("this program can be started");
    if let Some(signal) = output.status.signal() {
        return Outcome::Ended(signal);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let answer = text.split_once(ANSWER).and_then(|(_, rest)| rest.lines().next());
    let errno = answer.and_then(|word| word.parse::<i32>().ok()).unwrap_or_else(|| panic!("{name}: {text}"));
    if errno == 0 { Outcome::Done } else { Outcome::Errno(errno) }
}

/// As a process of its own.
pub(crate) fn try_what_is_asked_for() {
    let name = std::env::var(SAYS_WHICH).expect("the parent names an attempt");
    let dir = PathBuf::from(std::env::var_os(SAYS_WHERE).expect("the parent names a folder"));
    let config = config(&dir);
    let confinement = Confinement::wanted(Confine::Required, fipsee_daemon::services::needs(&config, &[]));
    let socket = dir.join("run/s");
    confinement.files(&config, std::iter::once(socket.as_path())).expect("landlock");
    confinement.calls().expect("seccomp");
    let errno = match try_now(&name, &dir) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or_else(|| panic!("{name}: {error}")),
    };
    println!("{ANSWER}{errno}");
}

fn try_now(name: &str, dir: &Path) -> std::io::Result<()> {
    if let Some((_, number, arguments)) = SYSTEM_CALLS.iter().find(|(other, ..)| *other == name) {
        return call(*number, *arguments);
    }
    let (verb, path) = name.split_once(' ').unwrap_or((name, ""));
    // As in join: an absolute path stays one.
    let path = dir.join(path);
    match verb {
        "read" => std::fs::read(path).map(drop),
        "list" => std::fs::read_dir(path).map(drop),
        "write" => std::fs::File::options().write(true).open(path).map(drop),
        "truncate" => std::fs::File::options().write(true).truncate(true).open(path).map(drop),
        "create" => {
            let file = std::fs::File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)?;
            file.set_len(4096)?;
            file.sync_all()?;
            std::fs::remove_file(path)
        }
        "remove" => std::fs::remove_file(path),
        "folder" => std::fs::create_dir(path),
        "rename" => std::fs::rename(&path, path.with_extension("renamed")),
        "link" => std::os::unix::fs::symlink("/etc/shadow", path),
        "listen" => {
            drop(UnixListener::bind(&path)?);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
            std::fs::remove_file(path)
        }
        "memory" => client_memory(),
        "thread" => std::thread::Builder::new().spawn(|| ()).map(|thread| thread.join().expect("no panic")),
        "backtrace" => {
            let frames = std::backtrace::Backtrace::force_capture().to_string();
            assert!(frames.contains("attempts"), "{frames}");
            Ok(())
        }
        "panic" => {
            assert!(std::panic::catch_unwind(|| panic!("on purpose")).is_err());
            Ok(())
        }
        "abort" => std::process::abort(),
        "signal-self" => Ok(rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::CONT)?),
        "signal-parent" => call(libc::SYS_kill, [i64::from(std::os::unix::process::parent_id()), 0, 0, 0, 0]),
        "run" => Command::new("/bin/true").status().map(drop),
        _ => panic!("no attempt is called {name}"),
    }
}

/// Memory that a client and the daemon share.
fn client_memory() -> std::io::Result<()> {
    let mut file = std::fs::File::from(rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(8192)?;
    file.write_all(b"x")?;
    file.rewind()?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    let (_one, _other) = UnixStream::pair()?;
    let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)?;
    let on = rustix::event::epoll::EventFlags::IN;
    rustix::event::epoll::add(&epoll, doorbell.as_fd(), rustix::event::epoll::EventData::new_u64(0), on)?;
    // SAFETY: a new mapping, where the kernel finds room.
    let place = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            8192,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            &file,
            0,
        )?
    };
    // SAFETY: nothing points into it.
    unsafe { rustix::mm::munmap(place, 8192)? };
    Ok(())
}

fn call(number: libc::c_long, [a, b, c, d, e]: [i64; 5]) -> std::io::Result<()> {
    // SAFETY: of the calls in the table, none is given an address that is one of ours, and none of a thread that could go on
    // elsewhere: a fork ends here, in a process that only prints a number.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, 0_i64) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

const NONE: [i64; 5] = [0; 5];
const ANONYMOUS: i64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as i64;

/// With arguments that would do no harm if they were let through.
const SYSTEM_CALLS: &[(&str, libc::c_long, [i64; 5])] = &[
    ("execve", libc::SYS_execve, NONE),
    ("execveat", libc::SYS_execveat, NONE),
    ("fork", libc::SYS_clone, [libc::SIGCHLD as i64, 0, 0, 0, 0]),
    ("vfork", libc::SYS_clone, [(libc::CLONE_VFORK | libc::SIGCHLD) as i64, 0, 0, 0, 0]),
    ("ptrace", libc::SYS_ptrace, [libc::PTRACE_ATTACH as i64, 1, 0, 0, 0]),
    ("process_vm_readv", libc::SYS_process_vm_readv, [1, 0, 0, 0, 0]),
    ("process_vm_writev", libc::SYS_process_vm_writev, [1, 0, 0, 0, 0]),
    ("pidfd_getfd", libc::SYS_pidfd_getfd, [-1, 0, 0, 0, 0]),
    ("mount", libc::SYS_mount, NONE),
    ("umount", libc::SYS_umount2, NONE),
    ("pivot_root", libc::SYS_pivot_root, NONE),
    ("open_tree", libc::SYS_open_tree, [-1, 0, 0, 0, 0]),
    ("chroot", libc::SYS_chroot, NONE),
    ("init_module", libc::SYS_init_module, NONE),
    ("finit_module", libc::SYS_finit_module, [-1, 0, 0, 0, 0]),
    ("delete_module", libc::SYS_delete_module, NONE),
    ("kexec_load", libc::SYS_kexec_load, [0, 17, 0, 0, 0]),
    ("bpf", libc::SYS_bpf, NONE),
    ("perf_event_open", libc::SYS_perf_event_open, NONE),
    ("keyctl", libc::SYS_keyctl, NONE),
    ("add_key", libc::SYS_add_key, NONE),
    ("request_key", libc::SYS_request_key, NONE),
    ("userfaultfd", libc::SYS_userfaultfd, NONE),
    ("setuid", libc::SYS_setuid, NONE),
    ("setgid", libc::SYS_setgid, NONE),
    ("setresuid", libc::SYS_setresuid, [-1, -1, -1, 0, 0]),
    ("setgroups", libc::SYS_setgroups, NONE),
    ("capset", libc::SYS_capset, NONE),
    ("unshare", libc::SYS_unshare, [libc::CLONE_NEWUSER as i64, 0, 0, 0, 0]),
    ("setns", libc::SYS_setns, [-1, 0, 0, 0, 0]),
    ("open_by_handle_at", libc::SYS_open_by_handle_at, [-1, 0, 0, 0, 0]),
    ("fanotify_init", libc::SYS_fanotify_init, [-1, 0, 0, 0, 0]),
    ("reboot", libc::SYS_reboot, NONE),
    ("swapon", libc::SYS_swapon, NONE),
    ("personality", libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0]),
    ("socket inet", libc::SYS_socket, [libc::AF_INET as i64, libc::SOCK_STREAM as i64, 0, 0, 0]),
    ("socket inet6", libc::SYS_socket, [libc::AF_INET6 as i64, libc::SOCK_DGRAM as i64, 0, 0, 0]),
    ("socket netlink", libc::SYS_socket, [libc::AF_NETLINK as i64, libc::SOCK_RAW as i64, 0, 0, 0]),
    ("socket packet", libc::SYS_socket, [libc::AF_PACKET as i64, libc::SOCK_RAW as i64, 0, 0, 0]),
    ("socket vsock", libc::SYS_socket, [libc::AF_VSOCK as i64, libc::SOCK_STREAM as i64, 0, 0, 0]),
    ("socket alg", libc::SYS_socket, [libc::AF_ALG as i64, libc::SOCK_SEQPACKET as i64, 0, 0, 0]),
    ("socketpair inet", libc::SYS_socketpair, [libc::AF_INET as i64, libc::SOCK_STREAM as i64, 0, 0, 0]),
    ("clone3", libc::SYS_clone3, NONE),
    ("io_uring_setup", libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]),
    ("register buffers", libc::SYS_io_uring_register, [-1, 0, 0, 0, 0]),
    ("register files", libc::SYS_io_uring_register, [-1, 2, 0, 0, 0]),
    ("lift restrictions", libc::SYS_io_uring_register, [-1, 11, 0, 0, 0]),
    ("seccomp", libc::SYS_seccomp, NONE),
    ("landlock", libc::SYS_landlock_create_ruleset, [0, 0, 1, 0, 0]),
    ("executable memory", libc::SYS_mmap, [0, 4096, (libc::PROT_READ | libc::PROT_EXEC) as i64, ANONYMOUS, -1]),
    ("memory made executable", libc::SYS_mprotect, [0, 0, libc::PROT_EXEC as i64, 0, 0]),
    ("ordinary memory", libc::SYS_mmap, [0, 4096, (libc::PROT_READ | libc::PROT_WRITE) as i64, ANONYMOUS, -1]),
    ("signal another process", libc::SYS_tgkill, [1, 1, 0, 0, 0]),
    ("raise a limit", libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as i64, 1, 0, 0]),
    ("limits of another process", libc::SYS_prlimit64, [1, libc::RLIMIT_NOFILE as i64, 0, 0, 0]),
    ("undumpable", libc::SYS_prctl, [libc::PR_SET_DUMPABLE as i64, 0, 0, 0, 0]),
    ("type into the terminal", libc::SYS_ioctl, [0, libc::TIOCSTI as i64, 0, 0, 0]),
    ("mknod", libc::SYS_mknodat, [-1, 0, 0, 0, 0]),
    ("hard link", libc::SYS_linkat, [-1, 0, -1, 0, 0]),
    ("name_to_handle_at", libc::SYS_name_to_handle_at, [-1, 0, 0, 0, 0]),
    ("shared memory of System V", libc::SYS_shmget, NONE),
    ("message queue", libc::SYS_mq_open, NONE),
    ("scheduling", libc::SYS_sched_setscheduler, [0, libc::SCHED_OTHER as i64, 0, 0, 0]),
    ("another ABI", libc::SYS_getpid | 0x4000_0000, NONE),
];

#[track_caller]
fn assert_outcomes(names: &[&str], expected: Outcome) {
    if !super::has_landlock("attempts of a confined process") {
        return;
    }
    let dir = prepare();
    let wrong: Vec<_> =
        names.iter().map(|name| (*name, attempt(&dir, name))).filter(|(_, outcome)| *outcome != expected).collect();
    assert!(wrong.is_empty(), "not {expected:?}: {wrong:?}");
}

#[test]
fn process_that_makes_an_intruders_system_call_is_killed() {
    let names: Vec<&str> = SYSTEM_CALLS.iter().map(|(name, ..)| *name).take_while(|name| *name != "socketpair inet").collect();
    assert_eq!(names.len(), 41);
    assert_outcomes(&names, KILLED);
    assert_outcomes(&["run"], KILLED);
}

#[test]
fn any_other_system_call_is_refused() {
    assert_outcomes(&["clone3"], Outcome::Errno(libc::ENOSYS));
    let names = SYSTEM_CALLS.iter().map(|(name, ..)| *name).skip_while(|name| *name != "socketpair inet");
    let names: Vec<&str> = names.filter(|name| !["clone3", "ordinary memory"].contains(name)).collect();
    assert_outcomes(&names, Outcome::Errno(libc::EPERM));
    assert_outcomes(&["rename disks/there", "link disks/link", "signal-parent"], Outcome::Errno(libc::EPERM));
}

#[test]
fn files_of_others_are_refused() {
    let names = [
        "read /etc/shadow",
        "write /etc/passwd",
        "list /etc",
        "read elsewhere/there",
        "write elsewhere/there",
        "remove elsewhere/there",
        "create elsewhere/new",
        "list elsewhere",
        "folder elsewhere/new",
        "folder disks/new",
        "listen elsewhere/new",
        "listen disks/new",
        "listen conf/new",
        "create run/new",
        "create conf/new",
        "write conf/fip.toml",
        "truncate conf/fip.toml",
        "remove conf/fip.toml",
        "list disks",
        "read /proc/1/environ",
        "write /proc/sys/kernel/core_pattern",
        "read /dev/mem",
        "write /dev/null",
        "read /bin/true",
    ];
    if !is_root() {
        return skip("files that only landlock keeps from the daemon", "only root may open all of them");
    }
    let dir = prepare();
    for name in names {
        let file = name.split(' ').nth(1).expect("a path");
        let exists = file.starts_with('/') || !file.ends_with("new");
        assert!(!exists || dir.0.join(file).exists() || file == "/dev/mem", "{file} does not exist, so it cannot be refused");
    }
    let names: Vec<&str> = names.into_iter().filter(|name| *name != "read /dev/mem" || Path::new("/dev/mem").exists()).collect();
    assert_outcomes(&names, Outcome::Errno(libc::EACCES));
}

#[test]
fn what_a_daemon_does_is_allowed() {
    let names = [
        "read disks/there",
        "write disks/there",
        "truncate disks/there",
        "create disks/new",
        "remove disks/there",
        "listen run/new",
        "list run",
        "read conf/fip.toml",
        "read /proc/locks",
        "read /etc/passwd",
        "read /etc/group",
        "list /proc/self/fd",
        "list /sys/dev/block",
        "memory",
        "ordinary memory",
        "thread",
        "backtrace",
        "panic",
        "signal-self",
    ];
    for name in names {
        assert_outcomes(&[name], Outcome::Done);
    }
    assert_outcomes(&["abort"], Outcome::Ended(libc::SIGABRT));
}
