//! The ring under the model checker. A model that passes says nothing until it is seen to fail: each known-bad
//! variant of the algorithm must break the tests that exist because of it.

use std::path::Path;

use crate::step::{self, Output, Tally};
use crate::{cargo, target};

/// A wrong ordering that `crates/ring/src/ring.rs` or `wait/watch.rs` knows under this name, and a test that must notice.
struct KnownBad {
    name: &'static str,
    must_fail: &'static [&'static str],
}

const KNOWN_BAD: [KnownBad; 8] = [
    bad("relaxed_publish", &["stream_reuses_released_slots_only", "answers_return_the_slots_of_their_calls"]),
    bad(
        "no_sleep_fence",
        &[
            "sleeping_reader_is_woken_for_every_message",
            "sleeping_reader_is_woken_by_a_writer_whose_fence_is_on_a_slot",
            "sleeping_reader_is_woken_for_a_batch_with_one_look_at_its_flag",
            "held_back::sleeping_client_is_woken_at_the_latest_when_its_notification_is_due",
            "held_back::sleeping_daemon_is_woken_at_the_latest_when_its_client_waits",
            "two_sleeping_readers_are_woken_by_a_writer_with_one_fence",
            "caller_and_server_both_sleep_and_both_wake",
        ],
    ),
    bad(
        "flag_cleared_while_held",
        &[
            "held_back::sleeping_client_is_woken_at_the_latest_when_its_notification_is_due",
            "held_back::sleeping_daemon_is_woken_at_the_latest_when_its_client_waits",
        ],
    ),
    bad("release_before_copy", &["stream_reuses_released_slots_only", "stream_burst_is_seen_whole_and_in_order"]),
    bad("touch_after_release", &["touched_slots_are_reused_without_loss"]),
    bad("touch_after_answer", &["answers_return_the_touched_slots_of_their_calls"]),
    bad("monitor_armed_after_look", &["watched_line_wakes_for_every_message"]),
    bad(
        "look_before_hang_up",
        &[
            "what_was_published_before_a_hang_up_is_taken_after_it",
            "sleeping_client_wakes_when_the_channel_ends_and_loses_nothing",
        ],
    ),
];

const fn bad(name: &'static str, must_fail: &'static [&'static str]) -> KnownBad {
    KnownBad { name, must_fail }
}

/// Run the models, then each known-bad variant.
pub(crate) fn run(root: &Path, tally: &mut Tally) {
    tally.tests("tier 1 loom", || models(root, None));
    for bad in &KNOWN_BAD {
        tally.check(&format!("tier 1 loom known-bad {}", bad.name), || {
            let output = models(root, Some(bad));
            verdict(bad, &output)
        });
    }
}

fn models(root: &Path, bad: Option<&KnownBad>) -> Output {
    let mut command = cargo(root);
    command.args(["test", "--release", "--package", "fipsee-ring", "--test", "loom"]);
    // Flags of their own would otherwise rebuild everything at each turn.
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target(root).join("loom")).env("RUST_BACKTRACE", "0");
    match bad {
        // Only those: the others have been run without the mistake.
        Some(bad) => command.env("FIPSEE_KNOWN_BAD", bad.name).args(["--", "--exact"]).args(bad.must_fail),
        None => command.env_remove("FIPSEE_KNOWN_BAD"),
    };
    step::output(&mut command)
}

/// A known-bad variant passes this step when its tests ran, and the named ones failed.
fn verdict(bad: &KnownBad, output: &Output) -> Result<String, String> {
    if output.succeeded || !output.text.contains("test result: FAILED") {
        let what = if output.succeeded { "passed: the models do not notice this mistake" } else { "did not run to its end" };
        return Err(format!("the known-bad variant {} {what}\n{}", bad.name, output.text));
    }
    let failed = |test: &&&str| output.text.contains(&format!("test {test} ... FAILED"));
    match bad.must_fail.iter().find(|test| !failed(test)) {
        Some(test) => Err(format!("{test} does not notice the known-bad variant {}\n{}", bad.name, output.text)),
        None => Ok(format!("noticed by {} models", step::count_tests(&output.text).failed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: KnownBad = KnownBad { name: "example", must_fail: &["first", "second"] };

    fn judged(succeeded: bool, text: &str) -> Result<String, String> {
        verdict(&BAD, &Output { succeeded, text: text.to_owned() })
    }

    #[test]
    fn variant_that_every_named_test_notices_is_accepted() {
        let text = "test first ... FAILED\ntest second ... FAILED\ntest result: FAILED. 1 passed; 2 failed; 0 ignored";
        assert_eq!(judged(false, text), Ok("noticed by 2 models".to_owned()));
    }

    #[test]
    fn variant_that_passes_or_does_not_compile_or_is_noticed_by_chance_is_not_accepted() {
        assert!(judged(true, "test result: ok. 3 passed; 0 failed").is_err());
        assert!(judged(false, "error: could not compile `fipsee-ring`").is_err());
        assert!(judged(false, "test first ... FAILED\ntest second ... ok\ntest result: FAILED. 1 passed; 1 failed").is_err());
    }
}
