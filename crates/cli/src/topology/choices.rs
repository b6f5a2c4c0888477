//! The choices of the ring's hot path, by class of pairs.

use fipsee_topology::choose::{self, BY_FAMILY, Basis, ByDistance, Chosen};
use fipsee_topology::machine::{Distance, Machine};
use serde_json::{Value, json};

use crate::output::Table;

const HEADS: [&str; 7] = ["BETWEEN", "OWNERSHIP", "STORES", "TOUCH", "BURST PREFETCH", "TAKE", "WHY"];

/// Each class of pairs of the machine, with its choices, if any.
fn classes<'a>(machine: &Machine, chosen: Option<&'a ByDistance>) -> Vec<(Distance, Option<&'a Chosen>)> {
    let of = |distance: &Distance| chosen.and_then(|chosen| chosen.get(distance));
    choose::pairs(machine, None).into_keys().map(|distance| (distance, of(&distance))).collect()
}

/// The text for people; empty for another machine, or with one CPU.
pub(super) fn render(machine: &Machine, chosen: Option<&ByDistance>) -> String {
    let classes = classes(machine, chosen);
    if classes.is_empty() {
        return String::new();
    }
    let mut table = Table::new(HEADS.len(), &HEADS);
    for (distance, chosen) in classes {
        let choices = chosen.map_or_else(choose::of_family, |chosen| chosen.choices);
        let why = chosen.map_or_else(|| BY_FAMILY.to_owned(), choose::reason);
        let fields = choose::field(choices).map(|(_, value)| value.to_owned());
        table.push(std::iter::once(distance.text().to_owned()).chain(fields).chain([why]).collect());
    }
    format!("\nChoices of rings:\n{}", table.render())
}

pub(super) fn to_json(machine: &Machine, chosen: Option<&ByDistance>) -> Value {
    let class = |(distance, chosen): (Distance, Option<&Chosen>)| {
        let choices = chosen.map_or_else(choose::of_family, |chosen| chosen.choices);
        let fields = choose::field(choices);
        let fields = fields.into_iter().map(|(name, value)| (name.replace(' ', "_"), Value::from(value)));
        let mut object: serde_json::Map<String, Value> = fields.collect();
        let trial = |trial: &choose::Trial| json!({ "tried": choose::summary(trial.tried), "ratio": trial.ratio, "is_taken": trial.taken });
        let more = json!({
            "between": distance.key(),
            "word": choices.word(),
            "is_measured": chosen.is_some_and(|chosen| chosen.basis == Basis::Measured),
            "why": chosen.map_or_else(|| BY_FAMILY.to_owned(), choose::reason),
            "floor_ticks": chosen.map(|chosen| chosen.floor_ticks),
            "milliseconds": chosen.map(|chosen| chosen.milliseconds),
            "trials": chosen.map(|chosen| chosen.trials.iter().map(trial).collect::<Vec<_>>()),
        });
        if let Value::Object(more) = more {
            object.extend(more);
        }
        Value::Object(object)
    };
    classes(machine, chosen).into_iter().map(class).collect()
}
