//! A guest of user-mode Linux in a network namespace, with two interfaces that end there: its own vector driver on a TAP device, and its
//! virtio_net on a port of `fipseed`, whose network has a TAP device as its other port.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use fipsee_measure::cpus::Cpus;
use fipsee_testkit::Scratch;
use fipsee_testkit::netns::Namespace;
use fipsee_testkit::process::{Guard, die_with_parent};

use super::{ProgramCpu, Way};
use crate::daemon::Daemon;
use crate::place::on;
use crate::server::find_program;

/// As `bench/c/net_guest.c` has it.
const PORT: u16 = 7000;
const MEMORY_MIB: u32 = 512;
/// A guest that has not booted by then never will.
const BOOT_DEADLINE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);
/// No answer takes as long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// By which the suite is called.
const XTASK_VARIABLE: &str = "FIPSEE_XTASK";

impl Way {
    /// Of the TAP device, and of the guest's interface.
    const fn names(self) -> [&'static str; 2] {
        match self {
            Self::Vector => ["tapvec", "vec0"],
            Self::Port => ["tapfip", "eth0"],
        }
    }

    /// Of the host, and of the guest.
    const fn addresses(self) -> [Ipv4Addr; 2] {
        let network = match self {
            Self::Vector => 1,
            Self::Port => 2,
        };
        [Ipv4Addr::new(10, 77, network, 1), Ipv4Addr::new(10, 77, network, 2)]
    }
}

/// All of it. It ends in this order.
pub(super) struct Machine {
    _guest: Guard,
    /// Its end ends the guest, also when this process is killed.
    _alive: ChildStdin,
    _daemon: Daemon,
    space: Namespace,
    cpus: Cpus,
    folder: Scratch,
}

impl Machine {
    /// The guest has the client's CPU, the daemon's one worker that of servers. The guest's memory is a file in `memory`.
    pub(super) fn start(memory: &Path) -> Result<Self, String> {
        let cpus = Cpus::choose();
        cpus.pair().ok_or("needs two CPUs, for the guest and for the worker")?;
        ["taskset", "unshare"].iter().try_for_each(|program| find_program(program).map(drop))?;
        let folder = Scratch::new();
        prepare(&folder)?;
        let [space] = Namespace::several("TCP of a guest", &[]).ok_or("needs network namespaces and TAP devices, so root")?;
        let daemon = serve(&space, cpus, &folder)?;
        let [tap, _] = Way::Vector.names();
        space.try_run(&format!("ip tuntap add dev {tap} mode tap"))?;
        for way in Way::ALL {
            let ([tap, _], [host, _]) = (way.names(), way.addresses());
            space.try_run(&format!("ip address add {host}/24 dev {tap}"))?;
            space.try_run(&format!("ip link set dev {tap} up"))?;
        }
        let (guest, alive) = boot(&space, cpus, &folder, memory)?;
        let machine = Self { _guest: guest, _alive: alive, _daemon: daemon, space, cpus, folder };
        machine.await_guest()?;
        Ok(machine)
    }

    /// Run `work` in a thread of the host on this CPU, with a connection to the guest.
    pub(super) fn with_connection<T: Send>(
        &self,
        way: Way,
        cpu: ProgramCpu,
        work: impl FnOnce(TcpStream) -> std::io::Result<T> + Send,
    ) -> Result<T, String> {
        let cpu = match cpu {
            ProgramCpu::BesideWorker => self.cpus.server,
            ProgramCpu::BesideGuest => self.cpus.client,
        };
        on(cpu, || {
            self.space.enter()?;
            let connected = connect(way, ANSWER_TIMEOUT).and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
                stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
                work(stream)
            });
            connected.map_err(|error| format!("{}: {error}; {}", way.name(), self.console()))
        })
    }

    /// Until it accepts connections on both ways.
    fn await_guest(&self) -> Result<(), String> {
        let begun = Instant::now();
        on(self.cpus.server, || {
            self.space.enter()?;
            for way in Way::ALL {
                while let Err(error) = connect(way, LOOK) {
                    if begun.elapsed() > BOOT_DEADLINE {
                        return Err(format!("the guest does not answer by its {}: {error}; {}", way.name(), self.console()));
                    }
                    std::thread::sleep(LOOK); // tidy: allow sleep, another machine's start has no event
                }
            }
            Ok(())
        })
    }

    /// The end of what it printed.
    fn console(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path("console")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("the guest's console: {}", lines[lines.len().saturating_sub(20)..].join("\n"))
    }
}

