//! Every message of the block protocol, built by one language and taken apart by the other.

use fipsee_interop::ffi;
use fipsee_interop::messages::{Case, every_kind};
use fipsee_interop::random::Random;

const ROUNDS: u64 = 200;

fn cases(seed: u64) -> Vec<Case> {
    let mut random = Random::new(seed);
    (0..ROUNDS).flat_map(|_| every_kind(&mut random)).collect()
}

#[test]
fn c_finds_in_every_message_of_rust_the_fields_it_was_made_of() {
    for case in cases(1) {
        assert_eq!(ffi::describe(case.kind, &case.message), case.fields, "{case:?}");
    }
}

#[test]
fn c_builds_every_message_exactly_as_rust_does() {
    for case in cases(2) {
        assert_eq!(ffi::build(case.kind, &case.fields), case.message, "{case:?}");
    }
}
