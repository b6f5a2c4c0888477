//! EXAMPLES of the manual pages: for each page, what to do and the command for it.

/// A page by its name, and its examples.
pub(crate) fn of(page: &str) -> Option<&'static [(&'static str, &'static str)]> {
    EXAMPLES.iter().find(|(name, _)| *name == page).map(|(_, examples)| *examples)
}

type Example = (&'static str, &'static str);

const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "fipseed",
        &[
            (
                "Serve a file, which is created with 10 GiB, to user 1000",
                "fipseed --disk data=file:/var/lib/fipsee/data.img,size=10G --allow-uid 1000",
            ),
            (
                "Check a configuration, then serve what it says",
                "fipseed --config /etc/fipsee/fipseed.toml --check-config\nfipseed --config /etc/fipsee/fipseed.toml",
            ),
            ("Take over from the daemon that runs, with its clients", "fipseed --config /etc/fipsee/fipseed.toml --takeover"),
        ],
    ),
    (
        "fipsee",
        &[
            ("See it work, without a daemon or a configuration", "fipsee demo"),
            (
                "List the disks of the daemon, copy an image to one, and measure it",
                "fipsee ls\nfipsee cp disk.img fip:data --verify\nfipsee bench data --rw randread",
            ),
        ],
    ),
    ("fipsee-demo", &[("Start a daemon, write and verify data, compare with a Unix socket", "fipsee demo")]),
    (
        "fipsee-doctor",
        &[
            ("Check the machine and the daemon that runs", "fipsee doctor"),
            ("Check a configuration before the daemon gets it", "fipsee doctor --config /etc/fipsee/fipseed.toml"),
        ],
    ),
    (
        "fipsee-ls",
        &[
            ("List the disks", "fipsee ls"),
            ("Those of another daemon, for a program", "fipsee ls --json --connect /run/other/fipsee.sock"),
        ],
    ),
    (
        "fipsee-info",
        &[("Describe a disk and its clients", "fipsee info data"), ("The same for a program", "fipsee info data --json")],
    ),
    (
        "fipsee-stat",
        &[
            ("Show the counters since the start", "fipsee stat"),
            ("Show rates, twice a second, ten times", "fipsee stat --interval 0.5 --count 10"),
        ],
    ),
    (
        "fipsee-notify",
        &[
            ("Wake sleeping clients at most 10,000 times a second", "fipsee notify data --max-rate 10k"),
            ("Wake them for eight completions, or after 50 us", "fipsee notify data --min-completions 8 --max-delay 50us"),
            ("See the policies and what they did, then end them", "fipsee notify data\nfipsee notify data --off"),
        ],
    ),
    (
        "fipsee-top",
        &[
            ("Watch disks, clients, queues and workers", "fipsee top"),
            ("Print the clients once, the slowest first", "fipsee top --once --view clients --sort p99"),
        ],
    ),
    (
        "fipsee-resize",
        &[
            ("Let a disk grow", "fipsee resize data 20G"),
            ("Cut its end off: what is there is lost", "fipsee resize data 5G --shrink"),
        ],
    ),
    (
        "fipsee-attach",
        &[("Serve a disk to virtual machines, too", "fipsee attach data --vhost-user /run/fipsee/data.vhost-user")],
    ),
    ("fipsee-detach", &[("Remove the socket again", "fipsee detach --vhost-user /run/fipsee/data.vhost-user")]),
    (
        "fipsee-vm-args",
        &[
            ("Options for a machine of QEMU with 4 GiB and four CPUs", "fipsee vm-args data --vmm qemu --memory 4G --queues 4"),
            (
                "The same, with the network's free port for machines",
                "fipsee vm-args data --net lan --vmm qemu --memory 4G --queues 4",
            ),
            ("The drive for Firecracker's configuration file", "fipsee vm-args data --vmm firecracker --json"),
        ],
    ),
    ("fipsee-reload", &[("Put a changed configuration file into effect", "fipsee reload")]),
    (
        "fipsee-workers",
        &[
            ("Show how busy each worker is", "fipsee workers"),
            ("Use one to three of those that were started, as the load needs", "fipsee workers 1..3"),
        ],
    ),
    (
        "fipsee-cp",
        &[
            ("Copy an image to a disk, and compare afterwards", "fipsee cp disk.img fip:data --verify"),
            ("Copy a disk to a file; zeroes take no room there", "fipsee cp fip:data backup.img"),
            ("Continue with the next daemon if this one is replaced", "fipsee cp disk.img fip:data --reconnect 30"),
        ],
    ),
    (
        "fipsee-mount",
        &[
            (
                "Show a disk as a file to other programs, until it is unmounted",
                "fipsee mount --background data disk.img\nfusermount3 -u disk.img",
            ),
            ("Only for reading, with the kernel's cache", "fipsee mount --read-only --cache kernel data disk.img"),
        ],
    ),
    (
        "fipsee-bench",
        &[
            ("Random reads of 4 KiB with 64 requests in flight", "fipsee bench data --rw randread --bs 4k --depth 64"),
            ("Latency of one request at a time", "fipsee bench data --depth 1 --seconds 10"),
            (
                "Write on four queues and check every byte: the contents of the disk are lost",
                "fipsee bench data --rw randwrite --queues 4 --verify",
            ),
        ],
    ),
    (
        "fipsee-ping",
        &[
            ("Round trips between the first two CPUs", "fipsee ping"),
            ("Beside its own ring, the ring of the Fip-see report, and bare cache lines", "fipsee ping --compare"),
            ("Throughput in one direction, drawn", "fipsee ping --stream --plot stream.svg"),
        ],
    ),
    (
        "fipsee-topology",
        &[
            ("Measure once, and see where workers and clients should run", "fipsee topology"),
            ("Recommend CPUs for four workers", "fipsee topology --workers 4"),
        ],
    ),
    (
        "fipsee-disk",
        &[(
            "Serve another disk until the daemon ends, then remove it",
            "fipsee disk add scratch=memory:1G\nfipsee disk remove scratch",
        )],
    ),
    ("fipsee-disk-ls", &[("List the disks", "fipsee disk ls")]),
    ("fipsee-disk-add", &[("Serve a file to user 1000", "fipsee disk add data=file:/srv/data.img --allow-user 1000")]),
    ("fipsee-disk-remove", &[("Close a disk that no client uses", "fipsee disk remove data")]),
    ("fipsee-disk-set", &[("Let user 1000 attach from now on", "fipsee disk set data --allow-user=1000")]),
    (
        "fipsee-limit",
        &[
            ("Show the limits and weights in force", "fipsee limit"),
            (
                "Limit a disk, with short peaks, and remove the limit",
                "fipsee limit data --iops 5000 --burst 100ms\nfipsee limit data --off",
            ),
            ("Give user 1000 half of the usual share", "fipsee limit --user 1000 --weight 50"),
            ("Let a port send 1000 frames per second at most", "fipsee limit --port lan/a --iops 1000"),
        ],
    ),
    ("fipsee-net", &[("List the ports, and see what each has done", "fipsee net ls\nfipsee net stat")]),
    ("fipsee-net-ls", &[("List the ports that you may attach to", "fipsee net ls")]),
    ("fipsee-net-info", &[("See who has which port of a network", "fipsee net info lan")]),
    (
        "fipsee-net-set",
        &[
            ("Take a port down, and up again", "fipsee net set lan/a --down\nfipsee net set lan/a --up"),
            ("Give a port another address", "fipsee net set lan/a --mac 02:00:00:00:00:aa"),
            ("Lower the MTU of a network", "fipsee net set lan --mtu 1400"),
        ],
    ),
    ("fipsee-net-stat", &[("Frames of each port, sent, received, dropped and refused", "fipsee net stat")]),
    (
        "fipsee-net-ping",
        &[(
            "Frames of 1,500 bytes to another port, where fipsee net echo runs",
            "fipsee net ping lan/a --to lan/b --length 1500",
        )],
    ),
    (
        "fipsee-net-attach",
        &[
            ("Add a port for programs of user 1000", "fipsee net attach lan --name vpn --allow-user 1000"),
            (
                "Make the host's network stack a port, as interface fip0, and give it an address",
                "fipsee net attach lan --tap fip0\nip address add 192.0.2.1/24 dev fip0",
            ),
            (
                "Add a port for a virtual machine that user 1000 starts, and print QEMU's options for it",
                "fipsee net attach lan --vhost-user /run/fipsee/vm1.vhost-user --allow-user 1000\n\
                 fipsee vm-args --net lan/vm1 --vmm qemu",
            ),
        ],
    ),
    ("fipsee-net-detach", &[("Remove the port, and with it the interface if it was made for it", "fipsee net detach lan/fip0")]),
    ("fipsee-net-echo", &[("Answer at a port until interrupted", "fipsee net echo lan/b")]),
    (
        "fipsee-net-capture",
        &[
            (
                "Write what comes to a port with mirror = true into a file, until interrupted",
                "fipsee net capture lan/m -w lan.pcapng",
            ),
            ("Write the next ten", "fipsee net capture lan/m --count 10 -w ten.pcapng"),
        ],
    ),
    ("fipsee-config", &[("Write down what the daemon serves now", "fipsee config dump")]),
    (
        "fipsee-config-dump",
        &[(
            "Write down what the daemon serves now, and check that",
            "fipsee config dump > now.toml\nfipseed --config now.toml --check-config",
        )],
    ),
    ("fipsee-wait", &[("Wait until the daemon serves a disk, up to ten seconds", "fipsee wait --timeout 10 data")]),
];
