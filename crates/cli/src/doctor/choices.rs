//! How rings go about their work here, and why.

use fipsee_ring::cpu;
use fipsee_topology::cache;
use fipsee_topology::choose::{self, BY_FAMILY};
use fipsee_topology::machine::Machine;
use fipsee_topology::plan::Plan;

use super::{Finding, State};

/// Between a worker and its client where they are recommended to run: as a daemon that starts now would have it.
pub(super) fn look() -> Finding {
    let machine = Machine::this();
    let kept = cache::load(&machine).ok().map(|(_, kept)| kept);
    let plan = Plan::new(&machine, kept.as_ref().map(|kept| &kept.matrix), 1);
    let (cpu, clients) = plan.pollers.first().map_or((None, &[][..]), |poller| (Some(poller.cpu), &poller.clients));
    let found = kept.as_ref().and_then(|kept| choose::for_clients(&machine, cpu, clients, &kept.choices));
    let choices = choose::summary(found.map_or_else(choose::of_family, |found| found.choices));
    let why = found.map_or_else(|| BY_FAMILY.to_owned(), choose::reason);
    let facts = cpu::features();
    let is_known = choose::is_family_known(&facts.vendor, facts.family, facts.model);
    judge(&format!("{choices} ({why})"), found.is_some() || is_known)
}

/// `is_sound`: measured, or of a family that somebody has measured.
fn judge(found: &str, is_sound: bool) -> Finding {
    let advice =
        "nobody has measured a CPU of this family: run fipsee topology, as root for everybody, and start the daemon anew";
    Finding::when("Processor", "choices of rings", is_sound, State::Warn, found, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_nobody_has_measured_is_a_warning_until_it_is_measured() {
        assert_eq!(judge("take 1 (measured)", true).state, State::Ok);
        let guess = judge("take 16 (by the CPU's family)", false);
        assert_eq!(guess.state, State::Warn);
        assert!(guess.line().contains("run fipsee topology"), "{}", guess.line());
    }

    #[test]
    fn this_machine_has_choices_and_a_reason() {
        let line = look().line();
        assert!(line.contains("ownership") && (line.contains("measured") || line.contains("family")), "{line}");
    }
}
