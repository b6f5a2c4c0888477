//! `cargo xtask bench scale`: many clients. The tables of the report on the split driver model, with its server beside ours; what
//! greedy users cost the others; workers; notifications; a dedicated disk; rates.

mod automatic;
mod costs;
pub(crate) mod crowd;
mod dedicated;
mod fairness;
mod figures;
mod governed;
mod harness;
mod model;
mod notified;
mod ours;
mod picture;
mod rates;
mod shared_cpu;
mod split_driver;
mod tables;
mod workers;

use self::automatic::Automatic;
use self::dedicated::Dedicated;
use self::fairness::Fairness;
use self::governed::Governed;
use self::notified::Notified;
use self::rates::Rates;
use self::tables::Tables;
use self::workers::Workers;
use crate::Settings;
use crate::parts::{self, Kind};

const KINDS: [Kind; 8] = [
    Kind { name: "tables", is_chosen: Tables::are_chosen, start: |settings| Ok(Box::new(Tables::start(settings)?)) },
    Kind { name: "fairness", is_chosen: Fairness::is_chosen, start: |settings| Ok(Box::new(Fairness::start(settings)?)) },
    Kind { name: "workers", is_chosen: Workers::are_chosen, start: |_| Ok(Box::new(Workers::default())) },
    Kind { name: "governor", is_chosen: Governed::is_chosen, start: |_| Ok(Box::new(Governed)) },
    Kind { name: "max-rate", is_chosen: Notified::is_chosen, start: |_| Ok(Box::new(Notified)) },
    Kind { name: "auto", is_chosen: Automatic::is_chosen, start: |settings| Ok(Box::new(Automatic::new(settings))) },
    Kind { name: "dedicated", is_chosen: Dedicated::is_chosen, start: |_| Ok(Box::new(Dedicated::new())) },
    Kind { name: "limits", is_chosen: Rates::are_chosen, start: |_| Ok(Box::new(Rates)) },
];

pub(crate) fn run(settings: &Settings) -> Result<(), String> {
    parts::run("scale", &KINDS, settings, tables::undecided)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::of_part;
    use crate::parts::tests::settings;

    #[test]
    fn parts_are_chosen_by_name_and_candidates_within_every_part() {
        let chosen = |only: &[&str]| {
            let settings = settings(only);
            let of_kind =
                |kind: &&Kind| of_part(&KINDS, &settings, kind.name).is_some_and(|settings| (kind.is_chosen)(&settings));
            KINDS.iter().filter(of_kind).map(|kind| kind.name).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[]).len(), KINDS.len());
        for kind in &KINDS {
            assert_eq!(chosen(&[kind.name]), [kind.name]);
            assert!(of_part(&KINDS, &settings(&[kind.name]), kind.name).is_some_and(|settings| settings.only.is_empty()));
        }
        assert_eq!(chosen(&["limits", "fipseed, one queue"]), ["tables", "limits"]);
        assert_eq!(chosen(&["no such candidate"]), [""; 0]);
    }
}
