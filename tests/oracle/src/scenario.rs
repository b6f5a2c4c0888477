//! The loss that an independent client found (issue 14): one large write and small ones into its last pages, all in flight together.

use fipsee_testkit::Random;

use crate::front::Action;
use crate::interrupt;
use crate::model::Kind;
use crate::workload::{Counts, Runner, Site, read_all};

/// Sectors of the large write, at most: 16 MiB.
const LARGE_SECTORS: u64 = 32768;
/// Small writes, each into a page of its own.
const SMALL: u64 = 60;
const PAGE_SECTORS: u64 = 8;

pub fn run(site: &mut Site<'_>, rounds: u64, seed: u64) -> Result<Counts, String> {
    let mut runner = Runner::new(site.front, site.forgives);
    let mut random = Random(seed);
    for round in 1..=rounds {
        interrupt::check()?;
        let drop_cache = |runner: &mut Runner<'_>| {
            runner.noted(Kind::CacheDropped);
            site.storage.map_or(Ok(()), |storage| storage.drop_cache())
        };
        one(&mut runner, &mut random, &drop_cache).map_err(|error| format!("round {round}, seed {seed}: {error}"))?;
    }
    Ok(runner.counts)
}

fn one(
    runner: &mut Runner<'_>,
    random: &mut Random,
    drop_cache: &dyn Fn(&mut Runner<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let all = runner.model.sector_count();
    let large = LARGE_SECTORS.min(runner.limits.transfer_sectors).min(all);
    let mut sector = 0;
    while sector < all {
        let count = large.min(all - sector);
        begin(runner, random, Action::Write { fua: false }, sector, count)?;
        sector += count;
    }
    runner.publish();
    runner.submit_and_wait(Action::Flush)?;
    drop_cache(runner)?;

    let pages = (all - large) / PAGE_SECTORS;
    let first = random.below(pages + 1) * PAGE_SECTORS;
    // The second sector of a page, where blocks are as small as that.
    let offset = if runner.limits.block_sectors == 1 { 1 } else { 0 };
    let small = |index: u64| first + large - (SMALL - index) * PAGE_SECTORS + offset;
    let turn = random.below(SMALL + 1);
    for index in 0..SMALL {
        if index == turn {
            begin(runner, random, Action::Write { fua: false }, first, large)?;
        }
        begin(runner, random, Action::Write { fua: false }, small(index), runner.limits.block_sectors)?;
    }
    if turn == SMALL {
        begin(runner, random, Action::Write { fua: false }, first, large)?;
    }
    runner.publish();
    runner.submit_and_wait(Action::Flush)?;
    read_all(runner)?;
    drop_cache(runner)?;
    read_all(runner)?;
    runner.verdict()
}

/// Stage; when there is no room, wait for some.
fn begin(runner: &mut Runner<'_>, random: &mut Random, action: Action, sector: u64, count: u64) -> Result<(), String> {
    while !runner.begin(random, action, sector, count)? {
        runner.publish();
        runner.step()?;
    }
    Ok(())
}
