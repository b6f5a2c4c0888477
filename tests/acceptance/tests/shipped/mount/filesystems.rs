//! File systems, images and databases on the file.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use fipsee_acceptance::{has_program, run};

use super::support::{Loop, Mount, Mounted, daemon, pattern};

/// Name and content of every file.
fn contents(place: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(place).expect("a working system").map(|entry| entry.expect("a working system"));
    let files = entries.filter(|entry| entry.file_type().expect("a working system").is_file());
    files
        .map(|entry| {
            (entry.file_name().into_string().expect("a working system"), std::fs::read(entry.path()).expect("a working system"))
        })
        .collect()
}

fn fill(place: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = (0_u64..60).map(|index| {
        let length = usize::try_from(1 + index * index * 400).expect("a working system");
        (format!("file-{index}"), pattern(index, length))
    });
    let files: BTreeMap<_, _> = files.collect();
    for (name, bytes) in &files {
        std::fs::write(place.join(name), bytes).expect("a working system");
    }
    files
}

const DATABASE: &str = "import sqlite3,sys\n\
    d=sqlite3.connect(sys.argv[1])\n\
    d.execute('pragma journal_mode=wal')\n\
    d.execute('create table if not exists t(k integer primary key, v text)')\n\
    for i in range(20):\n\
    \x20   with d: d.executemany('insert into t(v) values(?)', [(str(i)*99,)]*100)\n\
    assert d.execute('pragma integrity_check').fetchone()==('ok',)\n\
    print(d.execute('select count(*) from t').fetchone()[0])\n";

#[test]
fn ext4_through_a_loop_device_keeps_its_files() {
    let Some(daemon) = daemon("ext4", &["a=memory:256M", "b=file:{dir}/b.img,size=256M"]) else { return };
    for program in ["mkfs.ext4", "e2fsck", "losetup", "python3"] {
        if !has_program("ext4", program) {
            return;
        }
    }
    for (disk, direct) in [("a", false), ("a", true), ("b", false), ("b", true)] {
        let mut mount = Mount::new(&daemon, disk, &["--threads=2"]);
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&mount.file));
        let place = daemon.dir.path("place");
        let mounted = Mounted::new(Loop::new(&mount.file, direct), place.clone());
        let files = fill(&mounted.place);
        std::fs::create_dir(place.join("db")).expect("a working system");
        let database = place.join("db/data");
        let rows = run(Command::new("python3").args(["-c", DATABASE]).arg(&database));
        assert_eq!(rows.trim(), "2000");
        std::fs::remove_file(place.join("file-7")).expect("a working system");
        run(Command::new("fstrim").arg(&place));
        mounted.unmount();
        run(Command::new("e2fsck").arg("-fn").arg(&mount.file));
        mount.unmount();
        // And again, from the disk alone.
        let mut mount = Mount::new(&daemon, disk, &[]);
        run(Command::new("e2fsck").arg("-fn").arg(&mount.file));
        let mounted = Mounted::new(Loop::new(&mount.file, !direct), place.clone());
        let mut wanted = files;
        wanted.remove("file-7");
        assert!(contents(&place) == wanted, "disk {disk}, direct {direct}");
        let rows = run(Command::new("python3").args(["-c", DATABASE]).arg(&database));
        assert_eq!(rows.trim(), "4000");
        mounted.unmount();
        run(Command::new("e2fsck").arg("-fn").arg(&mount.file));
        mount.unmount();
    }
}

#[test]
fn qemu_img_reads_and_writes_it() {
    let Some(daemon) = daemon("qemu-img", &["a=memory:16M", "b=memory:64M"]) else { return };
    if !has_program("qemu-img", "qemu-img") {
        return;
    }
    let (mut raw, mut image) = (Mount::new(&daemon, "a", &[]), Mount::new(&daemon, "b", &[]));
    let source = daemon.dir.path("source.img");
    let mut bytes = pattern(11, 16 << 20);
    bytes[3 << 20..9 << 20].fill(0);
    std::fs::write(&source, &bytes).expect("a working system");
    let qemu_img = |arguments: &[&str], files: &[&Path]| run(Command::new("qemu-img").args(arguments).args(files));
    assert!(qemu_img(&["info", "-f", "raw"], &[&raw.file]).contains("16 MiB"));
    qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw"], &[&source, &raw.file]);
    assert!(qemu_img(&["compare", "-f", "raw", "-F", "raw"], &[&source, &raw.file]).contains("identical"));
    // Past its own cache, with its own asynchronous reads and writes.
    qemu_img(&["convert", "-n", "-t", "none", "-T", "none", "-f", "raw", "-O", "raw"], &[&source, &raw.file]);
    assert!(std::fs::read(&raw.file).expect("a working system") == bytes);
    // An image with a format of its own inside the disk.
    let made = daemon.dir.path("made.qcow2");
    qemu_img(&["convert", "-f", "raw", "-O", "qcow2"], &[&source, &made]);
    run(Command::new("dd")
        .args(["bs=1M", "conv=fsync"])
        .arg(format!("if={}", made.display()))
        .arg(format!("of={}", image.file.display())));
    assert!(qemu_img(&["compare", "-f", "raw", "-F", "qcow2"], &[&source, &image.file]).contains("identical"));
    raw.unmount();
    image.unmount();
}

#[test]
fn dd_copies_in_every_way() {
    let Some(daemon) = daemon("dd", &["b=file:{dir}/b.img,size=4M"]) else { return };
    let mut mount = Mount::new(&daemon, "b", &[]);
    let source = daemon.dir.path("source");
    for (seed, options) in ["bs=1000", "bs=512 oflag=direct", "bs=64k oflag=sync", "bs=4M oflag=direct,dsync"].iter().enumerate()
    {
        let bytes = pattern(seed as u64, 3 << 20);
        std::fs::write(&source, &bytes).expect("a working system");
        let (from, to) = (format!("if={}", source.display()), format!("of={}", mount.file.display()));
        run(Command::new("dd").args([&from, &to]).args(options.split(' ')));
        assert!(std::fs::read(&mount.file).expect("a working system")[..3 << 20] == bytes, "{options}");
        let back = run(Command::new("sh").arg("-c").arg(format!(
            "dd if={} bs=1M count=3 iflag=direct 2>/dev/null | cmp - {} && echo same",
            mount.file.display(),
            source.display()
        )));
        assert_eq!(back.trim(), "same", "{options}");
    }
    mount.unmount();
}
