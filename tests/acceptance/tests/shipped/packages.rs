//! The Debian packages: what is in them, and that they work in a system of their own, from installation to purge.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fipsee_acceptance::throwaway::{PACKAGES, ThrowawayRoot, packages};
use fipsee_acceptance::{Scratch, has_program, run, shipped, text_of};

/// Most that `systemd-analyze security` may find to complain about; 10 is a service without any confinement.
const MAX_EXPOSURE: f64 = 1.0;

/// Every file and user of the system that packages may bring, and apt's own memory may not matter.
const INVENTORY: &str = "find /etc /usr /lib /var/lib /opt /srv /root -xdev ! -path '/var/lib/apt/*' ! -path '/var/lib/dpkg/*' \
     ! -path '/var/lib/systemd/*' ! -path '/usr/share/man/*/index.db' ! -name '*-' ! -name ld.so.cache ! -name .pwd.lock | sort; \
     cut -d: -f1 /etc/passwd /etc/group";

/// Fails while a daemon runs in the system.
const NO_DAEMON: &str = "test -z \"$(grep --line-regexp --files-with-matches fipseed /proc/[0-9]*/comm)\"";

#[test]
fn installed_packages_work_until_they_are_purged() {
    let packages = packages("packages", &PACKAGES);
    if packages.is_empty() {
        return;
    }
    let Some(root) = ThrowawayRoot::boot("packages", &packages) else { return };
    let has = |name: &str| packages.iter().any(|path| path.to_string_lossy().contains(&format!("/{name}_")));
    let before = root.succeed(INVENTORY);
    root.install();
    first_client_starts_the_daemon(&root);
    disks_are_for_users_that_are_allowed(&root);
    daemon_is_confined(&root);
    machines_are_served_at_the_path_of_the_guide(&root);
    reload_takes_effect_or_says_why_not(&root);
    drop_in_makes_a_reload_a_takeover(&root);
    journal_has_the_lines(&root);
    end_waits_for_clients_and_the_next_one_starts_it_again(&root);
    daemon_that_hangs_is_replaced(&root);
    manual_and_completions_are_found(&root);
    if has("libfipsee-dev") {
        c_program_is_built_and_works(&root);
    }
    if has("python3-fipsee") {
        root.succeed("python3 -c 'import fipsee\nwith fipsee.open(\"memory\") as disk: disk.write(0, b\"x\" * 4096)\n'");
    }
    if has("fipsee-fio") {
        root.succeed(
            "fio --name=one --ioengine=external:$(dpkg -L fipsee-fio | grep '[.]so$') --filename=memory --rw=randread --bs=4k --size=1m",
        );
    }
    upgrade_keeps_configuration_and_sockets(&root);
    purge_leaves_nothing_but_data(&root, &before);
}

fn first_client_starts_the_daemon(root: &ThrowawayRoot) {
    root.succeed(
        "systemctl is-active fipseed.socket fipseed-admin.socket; systemctl is-enabled fipseed.socket fipseed-admin.socket",
    );
    root.succeed(NO_DAEMON);
    // Its first client is a program on the data path; the daemon was not waited for.
    root.succeed("head -c 8M /dev/urandom > image; fipsee cp --no-progress image fip:memory --verify");
    root.succeed("systemctl is-active fipseed.service");
    let status = root.succeed("systemctl show --property=StatusText --value fipseed.service");
    assert_eq!(status.trim(), "serving memory");
    let disks = root.succeed("fipsee ls");
    assert!(disks.lines().any(|line| line.starts_with("memory ") && line.contains("64 MiB")), "{disks}");
    root.succeed("fipsee cp --no-progress fip:memory copy; cmp -n 8388608 copy image; rm copy");
    let measured = root.succeed("fipsee bench memory --seconds 1");
    assert!(measured.contains("p50"), "{measured}");
}

