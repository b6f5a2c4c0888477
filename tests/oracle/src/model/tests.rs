use super::*;

fn write(sector: u64, count: u64, value: Value) -> Change {
    Change { kind: Kind::Write, sector, count, value }
}

fn zero(kind: Kind, sector: u64, count: u64) -> Change {
    Change { kind, sector, count, value: 0 }
}

const ZERO: Kind = Kind::Zero { unmap: true, fua: false };

/// A read of one sector that finds `value`.
fn read(model: &mut Model, token: Token, sector: u64, value: Value) -> Result<(), String> {
    model.begin_read(token, sector, 1);
    model.end_read(token, [Found::Value(value)].into_iter(), NO_MIX)
}

/// May the sector hold each of these, and nothing else of 0 to 9?
#[track_caller]
fn allows(model: &Model, sector: u64, values: &[Value]) {
    let allowed: Vec<Value> = (0..10).filter(|value| read(&mut model.clone(), 1000, sector, *value).is_ok()).collect();
    assert_eq!(allowed, values, "sector {sector}");
}

const NO_MIX: fn(u64, &[Value]) -> bool = |_, _| false;

#[test]
fn last_of_writes_one_after_the_other_counts() {
    let mut model = Model::new(4);
    allows(&model, 0, &[0]);
    for (token, value) in [(1, 1), (2, 2)] {
        model.begin(token, write(0, 2, value));
        model.end(token).expect("it began");
    }
    allows(&model, 1, &[2]);
    allows(&model, 2, &[0]);
    assert!(model.end(2).is_none(), "it ended");
}

#[test]
fn write_in_flight_may_be_there_or_not() {
    let mut model = Model::new(4);
    model.begin(1, write(0, 1, 1));
    allows(&model, 0, &[0, 1]);
    model.end(1);
    allows(&model, 0, &[1]);
}

#[test]
fn either_of_two_that_overlapped_may_win_until_it_is_read_alone() {
    let mut model = Model::new(4);
    model.begin(1, write(0, 3, 1));
    model.begin(2, write(1, 2, 2));
    model.end(1);
    model.begin(3, write(2, 1, 3));
    model.end(2);
    model.end(3);
    allows(&model, 0, &[1]);
    allows(&model, 1, &[1, 2]);
    // 3 began when 1 had ended.
    allows(&model, 2, &[2, 3]);
    read(&mut model, 10, 1, 2).expect("one of the two");
    allows(&model, 1, &[2]);
    model.begin(11, write(2, 1, 4));
    read(&mut model, 12, 2, 2).expect("still there");
    model.end(11);
    allows(&model, 2, &[4]);
}

#[test]
fn what_began_after_another_ended_wins_even_if_a_third_was_in_flight_all_the_time() {
    let mut model = Model::new(4);
    model.begin(1, write(0, 1, 1));
    model.begin(2, write(0, 1, 2));
    model.end(2);
    model.begin(3, write(0, 1, 3));
    model.end(3);
    allows(&model, 0, &[1, 3]);
    model.end(1);
    allows(&model, 0, &[1, 3]);
}

#[test]
fn discard_leaves_zeroes_or_what_was_there_and_zeroing_leaves_zeroes() {
    let mut model = Model::new(4);
    model.begin(1, write(0, 4, 1));
    model.end(1);
    model.begin(2, zero(Kind::Discard, 0, 2));
    model.end(2);
    allows(&model, 0, &[0, 1]);
    model.begin(3, zero(Kind::Discard, 0, 2));
    allows(&model, 0, &[0, 1]);
    model.end(3);
    allows(&model, 0, &[0, 1]);
    model.begin(4, zero(ZERO, 1, 2));
    model.end(4);
    allows(&model, 1, &[0]);
    allows(&model, 2, &[0]);
    model.begin(5, write(0, 1, 2));
    model.end(5);
    allows(&model, 0, &[2]);
}

#[test]
fn read_may_find_all_that_was_there_while_it_was_in_flight() {
    let mut model = Model::new(4);
    model.begin_read(1, 0, 2);
    for (token, value) in [(2, 2), (3, 3)] {
        model.begin(token, write(0, 1, value));
        model.end(token);
    }
    let end = |values: [Value; 2]| model.clone().end_read(1, values.into_iter().map(Found::Value), NO_MIX);
    for value in [0, 2, 3] {
        end([value, 0]).expect("it was there");
    }
    assert!(end([4, 0]).is_err() && end([3, 3]).is_err());
    end([0, 0]).expect("it was there");
    allows(&model, 0, &[3]);
}

