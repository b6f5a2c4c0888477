//! Choices in words, and put together.

use fipsee_ring::cpu::StoreVariant;
use fipsee_ring::tuning::{Choices, Ownership, Touch};

use super::{Basis, Chosen, Trial};

pub fn over(base: Choices, advice: Choices) -> Choices {
    let base = advice.ownership().map_or(base, |ownership| base.with_ownership(ownership));
    let base = advice.touch().map_or(base, |touch| base.with_touch(touch));
    let base = advice.store().map_or(base, |store| base.with_store(store));
    let base = advice.burst_prefetch().map_or(base, |prefetch| base.with_burst_prefetch(prefetch));
    advice.take().map_or(base, |take| base.with_take(take))
}

/// The names of the fields and what `choices` has there, for people: "-" where it advises nothing.
pub fn field(choices: Choices) -> [(&'static str, &'static str); 5] {
    let ownership = choices.ownership().map(|ownership| match ownership {
        Ownership::PrefetchNext => "prefetch next",
        Ownership::LockedAhead => "locked ahead",
        Ownership::NotAsked => "not asked",
    });
    let stores = choices.store().map(|store| match store {
        StoreVariant::Wide64 => "64",
        StoreVariant::Split32 => "32+16+16",
        StoreVariant::Wide16 => "4x16",
        StoreVariant::Portable => "words",
    });
    let touch = choices.touch().map(|touch| match touch {
        Touch::Never => "never",
        Touch::Runs => "runs",
        Touch::Always => "always",
    });
    let prefetch = choices.burst_prefetch().map(|prefetch| if prefetch { "on" } else { "off" });
    let take = choices.take().map(|take| if take == 1 { "1" } else { "16" });
    [("ownership", ownership), ("stores", stores), ("touch", touch), ("burst prefetch", prefetch), ("take", take)]
        .map(|(name, value)| (name, value.unwrap_or("-")))
}

/// All fields in a line, those left out that advise nothing.
pub fn summary(choices: Choices) -> String {
    let known = field(choices).into_iter().filter(|(_, value)| *value != "-");
    let words: Vec<String> = known.map(|(name, value)| format!("{name} {value}")).collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

pub fn reason(chosen: &Chosen) -> String {
    if chosen.basis == Basis::OneCore {
        let kept = if chosen.choices.is_measured() { "measured before" } else { BY_FAMILY };
        return format!("{kept}; both were on one core when it was to be measured, where nothing differs");
    }
    let (taken, left): (Vec<&Trial>, Vec<&Trial>) = chosen.trials.iter().partition(|trial| trial.taken);
    let taken: Vec<String> = taken.iter().map(|trial| format!("{} {:.2}", summary(trial.tried), trial.ratio)).collect();
    let closest = left.iter().map(|trial| trial.ratio).min_by(f64::total_cmp);
    match (taken.as_slice(), closest) {
        ([], None) => "measured; there was nothing to choose".to_owned(),
        ([], Some(closest)) => format!("measured: those of the CPU's family; others take {closest:.2} of their time and more"),
        (taken, _) => format!("measured, in times of what was before: {}", taken.join(", ")),
    }
}

/// The reason of choices that were not measured.
pub const BY_FAMILY: &str = "by the CPU's family";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_replaces_the_fields_that_it_has_and_no_others() {
        let base = Choices::NONE.with_ownership(Ownership::NotAsked).with_touch(Touch::Runs).with_take(1);
        assert_eq!(over(base, Choices::NONE), base);
        let advice = Choices::NONE.with_touch(Touch::Always).with_burst_prefetch(false).with_store(StoreVariant::Split32);
        let both = over(base, advice);
        assert_eq!(summary(both), "ownership not asked, stores 32+16+16, touch always, burst prefetch off, take 1");
        assert_eq!(summary(Choices::NONE), "nothing");
        assert_eq!(summary(Choices::from_word(0xffff_ffff)), "nothing", "values of a later version");
    }

    #[test]
    fn the_reason_names_what_was_taken_with_its_ratio_or_why_nothing_was() {
        let trial = |tried, ratio, taken| Trial { tried, ratio, taken };
        let (once, locked) = (Choices::NONE.with_take(1), Choices::NONE.with_ownership(Ownership::LockedAhead));
        let mut chosen = Chosen {
            choices: once,
            basis: Basis::Measured,
            floor_ticks: [140.0; 2],
            milliseconds: 4.0,
            trials: vec![trial(locked, 1.08, false), trial(once, 0.91, true)],
        };
        assert_eq!(reason(&chosen), "measured, in times of what was before: take 1 0.91");
        chosen.trials.pop();
        assert_eq!(reason(&chosen), "measured: those of the CPU's family; others take 1.08 of their time and more");
        chosen.basis = Basis::OneCore;
        assert!(reason(&chosen).starts_with("by the CPU's family; both were on one core"));
        chosen.choices = once.as_measured();
        assert!(reason(&chosen).starts_with("measured before; both were on one core"));
    }
}