fn disks_are_for_users_that_are_allowed(root: &ThrowawayRoot) {
    root.succeed("useradd --uid 4711 friend; useradd --uid 4712 stranger; useradd --uid 4713 --groups fipsee manager");
    root.succeed(
        "cat >> /etc/fipsee/fipseed.toml <<'END'\n[[disk]]\nname = \"data\"\nspec = \"file:/var/lib/fipsee/data.img,size=32M\"\nallow_users = [\"friend\"]\nEND\n\
         systemctl reload fipseed.service",
    );
    let disks = root.succeed("fipsee ls");
    assert!(disks.contains("memory ") && disks.contains("data "), "{disks}");
    // Only root may read /root.
    root.succeed("install -m 644 image /tmp/image; runuser -u friend -- fipsee cp --no-progress /tmp/image fip:data --verify");
    root.succeed("runuser -u friend -- fipsee bench data --seconds 1; cmp -n 8388608 image /var/lib/fipsee/data.img");
    for (user, disk) in [("stranger", "data"), ("friend", "memory")] {
        let refusal = root.fail(&format!("runuser -u {user} -- fipsee bench {disk} --seconds 1"));
        assert!(refusal.contains(&format!("no disk '{disk}' that user")), "{refusal}");
    }
    root.succeed("runuser -u manager -- fipsee ls");
    // Others see the disks that they may use, and no more.
    let disks = root.succeed("runuser -u friend -- fipsee ls");
    assert!(disks.contains("data ") && !disks.contains("memory "), "{disks}");
    let refusal = root.fail("runuser -u friend -- fipsee stat");
    assert!(refusal.contains("no permission"), "{refusal}");
}

fn daemon_is_confined(root: &ThrowawayRoot) {
    let status = root.succeed("cat /proc/$(systemctl show --property=MainPID --value fipseed.service)/status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
    };
    let user = root.succeed("id --user fipsee");
    assert!(field("Uid").split_whitespace().all(|uid| uid == user.trim()), "{status}");
    for capabilities in ["CapEff", "CapPrm", "CapBnd", "CapAmb"] {
        assert_eq!(field(capabilities), "0000000000000000", "{capabilities}");
    }
    assert_eq!((field("NoNewPrivs").as_str(), field("Seccomp").as_str()), ("1", "2"), "{status}");
    let inside = "nsenter --mount --net --target $(systemctl show --property=MainPID --value fipseed.service)";
    for place in ["/usr", "/etc", "/srv"] {
        let error = root.fail(&format!("{inside} touch {place}/x"));
        assert!(error.contains("Read-only file system"), "{error}");
    }
    root.succeed(&format!("{inside} test -e /dev/null"));
    // A device that the rest of the system has.
    root.succeed("mknod -m 666 /dev/some c 1 3");
    root.fail(&format!("{inside} test -e /dev/some"));
    let interfaces = root.succeed(&format!("{inside} cat /proc/net/dev"));
    assert_eq!(interfaces.lines().filter(|line| line.contains(':')).count(), 1, "{interfaces}");
    // And the daemon finds it itself.
    root.succeed("cp /etc/fipsee/fipseed.toml kept; mkdir -p /srv/open; chmod 777 /srv/open");
    root.succeed("printf '[[disk]]\\nname = \"x\"\\nspec = \"file:/srv/open/x,size=1M\"\\n' >> /etc/fipsee/fipseed.toml");
    let refused = root.fail("fipsee reload");
    assert!(refused.contains("disk 'x'") && refused.contains("Read-only file system"), "{refused}");
    // Until a drop-in, as it is in the examples, opens the place.
    root.succeed(
        "mkdir -p /etc/systemd/system/fipseed.service.d; cd /etc/systemd/system/fipseed.service.d; \
         sed 's,/srv/images,/srv/open,' /usr/share/doc/fipsee-daemon/examples/elsewhere.conf > elsewhere.conf; \
         systemctl daemon-reload; systemctl restart fipseed.service; fipsee ls | grep '^x ' > /dev/null",
    );
    root.succeed(
        "cp kept /etc/fipsee/fipseed.toml; rm -r kept /srv/open /etc/systemd/system/fipseed.service.d; \
         systemctl daemon-reload; systemctl restart fipseed.service",
    );
}

