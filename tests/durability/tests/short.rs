//! Every campaign with a few kills. The long ones: `cargo xtask endure`.

use std::path::{Path, PathBuf};

use fipsee_durability::campaign::{Settings, Storage, Victim, Way, run};

const KILLS: u64 = 24;
const MOVES: u64 = 100;

/// The place of the disk: data that is lost with a process needs no slow storage below.
fn parent_of(storage: Storage) -> PathBuf {
    let memory = Path::new("/dev/shm");
    if matches!(storage, Storage::File | Storage::Late) || !memory.is_dir() { std::env::temp_dir() } else { memory.to_owned() }
}

#[track_caller]
fn nothing_is_lost(way: Way, storage: Storage, victim: Victim) {
    let name = format!("fipsee-short-{}-{way:?}-{storage:?}-{victim:?}", std::process::id());
    let directory = parent_of(storage).join(name);
    let program = PathBuf::from(env!("CARGO_BIN_EXE_fipsee-endure"));
    let kills = if victim == Victim::Worker { MOVES } else { KILLS };
    let settings = Settings { program, directory: directory.clone(), way, storage, victim, kills, seed: 1 };
    let outcome = run(&settings);
    if let Err(error) = &outcome {
        let log = std::fs::read_to_string(directory.join("log")).unwrap_or_default();
        eprintln!("{error}\n--- log of the daemon ---\n{log}");
    }
    let _ = std::fs::remove_dir_all(&directory);
    let counts = outcome.expect("nothing is lost, and everything is answered once");
    println!("{way:?} on {storage:?}, killing {victim:?}: {counts:?}");
    // Requests were in flight at the kills.
    assert!(counts.completed > 20 * KILLS && counts.hardened > KILLS, "{counts:?}");
    match victim {
        Victim::Daemon => assert!(counts.resumed >= KILLS && counts.in_flight_at_loss > KILLS, "{counts:?}"),
        Victim::Worker => {}
        Victim::Client | Victim::Both => assert!(counts.died > KILLS, "{counts:?}"),
    }
}

macro_rules! campaigns {
    ($($name:ident: $way:ident, $storage:ident, $victim:ident;)*) => {
        $(
            #[test]
            fn $name() {
                nothing_is_lost(Way::$way, Storage::$storage, Victim::$victim);
            }
        )*
    };
}

campaigns! {
    library_and_file_disk_when_the_daemon_is_killed: Library, File, Daemon;
    library_and_file_disk_when_the_client_is_killed: Library, File, Client;
    library_and_late_disk_when_the_daemon_is_killed: Library, Late, Daemon;
    library_when_the_power_fails: Library, PowerCut, Both;
    library_when_the_power_fails_and_writes_are_torn: Library, Torn, Both;
    library_when_the_disk_alone_loses_power_and_writes_are_torn: Library, Torn, Daemon;
    library_and_file_disk_while_its_queue_moves: Library, File, Worker;
    library_and_late_disk_while_its_queue_moves: Library, Late, Worker;
    guest_and_file_disk_while_its_queue_moves: VhostUser, File, Worker;
    guest_and_late_disk_while_its_queue_moves: VhostUser, Late, Worker;
    guest_and_file_disk_when_the_daemon_is_killed: VhostUser, File, Daemon;
    guest_and_file_disk_when_the_guest_is_killed: VhostUser, File, Client;
    guest_and_late_disk_when_the_daemon_is_killed: VhostUser, Late, Daemon;
    guest_when_the_power_fails: VhostUser, PowerCut, Both;
    guest_when_the_power_fails_and_writes_are_torn: VhostUser, Torn, Both;
    guest_when_the_disk_alone_loses_power_and_writes_are_torn: VhostUser, Torn, Daemon;
}
