//! The daemon's interface to a service manager (sockets, sd_notify), without one.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fipsee_block::client::{AttachOptions, Blocking};
use fipsee_ring::seqpacket::{Seqpacket, socket_address};
use fipsee_testkit::{Scratch, TIMEOUT, assert_says, eventually};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Signal};

/// A daemon started as by a service manager: with descriptors and an environment that the testkit's launcher does not give.
struct Service {
    dir: Scratch,
    child: Child,
    notify: UnixDatagram,
}

const FILE: &str = "[[disk]]\nname = \"a\"\nspec = \"memory:1M\"\n";

impl Service {
    /// `environment` goes to the daemon, with `$$` for its process; the sockets become its descriptors 3 and 4.
    fn start(dir: Scratch, environment: &str, sockets: [Option<OwnedFd>; 2]) -> Self {
        let notify = UnixDatagram::bind(dir.path("notify")).expect("a socket");
        notify.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        std::fs::write(dir.path("f.toml"), FILE).expect("a file");
        let program = env!("CARGO_BIN_EXE_fipseed");
        let shown = dir.0.display();
        let script = format!(
            "exec 3<&0 4>&1 </dev/null >/dev/null; NOTIFY_SOCKET={shown}/notify {environment} exec {program} --config {shown}/f.toml --listen {shown}/own"
        );
        let stdio = |socket: Option<OwnedFd>| socket.map_or_else(Stdio::null, Stdio::from);
        let [client, admin] = sockets;
        let log = std::fs::File::create(dir.path("log")).expect("a file");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(stdio(client)).stdout(stdio(admin)).stderr(log).env_remove("JOURNAL_STREAM");
        let child = command.spawn().expect("sh");
        Self { dir, child, notify }
    }

    fn receive(&self) -> String {
        let mut bytes = [0; 4096];
        match self.notify.recv(&mut bytes) {
            Ok(length) => String::from_utf8_lossy(&bytes[..length]).into_owned(),
            Err(error) => panic!("nothing more is sent: {error}; {}", self.log()),
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path("log")).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("a child can be signalled");
    }

    fn await_exit(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the daemon ends", || {
            status = self.child.try_wait().expect("a child can be asked");
            status.is_some()
        });
        status.expect("just seen")
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn seqpacket_listener(path: &Path) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    rustix::net::bind(&socket, &socket_address(path).expect("short")).expect("a free path");
    rustix::net::listen(&socket, 16).expect("it listens");
    socket
}

fn write_and_read(socket: &Path) {
    let mut disk = Blocking::attach(socket, &AttachOptions::new("a")).expect("attached");
    disk.write_at(&[7; 512], 1024).expect("written");
    let mut block = [0; 512];
    disk.read_at(&mut block, 1024).expect("read");
    assert_eq!(block, [7; 512]);
}

#[test]
fn service_manager_is_notified_of_readiness_reload_and_end() {
    let mut service = Service::start(Scratch::new(), "", [None, None]);
    let ready = service.receive();
    assert_says(&ready, &["READY=1\n", "STATUS=serving a\n"]);
    // Ready means that no client needs to try twice.
    write_and_read(&service.dir.path("own"));
    std::fs::write(service.dir.path("f.toml"), format!("{FILE}[[disk]]\nname = \"b\"\nspec = \"null:1M\"\n")).expect("a file");
    let before = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    service.signal(Signal::HUP);
    let reloading = service.receive();
    assert_says(&reloading, &["RELOADING=1\n", "MONOTONIC_USEC="]);
    let stamp = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).expect("a time");
    let stamp_us: i64 = stamp.parse().expect("a number");
    assert!(stamp_us >= before.tv_sec * 1_000_000 + before.tv_nsec / 1000, "of this reload");
    assert_says(&service.receive(), &["READY=1\n", "STATUS=serving a, b\n"]);
    std::fs::write(service.dir.path("f.toml"), "broken").expect("a file");
    service.signal(Signal::HUP);
    assert_says(&service.receive(), &["RELOADING=1\n"]);
    // Otherwise the service manager would wait for ever.
    assert_says(&service.receive(), &["READY=1\n", "STATUS=serving a, b\n"]);
    service.signal(Signal::TERM);
    assert_says(&service.receive(), &["STOPPING=1\n", "STATUS="]);
    assert!(service.await_exit().success());
}

#[test]
fn watchdog_is_fed_by_the_thread_that_must_be_alive() {
    let service = Service::start(Scratch::new(), "WATCHDOG_USEC=200000 WATCHDOG_PID=$$", [None, None]);
    assert_says(&service.receive(), &["READY=1\n"]);
    for _ in 0..3 {
        assert_eq!(service.receive(), "WATCHDOG=1\n");
    }
    service.signal(Signal::STOP);
    service.notify.set_read_timeout(Some(Duration::from_millis(1500))).expect("a timeout");
    let deadline = Instant::now() + TIMEOUT;
    // One may have been sent already.
    while service.notify.recv(&mut [0; 64]).is_ok() {
        assert!(Instant::now() < deadline, "a stopped daemon still feeds the watchdog");
    }
    service.signal(Signal::CONT);
    service.notify.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    assert_eq!(service.receive(), "WATCHDOG=1\n");
}