#[test]
fn two_reads_at_the_same_time_find_the_same_where_nothing_changes() {
    let mut model = Model::new(1);
    model.begin(1, write(0, 1, 1));
    model.end(1);
    model.begin(2, zero(Kind::Discard, 0, 1));
    model.end(2);
    model.begin_read(3, 0, 1);
    read(&mut model, 4, 0, 1).expect("allowed");
    assert!(model.end_read(3, [Found::Value(0)].into_iter(), NO_MIX).is_err());
}

#[test]
fn parts_of_several_values_are_found_only_where_something_is_in_flight() {
    let mut model = Model::new(1);
    let torn = |model: &mut Model, mix: fn(u64, &[Value]) -> bool| {
        model.begin_read(5, 0, 1);
        model.end_read(5, [Found::Torn(1)].into_iter(), mix)
    };
    model.begin(1, write(0, 1, 1));
    torn(&mut model, |sector, values| (sector, values) == (0, &[0, 1])).expect("mixed");
    assert!(torn(&mut model, NO_MIX).is_err());
    model.end(1);
    assert!(torn(&mut model, |_, _| true).is_err());
}

#[test]
fn abandoned_change_replaces_nothing() {
    let mut model = Model::new(1);
    model.begin(1, write(0, 1, 1));
    let ended = model.abandon(1).expect("it began");
    allows(&model, 0, &[0, 1]);
    model.replace(&ended);
    allows(&model, 0, &[1]);
}

#[test]
fn cache_that_is_lost_brings_back_what_nothing_durable_replaced() {
    let (mut seen, mut safe) = (Model::new(1), Model::new(1));
    for value in [1, 2] {
        for model in [&mut seen, &mut safe] {
            model.begin(value.into(), write(0, 1, value));
        }
        seen.end(value.into());
        let ended = safe.abandon(value.into()).expect("it began");
        if value == 1 {
            safe.replace(&ended); // a flush
        }
    }
    allows(&seen, 0, &[2]);
    allows(&safe, 0, &[1, 2]);
    safe.begin_read(4, 0, 1);
    safe.settle_nothing_by(4);
    safe.end_read(4, [Found::Value(2)].into_iter(), NO_MIX).expect("allowed");
    seen.note(4, Kind::Read, 0, 1);
    seen.note_end(4);
    seen.begin_read(3, 0, 1);
    safe.note(3, Kind::Read, 0, 1);
    seen.fall_back(&safe);
    allows(&seen, 0, &[1, 2]);
    seen.end_read(3, [Found::Value(1)].into_iter(), NO_MIX).expect("read after the loss");
}

#[test]
fn change_that_replaces_late_leaves_what_came_after_it() {
    let mut model = Model::new(1);
    model.begin(1, write(0, 1, 1));
    let late = model.abandon(1).expect("it began");
    // Settles the sector.
    model.begin(2, write(0, 1, 2));
    model.end(2);
    model.begin(3, write(0, 1, 3));
    model.abandon(3);
    model.replace(&late);
    allows(&model, 0, &[2, 3]);
}

#[test]
fn regrown_part_is_zero() {
    let mut model = Model::new(8);
    model.begin(1, write(0, 8, 1));
    model.end(1);
    model.regrow(2, 4, 10);
    assert_eq!(model.sector_count(), 10);
    for sector in 4..10 {
        allows(&model, sector, &[0]);
    }
    allows(&model, 3, &[1]);
}

#[test]
fn report_names_sector_values_and_requests() {
    let mut model = Model::new(64);
    model.begin(7, write(8, 16, 7));
    model.end(7);
    model.begin_read(8, 8, 3);
    let found = [Found::Value(7), Found::Value(0), Found::Torn(7)];
    let report = model.end_read(8, found.into_iter(), NO_MIX).expect_err("two are wrong");
    for part in [
        "2 sectors between 9 and 10",
        "sector 9 (page 1, 1): zeroes; allowed: write 7",
        "7: Write of sectors 8..24, events 1 to 2",
    ] {
        assert!(report.contains(part), "'{part}' is not in: {report}");
    }
    model.begin_read(9, 0, 2);
    assert!(model.end_read(9, [Found::Value(0)].into_iter(), NO_MIX).expect_err("short").contains("1 sectors, not 2"));
}

#[test]
fn places_of_lists_are_used_again() {
    let mut model = Model::new(1 << 10);
    for round in 1..100_u32 {
        model.begin(round.into(), write(0, 1 << 10, round));
        model.end(round.into());
    }
    assert_eq!(model.mixed.len(), 1 << 10);
}
