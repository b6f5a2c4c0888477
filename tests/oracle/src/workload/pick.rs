//! What is asked for next: sizes by their logarithm, places that share pages with each other.

use fipsee_testkit::Random;

use crate::front::{Action, Limits};

const PAGE_SECTORS: u64 = 8;
/// Pages of the place where much happens.
const HOT_PAGES: u64 = 16;
/// Requests after which that place is another one.
const HOT_FOR: u64 = 256;
/// Requests with edges that attract others.
const RECENT: usize = 32;

/// Weights of sizes: 2^k blocks to less than 2^(k+1).
#[derive(Clone, Debug)]
struct Sizes {
    weights: Vec<f64>,
    most: u64,
}

fn float(number: u64) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

impl Sizes {
    /// Even over the logarithm, or falling with it as far as needed to have this mean.
    fn new(most: u64, mean: u64) -> Self {
        let bins = u64::BITS - most.leading_zeros();
        let of = |slope: f64| -> (Vec<f64>, f64) {
            let weights: Vec<f64> = (0..bins).map(|bin| (-slope * f64::from(bin)).exp2()).collect();
            let sum: f64 = weights.iter().sum();
            let sizes = (0..bins).map(|bin| 1.5 * f64::from(bin).exp2());
            let mean = weights.iter().zip(sizes).map(|(weight, size)| weight * size.min(float(most))).sum::<f64>() / sum;
            (weights, mean)
        };
        let (mut low, mut high) = (0.0, 4.0);
        if of(low).1 > float(mean) {
            for _ in 0..40 {
                let middle = f64::midpoint(low, high);
                if of(middle).1 > float(mean) { low = middle } else { high = middle }
            }
        } else {
            high = 0.0;
        }
        Self { weights: of(high).0, most }
    }

