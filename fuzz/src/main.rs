//! libFuzzer's loop around one parser, which an environment variable names; everything else is in `tests/fuzz`.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use fipsee_fuzz::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FIPSEE_FUZZ_TARGET").unwrap_or_default();
    let names = || fipsee_fuzz::TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    fipsee_fuzz::target(&name).unwrap_or_else(|| panic!("FIPSEE_FUZZ_TARGET={name}: no such parser; there are: {}", names()))
});

/// Well-formed inputs to begin with, beside those that are kept.
fn write_seeds() {
    let Some(folder) = std::env::var_os("FIPSEE_FUZZ_SEEDS") else { return };
    for (index, seed) in (TARGET.seeds)().iter().enumerate() {
        std::fs::write(Path::new(&folder).join(format!("seed-{index:04}")), seed).expect("the folder is there");
    }
}

fuzz_target!(init: write_seeds(), |bytes: &[u8]| fipsee_fuzz::one(&TARGET, bytes));
