//! `fipsee net attach` and `detach`: ports of a running daemon, for clients, virtual machines and devices of the host.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use fipsee_daemon::config::{group_number, user_number};
use fipsee_net::frame::Mac;
use fipsee_net::server::tap::{self, Settings, Tap};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use serde_json::{Value, json};

use crate::error::Error;
use crate::{admin, output};

/// Descriptors that come with a request.
const MOST_QUEUES: i64 = 4;

#[derive(Debug, clap::Args)]
pub(crate) struct AttachArguments {
    /// The network, for example lan
    network: String,
    /// Name of the port [default: that of the TAP device, or the file name of the socket without its ending, with a number if it is
    /// taken; otherwise port-1, port-2, ...]
    #[arg(long, value_name = "PORT")]
    name: Option<String>,
    /// Its address [default: made from the names]
    #[arg(long, value_name = "MAC")]
    mac: Option<Mac>,
    /// The port is this TAP device of the host's network stack, which is made if there is none
    #[arg(long, value_name = "DEVICE", conflicts_with = "fd")]
    tap: Option<String>,
    /// Queues of the device
    #[arg(long, value_name = "N", default_value_t = 1, requires = "tap", value_parser = clap::value_parser!(u16).range(1..=MOST_QUEUES))]
    queues: u16,
    /// The port is the TAP device with this descriptor, which is open in fipsee; may be repeated, for its other queues
    #[arg(long, value_name = "N")]
    fd: Vec<i32>,
    /// The port is a virtual machine's, which connects at this Unix socket
    #[arg(long, value_name = "PATH", conflicts_with_all = ["tap", "fd"])]
    vhost_user: Option<PathBuf>,
    /// VLAN of frames without a tag
    #[arg(long, value_name = "VLAN")]
    vlan: Option<u16>,
    /// VLANs of frames with a tag: --trunk=10,20
    #[arg(long, value_name = "LIST", value_delimiter = ',', require_equals = true)]
    trunk: Option<Vec<u16>>,
    /// It may send with any address that is no other port's
    #[arg(long)]
    any_source: bool,
    /// No frames from and to other isolated ports
    #[arg(long)]
    isolated: bool,
    /// It gets a copy of every frame of the network
    #[arg(long)]
    mirror: bool,
    /// It gets the frames of all multicast groups, also once its client has named some
    #[arg(long)]
    allmulti: bool,
    /// The IP addresses that it may send with, in place of any: --ips=192.0.2.1,2001:db8::1
    #[arg(long, value_name = "LIST", value_delimiter = ',', require_equals = true)]
    ips: Vec<IpAddr>,
    /// It neither sends nor gets frames until fipsee net set --up
    #[arg(long)]
    down: bool,
    /// Frames per second to groups and unknown addresses
    #[arg(long, value_name = "N")]
    flood_limit: Option<u32>,
    /// Let this user attach, by name or number, beside root and the daemon's own; may be repeated
    #[arg(long, value_name = "NAME", value_parser = user_number)]
    allow_user: Vec<u32>,
    /// Let this group, as primary or supplementary one, attach; may be repeated
    #[arg(long, value_name = "NAME", value_parser = group_number)]
    allow_group: Vec<u32>,
    /// Let every user attach
    #[arg(long)]
    allow_everyone: bool,
    /// Print JSON: {"port", "mac", "mtu", "any_source", "device", "vhost_user"}
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DetachArguments {
    /// The port, for example lan/a
    port: String,
    /// Print JSON: the port as it was, as attach does
    #[arg(long)]
    json: bool,
}

/// What of this process is to be a port.
fn device(arguments: &AttachArguments) -> Result<Option<Tap>, Error> {
    if let Some(name) = &arguments.tap {
        return Ok(Some(tap::open(name, arguments.queues)?));
    }
    let queues = arguments.fd.iter().map(|fd| own(*fd)).collect::<Result<Vec<_>, _>>()?;
    Ok(if queues.is_empty() { None } else { Some(tap::passed(queues)?) })
}

/// A second descriptor of what this process has open under this number.
fn own(fd: i32) -> Result<OwnedFd, Error> {
    let process = pidfd_open(getpid(), PidfdFlags::empty());
    let found = process.and_then(|process| pidfd_getfd(process, fd, PidfdGetfdFlags::empty()));
    found.map_err(|error| format!("--fd {fd}: {error}; have the program that starts fipsee leave this descriptor open").into())
}

pub(crate) fn attach(socket: &Path, arguments: &AttachArguments) -> Result<(), Error> {
    let device = device(arguments)?;
    let vhost_user = arguments.vhost_user.as_deref().map(admin::absolute).transpose()?;
    let files: Vec<BorrowedFd<'_>> = device.iter().flat_map(|device| &device.queues).map(AsFd::as_fd).collect();
    let params = json!({
        "network": arguments.network,
        "port": arguments.name,
        "mac": arguments.mac.map(|mac| mac.to_string()),
        "vlan": arguments.vlan,
        "trunk": arguments.trunk,
        "any_source": arguments.any_source,
        "isolated": arguments.isolated,
        "mirror": arguments.mirror,
        "allmulti": arguments.allmulti,
        "ips": arguments.ips,
        "down": arguments.down,
        "flood_limit": arguments.flood_limit,
        "allow_uids": arguments.allow_user,
        "allow_gids": arguments.allow_group,
        "allow_everyone": arguments.allow_everyone,
        "device_queues": files.len(),
        "vhost_user": vhost_user,
    });
    let answer = admin::exchange(socket, "net.attach", &params, &files)?.map_err(|refusal| refusal.message)?;
    if let Some(device) = &device
        && let Err(problem) = set_up(device, &answer)
    {
        let _ = admin::ask(socket, "net.detach", &json!({ "port": admin::text(&answer, "port") }));
        return Err(problem.into());
    }
    if arguments.json {
        return output::print_json(&answer);
    }
    let [port, mac] = ["port", "mac"].map(|key| admin::text(&answer, key));
    let what = device.map(|device| format!(", device '{}' of the host,", device.name)).unwrap_or_default();
    let how = vhost_user.map(|_| format!("; fipsee vm-args --net {port} --vmm qemu prints how to use it")).unwrap_or_default();
    let down = if arguments.down { format!("; it is down until fipsee net set {port} --up") } else { String::new() };
    output::print(&format!("port '{port}'{what} with the address {mac} is there until the daemon is restarted{down}{how}\n"))
}

/// The interface is as the port is. Only now: the daemon knows its address.
fn set_up(device: &Tap, answer: &Value) -> Result<(), String> {
    let mtu = u16::try_from(admin::number(answer, "mtu"))
        .map_err(|error| format!("the daemon's answer has an impossible MTU: {error}"))?;
    let mac = match answer["any_source"] == true {
        true => None,
        false => Some(admin::text(answer, "mac").parse()?),
    };
    tap::set_up(&device.name, Settings { mtu, mac, up: device.is_new })
}

pub(crate) fn detach(socket: &Path, arguments: &DetachArguments) -> Result<(), Error> {
    let answer = admin::ask(socket, "net.detach", &json!({ "port": arguments.port }))?;
    if arguments.json {
        return output::print_json(&answer);
    }
    output::print(&format!("port '{}' is there no more\n", arguments.port))
}