fn connect(way: Way, limit: Duration) -> std::io::Result<TcpStream> {
    let [_, guest] = way.addresses();
    TcpStream::connect_timeout(&SocketAddr::from((guest, PORT)), limit)
}

/// Have what the guest boots from put into the folder.
fn prepare(folder: &Scratch) -> Result<(), String> {
    let xtask = std::env::var_os(XTASK_VARIABLE).ok_or("needs `cargo xtask bench net`, which builds the guest's kernel")?;
    let mut command = Command::new(&xtask);
    let status = command.args(["bench", "prepare-net-guest"]).arg(&folder.0).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("what the guest boots from cannot be built ({status}); the reason is above")),
        Err(error) => Err(format!("cannot run {}: {error}", xtask.display())),
    }
}

fn serve(space: &Namespace, cpus: Cpus, folder: &Scratch) -> Result<Daemon, String> {
    let text = format!(
        "max_queues = 2\n\n[[network]]\nname = \"lan\"\nmtu = 1500\n\
         [[network.port]]\nname = \"guest\"\nmac = \"02:00:00:00:00:01\"\nvhost_user = \"{}\"\n\
         [[network.port]]\nname = \"host\"\nmac = \"02:00:00:00:00:02\"\ntap = \"{}\"\n",
        folder.path("guest.sock").display(),
        Way::Port.names()[0]
    );
    let config = folder.file("net.toml", text);
    let more = ["--workers", "1", "--cpus", &cpus.server.to_string(), "--config", &config.to_string_lossy()];
    Daemon::start_through(&space.prefix(), &Daemon::shipped()?, &[], &more)
}

/// Its processes are in a PID namespace, which ends with its first one: those that only the guest knows are killed, too.
fn boot(space: &Namespace, cpus: Cpus, folder: &Scratch, memory: &Path) -> Result<(Guard, ChildStdin), String> {
    let read = |name: &str| std::fs::read_to_string(folder.path(name)).map_err(|error| format!("no {name} was built: {error}"));
    let links = Way::ALL.map(|way| format!("{}:{}", way.names()[1], way.addresses()[1])).join(",");
    let mut command = space.command("unshare");
    command.args(["--pid", "--fork", "--kill-child", "sh", "-c", "\"$@\" </dev/null & read -r end", "sh"]);
    command.args(["taskset", "--cpu-list", &cpus.client.to_string()]).arg(read("kernel")?);
    command.arg(format!("mem={MEMORY_MIB}M")).arg(format!("initrd={}", folder.path("initrd").display()));
    command.arg(format!("uml_dir={}/", folder.0.display()));
    command.args(["con0=null,fd:1", "con=null", "ssl=null", "loglevel=5", "panic=-1"]);
    // What it receives may be as long as what it sends.
    command.arg(format!("vec0:transport=tap,ifname={},mtu=1500,gro=1", Way::Vector.names()[0]));
    command.arg(format!("virtio_uml.device={}:1", folder.path("guest.sock").display()));
    command.arg(format!("guest_links={links}")).env("TMPDIR", memory);
    let failed = |error: std::io::Error| format!("cannot boot the guest: {error}");
    let console = std::fs::File::create(folder.path("console")).map_err(failed)?;
    let errors = console.try_clone().map_err(failed)?;
    command.stdin(Stdio::piped()).stdout(console).stderr(errors);
    let mut guest = Guard(die_with_parent(&mut command).spawn().map_err(failed)?);
    let alive = guest.0.stdin.take().ok_or("the guest has no pipe")?;
    Ok((guest, alive))
}
