//! An independent driver: dpdk-testpmd's virtio-user ports, without a virtual machine.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use fipsee_net::Port;
use fipsee_ring::clock;
use fipsee_testkit::process::die_with_parent;
use fipsee_testkit::system::find_program;
use fipsee_testkit::{Daemon, TIMEOUT, eventually, skip};

use super::{all_sent, attach, frame, lan_at, mac, stat};

/// It sends each frame that comes back to where it came from. Ended when dropped.
struct Testpmd(Child);

impl Testpmd {
    /// With one port at this path, of so many pairs of queues, on the CPUs 0 and 1.
    fn start(daemon: &Daemon, path: &Path, pairs: u16) -> Option<Self> {
        let program = find_program("dpdk-testpmd")?;
        let device = format!("--vdev=net_virtio_user0,path={},mac={},queues={pairs},queue_size=256", path.display(), mac(2));
        let prefix = format!("--file-prefix=fipsee-{}-{pairs}", daemon.pid());
        let queues = [format!("--rxq={pairs}"), format!("--txq={pairs}")];
        let mut command = Command::new(program);
        command.args(["--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "-l", "0,1"]).args([device, prefix]);
        command.args(["--", "--forward-mode=macswap", "--total-num-mbufs=4096", "--auto-start"]).args(queues);
        let log = std::fs::File::create(path.with_extension("testpmd")).expect("a file for its output");
        command.stdin(Stdio::piped()).stdout(log.try_clone().expect("a descriptor")).stderr(log);
        command.env("XDG_RUNTIME_DIR", path.with_file_name("dpdk"));
        // Without root its files are there, not in /var/run.
        Some(Self(die_with_parent(&mut command).spawn().expect("it starts")))
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Send these frames, each until it comes back: the first ones may come before testpmd polls.
fn echo(a: &mut Port, lengths: impl Iterator<Item = usize>) {
    let mut received = Vec::new();
    for (seed, length) in (0..).zip(lengths) {
        let sent = frame(mac(1), mac(2), length, seed);
        let expected = [&mac(1).0[..], &mac(2).0, &sent[12..]].concat();
        let came_back = |a: &mut Port, received: &mut Vec<u8>| {
            a.send(&sent).expect("sent");
            all_sent(a);
            let deadline = clock::ticks() + clock::duration_to_ticks(TIMEOUT / 100);
            while a.wait(Some(deadline), received).expect("the daemon is there") {
                if *received == expected {
                    return true;
                }
            }
            false
        };
        eventually(&format!("an answer of {length} bytes"), || came_back(a, &mut received));
    }
}

#[test]
fn testpmd_sends_back_every_frame_as_it_came() {
    let daemon = lan_at(1, 1500, ["", "vhost_user = \"{dir}/b.vm\"\nallow_everyone = true", ""]);
    let path = daemon.socket().with_file_name("b.vm");
    let mut a = attach(&daemon.socket(), "a");
    for pairs in [1, 2] {
        let Some(mut testpmd) = Testpmd::start(&daemon, &path, pairs) else {
            return skip("testpmd as a machine", "dpdk-testpmd is not installed (package dpdk-dev)");
        };
        echo(&mut a, (14..=1514).step_by(250).chain([60, 64, 1514]));
        let log = std::fs::read_to_string(path.with_extension("testpmd")).unwrap_or_default();
        assert!(testpmd.0.try_wait().expect("its state").is_none(), "it has ended: {log}");
        drop(testpmd);
        eventually("the end of the machine", || stat(&daemon, "b")["holder"].is_null());
    }
    assert_eq!(stat(&daemon, "b")["refused"], stat(&daemon, "c")["refused"], "nothing of it was refused");
}
