//! The choices of rings on this machine, and their source.

use fipsee_ring::cpu;
use fipsee_topology::cache;
use fipsee_topology::choose::{self, BY_FAMILY};
use fipsee_topology::machine::Machine;
use fipsee_topology::plan::Plan;

use super::{Finding, State};

/// Between a worker and its client on the recommended CPUs, as for a daemon that starts now.
pub(super) fn look() -> Finding {
    let machine = Machine::this();
    let kept = cache::load(&machine).ok().map(|(_, kept)| kept);
    let plan = Plan::new(&machine, kept.as_ref().map(|kept| &kept.matrix), 1);
    let (cpu, clients) = plan.pollers.first().map_or((None, &[][..]), |poller| (Some(poller.cpu), &poller.clients));
    let found = kept.as_ref().and_then(|kept| choose::for_clients(&machine, cpu, clients, &kept.choices));
    let choices = choose::summary(found.map_or_else(choose::of_family, |found| found.choices));
    let why = found.map_or_else(|| BY_FAMILY.to_owned(), choose::reason);
    let features = cpu::features();
    let is_known = choose::is_family_known(&features.vendor, features.family, features.model);
    judge(&format!("{choices} ({why})"), found.is_some() || is_known)
}

/// `is_sound`: measured, or of a family that has been measured.
fn judge(found: &str, is_sound: bool) -> Finding {
    let advice = "no CPU of this family has been measured: run fipsee topology, as root for all users, and restart the daemon";
    Finding::when("Processor", "choices of rings", is_sound, State::Warn, found, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unmeasured_family_is_a_warning_until_it_is_measured() {
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
