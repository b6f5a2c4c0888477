//! Every storage, front and campaign for some seconds. The long ones: `cargo xtask endure`.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fipsee_oracle::front::Action;
use fipsee_oracle::setup::{FrontKind, Setup};
use fipsee_oracle::storage::{Kind, default_folder};
use fipsee_oracle::workload::{self, Counts, Runner, Settings, read_all};
use fipsee_oracle::{content, scenario};
use fipsee_testkit::{Random, assert_says, skip};

const REQUESTS: u64 = 700;
const WRITE_BYTES: u64 = 160 << 20;
const SIZE_BYTES: u64 = 24 << 20;

/// The program that mounts, if it was built.
fn fipsee() -> Option<PathBuf> {
    let prefix = std::env::var_os("FIPSEE_DIST")?;
    // Tests run in their package's folder; the variable counts from the top of the repository.
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(prefix).join("bin/fipsee");
    found.exists().then_some(found)
}

/// A disk on this storage; `None`, with a message, where this machine does not have it.
fn setup(storage: Kind) -> Option<Setup> {
    if let Some(reason) = storage.missing() {
        skip(&format!("oracle {storage:?}"), &reason);
        return None;
    }
    // A file system that is there, whatever it is, for what needs none of its own.
    let folder = if storage == Kind::Folder { std::env::temp_dir() } else { default_folder() };
    let own = Path::new(env!("CARGO_BIN_EXE_fipsee-oracle"));
    Some(Setup { size_bytes: SIZE_BYTES, ..Setup::new(own, storage, &folder) })
}

#[track_caller]
fn keeps_to_the_model(setup: &Setup, settings: &Settings) -> Counts {
    let outcome = setup.run(&mut |site| workload::run(site, settings));
    let counts = outcome.unwrap_or_else(|error| panic!("{}: {error}", setup.describe()));
    println!("{}: {counts}", setup.describe());
    // A discard that the device cannot do was sent and answered, too.
    let answered = counts.requests + counts.unsupported;
    assert!(answered >= settings.requests && counts.overlapping > counts.requests / 10, "{counts}");
    counts
}

fn random() -> Settings {
    let mean_bytes = Settings::mean_of(REQUESTS, WRITE_BYTES);
    Settings { requests: REQUESTS, mean_bytes, ..Settings::default() }
}

#[track_caller]
fn storage_keeps_to_the_model(storage: Kind, disks: &[&str]) {
    let Some(setup) = setup(storage) else { return };
    for disk in disks {
        keeps_to_the_model(&Setup { disk: (*disk).to_owned(), ..setup.clone() }, &random());
    }
}

macro_rules! storages {
    ($($name:ident: $storage:ident, $disks:expr;)+) => {
        $(#[test]
        fn $name() {
            storage_keeps_to_the_model(Kind::$storage, &$disks);
        })+
    };
}

storages! {
    file_of_this_machine_holds_what_it_may: Folder, ["block=512", "block=512,direct=off"];
    ext4_holds_what_it_may: Ext4, ["block=512", "block=4096"];
    xfs_holds_what_it_may: Xfs, ["block=512"];
    btrfs_holds_what_it_may: Btrfs, ["block=512"];
    tmpfs_holds_what_it_may: Tmpfs, ["block=512"];
    device_of_small_sectors_holds_what_it_may: Loop512, ["block=512"];
    device_of_large_sectors_holds_what_it_may: Loop4096, ["block=4096", "block=512"];
    ext4_on_large_sectors_holds_what_it_may: Ext4On4096, ["block=512"];
}

#[test]
fn every_front_finds_what_it_may() {
    let Some(mut setup) = setup(Kind::Ext4On4096) else { return };
    setup.fipsee = fipsee();
    for front in [FrontKind::VhostUser, FrontKind::Rings, FrontKind::Mount, FrontKind::MountDirect] {
        if front.is_mount() && setup.fipsee.is_none() {
            skip(
                &format!("oracle {front:?}"),
                "needs what ships; run `cargo xtask test`, or `cargo xtask dist` and set FIPSEE_DIST=target/dist",
            );
            continue;
        }
        if front.is_mount() && !Path::new("/dev/fuse").exists() {
            skip(&format!("oracle {front:?}"), "there is no /dev/fuse here; modprobe fuse");
            continue;
        }
        // Through a mount each is many times as slow.
        let requests = if front.is_mount() { REQUESTS / 4 } else { REQUESTS };
        keeps_to_the_model(&Setup { front, ..setup.clone() }, &Settings { requests, ..random() });
    }
}

#[test]
fn large_write_and_small_ones_into_its_last_pages_are_all_there() {
    for storage in [Kind::Folder, Kind::Ext4On4096] {
        let Some(setup) = setup(storage) else { continue };
        let outcome = setup.run(&mut |site| scenario::run(site, 8, 1));
        let counts = outcome.unwrap_or_else(|error| panic!("{}: {error}", setup.describe()));
        assert!(counts.requests > 8 * 60, "{counts}");
    }
}

#[test]
fn killed_daemons_leave_what_they_may() {
    let Some(setup) = setup(Kind::Ext4On4096) else { return };
    for front in [FrontKind::Library, FrontKind::VhostUser] {
        let settings = Settings { requests: 0, mean_bytes: 32 << 10, resize: false, kills: 5, ..Settings::default() };
        let counts = keeps_to_the_model(&Setup { front, ..setup.clone() }, &settings);
        assert!(counts.kills == 5 && counts.in_flight_at_kills > 5, "{counts}");
    }
}

#[test]
fn late_writes_of_a_killed_daemon_undo_nothing() {
    let Some(setup) = setup(Kind::Loop4096) else { return };
    if !Path::new("/dev/fuse").exists() {
        return skip("oracle late writes", "there is no /dev/fuse here; modprobe fuse");
    }
    let counts = setup.late_writes(4, false, 1).unwrap_or_else(|error| panic!("{error}"));
    assert!(counts.kills == 4 && counts.in_flight_at_kills > 4, "{counts}");
}

/// The oracle itself: what is put onto the disk behind the daemon's back is reported, with its place.
#[test]
fn sector_that_holds_another_writes_bytes_is_reported() {
    let Some(setup) = setup(Kind::Folder) else { return };
    let setup = Setup { disk: "block=512,direct=off".to_owned(), ..setup };
    let outcome = setup.run(&mut |site| {
        let mut runner = Runner::new(site.front, false);
        let mut random = Random(1);
        runner.begin(&mut random, Action::Write { fua: false }, 100, 50)?;
        runner.publish();
        runner.submit_and_wait(Action::Flush)?;
        read_all(&mut runner)?;
        let file = site.storage.map(|storage| std::fs::File::options().write(true).open(storage.path()));
        let file = file.expect("a file").expect("it opens");
        let mut bytes = [0; 512];
        content::fill(&mut bytes, 7, 120);
        file.write_all_at(&bytes, 120 * 512).expect("a write");
        read_all(&mut runner)?;
        Ok(runner.counts)
    });
    let error = outcome.expect_err("a sector is wrong");
    assert_says(&error, &["1 sectors between 120 and 120", "write 7; allowed: write 1", "1: Write of sectors 100..150"]);
}
