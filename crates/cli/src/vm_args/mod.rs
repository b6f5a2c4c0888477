//! `fipsee vm-args DISK... --net PORT --vmm VMM`: the options that give a virtual machine disks and ports of the daemon.

mod libvirt;
mod limits;
mod net;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::error::Error;
use crate::{admin, output};

/// Hypervisors whose options are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Vmm {
    /// qemu-system-x86_64 and its siblings
    Qemu,
    /// The XML of a domain, which gives them to QEMU
    Libvirt,
    /// cloud-hypervisor
    CloudHypervisor,
    /// crosvm run
    Crosvm,
    /// Firecracker's API and configuration file
    Firecracker,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Names of the disks
    #[arg(required_unless_present = "net", value_name = "DISK")]
    disks: Vec<String>,
    /// A port of a network as a network interface, for example lan/vm1; lan: the only one there that is for virtual machines and free; may
    /// be repeated (QEMU)
    #[arg(long, value_name = "NETWORK[/PORT]")]
    net: Vec<String>,
    /// Whose options
    #[arg(long, value_enum)]
    vmm: Vmm,
    /// The guest's memory: a number of MiB or GiB, for example 512M or 4G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_memory)]
    memory: u64,
    /// Without the memory: for a machine that has such disks, or shared memory, already
    #[arg(long, conflicts_with = "memory")]
    device_only: bool,
    /// Queues of each device; one for each virtual CPU is best
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Requests that each queue holds, a power of two [default: 256 for cloud-hypervisor, else the hypervisor's]
    #[arg(long, value_name = "N", value_parser = limits::parse_queue_size)]
    queue_size: Option<u16>,
    /// The disk's vhost-user socket, without asking the daemon; once for each disk
    #[arg(long = "socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,
    /// libvirt's name of the first disk in the machine; others follow it
    #[arg(long, value_name = "vdX", default_value = "vda", value_parser = libvirt::parse_target)]
    target: char,
    /// Print JSON: {"sockets", "ports", "arguments": [...]}; for Firecracker {"sockets", "drives": [...]}, for libvirt {"sockets", "xml"}
    #[arg(long)]
    json: bool,
}

/// A disk and its vhost-user socket.
#[derive(Debug)]
struct Device {
    disk: String,
    socket: String,
}

const MIB: u64 = 1 << 20;

/// Memory in MiB.
fn parse_memory(text: &str) -> Result<u64, String> {
    let size_bytes = fipsee_block::disk::spec::parse_size(text)?;
    if size_bytes == 0 || !size_bytes.is_multiple_of(MIB) {
        return Err(format!("'{text}' is no whole number of MiB; write for example 512M or 4G"));
    }
    Ok(size_bytes / MIB)
}

pub(crate) fn run(daemon: &Path, arguments: &Arguments) -> Result<(), Error> {
    limits::check_options(arguments)?;
    if !arguments.net.is_empty() && arguments.vmm != Vmm::Qemu {
        return Err("--net is known for QEMU alone; leave it out, or use --vmm qemu".into());
    }
    let devices = devices(daemon, arguments)?;
    let interfaces = net::interfaces(daemon, &arguments.net)?;
    let (text, mut json) = match arguments.vmm {
        Vmm::Firecracker => {
            let drives: Vec<Value> = devices.iter().map(drive).collect();
            (firecracker(&drives), json!({ "drive": drives.first(), "drives": drives }))
        }
        Vmm::Libvirt => {
            let xml = libvirt::xml(arguments, &devices)?;
            (xml.clone(), json!({ "xml": xml }))
        }
        _ => {
            let mut options = options(arguments, &devices)?;
            options.extend(interfaces.iter().flat_map(|interface| net::qemu(interface, arguments.queues)));
            (render(&options), json!({ "arguments": options.concat() }))
        }
    };
    if !arguments.json {
        return output::print(&text);
    }
    let of_disks = devices.iter().map(|device| device.socket.as_str());
    let sockets: Vec<&str> = of_disks.chain(interfaces.iter().map(|interface| interface.socket.as_str())).collect();
    (json["socket"], json["sockets"]) = (json!(sockets.first()), json!(sockets));
    json["ports"] = json!(interfaces.iter().map(|interface| &interface.port).collect::<Vec<_>>());
    output::print_json(&json)
}

fn devices(daemon: &Path, arguments: &Arguments) -> Result<Vec<Device>, Error> {
    let (disks, sockets) = (&arguments.disks, &arguments.sockets);
    if let Some(twice) = disks.iter().enumerate().find(|(index, disk)| disks[..*index].contains(disk)) {
        return Err(format!("disk '{}' is named twice; a machine has it once", twice.1).into());
    }
    if sockets.is_empty() {
        limits::check_queues(daemon, arguments.queues)?;
    } else if sockets.len() != disks.len() {
        let text = format!("{} disks need --socket as many times, not {}; or leave it out", disks.len(), sockets.len());
        return Err(text.into());
    }
    let sockets: Vec<PathBuf> = if sockets.is_empty() {
        disks.iter().map(|disk| socket_of(daemon, disk)).collect::<Result<_, _>>()?
    } else {
        let absolute = sockets.iter().map(std::path::absolute).collect::<Result<_, _>>();
        absolute.map_err(|error| Error::io("use that socket", &error))?
    };
    let device =
        |(disk, socket): (&String, PathBuf)| Device { disk: disk.clone(), socket: socket.to_string_lossy().into_owned() };
    Ok(disks.iter().zip(sockets).map(device).collect())
}