fn machines_are_served_at_the_path_of_the_guide(root: &ThrowawayRoot) {
    root.succeed(
        "cp /etc/fipsee/fipseed.toml kept; cat >> /etc/fipsee/fipseed.toml <<'END'\n[[disk]]\nname = \"vm\"\n\
         spec = \"file:/var/lib/fipsee/vm.img,size=1M\"\nvhost_user = \"/run/fipsee/data.vhost-user\"\nEND\n\
         systemctl restart fipseed.service; fipsee vm-args vm --vmm qemu | grep path=/run/fipsee/data.vhost-user > /dev/null",
    );
    root.succeed("fipsee attach memory --vhost-user /run/fipsee/memory.vhost-user");
    // Something listens at each, and none is taken away from it: those of the service manager, and those of the daemon.
    let sockets = ["fipsee.sock", "fipsee.sock.admin", "data.vhost-user", "memory.vhost-user"];
    for socket in sockets {
        let refusal =
            root.fail(&format!("fipseed --disk x=null:1M --listen /run/other.sock --vhost-user x=/run/fipsee/{socket}"));
        assert!(refusal.contains(&format!("another server already listens at /run/fipsee/{socket}")), "{refusal}");
    }
    for (path, expected) in [("/etc/passwd", "exists and is not a socket"), ("/run/fipsee", "is a folder")] {
        let refusal = root.fail(&format!("fipsee attach memory --vhost-user {path}"));
        assert!(refusal.contains(expected) && !refusal.contains("confined"), "{refusal}");
    }
    root.succeed("fipsee detach --vhost-user /run/fipsee/memory.vhost-user; test ! -e /run/fipsee/memory.vhost-user");
    // Those of the service manager are not the daemon's to remove.
    for socket in ["fipsee.sock", "fipsee.sock.admin"] {
        root.fail(&format!("runuser -u fipsee -- rm /run/fipsee/{socket}"));
    }
    root.succeed("cp kept /etc/fipsee/fipseed.toml; rm kept /var/lib/fipsee/vm.img; systemctl restart fipseed.service");
    root.succeed("test ! -e /run/fipsee/data.vhost-user");
}

fn reload_takes_effect_or_says_why_not(root: &ThrowawayRoot) {
    let pid = root.succeed("systemctl show --property=MainPID --value fipseed.service");
    root.succeed("cp /etc/fipsee/fipseed.toml kept; echo 'broken' >> /etc/fipsee/fipseed.toml");
    root.fail("systemctl reload fipseed.service");
    root.succeed("systemctl is-active fipseed.service; fipsee bench memory --seconds 1");
    let reason = root.fail("fipsee reload");
    assert!(reason.contains("/etc/fipsee/fipseed.toml") && reason.contains("line 2") && reason.contains("column"), "{reason}");
    root.succeed("cp kept /etc/fipsee/fipseed.toml; printf '[[disk]]\\nname = \"new\"\\nspec = \"null:1G\"\\n' >> /etc/fipsee/fipseed.toml");
    root.succeed("systemctl reload fipseed.service; fipsee ls | grep '^new ' > /dev/null");
    let reported = root.succeed("cp kept /etc/fipsee/fipseed.toml; rm kept; fipsee reload");
    assert_eq!(reported, "removed: new\n");
    assert_eq!(root.succeed("systemctl show --property=MainPID --value fipseed.service"), pid, "the same daemon all the time");
    root.succeed("fipseed --config /etc/fipsee/fipseed.toml --check-config | grep sound > /dev/null");
}

