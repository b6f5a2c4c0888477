//! What a server of calls advises its clients, unless its program says otherwise: what `fipsee topology` measured.

use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::Command;

use fipsee_call::ServerOptions;
use fipsee_ring::tuning::{Choices, Ownership, Touch, Tuning};
use fipsee_topology::cache::{self, Kept};
use fipsee_topology::choose::{Basis, ByDistance, Chosen, pairs};
use fipsee_topology::machine::{Distance, Machine};
use fipsee_topology::matrix::{Cost, Matrix};

/// The word of choices that the process started by the test should find.
const EXPECTED: &str = "FIPSEE_TEST_EXPECTED_CHOICES";

/// Choices that no family has.
fn odd() -> Choices {
    let odd = Choices::NONE.with_ownership(Ownership::LockedAhead).with_touch(Touch::Runs).with_burst_prefetch(true);
    odd.as_measured()
}

/// A measurement of this machine that chose them between any two cores; `None` where there is one core.
fn measurement(machine: &Machine) -> Option<Kept> {
    let classes: Vec<_> = pairs(machine, None).into_iter().filter(|(distance, _)| *distance != Distance::SameCore).collect();
    let chosen =
        Chosen { choices: odd(), basis: Basis::Measured, floor_ticks: [200.0; 2], milliseconds: 5.0, trials: Vec::new() };
    let (_, (a, b)) = *classes.first()?;
    let cost = Cost { median_ticks: 200.0, least_ticks: 190.0 };
    let choices: ByDistance = classes.iter().map(|(distance, _)| (*distance, chosen.clone())).collect();
    Some(Kept { matrix: Matrix::new(2_000_000_000, None, [((a, b), cost), ((b, a), cost)]), choices })
}

/// Run [`the_default_is_what_is_expected`] in a process that finds its measurement in `folder`.
fn run_with(folder: &Path, expected: Choices) -> std::process::Output {
    let this = std::env::current_exe().expect("this program");
    let test = ["--exact", "the_default_is_what_is_expected", "--nocapture"];
    let mut command = if rustix::process::geteuid().is_root() {
        // Root's measurement has a fixed place: it is replaced for this process alone.
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs none /run && mkdir /run/fipsee && (cp \"$0\"/fipsee/topology.json /run/fipsee || true) && exec \"$@\"";
        command.args(["--mount", "sh", "-c", script]).arg(folder).arg(this);
        command
    } else {
        Command::new(this)
    };
    command.args(test).env("XDG_CACHE_HOME", folder).env(EXPECTED, expected.word().to_string());
    command.output().expect("a process")
}

#[test]
fn the_default_is_what_is_expected() {
    if let Ok(expected) = std::env::var(EXPECTED) {
        assert_eq!(ServerOptions::default().choices.word().to_string(), expected);
    }
}

#[test]
fn servers_use_what_was_measured_and_without_it_what_the_family_has() {
    let skip = |why: &str| writeln!(std::io::stderr(), "fipsee-skip: measured choices of calls: {why}").expect("standard error");
    let machine = Machine::this();
    let Some(kept) = measurement(&machine) else { return skip("needs two cores; run it on a machine that has them") };
    let folder = std::env::temp_dir().join(format!("fipsee-call-choices-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&folder).expect("a folder");
    let is_root = rustix::process::geteuid().is_root();
    if is_root && !Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success()) {
        return skip("root needs unshare --mount; run it outside a container, or as another user");
    }
    let run = |expected| {
        let output = run_with(&folder, expected);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    };
    if is_root {
        run(Tuning::default().to_choices()); // Another user's tests may find a measurement of root's.
    }
    cache::write(&folder.join("fipsee/topology.json"), &machine, &kept).expect("a file");
    run(odd());
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
}
