//! A fault injected into a daemon while a correct client is served: what each of them must find afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fipsee_testkit::faulty::fault::{InjectedFault, Until, Way};
use fipsee_testkit::{CorrectClient, Daemon, eventually};

/// Lines in the log that a fault may cost.
pub(crate) enum Lines {
    /// Its client's coming and going, and nothing else.
    One,
    /// Those that about all clients together are allowed in a second.
    AllAllowed,
}

/// Lines of the daemon about itself and the correct clients of a test.
const OWN_LINES: usize = 16;

/// Set when dropped, so that a faulty peer ends when a check of ours fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The daemon's log after `fault` was injected.
pub(crate) fn inject(fault: &InjectedFault, lines: &Lines) -> String {
    let daemon = Daemon::start(&["--disk", "v=memory:16M", "--disk", "l=memory:16M", "--vhost-user", "l={dir}/v-l"]);
    let socket = match fault.way {
        Way::Local => daemon.socket(),
        Way::Guest => daemon.dir.path("v-l"),
    };
    let mut correct_client = CorrectClient::new(&daemon, "v");
    let descriptors = daemon.fd_count();
    let started = Instant::now();
    let (stop, injected) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let faulty = scope.spawn(|| {
            let _injected = StopAtEnd(&injected);
            let mut until = Until::times(fault.times, &stop);
            fault.inject(&socket, "l", &mut until).map(|()| until.injected())
        });
        let mut checks = 0_u64;
        while !injected.load(Ordering::Relaxed) {
            correct_client.check();
            checks += 1;
        }
        let count = faulty.join().expect("no panic").unwrap_or_else(|error| panic!("{}: {error}", fault.name));
        assert_eq!(count, fault.times, "{}: not injected to the end", fault.name);
        assert!(checks > 0, "{}: the correct client had no turn", fault.name);
    });
    correct_client.check();
    eventually("the faulty peer is forgotten", || daemon.attached_count("l") == 0);
    eventually("its descriptors are closed", || daemon.fd_count() == descriptors);
    let most = match lines {
        Lines::One => OWN_LINES,
        Lines::AllAllowed => OWN_LINES + 51 * usize::try_from(started.elapsed().as_secs() + 2).expect("minutes"),
    };
    let log = daemon.log();
    assert!(log.lines().count() <= most, "{}: {} lines in the log, {most} are allowed", fault.name, log.lines().count());
    assert!(!log.contains("ERROR") && !log.contains("panicked"), "{}: {log}", fault.name);
    // The next client finds the disk as usable as before.
    drop(CorrectClient::new(&daemon, "l"));
    log
}

/// A test for each fault of a list, and one that finds what is missing.
macro_rules! faults {
    ($faults:expr, $($test:ident: $name:literal $lines:ident $(says $line:literal $times:expr)?,)+) => {
        fn named(name: &str) -> &'static fipsee_testkit::faulty::fault::InjectedFault {
            $faults.iter().find(|fault| fault.name == name).unwrap_or_else(|| panic!("no fault '{name}'"))
        }

        $(#[test]
        fn $test() {
            let _log = injecting::inject(named($name), &injecting::Lines::$lines);
            $(assert!($times.contains(&_log.matches($line).count()), "{}", _log);)?
        })+

        #[test]
        fn every_fault_is_injected() {
            let injected = [$($name),+];
            let not_injected: Vec<&str> = $faults.iter().map(|fault| fault.name).filter(|name| !injected.contains(name)).collect();
            assert_eq!(not_injected, [""; 0]);
        }
    };
}

pub(crate) use faults;