/// The drop-in of docs/guide/takeover.md, as it is there.
fn drop_in_makes_a_reload_a_takeover(root: &ThrowawayRoot) {
    let guide = include_str!("../../../../docs/guide/takeover.md");
    let drop_in = guide.split("```ini\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a drop-in in the guide");
    root.succeed(&format!(
        "mkdir -p /etc/systemd/system/fipseed.service.d; cat > /etc/systemd/system/fipseed.service.d/takeover.conf <<'END'\n{drop_in}END\n\
         systemctl daemon-reload; systemctl restart fipseed.service"
    ));
    let main = || root.succeed("systemctl show --property=MainPID --value fipseed.service");
    let first = main();
    // A client under load all the time.
    root.succeed("fipsee bench memory --seconds 300 > /dev/null 2>&1 & echo $! > bench.pid; sleep 1");
    for _ in 0..3 {
        let before = main();
        root.succeed("systemctl reload fipseed.service; systemctl is-active fipseed.service; kill -0 $(cat bench.pid)");
        assert_ne!(main(), before, "another process is the daemon");
    }
    root.succeed("kill $(cat bench.pid)");
    assert_ne!(main(), first);
    let before = main();
    root.succeed("cp /etc/fipsee/fipseed.toml kept; sed -i s/64M/32M/ /etc/fipsee/fipseed.toml");
    root.fail("systemctl reload fipseed.service");
    assert_eq!(main(), before, "what was refused changes nothing");
    root.succeed("cp kept /etc/fipsee/fipseed.toml; fipsee bench memory --seconds 1");
    // The service manager knows it well enough to start it again.
    root.succeed(
        "systemctl kill --signal=KILL fipseed.service; fipsee bench memory --seconds 1; systemctl is-active fipseed.service",
    );
    root.succeed(
        "rm -r kept bench.pid /etc/systemd/system/fipseed.service.d; systemctl daemon-reload; systemctl restart fipseed.service",
    );
}

fn journal_has_the_lines(root: &ThrowawayRoot) {
    root.succeed("journalctl --sync || true");
    let lines = root.succeed("journalctl --unit fipseed.service --output=cat");
    assert!(lines.lines().any(|line| line.starts_with("ready socket=/run/fipsee/fipsee.sock")), "{lines}");
    assert!(lines.lines().any(|line| line.starts_with("attached client=")), "{lines}");
    // Within the unit's confinement, its own; what of landlock there is depends on the machine's kernel.
    assert!(lines.lines().any(|line| line.starts_with("confined landlock=") && line.ends_with("seccomp=true")), "{lines}");
    let errors = root.succeed("journalctl --unit fipseed.service --output=cat --priority=err _COMM=fipseed");
    assert!(errors.lines().any(|line| line.starts_with("not reloaded; everything stays as it was")), "{errors}");
    assert!(!errors.contains("ready socket="), "{errors}");
}

fn end_waits_for_clients_and_the_next_one_starts_it_again(root: &ThrowawayRoot) {
    let output = root.run(
        "fipsee bench data --seconds 300 > bench.log 2>&1 & \
         until fipsee ls | grep '^data .* 1$' > /dev/null; do sleep 0.1; done; \
         systemctl stop fipseed.service; systemctl show --property=Result --value fipseed.service; \
         if wait $!; then echo 'the client did not notice'; exit 1; fi; cat bench.log",
    );
    let text = text_of(&output);
    assert!(output.status.success() && text.contains("success\n") && text.contains("error: "), "{text}");
    assert!(text.contains("daemon"), "the client says what happened: {text}");
    let journal = root.succeed("journalctl --unit fipseed.service --output=cat --lines=40");
    assert!(journal.contains("draining clients=1") && journal.contains("stopped"), "{journal}");
    root.succeed("test -S /run/fipsee/fipsee.sock; fipsee bench memory --seconds 1; systemctl is-active fipseed.service");
}

