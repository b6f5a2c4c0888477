//! What a server of calls advises its clients, unless its program says otherwise: what `fipsee topology` measured.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use fipsee_call::ServerOptions;
use fipsee_ring::tuning::{Choices, Ownership, Touch, Tuning};
use fipsee_testkit::{Scratch, child, is_root, skip};
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

/// Run [`default_is_what_is_expected`] in a process that finds its measurement in `folder`.
fn run_with(folder: &Path, expected: Choices) -> std::process::Output {
    // Root's measurement has a fixed place: it is replaced for this process alone.
    let script =
        "mount -t tmpfs none /run && mkdir /run/fipsee && (cp \"$0\"/fipsee/topology.json /run/fipsee || true) && exec \"$@\"";
    let unshare = ["unshare", "--mount", "sh", "-c", script, folder.to_str().expect("an ordinary path")];
    let prefix = if is_root() { &unshare[..] } else { &[] };
    let mut command = child::command_through(prefix, "default_is_what_is_expected");
    command.env("XDG_CACHE_HOME", folder).env(EXPECTED, expected.word().to_string()).stderr(Stdio::piped());
    command.output().expect("a process")
}

/// As a process of its own.
pub(crate) fn default_is_what_is_expected() {
    let expected = std::env::var(EXPECTED).expect("the parent expects something");
    assert_eq!(ServerOptions::default().choices.word().to_string(), expected);
}

#[test]
fn servers_use_what_was_measured_and_without_it_what_the_family_has() {
    let skip = |why: &str| skip("measured choices of calls", why);
    let machine = Machine::this();
    let Some(kept) = measurement(&machine) else { return skip("needs two cores; run it on a machine that has them") };
    let scratch = Scratch::new();
    let folder = scratch.path("own");
    std::fs::DirBuilder::new().mode(0o700).create(&folder).expect("a folder");
    let is_root = is_root();
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
}