/// The socket at which the running daemon serves the disk to virtual machines.
fn socket_of(daemon: &Path, disk: &str) -> Result<PathBuf, Error> {
    let answer = admin::ask(daemon, "disk.info", &json!({ "disk": disk }));
    let answer = answer.map_err(|no_answer| match no_answer {
        admin::NoAnswer::NoPermission(error) => Error::at("name the socket with --socket PATH", error),
        admin::NoAnswer::Other(error) => error,
    })?;
    first_socket(&answer).map(PathBuf::from).ok_or_else(|| {
        let text = format!(
            "disk '{disk}' has no vhost-user socket; make one with: fipsee attach {disk} --vhost-user PATH (or vhost_user = \"PATH\" in \
             its table of the configuration file)"
        );
        text.into()
    })
}

fn first_socket(disk: &Value) -> Option<&str> {
    admin::list(disk, "vhost_user").first().and_then(Value::as_str)
}

/// Options as groups of words that belong on one line.
fn options(arguments: &Arguments, devices: &[Device]) -> Result<Vec<Vec<String>>, Error> {
    if let Some(Device { socket, .. }) = devices.iter().find(|device| device.socket.contains(','))
        && arguments.vmm != Vmm::Qemu
    {
        return Err(format!(
            "the socket {socket} has a comma, which options of this hypervisor cannot hold; choose another path"
        )
        .into());
    }
    let mut options = if arguments.device_only { Vec::new() } else { memory(arguments) };
    options.extend(disk_options(arguments, devices));
    Ok(options)
}

/// Shared memory, in groups.
fn memory(arguments: &Arguments) -> Vec<Vec<String>> {
    let size = arguments.memory;
    let group = |option: &str, value: String| vec![option.to_owned(), value];
    match arguments.vmm {
        Vmm::Qemu => vec![
            group("-object", format!("memory-backend-memfd,id=fipsee-memory,size={size}M,share=on")),
            group("-machine", "memory-backend=fipsee-memory".to_owned()),
            group("-m", format!("{size}M")),
        ],
        Vmm::CloudHypervisor => vec![group("--memory", format!("size={size}M,shared=on"))],
        Vmm::Crosvm => vec![group("--mem", format!("size={size}"))],
        Vmm::Libvirt | Vmm::Firecracker => Vec::new(),
    }
}

/// The disks, in groups.
fn disk_options(arguments: &Arguments, devices: &[Device]) -> Vec<Vec<String>> {
    let queues = arguments.queues;
    match arguments.vmm {
        Vmm::Qemu => devices.iter().flat_map(|device| qemu(device, queues, arguments.queue_size)).collect(),
        Vmm::CloudHypervisor => {
            let size = arguments.queue_size.unwrap_or(256);
            let disk = |device: &Device| format!("vhost_user=on,socket={},num_queues={queues},queue_size={size}", device.socket);
            // The option takes all disks, and may be given once.
            vec![std::iter::once("--disk".to_owned()).chain(devices.iter().map(disk)).collect()]
        }
        Vmm::Crosvm | Vmm::Firecracker | Vmm::Libvirt => {
            let disk = |device: &Device| vec!["--vhost-user".to_owned(), format!("block,socket={}", device.socket)];
            devices.iter().map(disk).collect()
        }
    }
}

fn qemu(device: &Device, queues: u16, queue_size: Option<u16>) -> [Vec<String>; 2] {
    // A comma within a value is doubled. An identifier begins with a letter and holds no dots at its end.
    let (path, id) = (device.socket.replace(',', ",,"), format!("fipsee-{}", device.disk));
    let size = queue_size.map_or_else(String::new, |size| format!(",queue-size={size}"));
    [
        vec!["-chardev".to_owned(), format!("socket,id={id},path={path},reconnect=1")],
        vec!["-device".to_owned(), format!("vhost-user-blk-pci,chardev={id},num-queues={queues}{size}")],
    ]
}

/// One group of words to a line, quoted for a shell.
fn render(options: &[Vec<String>]) -> String {
    let lines: Vec<String> =
        options.iter().map(|words| words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")).collect();
    lines.join(" \\\n") + "\n"
}

/// A word for a shell.
fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

fn drive(device: &Device) -> Value {
    json!({ "drive_id": device.disk, "is_root_device": false, "socket": device.socket })
}

/// Firecracker takes no options for drives: its API does, and its configuration file.
fn firecracker(drives: &[Value]) -> String {
    let mut text = "# to the API socket of Firecracker, before the machine starts; memory is shared by itself\n".to_owned();
    for drive in drives {
        let _ = writeln!(
            text,
            "curl --unix-socket \"$FIRECRACKER_SOCKET\" -X PUT {} \\\n  -H 'Content-Type: application/json' -d {}",
            quote(&format!("http://localhost/drives/{}", admin::text(drive, "drive_id"))),
            quote(&drive.to_string())
        );
    }
    text
}

#[cfg(test)]
mod tests;
