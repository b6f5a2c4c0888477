//! Which file of what ships goes into which Debian package, and where.

/// One package. `{multiarch}`, `{version}` (ours) and `{fio}` (of the fio the engine was built for) are filled in.
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) section: &'static str,
    /// What it is made for; without this file in the prefix it is left out.
    pub(super) needs: &'static str,
    /// From below the prefix, or from the repository after `repository:`; a `*` means the rest of a file name.
    pub(super) files: &'static [(&'static str, &'static str)],
    /// Beside the shared libraries.
    pub(super) depends: &'static [&'static str],
    /// Other fields.
    pub(super) fields: &'static [(&'static str, &'static str)],
    pub(super) conffiles: &'static [&'static str],
    pub(super) summary: &'static str,
    pub(super) description: &'static str,
}

pub(super) const PACKAGES: [Package; 6] = [
    Package {
        name: "fipsee-daemon",
        section: "admin",
        needs: "bin/fipseed",
        files: &[
            ("bin/fipseed", "usr/bin/"),
            ("share/man/man8/fipseed.8", "usr/share/man/man8/"),
            ("share/man/man5/fipseed.toml.5", "usr/share/man/man5/"),
            ("share/bash-completion/completions/fipseed", "usr/share/bash-completion/completions/"),
            ("share/zsh/vendor-completions/_fipseed", "usr/share/zsh/vendor-completions/"),
            ("share/fish/vendor_completions.d/fipseed.fish", "usr/share/fish/vendor_completions.d/"),
            ("repository:packaging/systemd/fipseed*", "lib/systemd/system/"),
            ("repository:packaging/systemd/*.conf", "usr/share/doc/fipsee-daemon/examples/"),
            ("repository:packaging/sysusers.d/fipsee.conf", "usr/lib/sysusers.d/"),
            ("repository:packaging/fipseed.toml", "etc/fipsee/"),
        ],
        // The unit reloads with fipsee, which reports the outcome.
        depends: &["fipsee (= {version})", "systemd"],
        fields: &[("Pre-Depends", "init-system-helpers (>= 1.54~)")],
        conffiles: &["/etc/fipsee/fipseed.toml"],
        summary: "serve disks to local programs over shared memory",
        description: "Fip-see lets one program use the disks of another at the speed of a cache-line\n\
                      transfer: rings in shared memory that both sides poll, without system calls or\n\
                      copies in between.\n\
                      .\n\
                      This package has the daemon, fipseed, which serves files, block devices and\n\
                      memory. It is started by systemd when the first client connects.",
    },
    Package {
        name: "fipsee",
        section: "admin",
        needs: "bin/fipsee",
        files: &[
            ("bin/fipsee", "usr/bin/"),
            ("share/man/man1/fipsee*", "usr/share/man/man1/"),
            ("share/bash-completion/completions/fipsee", "usr/share/bash-completion/completions/"),
            ("share/zsh/vendor-completions/_fipsee", "usr/share/zsh/vendor-completions/"),
            ("share/fish/vendor_completions.d/fipsee.fish", "usr/share/fish/vendor_completions.d/"),
        ],
        depends: &[],
        fields: &[("Recommends", "fipsee-daemon")],
        conffiles: &[],
        summary: "copy, measure and look at disks served over shared memory",
        description: "Fip-see lets one program use the disks of another at the speed of a cache-line\n\
                      transfer.\n\
                      .\n\
                      This package has fipsee: it lists, describes and resizes the disks of a daemon,\n\
                      copies them, puts load on them and measures it.",
    },
    Package {
        name: "libfipsee0",
        section: "libs",
        needs: "lib/libfipsee.so.0",
        files: &[("lib/libfipsee.so.0*", "usr/lib/{multiarch}/")],
        depends: &[],
        fields: &[("Multi-Arch", "same")],
        conffiles: &[],
        summary: "client library for disks served over shared memory",
        description: "Fip-see lets one program use the disks of another at the speed of a cache-line\n\
                      transfer.\n\
                      .\n\
                      This package has the shared library for programs in C.",
    },
    Package {
        name: "libfipsee-dev",
        section: "libdevel",
        needs: "include/fipsee_client.h",
        files: &[
            ("include/fipsee*", "usr/include/"),
            ("lib/libfipsee.a", "usr/lib/{multiarch}/"),
            ("lib/libfipsee.so", "usr/lib/{multiarch}/"),
            ("lib/pkgconfig/fipsee.pc", "usr/lib/{multiarch}/pkgconfig/"),
            ("repository:examples/c/*", "usr/share/doc/libfipsee-dev/examples/"),
            ("share/fipsee/go/*", "usr/share/fipsee/go/"),
        ],
        depends: &["libfipsee0 (= {version})", "libc6-dev"],
        fields: &[("Multi-Arch", "same")],
        conffiles: &[],
        summary: "client library for disks served over shared memory, for developers",
        description: "Fip-see lets one program use the disks of another at the speed of a cache-line\n\
                      transfer.\n\
                      .\n\
                      This package has what is needed to write such programs in C: headers, the\n\
                      static library, the description for pkg-config, and examples. The same for\n\
                      Go: the source of the package fipsee.",
    },
    Package {
        name: "python3-fipsee",
        section: "python",
        needs: "wheels",
        files: &[("wheels/*.whl", "usr/lib/python3/dist-packages/")],
        depends: &["python3 (>= 3.11)"],
        fields: &[("Suggests", "python3-numpy")],
        conffiles: &[],
        summary: "disks served over shared memory, for Python",
        description: "Fip-see lets one program use the disks of another at the speed of a cache-line\n\
                      transfer.\n\
                      .\n\
                      This package has the Python module: blocking calls, batches, numpy arrays\n\
                      without copies, and asyncio.",
    },
    Package {
        name: "fipsee-fio",
        section: "utils",
        needs: "lib/fio/fipsee.so",
        files: &[
            ("lib/fio/*.so", "usr/lib/{multiarch}/fio/"),
            ("share/doc/fipsee/fio/*.fio", "usr/share/doc/fipsee-fio/examples/"),
        ],
        // An engine fits one version of fio and no other.
        depends: &["fio (>= {fio})", "fio (<< {fio}.0~)"],
        fields: &[],
        conffiles: &[],
        summary: "fio engine for disks served over shared memory",
        description: "Fip-see lets one program use the disks of another at the speed of a cache-line\n\
                      transfer.\n\
                      .\n\
                      This package has an external engine for fio, the flexible I/O tester, and jobs\n\
                      that use it.",
    },
];
