//! A device that a service manager has opened, with rights that the daemon does not have.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};

use fipsee_net::Port;
use fipsee_net::server::tap::{self, Settings};
use fipsee_testkit::netns::Namespace;
use fipsee_testkit::process::Guard;
use fipsee_testkit::stack::Stack;
use fipsee_testkit::{Scratch, assert_says, wait_for};

use super::{mac, next, options};

const FILE: &str = "workers = 1\n[[network]]\nname = \"lan\"\nmtu = 1400\n[[network.port]]\nname = \"a\"\nmac = \"02:00:00:00:00:01\"\n\
                    [[network.port]]\nname = \"h\"\nmac = \"02:00:00:00:00:02\"\ntap = \"fip0\"\nqueues = 2\n";
/// Of no user in `/etc/passwd`.
const USER: &str = "4000";

/// A daemon without rights and outside of the namespace, to which its descriptors 3 and 4 are passed.
fn start(dir: &Scratch, queues: [OwnedFd; 2], names: &str) -> Child {
    let shown = dir.0.display();
    let script = format!(
        "exec 3<&0 4<&1 </dev/null >/dev/null; chown {USER} {shown}; LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES={names} \
         exec setpriv --reuid {USER} --regid {USER} --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs \
         {shown}/fipseed --config {shown}/f.toml --listen {shown}/s"
    );
    let [first, second] = queues;
    let log = std::fs::File::create(dir.path("log")).expect("a file");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(first).stdout(second).stderr(log).env_remove("FIPSEE_SOCKET");
    command.spawn().expect("sh")
}

/// Two queues of the device, open in this process.
fn open(space: &Namespace) -> [OwnedFd; 2] {
    let opened = std::thread::scope(|scope| {
        let open = || {
            space.enter()?;
            let tap = tap::open("fip0", 2)?;
            tap::set_up("fip0", Settings { mtu: 1400, mac: Some(mac(2)), up: false })?;
            Ok::<_, String>(tap.queues)
        };
        scope.spawn(open).join().expect("no panic").expect("a device")
    });
    opened.try_into().expect("two queues")
}

fn log(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("log")).unwrap_or_default()
}

#[test]
fn device_of_the_service_manager_is_served_by_a_daemon_without_rights() {
    let Some([space]) = Namespace::several("a TAP device of the service manager", &["setpriv", "tc"]) else { return };
    let dir = Scratch::new();
    dir.configure(FILE);
    dir.program("fipseed", fipsee_testkit::daemon::program());
    let mut daemon = Guard(start(&dir, open(&space), "tap-fip0:tap-fip0"));
    let mut port = wait_for("the daemon serves", || {
        assert!(daemon.0.try_wait().expect("a child").is_none(), "it ended: {}", log(&dir.0));
        Port::attach(&dir.path("s"), &options("a")).ok()
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.0.id())).expect("it runs");
    assert_says(&status, &[&format!("Uid:\t{USER}\t"), "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000"]);
    let stack = Stack::new(&space, "fip0", (mac(2).0, mac(1).0));
    let port = RefCell::new(&mut port);
    stack.exchange(16, |frame| port.borrow_mut().send(frame).expect("sent"), || next(&mut port.borrow_mut()));
    let by_queue: [u64; 2] = stack.sent_by_queue();
    assert!(by_queue.iter().all(|frames| *frames >= 16), "{by_queue:?}");
    // This process has not kept it.
    drop(daemon);
    fipsee_testkit::eventually("the device goes with the daemon", || space.try_run("ip link show dev fip0").is_err());
}

#[test]
fn descriptor_of_no_port_or_of_no_device_is_named() {
    let Some([space]) = Namespace::several("descriptors of the service manager that cannot be used", &["setpriv"]) else {
        return;
    };
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").expect("it is there"));
    let refused = |queues: [OwnedFd; 2], names: &str| {
        let dir = Scratch::new();
        dir.configure(FILE);
        dir.program("fipseed", fipsee_testkit::daemon::program());
        let status = start(&dir, queues, names).wait().expect("a child");
        assert!(!status.success(), "{names}");
        log(&dir.0)
    };
    let text = refused(open(&space), "tap-fip0:tap-fip1");
    assert_says(&text, &["descriptor 'tap-fip1' of the service manager is of no port", "tap = \"fip1\""]);
    let text = refused([null(), null()], "tap-fip0:tap-fip0");
    assert_says(&text, &["descriptor 'tap-fip0' of the service manager", "of no TAP device", "IFF_VNET_HDR"]);
}
