//! Clients that lie to the daemon: it goes on, a client that behaves does not notice, the log stays short, and nothing of the liar stays.

#[path = "../../../crates/daemon/tests/common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{Daemon, Witness, eventually};
use fipsee_hostile::lies::{LIES, Lie, Until};

/// Lines in the log that a lie may cost.
enum Lines {
    /// Its client's coming and going, and nothing else.
    One,
    /// Those that about all clients together are allowed in a second.
    AllAllowed,
}

/// Lines of the daemon about itself and the witnesses of a test.
const OWN_LINES: usize = 16;

/// Set when dropped, so that a liar ends when a check of ours fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn tell(lie: &Lie, lines: &Lines) {
    let daemon = Daemon::start(&["--disk", "v=memory:16M", "--disk", "l=memory:16M"]);
    let mut witness = Witness::new(&daemon, "v");
    let descriptors = daemon.fd_count();
    let started = std::time::Instant::now();
    let (stop, told) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let liar = scope.spawn(|| {
            let mut until = Until::times(lie.times, &stop);
            let outcome = lie.tell(&daemon.socket(), "l", &mut until);
            told.store(true, Ordering::Relaxed);
            outcome.map(|()| until.told())
        });
        let mut checks = 0_u64;
        while !told.load(Ordering::Relaxed) {
            witness.check();
            checks += 1;
        }
        let count = liar.join().expect("a liar does not panic").unwrap_or_else(|error| panic!("{}: {error}", lie.name));
        assert_eq!(count, lie.times, "{}: not told to the end", lie.name);
        assert!(checks > 0, "{}: the witness had no turn", lie.name);
    });
    witness.check();
    eventually("the liar is forgotten", || daemon.attached_count("l") == 0);
    eventually("its descriptors are closed", || daemon.fd_count() == descriptors);
    let most = match lines {
        Lines::One => OWN_LINES,
        Lines::AllAllowed => OWN_LINES + 51 * usize::try_from(started.elapsed().as_secs() + 2).expect("minutes"),
    };
    let log = daemon.log();
    assert!(log.lines().count() <= most, "{}: {} lines in the log, {most} are allowed", lie.name, log.lines().count());
    assert!(!log.contains("ERROR") && !log.contains("panicked"), "{}: {log}", lie.name);
    // Whoever comes next finds the disk as usable as before.
    drop(Witness::new(&daemon, "l"));
}

fn named(name: &str) -> &'static Lie {
    LIES.iter().find(|lie| lie.name == name).unwrap_or_else(|| panic!("no lie '{name}'"))
}

macro_rules! lies {
    ($($test:ident: $name:literal $lines:ident,)+) => {
        $(#[test]
        fn $test() {
            tell(named($name), &Lines::$lines);
        })+

        #[test]
        fn every_lie_is_told() {
            let told = [$($name),+];
            let untold: Vec<&str> = LIES.iter().map(|lie| lie.name).filter(|name| !told.contains(name)).collect();
            assert_eq!(untold, [""; 0]);
        }
    };
}

lies! {
    stamps_of_other_laps_are_no_requests: "stamps of other laps" One,
    slots_of_random_bytes_are_answered: "slots of random bytes" One,
    a_slot_rewritten_while_it_is_read_is_used_as_it_was_checked: "a slot rewritten while it is read" One,
    an_indirect_table_rewritten_while_it_is_read_is_used_as_it_was_checked: "an indirect table rewritten while it is read" One,
    a_table_that_its_own_request_overwrites_is_read_once: "a table that its own request overwrites" One,
    more_requests_than_the_depth_harm_their_client_only: "more requests than the depth, no answer taken" One,
    asleep_flags_that_flicker_harm_nobody: "asleep flags that flicker" One,
    doorbells_without_end_harm_nobody: "doorbells" One,
    control_messages_without_end_harm_nobody: "control messages, no answer taken" AllAllowed,
    connections_without_end_harm_nobody: "connections that end at once" AllAllowed,
    attachments_without_end_harm_nobody: "attachments that end at once" AllAllowed,
    memory_that_can_be_cut_is_refused_every_time: "memory of every wrong kind" One,
}