#[test]
fn watchdog_of_another_process_is_not_ours() {
    let service = Service::start(Scratch::new(), "WATCHDOG_USEC=20000 WATCHDOG_PID=1", [None, None]);
    assert_says(&service.receive(), &["READY=1\n"]);
    service.signal(Signal::HUP);
    assert_says(&service.receive(), &["RELOADING=1\n"]);
}

#[test]
fn inherited_sockets_are_served_and_survive_the_daemon() {
    let dir = Scratch::new();
    let (client, admin) = (dir.path("c"), dir.path("ctl"));
    let client_socket = seqpacket_listener(&client);
    let admin_socket = UnixListener::bind(&admin).expect("a free path");
    let kept = client_socket.try_clone().expect("a descriptor");
    // A client that came before the daemon is served once the daemon runs.
    let early = std::thread::spawn({
        let client = client.clone();
        move || write_and_read(&client)
    });
    let environment = "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=fipseed.socket:admin";
    let mut service = Service::start(dir, environment, [Some(client_socket), Some(admin_socket.into())]);
    assert_says(&service.receive(), &["READY=1\n"]);
    early.join().expect("served");
    write_and_read(&client);
    let mut stream = UnixStream::connect(&admin).expect("it listens");
    stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"disk.list\"}\n").expect("it reads");
    stream.shutdown(std::net::Shutdown::Write).expect("open");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert_says(&answer, &["\"disk\":\"a\""]);
    assert!(!service.dir.path("own").exists() && !service.dir.path("c.lock").exists(), "{}", service.log());
    service.signal(Signal::TERM);
    assert!(service.await_exit().success());
    assert!(client.exists() && admin.exists(), "sockets are removed by their maker only");
    // The next daemon gets the same socket, and a client that connects in between waits for it.
    let waiting = Seqpacket::connect(&client).expect("the socket is still open");
    let dir = Scratch::new();
    let mut next = Service::start(dir, "LISTEN_PID=$$ LISTEN_FDS=1", [Some(kept), None]);
    assert_says(&next.receive(), &["READY=1\n"]);
    write_and_read(&client);
    let own_admin = fipsee_daemon::admin::admin_path(&client);
    assert!(own_admin.exists(), "without an inherited one it makes its own, beside the socket for clients");
    drop(waiting);
    next.signal(Signal::TERM);
    assert!(next.await_exit().success());
    assert!(client.exists() && !own_admin.exists());
}

#[test]
fn inherited_metrics_socket_may_be_tcp() {
    let metrics = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = metrics.local_addr().expect("its address");
    let environment = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=metrics";
    let mut service = Service::start(Scratch::new(), environment, [Some(metrics.into()), None]);
    assert_says(&service.receive(), &["READY=1\n"]);
    let scrape = || {
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    };
    assert_says(&scrape(), &["200 OK", "fipsee_build_info"]);
    // It is no part of the configuration, and stays.
    let log = std::fs::File::options().append(true).open(service.dir.path("log")).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fipseed"));
    command.arg("--config").arg(service.dir.path("f.toml")).arg("--listen").arg(service.dir.path("own")).arg("--takeover");
    let new = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("the daemon can be started");
    assert!(service.await_exit().success(), "{}", service.log());
    service.child = new;
    assert_says(&scrape(), &["200 OK", "fipsee_build_info"]);
}