fn daemon_that_hangs_is_replaced(root: &ThrowawayRoot) {
    root.succeed(
        "mkdir -p /run/systemd/system/fipseed.service.d; \
         printf '[Service]\\nWatchdogSec=5s\\n' > /run/systemd/system/fipseed.service.d/quick.conf; \
         systemctl daemon-reload; systemctl restart fipseed.service",
    );
    // Longer than the watchdog's timeout: a daemon that is alive is left alone.
    root.succeed("sleep 8; test $(systemctl show --property=NRestarts --value fipseed.service) = 0");
    root.succeed(
        "kill -STOP $(systemctl show --property=MainPID --value fipseed.service); \
         until test $(systemctl show --property=NRestarts --value fipseed.service) != 0; do sleep 0.1; done; \
         until systemctl --quiet is-active fipseed.service; do sleep 0.1; done; fipsee bench memory --seconds 1",
    );
    root.succeed("journalctl --unit fipseed.service | grep -i 'watchdog timeout' > /dev/null");
    root.succeed("rm -r /run/systemd/system/fipseed.service.d; systemctl daemon-reload; systemctl restart fipseed.service");
}

fn manual_and_completions_are_found(root: &ThrowawayRoot) {
    root.succeed("man --where 8 fipseed 5 fipseed.toml 1 fipsee 1 fipsee-ls 1 fipsee-reload");
    root.succeed("source /usr/share/bash-completion/completions/fipsee; complete -p fipsee");
    root.succeed("source /usr/share/bash-completion/completions/fipseed; complete -p fipseed");
}

fn c_program_is_built_and_works(root: &ThrowawayRoot) {
    root.succeed(
        r#"printf '#include <stdio.h>\n#include <fipsee_client.h>\nint main(void) { return puts(fipsee_version()) == EOF; }\n' > v.c
        gcc -Wall -Werror -o v v.c $(pkg-config --cflags --libs fipsee)
        test "$(./v)" = "$(pkg-config --modversion fipsee)"
        ldd v | grep 'libfipsee.so.0 => /lib' > /dev/null
        gcc -o static v.c -l:libfipsee.a $(pkg-config --libs-only-l --static fipsee | sed 's/-lfipsee //')
        test "$(./static)" = "$(./v)"; rm v v.c static"#,
    );
}

fn upgrade_keeps_configuration_and_sockets(root: &ThrowawayRoot) {
    root.succeed("systemctl disable --now fipseed-admin.socket 2>&1; dpkg --install /packages/fipsee-daemon_*.deb 2>&1");
    let state = root.succeed("systemctl is-enabled fipseed-admin.socket || true; systemctl is-enabled fipseed.socket");
    assert_eq!(state, "disabled\nenabled\n", "what was disabled stays so");
    root.succeed("grep data.img /etc/fipsee/fipseed.toml; systemctl enable fipseed-admin.socket 2>&1");
    root.succeed(
        "systemctl start fipseed-admin.socket; fipsee cp --no-progress fip:data copy; cmp -n 8388608 copy image; rm copy",
    );
}

fn purge_leaves_nothing_but_data(root: &ThrowawayRoot, before: &str) {
    let purge = "apt-get purge --yes $(dpkg-query --show --showformat='${Package} ' '*fipsee*')";
    root.succeed(purge);
    root.succeed(NO_DAEMON);
    root.succeed("test ! -e /run/fipsee; userdel friend; userdel stranger; userdel manager; rm -f image bench.log /tmp/image");
    root.succeed("test -f /var/lib/fipsee/data.img; getent passwd fipsee");
    // With the data gone, the next purge takes its owner, too.
    root.succeed("rm -r /var/lib/fipsee");
    root.install();
    root.succeed(purge);
    let after = root.succeed(INVENTORY);
    let [before, after] = [before, &after].map(|text| text.lines().collect::<BTreeSet<_>>());
    let left: Vec<_> = after.difference(&before).collect();
    assert!(left.is_empty(), "left behind: {left:#?}");
    let lost: Vec<_> = before.difference(&after).collect();
    assert!(lost.is_empty(), "taken away: {lost:#?}");
}

/// Each package with compiled code, and a file of it.
const COMPILED: [(&str, &str); 5] = [
    ("fipsee-daemon", "usr/bin/fipseed"),
    ("fipsee", "usr/bin/fipsee"),
    ("libfipsee0", "usr/lib/x86_64-linux-gnu/libfipsee.so.0"),
    ("python3-fipsee", "usr/lib/python3/dist-packages/fipsee/_fipsee.abi3.so"),
    ("fipsee-fio", "usr/lib/x86_64-linux-gnu/fio/fipsee.so"),
];

