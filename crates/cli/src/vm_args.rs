//! `fipsee vm-args DISK --vmm VMM`: the options that give a virtual machine a disk of the daemon.

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
    /// cloud-hypervisor
    CloudHypervisor,
    /// crosvm run
    Crosvm,
    /// Firecracker's API and configuration file
    Firecracker,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Name of the disk
    disk: String,
    /// Whose options
    #[arg(long, value_enum)]
    vmm: Vmm,
    /// The guest's memory: a number of MiB or GiB, for example 512M or 4G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_memory)]
    memory: u64,
    /// Queues of the device; one for each virtual CPU is best
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// The disk's vhost-user socket, without asking the daemon
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON: {"socket", "arguments": [...]}; for Firecracker {"socket", "drive": {...}}
    #[arg(long)]
    json: bool,
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
    let socket = match &arguments.socket {
        Some(socket) => std::path::absolute(socket).map_err(|error| Error::io("use that socket", &error))?,
        None => socket_of(daemon, &arguments.disk)?,
    };
    let socket = socket.to_string_lossy();
    if arguments.vmm == Vmm::Firecracker {
        let drive = json!({ "drive_id": arguments.disk, "is_root_device": false, "socket": socket });
        return if arguments.json {
            output::print_json(&json!({ "socket": socket, "drive": drive }))
        } else {
            output::print(&firecracker(&arguments.disk, &drive))
        };
    }
    let options = options(arguments, &socket)?;
    if arguments.json {
        let words: Vec<&str> = options.iter().flatten().map(String::as_str).collect();
        return output::print_json(&json!({ "socket": socket, "arguments": words }));
    }
    output::print(&render(&options))
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
fn options(arguments: &Arguments, socket: &str) -> Result<Vec<Vec<String>>, Error> {
    let (disk, memory, queues) = (&arguments.disk, arguments.memory, arguments.queues);
    if arguments.vmm != Vmm::Qemu && socket.contains(',') {
        return Err(format!(
            "the socket {socket} has a comma, which options of this hypervisor cannot hold; choose another path"
        )
        .into());
    }
    let group = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Ok(match arguments.vmm {
        Vmm::Qemu => {
            // A comma within a value is doubled. An identifier begins with a letter and holds no dots at its end.
            let (path, id) = (socket.replace(',', ",,"), format!("fipsee-{disk}"));
            vec![
                group(&["-object", &format!("memory-backend-memfd,id=fipsee-memory,size={memory}M,share=on")]),
                group(&["-machine", "memory-backend=fipsee-memory"]),
                group(&["-m", &format!("{memory}M")]),
                group(&["-chardev", &format!("socket,id={id},path={path},reconnect=1")]),
                group(&["-device", &format!("vhost-user-blk-pci,chardev={id},num-queues={queues}")]),
            ]
        }
        Vmm::CloudHypervisor => vec![
            group(&["--memory", &format!("size={memory}M,shared=on")]),
            group(&["--disk", &format!("vhost_user=on,socket={socket},num_queues={queues},queue_size=256")]),
        ],
        Vmm::Crosvm => {
            vec![group(&["--mem", &format!("size={memory}")]), group(&["--vhost-user", &format!("block,socket={socket}")])]
        }
        Vmm::Firecracker => Vec::new(),
    })
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

/// Firecracker takes no options for drives: its API does, and its configuration file.
fn firecracker(disk: &str, drive: &Value) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "# to the API socket of Firecracker, before the machine starts; memory is shared by itself");
    let _ = writeln!(
        text,
        "curl --unix-socket \"$FIRECRACKER_SOCKET\" -X PUT {} \\\n  -H 'Content-Type: application/json' -d {}",
        quote(&format!("http://localhost/drives/{disk}")),
        quote(&drive.to_string())
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(vmm: Vmm) -> Arguments {
        Arguments { disk: "a".to_owned(), vmm, memory: 4096, queues: 2, socket: None, json: false }
    }

    fn lines(vmm: Vmm, socket: &str) -> String {
        render(&options(&arguments(vmm), socket).expect("options"))
    }

    #[test]
    fn memory_is_shared_and_the_socket_named_for_each_hypervisor() {
        let text = lines(Vmm::Qemu, "/run/a.sock");
        for part in [
            "-object memory-backend-memfd,id=fipsee-memory,size=4096M,share=on \\\n",
            "-machine memory-backend=fipsee-memory",
            "-m 4096M",
            "socket,id=fipsee-a,path=/run/a.sock,reconnect=1",
            "vhost-user-blk-pci,chardev=fipsee-a,num-queues=2\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(
            lines(Vmm::CloudHypervisor, "/run/a.sock"),
            "--memory size=4096M,shared=on \\\n--disk vhost_user=on,socket=/run/a.sock,num_queues=2,queue_size=256\n"
        );
        assert_eq!(lines(Vmm::Crosvm, "/run/a.sock"), "--mem size=4096 \\\n--vhost-user block,socket=/run/a.sock\n");
        let text = firecracker("a", &json!({ "drive_id": "a", "socket": "/run/a.sock" }));
        assert!(
            text.contains("http://localhost/drives/a") && text.contains("'{\"drive_id\":\"a\",\"socket\":\"/run/a.sock\"}'"),
            "{text}"
        );
    }

    #[test]
    fn paths_that_a_shell_or_an_option_would_split_are_quoted_or_refused() {
        assert!(lines(Vmm::Qemu, "/run/a b,c").contains("-chardev 'socket,id=fipsee-a,path=/run/a b,,c,reconnect=1'"));
        for vmm in [Vmm::CloudHypervisor, Vmm::Crosvm] {
            let error = options(&arguments(vmm), "/run/a,b").expect_err("a comma").to_string();
            assert!(error.contains("/run/a,b has a comma"), "{error}");
        }
    }

    #[test]
    fn memory_is_whole_mebibytes() {
        assert_eq!(parse_memory("4G"), Ok(4096));
        for text in ["0", "1000", "512K"] {
            assert!(parse_memory(text).expect_err(text).contains("512M or 4G"), "{text}");
        }
    }
}
