//! What read(2), write(2) and their relatives do on the file.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_acceptance::{Scratch, eventually, has_program, run};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use super::support::{Loop, Mount, bytes_at, can_mount, daemon, fails, fipsee, pattern};

fn errno(error: &std::io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

#[test]
fn file_has_the_size_of_the_disk_and_neither_grows_nor_shrinks() {
    let Some(daemon) = daemon("size", &["a=memory:1M"]) else { return };
    let mut mount = Mount::new(&daemon, "a", &[]);
    assert!(mount.ready.starts_with("mounted a on ") && mount.ready.contains("(1 MiB)"), "{}", mount.ready);
    let metadata = mount.file.metadata().expect("a working system");
    assert_eq!((metadata.len(), metadata.is_file(), metadata.mode() & 0o777, metadata.uid()), (1 << 20, true, 0o600, 0));
    let file = mount.open();
    assert_eq!(errno(&file.set_len(2 << 20).unwrap_err()), Some(Errno::PERM));
    assert_eq!(errno(&file.set_len(4096).unwrap_err()), Some(Errno::PERM));
    file.set_len(1 << 20).expect("a working system");
    assert_eq!(errno(&std::fs::set_permissions(&mount.file, Permissions::from_mode(0o644)).unwrap_err()), Some(Errno::PERM));
    let end = (1 << 20) - 100;
    file.write_all_at(&[7; 100], end).expect("a working system");
    assert_eq!(file.write_at(&[8; 200], end).expect("a working system"), 100, "a write across the end is short");
    assert_eq!(errno(&file.write_at(&[9; 1], 1 << 20).unwrap_err()), Some(Errno::NOSPC));
    assert_eq!(file.read_at(&mut [0; 200], end).expect("a working system"), 100, "a read across the end is short");
    assert_eq!(file.read_at(&mut [0; 200], 1 << 20).expect("a working system"), 0);
    // As a block device ignores it: dd of=FILE and shells' redirections open with it.
    drop(File::options().write(true).truncate(true).open(&mount.file).expect("a working system"));
    assert_eq!(mount.file.metadata().expect("a working system").len(), 1 << 20);
    assert_eq!(bytes_at(&file, end, 100), [8; 100]);
    drop(file);
    mount.unmount();
    assert!(!mount.file.exists(), "a file that was made for the mount goes with it");
}

#[test]
fn concurrent_writers_of_parts_of_a_block_lose_no_bytes() {
    const WRITERS: usize = 4;
    const PIECE: usize = 300;
    let Some(daemon) = daemon("unaligned", &["a=memory:1M,block=4096"]) else { return };
    for cache in ["--cache=none", "--cache=kernel"] {
        let mut mount = Mount::new(&daemon, "a", &[cache, "--threads=3"]);
        let total = (1 << 20) / (WRITERS * PIECE) * WRITERS * PIECE;
        let wanted = pattern(u64::from(cache == "--cache=none"), total);
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                // A descriptor each: the kernel must not be what keeps them apart.
                let (file, wanted) = (mount.open(), &wanted);
                scope.spawn(move || {
                    for start in (writer * PIECE..total).step_by(WRITERS * PIECE) {
                        file.write_all_at(&wanted[start..start + PIECE], start as u64).expect("a working system");
                    }
                });
            }
            // And whole blocks among them.
            let file = mount.open();
            scope.spawn(move || {
                for block in 0..(1_u64 << 20) / 4096 {
                    let bytes = bytes_at(&file, block * 4096, 4096);
                    assert_eq!(bytes.len(), 4096);
                }
            });
        });
        assert!(bytes_at(&mount.open(), 0, total) == wanted, "bytes were lost with {cache}");
        mount.unmount();
    }
}

#[test]
fn whole_block_written_beside_parts_of_it_keeps_its_bytes() {
    let Some(daemon) = daemon("mixed", &["a=memory:64K,block=4096"]) else { return };
    let mut mount = Mount::new(&daemon, "a", &["--threads=2"]);
    let is_over = AtomicBool::new(false);
    let (whole, part) = (mount.open(), mount.open());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                part.write_all_at(&[0xff; 96], 2000).expect("a working system");
            }
        });
        // The only one that writes the rest of the block must find what it wrote there.
        for round in (0..20_u8).cycle().take(4000) {
            whole.write_all_at(&[round; 4096], 0).expect("a working system");
            let bytes = bytes_at(&whole, 0, 4096);
            let is_kept = bytes[..2000].iter().chain(&bytes[2096..]).all(|byte| *byte == round);
            is_over.store(!is_kept, Ordering::Relaxed);
            assert!(is_kept, "an acknowledged write was undone by a neighbour's");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    drop((whole, part));
    mount.unmount();
}