#[test]
fn debug_packages_have_the_lines_of_what_is_installed() {
    for (package, path) in COMPILED {
        let files = packages("debug packages", &[package, &format!("{package}-dbgsym")]);
        let [installed, debug] = files.as_slice() else { continue };
        let directory = Scratch::new();
        for file in [installed, debug] {
            run(Command::new("dpkg-deb").arg("--extract").arg(file).arg(directory.path("")));
        }
        let file = directory.path(path);
        let notes = run(Command::new("readelf").arg("--notes").arg(&file));
        let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build id");
        let symbols = directory.path("usr/lib/debug/.build-id").join(&id[..2]).join(format!("{}.debug", &id[2..]));
        let has = |file: &Path, section: &str| {
            let sections = run(Command::new("readelf").args(["--section-headers", "--wide"]).arg(file));
            sections.split_whitespace().any(|word| word == section)
        };
        for section in [".debug_line", ".symtab"] {
            assert!(has(&symbols, section) && !has(&file, section), "{package}: {section}");
        }
    }
}

#[test]
fn every_package_has_licences_and_notices() {
    for (package, _) in COMPILED {
        let files = packages("licences", &[package]);
        let [file] = files.as_slice() else { continue };
        let directory = Scratch::new();
        run(Command::new("dpkg-deb").arg("--extract").arg(file).arg(directory.path("")));
        let documents = directory.path("usr/share/doc").join(package);
        assert!(documents.join("copyright").exists() && documents.join("changelog.gz").exists(), "{package}");
        // The fio engine is C and fio's own headers.
        if package == "fipsee-fio" {
            continue;
        }
        let notices = run(Command::new("gzip").args(["--decompress", "--stdout"]).arg(documents.join("THIRD-PARTY-NOTICES.gz")));
        for text in ["\nrustix ", "\nthe standard library ", "Permission is hereby granted", "TERMS AND CONDITIONS FOR USE"] {
            assert!(notices.contains(text), "{package}: no {text}");
        }
        // What is linked, and no more.
        for (name, holder) in
            [("landlock", &["fipsee", "fipsee-daemon"][..]), ("indicatif", &["fipsee"]), ("pyo3", &["python3-fipsee"])]
        {
            assert_eq!(notices.contains(&format!("\n{name} ")), holder.contains(&package), "{name} in {package}");
        }
    }
}

#[test]
fn programs_name_their_version_and_commit() {
    for program in ["fipsee", "fipseed"] {
        let Some(path) = shipped("version", &format!("bin/{program}")) else { return };
        let said = run(Command::new(path).arg("--version"));
        let rest = said.strip_prefix(&format!("{program} {}", env!("CARGO_PKG_VERSION"))).expect("name and version");
        // An archive of the sources has no commit.
        if !Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.git").exists() {
            continue;
        }
        let commit = rest.trim_end().strip_prefix(" (").and_then(|rest| rest.strip_suffix(')'));
        let (commit, date) = commit.and_then(|commit| commit.split_once(' ')).unwrap_or_else(|| panic!("{said}"));
        assert!(commit.len() >= 7 && commit.chars().all(|digit| digit.is_ascii_hexdigit()), "{said}");
        assert!(date.len() == 10 && date.split('-').all(|part| part.parse::<u16>().is_ok()), "{said}");
    }
}

#[test]
fn probes_are_left_in_the_stripped_daemon() {
    let Some(path) = shipped("probes", "bin/fipseed") else { return };
    let notes = run(Command::new("readelf").arg("--notes").arg(path));
    for probe in ["attach", "complete", "detach", "doorbell", "publish", "sleep", "submit", "take", "visit", "wake"] {
        assert!(notes.contains(&format!("Provider: fipsee\n    Name: {probe}\n")), "{probe} is not in: {notes}");
    }
}

