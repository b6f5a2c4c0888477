//! What we claim about messages, and whether this run bears it out.

use fipsee_measure::claim::Claim;

use crate::harness::BURST;
use crate::mechanisms::names::{BYTES, CHANNEL, CLASSIC, ICEORYX2, ICEORYX2_CALLS, ONE_LINE, POLLED_BYTES, PROTOTYPE, RING};
use crate::mechanisms::{Entry, Kind};
use crate::results::{Measure, Results, STREAM_SLOTS};

/// Every claim about messages. Ratios are medians of the rounds' ratios, times are medians of the rounds.
pub(crate) fn all(entries: &[Entry], results: &Results) -> Vec<Claim> {
    let mut claims = round_trips(entries, results);
    claims.extend(bursts(results));
    claims.extend(streams(entries, results));
    claims
}

fn round_trips(entries: &[Entry], results: &Results) -> Vec<Claim> {
    let ours = |of: &'static str| results.ratio(RING, of, Measure::RoundTrip);
    let theirs = |names: &[&'static str]| -> Vec<(String, Option<f64>)> {
        names.iter().map(|name| ((*name).to_owned(), results.ratio(name, RING, Measure::RoundTrip))).collect()
    };
    let over_memory: Vec<&'static str> = of_kinds(entries, &[Kind::Ring, Kind::Library]);
    vec![
        Claim::at_most(0.70, "round trip: ours over the classic ring's", ours(CLASSIC)),
        Claim::at_most(1.0, "round trip: ours over a bare flag's on one line", ours(ONE_LINE)),
        Claim::at_most(1.05, "round trip: ours over the prototype's", ours(PROTOTYPE)),
        Claim::at_most(
            1.05,
            "round trip: the product's channel over the bare ring",
            results.ratio(CHANNEL, RING, Measure::RoundTrip),
        ),
        Claim::all_at_least(1.8, "round trip: every peer over shared memory over ours", theirs(&over_memory)),
        Claim::all_at_least(7.0, "round trip: iceoryx2 over ours", theirs(&[ICEORYX2, ICEORYX2_CALLS])),
        Claim::all_at_least(30.0, "round trip: pipes and sockets over ours", theirs(&BYTES)),
        Claim::all_at_least(30.0, "round trip: the same, polled, over ours", theirs(&POLLED_BYTES)),
    ]
}

fn bursts(results: &Results) -> [Claim; 2] {
    [
        Claim::at_most(0.50, "bursts of 64: ours over the classic ring's", results.ratio(RING, CLASSIC, Measure::Burst)),
        Claim::at_most(
            1.05,
            "bursts of 64: the product's channel over the bare ring",
            results.ratio(CHANNEL, RING, Measure::Burst),
        ),
    ]
}

fn streams(entries: &[Entry], results: &Results) -> Vec<Claim> {
    let rings = of_kinds(entries, &[Kind::Ring]);
    let mut claims = Vec::new();
    for (batch, how) in [(BURST, "in batches"), (1, "message by message")] {
        for (slots, cycles) in STREAM_SLOTS.into_iter().zip([33.0, 25.0, 15.0]) {
            let measured = results.median(RING, Measure::Stream { batch, slots: Some(slots) }, |outcome| outcome.mean);
            claims.push(Claim::at_most(cycles, format!("one way {how}, {slots} slots: cycles per message"), measured));
        }
        let cells = rings.iter().flat_map(|name| STREAM_SLOTS.map(|slots| (name, slots)));
        let ratios = cells.map(|(name, slots)| {
            let measure = Measure::Stream { batch, slots: Some(slots) };
            (format!("{name}, {slots} slots"), results.ratio(name, RING, measure))
        });
        claims.push(Claim::all_at_least(4.0, &format!("one way {how}: every SPSC ring over ours"), ratios));
    }
    claims
}

fn of_kinds(entries: &[Entry], kinds: &[Kind]) -> Vec<&'static str> {
    entries.iter().filter(|entry| kinds.contains(&entry.kind)).map(|entry| entry.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Outcome;
    use crate::mechanisms;

    fn measured(rounds: &[(&'static str, Measure, f64)]) -> Vec<Claim> {
        let (entries, mut results) = (mechanisms::all(), Results::default());
        for (name, measure, ticks) in rounds {
            let entry = entries.iter().find(|entry| entry.name == *name).expect("a mechanism of that name");
            let outcome = Outcome { p50: *ticks, p99: *ticks, min: *ticks, mean: *ticks };
            results.add(entry, *measure, 0, Ok(outcome));
        }
        all(&entries, &results)
    }

    fn verdict(claims: &[Claim], text: &str) -> Option<bool> {
        claims.iter().find(|claim| claim.text.starts_with(text)).unwrap_or_else(|| panic!("no claim {text}")).holds()
    }

    #[test]
    fn nothing_measured_bears_nothing_out() {
        assert!(measured(&[]).iter().all(|claim| claim.holds().is_none()));
    }

    #[test]
    fn ratios_are_ours_over_a_baseline_and_a_peer_over_ours() {
        let claims = measured(&[
            (RING, Measure::RoundTrip, 400.0),
            (CLASSIC, Measure::RoundTrip, 700.0),
            (ONE_LINE, Measure::RoundTrip, 390.0),
            (ICEORYX2, Measure::RoundTrip, 4000.0),
        ]);
        assert_eq!(verdict(&claims, "round trip: ours over the classic"), Some(true));
        assert_eq!(verdict(&claims, "round trip: ours over a bare flag"), Some(false));
        assert_eq!(verdict(&claims, "round trip: iceoryx2"), None, "one of its two rows is missing");
    }

    #[test]
    fn peer_nearest_to_us_decides() {
        let mut rounds = vec![(RING, Measure::RoundTrip, 100.0)];
        rounds.extend(BYTES.map(|name| (name, Measure::RoundTrip, 3100.0)));
        rounds.push((BYTES[1], Measure::RoundTrip, 2900.0));
        let claims = measured(&rounds);
        assert_eq!(verdict(&claims, "round trip: pipes and sockets over ours (least: Unix stream)"), Some(false));
    }
}