#[test]
fn holes_read_as_zeroes_and_touch_nothing_else() {
    let Some(daemon) = daemon("holes", &["a=memory:8M", "b=file:{dir}/b.img,size=8M", "c=memory:8M,block=4096"]) else { return };
    for disk in ["a", "b", "c"] {
        let mut mount = Mount::new(&daemon, disk, &[]);
        let file = mount.open();
        let mut wanted = pattern(3, 8 << 20);
        file.write_all_at(&wanted, 0).expect("a working system");
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let ranges: [(FallocateFlags, usize, usize); 6] = [
            (hole, 4096, 8192),
            (hole, 100_001, 300_003),
            (hole, 512_010, 20),
            (FallocateFlags::ZERO_RANGE, 1 << 20, 1 << 20),
            (FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 3_000_001, 1_000_001),
            (hole, 5 << 20, 1 << 20),
        ];
        for (mode, offset, length) in ranges {
            fallocate(&file, mode, offset as u64, length as u64).expect("a working system");
            wanted[offset..offset + length].fill(0);
        }
        fallocate(&file, hole, (8 << 20) - 10, 1 << 20).expect("a working system");
        wanted[(8 << 20) - 10..].fill(0);
        assert!(bytes_at(&file, 0, 8 << 20) == wanted, "disk {disk}");
        let refused = |mode, offset, length| fallocate(&file, mode, offset, length).unwrap_err();
        fallocate(&file, FallocateFlags::empty(), 0, 8 << 20).expect("a working system");
        assert_eq!(refused(FallocateFlags::empty(), 4096, 8 << 20), Errno::NOSPC);
        assert_eq!(refused(FallocateFlags::COLLAPSE_RANGE, 0, 4096), Errno::OPNOTSUPP);
        assert!(bytes_at(&file, 0, 8 << 20) == wanted, "disk {disk}: allocating changes nothing");
        drop(file);
        mount.unmount();
    }
}

/// Flushes that a loop device has done.
fn flushes(device: &Loop) -> u64 {
    let name = device.0.trim_start_matches("/dev/");
    let text = std::fs::read_to_string(format!("/sys/block/{name}/stat")).expect("a working system");
    // The sixteenth number: see the kernel's Documentation/block/stat.rst.
    text.split_whitespace().nth(15).expect("a working system").parse().expect("a working system")
}

#[test]
fn fsync_and_synchronous_writes_reach_the_device_as_such() {
    let (directory, block_file) = (Scratch::new(), "device.img");
    if !can_mount("sync") {
        return;
    }
    let image = File::options().write(true).create_new(true).open(directory.path(block_file)).expect("a working system");
    image.set_len(16 << 20).expect("a working system");
    let device = Loop::new(&directory.path(block_file), false);
    let Some(daemon) = daemon("sync", &[&format!("b=file:{}", device.0)]) else { return };
    let mut mount = Mount::new(&daemon, "b", &[]);
    let file = mount.open();
    let expect_flush = |what: &str, act: &dyn Fn()| {
        let before = flushes(&device);
        act();
        assert!(flushes(&device) > before, "{what} did not reach the device");
    };
    let before = flushes(&device);
    file.write_all_at(&[1; 4096], 0).expect("a working system");
    assert_eq!(flushes(&device), before, "an ordinary write is not made durable at once, or this test tests nothing");
    expect_flush("fsync", &|| file.sync_all().expect("a working system"));
    file.write_all_at(&[1; 4096], 0).expect("a working system");
    expect_flush("fdatasync", &|| file.sync_data().expect("a working system"));
    for flags in [OFlags::DSYNC, OFlags::SYNC, OFlags::DSYNC | OFlags::DIRECT] {
        let custom = i32::try_from(flags.bits()).expect("a working system");
        let durable = File::options().write(true).custom_flags(custom).open(&mount.file).expect("a working system");
        expect_flush(&format!("a write with {flags:?}"), &|| durable.write_all_at(&[2; 4096], 4096).expect("a working system"));
        expect_flush(&format!("a write of part of a block with {flags:?}"), &|| {
            durable.write_all_at(&[3; 5], 3).expect("a working system")
        });
    }
    drop(file);
    mount.unmount();
}

