//! The models in docs/models under spin. As with loom, one that passes says nothing until it is seen to fail: each way to break
//! it must.

use std::path::Path;
use std::process::Command;

use crate::files::empty_folder;
use crate::setup::is_installed;
use crate::step::{self, Tally};
use crate::target;

/// Depth of the search. The models' deepest paths are some hundred steps long; spin says so when it is not enough.
const SEARCH_DEPTH: &str = "-m100000";

/// A model with some macros set.
struct Variant {
    macros: &'static [&'static str],
    /// What spin says of it; nothing: that there is no error.
    must_fail_with: Option<&'static str>,
}

const MODEL: &str = "docs/models/attachment.pml";
const VARIANTS: [Variant; 7] = [
    Variant { macros: &[], must_fail_with: None },
    Variant { macros: &["CLIENT_DIES"], must_fail_with: None },
    Variant { macros: &["RESUBMIT_WITHOUT_CLEARING"], must_fail_with: Some("assertion violated") },
    Variant { macros: &["FORGET_TO_RESUBMIT"], must_fail_with: Some("invalid end state") },
    Variant { macros: &["UNMAP_BEFORE_DRAIN", "CLIENT_DIES"], must_fail_with: Some("assertion violated (in_flight==0)") },
    Variant { macros: &["DETACH_WITHOUT_DRAIN"], must_fail_with: Some("assertion violated (in_flight==0)") },
    Variant { macros: &["REAP_AFTER_RESUBMIT"], must_fail_with: Some("assertion violated") },
];

/// Check the model, and each way to break it.
pub(crate) fn run(root: &Path, tally: &mut Tally) {
    if let Some(missing) = ["spin", "gcc"].into_iter().find(|program| !is_installed(program)) {
        return tally.skip("tier 1 models", &format!("{missing} is not installed; run `cargo xtask setup` as root"));
    }
    for variant in &VARIANTS {
        let name = if variant.macros.is_empty() { "as it is".to_owned() } else { variant.macros.join(" ") };
        tally.check(&format!("tier 1 model attachment, {name}"), || check(root, variant));
    }
}

fn check(root: &Path, variant: &Variant) -> Result<String, String> {
    // Assertions and states without a way out; then that every request ends, which needs another search.
    let safety = search(root, variant, &["-DSAFETY", "-DNOCLAIM"], &[])?;
    let states = verdict(variant, &safety)?;
    if variant.must_fail_with.is_none() {
        // Each process is given its turn (-f), or a process could wait for ever.
        let liveness = search(root, variant, &["-DNFAIR=3"], &["-a", "-f", "-N", "ends"])?;
        verdict(variant, &liveness)?;
    }
    Ok(states)
}

/// Have spin write the checker, compile it, run it; what it says.
fn search(root: &Path, variant: &Variant, defines: &[&str], options: &[&str]) -> Result<String, String> {
    let folder = target(root).join("models");
    empty_folder(&folder)?;
    let mut spin = Command::new("spin");
    spin.current_dir(&folder).args(variant.macros.iter().map(|name| format!("-D{name}")));
    step::succeed(spin.arg("-a").arg(root.join(MODEL)))?;
    let mut compiler = Command::new("gcc");
    step::succeed(compiler.current_dir(&folder).args(["-O1", "-w", "-o", "pan", "pan.c"]).args(defines))?;
    let mut checker = Command::new(folder.join("pan"));
    Ok(step::output(checker.current_dir(&folder).arg(SEARCH_DEPTH).args(options)).text)
}

/// Does spin say what it must?
fn verdict(variant: &Variant, text: &str) -> Result<String, String> {
    let is_complete = text.contains("errors: 0") && !text.contains("max search depth too small");
    match variant.must_fail_with {
        None if is_complete => Ok(format!("{} states", states(text))),
        None => Err(text.to_owned()),
        Some(expected) if text.contains(expected) && text.contains("errors: 1") => Ok("fails, as it must".to_owned()),
        Some(expected) => Err(format!("spin does not notice that the model is broken; '{expected}' was to be said\n{text}")),
    }
}

fn states(text: &str) -> &str {
    let line = text.lines().find_map(|line| line.split_once(" states, stored"));
    line.map_or("no", |(count, _)| count.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_model_that_passes_is_a_failure_and_so_is_a_search_that_was_cut_short() {
        let (sound, broken) = (&VARIANTS[0], &VARIANTS[2]);
        let passed = "State-vector 9 byte, depth reached 7, errors: 0\n      17 states, stored\n";
        let failed = "pan:1: assertion violated (x) (at depth 3)\nState-vector 9 byte, depth reached 7, errors: 1\n";
        assert_eq!(verdict(sound, passed), Ok("17 states".to_owned()));
        assert!(verdict(sound, failed).is_err() && verdict(broken, passed).is_err() && verdict(broken, failed).is_ok());
        assert!(verdict(sound, &format!("error: max search depth too small\n{passed}")).is_err());
    }
}