#[test]
fn takeover_is_notified_before_the_new_daemon_is_ready() {
    let dir = Scratch::new();
    let path = dir.path("c");
    let socket = seqpacket_listener(&path);
    let mut service = Service::start(dir, "LISTEN_PID=$$ LISTEN_FDS=1", [Some(socket), None]);
    assert_says(&service.receive(), &["READY=1\n"]);
    let mut client = Blocking::attach(&path, &AttachOptions::new("a")).expect("attached");
    client.write_at(&[9; 512], 0).expect("written");
    let log = std::fs::File::options().append(true).open(service.dir.path("log")).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fipseed"));
    command.arg("--config").arg(service.dir.path("f.toml")).arg("--listen").arg(&path).arg("--takeover");
    command.env("NOTIFY_SOCKET", service.dir.path("notify")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let new = command.spawn().expect("the daemon can be started");
    let pid = new.id();
    assert_eq!(service.receive(), format!("MAINPID={pid}\n"), "{}", service.log());
    assert_says(&service.receive(), &["READY=1\n", "STATUS=serving a\n"]);
    assert!(service.await_exit().success());
    service.child = new;
    let mut block = [0; 512];
    client.read_at(&mut block, 0).expect("read");
    assert_eq!(block, [9; 512]);
    drop(client);
    service.signal(Signal::TERM);
    assert_says(&service.receive(), &["STOPPING=1\n"]);
    assert!(service.await_exit().success());
    let own_admin = fipsee_daemon::admin::admin_path(&path);
    assert!(
        path.exists() && !own_admin.exists(),
        "the service manager's stays, and the first daemon's own is removed by the last"
    );
}

#[test]
fn sockets_of_another_process_are_left_alone() {
    let dir = Scratch::new();
    let socket = seqpacket_listener(&dir.path("c"));
    let service = Service::start(dir, "LISTEN_PID=1 LISTEN_FDS=1", [Some(socket), None]);
    assert_says(&service.receive(), &["READY=1\n"]);
    write_and_read(&service.dir.path("own"));
}

#[test]
fn socket_that_cannot_be_used_is_named() {
    let refused = |environment: &str, sockets: &dyn Fn(&Scratch) -> [Option<OwnedFd>; 2]| {
        let dir = Scratch::new();
        let sockets = sockets(&dir);
        let mut service = Service::start(dir, &format!("LISTEN_PID=$$ {environment}"), sockets);
        assert!(!service.await_exit().success(), "{environment}");
        service.log()
    };
    let stream = |dir: &Scratch| [Some(UnixListener::bind(dir.path("c")).expect("free").into()), None];
    let text = refused("LISTEN_FDS=1 LISTEN_FDNAMES=fip", &stream);
    assert_says(&text, &["error: socket 'fip'", "is a STREAM socket and must be a SEQPACKET", "ListenSequentialPacket="]);
    let packets = |dir: &Scratch| [Some(seqpacket_listener(&dir.path("c"))), None];
    let text = refused("LISTEN_FDS=1 LISTEN_FDNAMES=admin", &packets);
    assert_says(&text, &["socket 'admin'", "is a SEQPACKET socket and must be a STREAM", "ListenStream="]);
    let both = |dir: &Scratch| [Some(seqpacket_listener(&dir.path("c"))), Some(seqpacket_listener(&dir.path("d")))];
    let text = refused("LISTEN_FDS=2 LISTEN_FDNAMES=one:two", &both);
    assert_says(&text, &["socket 'two' is one too many", "FileDescriptorName=admin"]);
    let unconnected = |_: &Scratch| {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        [Some(socket.expect("a socket")), None]
    };
    let open = |_: &Scratch| [Some(std::net::TcpListener::bind("0.0.0.0:0").expect("a free port").into()), None];
    let text = refused("LISTEN_FDS=1 LISTEN_FDNAMES=metrics", &open);
    assert_says(&text, &["socket 'metrics'", "can be reached from other hosts"]);
    assert_says(&refused("LISTEN_FDS=1 LISTEN_FDNAMES=admin", &open), &["socket 'admin'", "is no Unix socket"]);
    assert_says(&refused("LISTEN_FDS=1", &unconnected), &["socket 'unknown'", "does not listen"]);
    assert_says(&refused("LISTEN_FDS=1", &|_: &Scratch| [None, None]), &["socket 'unknown'", "is no socket"]);
    let text = refused("LISTEN_FDS=1 LISTEN_FDNAMES=one:two", &packets);
    assert_says(&text, &["the sockets of the service manager cannot be taken", "LISTEN_FDNAMES"]);
}

#[test]
fn lines_for_the_journal_carry_a_priority_and_no_time() {
    let lines = |stream: &str| {
        let dir = Scratch::new();
        let log = dir.path("log");
        // Known only when the file exists, so the shell finds it.
        let stream = stream.replace("LOG", &format!("$(stat -Lc %d:%i {})", log.display()));
        let mut service = Service::start(dir, &format!("JOURNAL_STREAM={stream}"), [None, None]);
        assert_says(&service.receive(), &["READY=1\n"]);
        std::fs::write(service.dir.path("f.toml"), "broken").expect("a file");
        service.signal(Signal::HUP);
        assert_says(&(service.receive() + &service.receive()), &["RELOADING=1\n", "READY=1\n"]);
        service.signal(Signal::TERM);
        assert!(service.await_exit().success());
        service.log()
    };
    let text = lines("LOG");
    assert!(text.lines().any(|line| line.starts_with("<6>ready")), "{text}");
    assert!(text.lines().any(|line| line.starts_with("<3>not reloaded")), "{text}");
    let text = lines("1:2");
    assert!(text.lines().any(|line| line.starts_with("20") && line.contains("INFO") && line.contains("ready")), "{text}");
}
