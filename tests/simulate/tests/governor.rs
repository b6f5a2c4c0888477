//! The number of workers follows the clients, and no move of a queue that follows from that loses, doubles or reorders anything.

use fipsee_simulate::follow;
use fipsee_simulate::variant::Variant;

#[test]
fn workers_follow_from_1_to_16_clients_and_back() {
    let summary = follow(0, None).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(summary.moves.moves > 10 && summary.requests > 10_000, "{summary:?}");
}

#[test]
fn moves_that_lose_something_are_found() {
    for variant in [Variant::MoveLosesQueue, Variant::MoveRestoresStaleIndex, Variant::MoveKeepsEngine] {
        assert!(follow(0, Some(variant)).is_err(), "{variant:?} was not found");
    }
}
