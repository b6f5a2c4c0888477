//! ssh between two namespaces: a server with keys and a configuration of its own, and a stream of known content through it and back.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fipsee_testkit::netns::Namespace;
use fipsee_testkit::process::{Guard, die_with_parent};
use fipsee_testkit::random::Random;
use fipsee_testkit::system::{find_program, run};
use fipsee_testkit::{Scratch, eventually};

pub(crate) const PROGRAMS: [&str; 3] = ["ssh", "sshd", "ssh-keygen"];
const PORT: u16 = 2222;
/// Less than the pipes to and from ssh hold.
const BLOCK_BYTES: usize = 16 << 10;

/// A server, for root with a key of its own.
pub(crate) struct Server {
    _process: Guard,
    address: &'static str,
    dir: Scratch,
}

/// What a stream did.
pub(crate) struct Streamed {
    pub(crate) blocks: u64,
    /// Between the returns of two blocks.
    pub(crate) longest: Duration,
}

impl Server {
    pub(crate) fn start(space: &Namespace, address: &'static str) -> Self {
        let dir = Scratch::new();
        for key in ["host", "user"] {
            let mut command = Command::new("ssh-keygen");
            run(command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.path(key))).expect("a key");
        }
        let host = std::fs::read_to_string(dir.path("host.pub")).expect("a key");
        dir.file("known", format!("[{address}]:{PORT} {host}"));
        // Root may be locked here.
        dir.file("shadow", "root:*:1:0:99999:7:::\n");
        let lines = [
            format!("Port {PORT}\nListenAddress {address}\nPidFile none\nUseDNS no\nUsePAM no\nStrictModes no\n"),
            format!("HostKey {}\nAuthorizedKeysFile {}\n", dir.path("host").display(), dir.path("user.pub").display()),
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n".to_owned(),
        ];
        let (config, log) = (dir.file("config", lines.concat()), dir.file("log", ""));
        // With a folder below /run for itself, and nothing of the system's.
        let script =
            "mount -t tmpfs none /run && mkdir /run/sshd && mount --bind $1 /etc/shadow && exec $2 -D -e -f $3 >>$4 2>&1";
        let mut command = space.command("unshare");
        command
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(dir.path("shadow"))
            .arg(find_program("sshd").expect("it is there"));
        command.arg(config).arg(&log);
        let process = Guard(die_with_parent(&mut command).spawn().expect("sshd"));
        let said = || std::fs::read_to_string(&log).expect("a file");
        eventually("sshd listens", || said().contains("Server listening"));
        Self { _process: process, address, dir }
    }

    /// Blocks there and back, one after the other, until `over`; each is compared.
    pub(crate) fn exchange(&self, from: &Namespace, over: &AtomicBool) -> Streamed {
        let mut command = from.command("ssh");
        command.args(["-F", "none", "-p", &PORT.to_string(), "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-i"]);
        command.arg(self.dir.path("user")).arg("-o").arg(format!("UserKnownHostsFile={}", self.dir.path("known").display()));
        command.args(["-o", "GlobalKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=yes"]);
        command.args([&format!("root@{}", self.address), "exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = Guard(die_with_parent(&mut command).spawn().expect("ssh"));
        let (mut to, mut back) = (client.0.stdin.take().expect("a pipe"), client.0.stdout.take().expect("a pipe"));
        let mut sent = vec![0; BLOCK_BYTES];
        Random(11).fill(&mut sent);
        let mut found = vec![0; BLOCK_BYTES];
        let (mut streamed, mut last) = (Streamed { blocks: 0, longest: Duration::ZERO }, None);
        while !over.load(Ordering::Acquire) {
            sent.rotate_left(1);
            to.write_all(&sent)
                .and_then(|()| back.read_exact(&mut found))
                .unwrap_or_else(|error| panic!("{error}: {}", self.log()));
            assert!(found == sent, "block {} came back changed", streamed.blocks);
            let now = Instant::now();
            // Not the first one, which waits for the connection.
            let gap = last.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
            streamed = Streamed { blocks: streamed.blocks + 1, longest: streamed.longest.max(gap) };
        }
        drop(to);
        let mut rest = Vec::new();
        back.read_to_end(&mut rest).expect("it ends");
        assert!(rest.is_empty() && client.0.wait().expect("a child").success(), "{}", self.log());
        streamed
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path("log")).unwrap_or_default()
    }
}
