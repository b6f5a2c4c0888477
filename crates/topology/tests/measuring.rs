//! A real measurement of this machine: that it completes and is plausible, not how fast the machine is.

use std::io::Write;

use fipsee_topology::machine::Machine;
use fipsee_topology::measure;

#[test]
fn lines_take_a_positive_time_each_way_between_any_two_cpus_and_more_than_staying() {
    let machine = Machine::this();
    if machine.usable.len() < 2 {
        let line = "fipsee-skip: moving lines between CPUs: there is one CPU to be used here\n";
        std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
        return;
    }
    let course = measure::course(&machine, false).expect("two CPUs can be bound to");
    let measured = measure::run(&course).expect("measured");
    let own = measured.matrix.own_ticks.expect("a line that stays takes time");
    assert!(own > 0.0 && own.is_finite());
    assert_eq!(measured.matrix.costs().count(), 2 * course.pairs.len());
    for (a, b) in &course.pairs {
        for (from, to) in [(a, b), (b, a)] {
            let cost = measured.matrix.get(*from, *to).expect("both directions");
            assert!(cost.median_ticks.is_finite() && cost.least_ticks > 0.0, "{from} to {to}: {cost:?}");
            assert!(cost.least_ticks <= cost.median_ticks, "{from} to {to}: {cost:?}");
        }
    }
}

#[test]
fn one_cpu_has_nothing_to_measure() {
    let mut machine = Machine::this();
    machine.usable.truncate(1);
    let course = measure::course(&machine, true).expect("nothing can fail");
    assert!(course.pairs.is_empty());
    assert_eq!(measure::run(&course).expect("nothing can fail").matrix.costs().count(), 0);
}
