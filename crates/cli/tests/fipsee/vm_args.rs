//! `fipsee vm-args` for several disks, for libvirt, within the limits of the back end.

use std::path::Path;
use std::process::Command;

use fipsee_testkit::{Daemon, skip};

use crate::program::{Fipsee, assert_error, assert_success, json, serve, text};

const SCHEMA: &str = "/usr/share/libvirt/schemas/domain.rng";

/// Two disks with a socket each; the paths of these.
fn two_disks() -> (Daemon, [String; 2]) {
    let daemon = serve(&["a=memory:1M", "b=memory:1M"]);
    let sockets = ["a", "b"].map(|disk| {
        let path = text(&daemon.dir.path(&format!("{disk}&'<.sock")));
        assert_success(&daemon.fipsee(&["attach", disk, "--vhost-user", &path]));
        path
    });
    (daemon, sockets)
}

fn shown(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = daemon.fipsee(&[&["vm-args"], arguments].concat());
    assert_success(&output);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn several_disks_of_a_machine_have_one_memory() {
    let (daemon, sockets) = two_disks();
    let options = shown(&daemon, &["a", "b", "--vmm", "qemu", "--memory", "1G", "--queues", "2"]);
    assert_eq!(options.matches("-object").count(), 1, "{options}");
    assert_eq!(options.matches("-device vhost-user-blk-pci").count(), 2, "{options}");
    let only = shown(&daemon, &["b", "--vmm", "qemu", "--device-only"]);
    assert!(only.starts_with("-chardev") && !only.contains("-object") && !only.contains("fipsee-a"), "{only}");
    let answer = json(&daemon.fipsee(&["vm-args", "a", "b", "--vmm", "crosvm", "--json"]));
    assert_eq!((answer["socket"].as_str(), answer["sockets"][1].as_str()), (Some(&*sockets[0]), Some(&*sockets[1])));
    let drives = json(&daemon.fipsee(&["vm-args", "a", "b", "--vmm", "firecracker", "--json"]));
    assert_eq!((&drives["drive"]["drive_id"], &drives["drives"][1]["drive_id"]), (&"a".into(), &"b".into()));
    assert_error(&daemon.fipsee(&["vm-args", "a", "a", "--vmm", "qemu"]), &["disk 'a' is named twice"]);
    let one_socket = ["vm-args", "a", "b", "--vmm", "qemu", "--socket", "x"];
    assert_error(&daemon.fipsee(&one_socket), &["2 disks need --socket as many times, not 1"]);
    let both = shown(&daemon, &["a", "b", "--vmm", "qemu", "--socket", "/x", "--socket", "/y"]);
    assert!(both.contains("id=fipsee-a,path=/x,") && both.contains("id=fipsee-b,path=/y,"), "{both}");
}

#[test]
fn the_limits_of_the_back_end_are_checked_before_a_machine_starts() {
    let (daemon, _) = two_disks();
    let too_many = daemon.fipsee(&["vm-args", "a", "--vmm", "qemu", "--queues", "17"]);
    assert_error(&too_many, &["at most 16 queues", "max_queues", "use --queues 16"]);
    shown(&daemon, &["a", "--vmm", "qemu", "--queues", "16"]);
    for size in ["0", "100", "2048"] {
        let output = daemon.fipsee(&["vm-args", "a", "--vmm", "qemu", "--queue-size", size]);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("a power of two from 2 to 1024"));
    }
    for vmm in ["crosvm", "firecracker"] {
        let output = daemon.fipsee(&["vm-args", "a", "--vmm", vmm, "--queue-size", "128"]);
        assert_error(&output, &["leave --queue-size out"]);
        let output = daemon.fipsee(&["vm-args", "a", "--vmm", vmm, "--queues", "4"]);
        assert_error(&output, &["queue", "leave --queues out"]);
    }
}

#[test]
fn the_elements_for_libvirt_are_those_of_a_domain() {
    let (daemon, sockets) = two_disks();
    let arguments = ["a", "b", "--vmm", "libvirt", "--memory", "4G", "--queues", "4", "--queue-size", "512", "--target", "vdc"];
    let elements = shown(&daemon, &arguments);
    for part in [
        "<memory unit='MiB'>4096</memory>",
        "<access mode='shared'/>",
        "<driver name='qemu' type='raw' queues='4' queue_size='512'/>",
        "<target dev='vdc' bus='virtio'/>",
        "<target dev='vdd' bus='virtio'/>",
    ] {
        assert!(elements.contains(part), "{part}: {elements}");
    }
    assert_eq!(json(&daemon.fipsee(&[&["vm-args"], &arguments[..], &["--json"]].concat()))["xml"], elements);
    assert_error(&daemon.fipsee(&["vm-args", "a", "b", "--vmm", "libvirt", "--target", "vdz"]), &["no name after vdz"]);
    let (memory, devices) = elements.split_once("<!-- in <devices> -->").expect("two parts");
    let domain = format!(
        "<domain type='kvm'><name>guest</name>{memory}<os><type arch='x86_64'>hvm</type></os><devices>{devices}</devices></domain>"
    );
    let file = text(&daemon.dir.file("domain.xml", &domain));
    let socket = ["--xpath", "string(//disk[target/@dev='vdd']/source/@path)"];
    let Ok(output) = Command::new("xmllint").args(socket).arg(&file).output() else {
        return skip("the XML for libvirt", "xmllint is missing; install libxml2-utils");
    };
    assert_success(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), sockets[1]);
    if Path::new(SCHEMA).exists() {
        assert_success(&Command::new("xmllint").args(["--noout", "--relaxng", SCHEMA, &file]).output().expect("it runs"));
    } else {
        skip("libvirt's schema", "it is not here; install libvirt-clients");
    }
}

#[test]
fn one_disk_alone_is_a_document_for_virsh_attach_device() {
    let (daemon, sockets) = two_disks();
    let device = shown(&daemon, &["a", "--vmm", "libvirt", "--device-only"]);
    assert!(device.starts_with("<disk type='vhostuser' device='disk'>\n") && device.ends_with("</disk>\n"), "{device}");
    let file = text(&daemon.dir.file("disk.xml", &device));
    let Ok(output) = Command::new("xmllint").args(["--xpath", "string(/disk/source/@path)", &file]).output() else {
        return skip("the XML of a device", "xmllint is missing; install libxml2-utils");
    };
    assert_success(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), sockets[0]);
}