#[test]
fn programs_that_map_the_file_share_it() {
    let Some(daemon) = daemon("mmap", &["a=memory:1M"]) else { return };
    if !has_program("mmap", "python3") {
        return;
    }
    let script = "import mmap,sys\n\
        f=open(sys.argv[1],'r+b',0)\n\
        m=mmap.mmap(f.fileno(),0)\n\
        assert m[5000:5005]==b'hello', m[5000:5005]\n\
        m[8000:8005]=b'there'\n\
        m.flush()\n\
        f.seek(8000)\n\
        assert f.read(5)==b'there'\n";
    for cache in ["--cache=none", "--cache=kernel"] {
        let mut mount = Mount::new(&daemon, "a", &[cache]);
        mount.open().write_all_at(b"hello", 5000).expect("a working system");
        run(Command::new("python3").args(["-c", script]).arg(&mount.file));
        assert_eq!(bytes_at(&mount.open(), 8000, 5), b"there");
        mount.unmount();
        // On the disk, not only in the kernel.
        let mut mount = Mount::new(&daemon, "a", &["--read-only"]);
        assert_eq!(bytes_at(&File::open(&mount.file).expect("a working system"), 8000, 5), b"there");
        mount.unmount();
    }
}

#[test]
fn resize_is_seen_at_once() {
    let Some(daemon) = daemon("resize", &["a=memory:1M,max=4M"]) else { return };
    let mut mount = Mount::new(&daemon, "a", &[]);
    let file = mount.open();
    assert_eq!(file.metadata().expect("a working system").len(), 1 << 20);
    for size in [4 << 20, 2 << 20] {
        fipsee(&daemon, &["resize", "a", &size.to_string(), "--shrink", "--force"]);
        eventually("the new size", || file.metadata().expect("a working system").len() == size);
    }
    file.write_all_at(&[5; 4096], (2 << 20) - 4096).expect("a working system");
    assert_eq!(errno(&file.write_at(&[5; 4096], 2 << 20).unwrap_err()), Some(Errno::NOSPC));
    drop(file);
    mount.unmount();
}

#[test]
fn read_only_means_for_all_clients() {
    let Some(daemon) = daemon("read-only", &["a=memory:1M", "r=memory:1M,ro"]) else { return };
    for (disk, arguments) in [("a", &["--read-only"][..]), ("r", &[][..])] {
        let mut mount = Mount::new(&daemon, disk, arguments);
        let refused = File::options().write(true).open(&mount.file).unwrap_err();
        assert_eq!(errno(&refused), Some(Errno::ROFS), "{disk}");
        assert_eq!(bytes_at(&File::open(&mount.file).expect("a working system"), 0, 4096), [0; 4096]);
        mount.unmount();
    }
}

#[test]
fn other_users_get_in_only_when_let_in() {
    let Some(daemon) = daemon("users", &["a=memory:1M"]) else { return };
    if !has_program("users", "setpriv") {
        return;
    }
    let as_nobody = |program: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
        command
    };
    std::fs::set_permissions(daemon.dir.path(""), Permissions::from_mode(0o755)).expect("a working system");
    let file = daemon.dir.path("a.mounted");
    File::options().write(true).create_new(true).mode(0o600).open(&file).expect("a working system");
    std::fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("a working system");
    let mut mount = Mount::new(&daemon, "a", &[]);
    let words = fails(as_nobody("head").args(["-c", "1"]).arg(&mount.file));
    assert!(words.contains("Permission denied"), "{words}");
    mount.unmount();
    let mut mount = Mount::new(&daemon, "a", &["--allow-other"]);
    run(as_nobody("head").args(["-c", "1"]).arg(&mount.file));
    let words = fails(as_nobody("dd").args(["if=/dev/zero", "bs=512", "count=1"]).arg(format!("of={}", mount.file.display())));
    assert!(words.contains("Permission denied"), "the file's own mode counts: {words}");
    mount.unmount();
    assert!(file.exists(), "a file that was there before stays");
}