    fn pick(&self, random: &mut Random) -> u64 {
        let sum: f64 = self.weights.iter().sum();
        let mut point = float(random.below(1 << 30)) / float(1 << 30) * sum;
        let mut bin = 0;
        for (number, weight) in self.weights.iter().enumerate() {
            bin = number;
            point -= weight;
            if point < 0.0 {
                break;
            }
        }
        let base = 1_u64 << bin;
        // Every second a power of two: what shares no boundary with others is found by the rest.
        let more = if random.percent(50) { 0 } else { random.below(base) };
        (base + more).min(self.most)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Picker {
    limits: Limits,
    transfers: Sizes,
    ranges: Sizes,
    hot_page: u64,
    left: u64,
    recent: Vec<(u64, u64)>,
    /// Only the first so many sectors are used.
    pub(super) end: u64,
    /// Stay in so many pages all the time.
    narrow_pages: Option<u64>,
}

impl Picker {
    /// `mean_bytes`: of a write, at most. `narrow_pages`: never leave these.
    pub(super) fn new(limits: &Limits, mean_bytes: u64, narrow_pages: Option<u64>) -> Self {
        let block_bytes = limits.block_sectors * 512;
        let end = limits.sector_count.min(narrow_pages.map_or(u64::MAX, |pages| pages * PAGE_SECTORS));
        let room = end / limits.block_sectors;
        let of = |sectors: u64| Sizes::new((sectors / limits.block_sectors).min(room).max(1), mean_bytes / block_bytes);
        let (transfers, ranges) = (of(limits.transfer_sectors), of(limits.range_sectors.min(limits.transfer_sectors * 2)));
        Self { limits: limits.clone(), transfers, ranges, hot_page: 0, left: 0, recent: Vec::new(), end, narrow_pages }
    }

    /// The next request: what, first sector, sectors.
    pub(super) fn pick(&mut self, random: &mut Random) -> (Action, u64, u64) {
        let action = self.action(random);
        if action == Action::Flush {
            return (action, 0, 0);
        }
        let sizes = if matches!(action, Action::Read | Action::Write { .. }) { &self.transfers } else { &self.ranges };
        let block = self.limits.block_sectors;
        let count = (sizes.pick(random) * block).min(self.end / block * block);
        let sector = self.place(random, count);
        if self.recent.len() == RECENT {
            self.recent.remove(0);
        }
        self.recent.push((sector, count));
        (action, sector, count)
    }

    fn action(&self, random: &mut Random) -> Action {
        let fua = self.limits.has_fua && random.percent(12);
        match random.below(100) {
            0..48 => Action::Write { fua },
            48..55 if self.limits.has_discard && self.narrow_pages.is_none() => Action::Discard,
            55..64 if self.limits.has_zeroes => Action::WriteZeroes { unmap: random.percent(50), fua },
            64..69 => Action::Flush,
            _ => Action::Read,
        }
    }

    fn place(&mut self, random: &mut Random, count: u64) -> u64 {
        if self.left == 0 {
            self.left = HOT_FOR;
            self.hot_page = random.below((self.end / PAGE_SECTORS).saturating_sub(HOT_PAGES).max(1));
        }
        self.left -= 1;
        let hot = self.hot_page * PAGE_SECTORS;
        let near = |from: u64, back: u64| from.saturating_sub(back);
        let sector = match random.below(100) {
            // Begins among the hot pages, or covers some of them.
            0..35 => hot + random.below(HOT_PAGES * PAGE_SECTORS),
            35..45 => near(hot + random.below(HOT_PAGES * PAGE_SECTORS), random.below(count)),
            // At an edge of another: before, behind, across.
            45..75 if !self.recent.is_empty() => {
                let (first, length) = self.recent[usize::try_from(random.below(self.recent.len() as u64)).unwrap_or(0)];
                let edge = if random.percent(50) { first } else { first + length };
                match random.below(4) {
                    0 => edge,
                    1 => near(edge, count),
                    2 => near(edge, count / 2),
                    _ => near(edge + PAGE_SECTORS, random.below(2 * PAGE_SECTORS)),
                }
            }
            _ => random.below(self.end),
        };
        let block = self.limits.block_sectors;
        sector.min(self.end - count) / block * block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(sizes: &Sizes) -> u64 {
        let mut random = Random(1);
        (0..20_000).map(|_| sizes.pick(&mut random)).sum::<u64>() / 20_000
    }

    #[test]
    fn sizes_are_even_over_the_logarithm_unless_that_is_too_much() {
        let even = Sizes::new(32768, u64::from(u32::MAX));
        assert!(even.weights.iter().all(|weight| (weight - 1.0).abs() < 1e-9));
        assert!((2500..5000).contains(&mean(&even)), "{}", mean(&even));
        let fewer = Sizes::new(32768, 400);
        assert!((250..450).contains(&mean(&fewer)), "{}", mean(&fewer));
        let mut random = Random(7);
        let all: Vec<u64> = (0..100_000).map(|_| fewer.pick(&mut random)).collect();
        assert!(all.contains(&1) && all.contains(&32768) && all.iter().all(|size| (1..=32768).contains(size)));
    }

    #[test]
    fn requests_stay_on_the_disk_and_on_blocks() {
        for (block_sectors, sector_count) in [(1, 1 << 17), (8, 1 << 12), (1, 64)] {
            let limits = Limits {
                sector_count,
                block_sectors,
                transfer_sectors: 32768,
                range_sectors: 1 << 23,
                pieces: 256,
                piece_sectors: 65535,
                queues: 1,
                has_fua: true,
                has_discard: true,
                has_zeroes: true,
                can_resize: false,
            };
            let (mut picker, mut random) = (Picker::new(&limits, u64::from(u32::MAX), None), Random(3));
            for _ in 0..20_000 {
                let (action, sector, count) = picker.pick(&mut random);
                let good = sector + count <= sector_count && sector % block_sectors == 0 && count % block_sectors == 0;
                assert!(good && (count > 0 || action == Action::Flush), "{action:?} {sector} {count}");
            }
        }
    }
}
