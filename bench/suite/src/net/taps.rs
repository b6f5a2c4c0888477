//! Two TAP ports of a network of `fipseed`: a program sends and receives frames by AF_PACKET on both devices, as on a pair of veth devices.

use fipsee_measure::cpus::Cpus;
use fipsee_testkit::Scratch;
use fipsee_testkit::netns::Namespace;

use super::exchange::{Exchange, Measured};
use super::kernel::{Kernel, Program};
use super::paths::Way;
use super::ports::MTU;
use crate::daemon::Daemon;

/// As `bench/c/net_ways.c` has them.
const DEVICES: [&str; 2] = ["fa", "fb"];

/// It ends in this order.
pub(super) struct Taps {
    program: Kernel,
    _daemon: Daemon,
    _space: Namespace,
}

impl Taps {
    /// The daemon's worker has the server's CPU.
    pub(super) fn open(program: &Program, cpus: Cpus) -> Result<Box<dyn Way>, String> {
        let [space] =
            Namespace::several("frames over TAP ports", &[]).ok_or("needs network namespaces and TAP devices, so root")?;
        let mut text = format!("[[network]]\nname = \"lan\"\nmtu = {MTU}\n");
        for (device, number) in DEVICES.iter().zip(1..) {
            text +=
                &format!("[[network.port]]\nname = \"{device}\"\nmac = \"02:00:00:00:00:{number:02x}\"\ntap = \"{device}\"\n");
        }
        let folder = Scratch::new();
        let config = folder.file("net.toml", text);
        let more = ["--workers", "1", "--cpus", &cpus.server.to_string(), "--config", &config.to_string_lossy()];
        let daemon = Daemon::start_through(&space.prefix(), &Daemon::shipped()?, &[], &more)?;
        for device in DEVICES {
            // No frames but ours: without IPv6 the devices announce nothing.
            space.try_run(&format!("ip link set dev {device} mtu {MTU} addrgenmode none up"))?;
        }
        Ok(Box::new(Self { program: program.open_devices(&space)?, _daemon: daemon, _space: space }))
    }
}

impl Way for Taps {
    fn measure(&mut self, exchange: Exchange, bytes: usize, seconds: f64, cpus: Cpus) -> Result<Measured, String> {
        self.program.measure(exchange, bytes, seconds, cpus)
    }
}
