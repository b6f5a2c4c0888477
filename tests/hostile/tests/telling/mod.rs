//! A lie told to a daemon while a witness goes on: what each of them must find afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fipsee_hostile::lie::{Lie, Until, Way};

use crate::common::{Daemon, Witness, eventually};

/// Lines in the log that a lie may cost.
pub(crate) enum Lines {
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

/// The daemon's log after `lie` was told to it.
pub(crate) fn tell(lie: &Lie, lines: &Lines) -> String {
    let daemon = Daemon::start(&["--disk", "v=memory:16M", "--disk", "l=memory:16M", "--vhost-user", "l={dir}/v-l"]);
    let socket = match lie.way {
        Way::Local => daemon.socket(),
        Way::Guest => daemon.dir.path("v-l"),
    };
    let mut witness = Witness::new(&daemon, "v");
    let descriptors = daemon.fd_count();
    let started = Instant::now();
    let (stop, told) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let liar = scope.spawn(|| {
            let _told = StopAtEnd(&told);
            let mut until = Until::times(lie.times, &stop);
            lie.tell(&socket, "l", &mut until).map(|()| until.told())
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
    log
}

/// A test for each lie of a list, and one that finds what is missing.
macro_rules! lies {
    ($lies:expr, $($test:ident: $name:literal $lines:ident $(says $line:literal $times:expr)?,)+) => {
        fn named(name: &str) -> &'static fipsee_hostile::lie::Lie {
            $lies.iter().find(|lie| lie.name == name).unwrap_or_else(|| panic!("no lie '{name}'"))
        }

        $(#[test]
        fn $test() {
            let _log = telling::tell(named($name), &telling::Lines::$lines);
            $(assert!($times.contains(&_log.matches($line).count()), "{}", _log);)?
        })+

        #[test]
        fn every_lie_is_told() {
            let told = [$($name),+];
            let untold: Vec<&str> = $lies.iter().map(|lie| lie.name).filter(|name| !told.contains(name)).collect();
            assert_eq!(untold, [""; 0]);
        }
    };
}

pub(crate) use lies;