#[test]
fn packages_keep_the_rules_of_debian() {
    let debug = COMPILED.map(|(package, _)| format!("{package}-dbgsym"));
    let names: Vec<&str> = PACKAGES.into_iter().chain(debug.iter().map(String::as_str)).collect();
    let packages = packages("lintian", &names);
    if packages.is_empty() || !has_program("lintian", "lintian") {
        return;
    }
    let output =
        Command::new("lintian").args(["--allow-root", "--tag-display-limit", "0"]).args(&packages).output().expect("lintian");
    let text = text_of(&output);
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("E:")).collect();
    assert!(output.status.code().is_some_and(|code| code != 1) && errors.is_empty(), "{text}");
}

#[test]
fn same_commit_makes_the_same_packages() {
    for package in packages("same packages", &PACKAGES) {
        // Owner, permissions and time of each file; what else could differ is in the files, and made by the compiler.
        let listing = run(Command::new("dpkg-deb").arg("--contents").arg(&package));
        assert!(listing.lines().all(|line| line.contains(" root/root ")), "{listing}");
        let words = |line: &str| line.split_whitespace().skip(3).take(2).map(str::to_owned).collect::<Vec<_>>();
        let first = listing.lines().next().map(words).expect("a file");
        assert!(listing.lines().all(|line| words(line) == first), "{listing}");
        let is_usual = |line: &str| line.starts_with("drwxr-xr-x") || line.starts_with("-rw") || line.starts_with('l');
        assert!(listing.lines().all(is_usual), "{listing}");
    }
}

#[test]
fn manual_pages_are_correct() {
    let Some(pages) = shipped("manual", "share/man") else { return };
    if !["man", "mandoc", "lexgrog"].iter().all(|program| has_program("manual", program)) {
        return;
    }
    let mut count = 0;
    for page in files_below(&pages) {
        let lint = Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).arg(&page).output().expect("mandoc");
        assert!(lint.status.success() && lint.stdout.is_empty(), "{}", text_of(&lint));
        let man =
            Command::new("man").args(["--warnings", "--local-file"]).arg(&page).env("LC_ALL", "C.UTF-8").output().expect("man");
        assert!(man.status.success() && man.stderr.is_empty(), "{}: {}", page.display(), text_of(&man));
        run(Command::new("lexgrog").arg(&page));
        let text = fs::read_to_string(&page).expect("a page");
        for section in [".SH EXAMPLES\n", ".SH \"EXIT STATUS\"\n"] {
            assert!(text.contains(section), "{} has no {section}", page.display());
        }
        count += 1;
    }
    assert!(count > 10, "only {count} pages");
}

#[test]
fn units_are_correct_and_the_daemon_is_hardly_exposed() {
    if !has_program("units", "systemd-analyze") || shipped("units", "bin/fipseed").is_none() {
        return;
    }
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let service = units.join("fipseed.service");
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=yes", "--json=short", "--no-pager"]).arg(&service);
    let threshold = format!("{:.0}", MAX_EXPOSURE * 10.0);
    let output = analyze.arg(format!("--threshold={threshold}")).output().expect("systemd-analyze");
    assert!(output.status.success(), "{}", text_of(&output));
    // The programs are not installed on this machine: the copies say those of the prefix.
    let (directory, bin) = (Scratch::new(), shipped("units", "bin").expect("just seen"));
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    for name in ["fipseed.service", "fipseed.socket", "fipseed-admin.socket", "fipseed-metrics.socket"] {
        let text = fs::read_to_string(units.join(name)).expect("a unit");
        let copy = directory.path(name);
        fs::write(&copy, text.replace("/usr/bin/", &format!("{}/", bin.canonicalize().expect("there").display())))
            .expect("a copy");
        verify.arg(copy);
    }
    let output = verify.output().expect("systemd-analyze");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text_of(&output));
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a directory").flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { vec![entry.path()] }).collect()
}
