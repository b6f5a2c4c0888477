//! What each sector may hold, by what clients were told.

use crate::context::Context;
use crate::disk::{MIXTURE, SECTORS, word_of};

/// Content that may be on the disk when the power fails.
#[derive(Clone, Copy, Debug)]
struct Layer {
    word: u64,
    /// When a client was told that the sector holds this; `u64::MAX`: never.
    settled: u64,
}

#[derive(Debug)]
struct Sector {
    /// What a read may find.
    now: Vec<u64>,
    /// What a power cut may leave, in the order in which it was written.
    layers: Vec<Layer>,
    is_busy: bool,
}

/// Knows what was promised. Requests that overlap one in flight are not begun, so the order of those in flight decides nothing.
#[derive(Debug)]
pub(crate) struct Referee {
    sectors: Vec<Sector>,
    clock: u64,
    versions: u64,
}

impl Default for Referee {
    fn default() -> Self {
        let zeroes = || Sector { now: vec![0], layers: vec![Layer { word: 0, settled: 0 }], is_busy: false };
        Self { sectors: std::iter::repeat_with(zeroes).take(SECTORS).collect(), clock: 1, versions: 0 }
    }
}

impl Referee {
    /// Content that was never written.
    pub(crate) const fn new_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// Is a request on one of these sectors in flight?
    #[must_use]
    pub(crate) fn is_busy(&self, first: usize, count: usize) -> bool {
        self.sectors[first..first + count].iter().any(|sector| sector.is_busy)
    }

    /// A request on these sectors begins or is over.
    pub(crate) fn set_busy(&mut self, first: usize, count: usize, is_busy: bool) {
        self.sectors[first..first + count].iter_mut().for_each(|sector| sector.is_busy = is_busy);
    }

    /// A write of this version begins.
    pub(crate) fn writes(&mut self, first: usize, count: usize, version: u64) {
        for (place, sector) in self.sectors.iter_mut().enumerate().skip(first).take(count) {
            let word = word_of(version, place);
            if !sector.now.contains(&word) {
                sector.now.push(word);
            }
            sector.layers.push(Layer { word, settled: u64::MAX });
        }
    }

    /// A flush begins: the time up to which it covers what was acknowledged.
    pub(crate) const fn flushes(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A write was acknowledged.
    pub(crate) fn wrote(&mut self, context: &Context, first: usize, count: usize, version: u64, fua: bool) {
        self.clock += 1;
        for place in first..first + count {
            let (word, clock) = (word_of(version, place), self.clock);
            let sector = &mut self.sectors[place];
            sector.now.clear();
            sector.now.push(word);
            if let Some(layer) = sector.layers.iter().rposition(|layer| layer.word == word) {
                sector.layers[layer].settled = clock;
                if fua {
                    sector.layers.drain(..layer);
                }
            }
            let cached = context.disk().cached(place);
            if cached != word {
                context.violated(|| format!("a write of sector {place} was acknowledged: {word:#x}; the disk has {cached:#x}"));
            }
            if fua {
                self.check_power_cut(context, place);
            }
        }
    }

    /// A flush that began at `began` was acknowledged.
    pub(crate) fn flushed(&mut self, context: &Context, began: u64) {
        for place in 0..SECTORS {
            let layers = &mut self.sectors[place].layers;
            if let Some(covered) = layers.iter().rposition(|layer| layer.settled <= began) {
                layers.drain(..covered);
            }
            self.check_power_cut(context, place);
        }
    }

    fn check_power_cut(&self, context: &Context, place: usize) {
        let sector = &self.sectors[place];
        let disk = context.disk();
        if let Some(word) = disk.after_power_cut(place).find(|word| !sector.layers.iter().any(|layer| layer.word == *word)) {
            context.violated(|| {
                format!("sector {place}: a power cut may leave {word:#x}, although something else was made durable")
            });
        }
    }

    /// A read was acknowledged, which found this.
    pub(crate) fn read(&mut self, context: &Context, place: usize, word: u64) {
        let sector = &self.sectors[place];
        if word == MIXTURE {
            context.violated(|| format!("a read of sector {place} found a mixture"));
        } else if !sector.now.contains(&word) {
            context.violated(|| format!("a read of sector {place} found {word:#x}; it may be {:x?}", sector.now));
        } else {
            self.sectors[place].now = vec![word];
        }
    }

    /// What was not durable may be lost.
    pub(crate) fn power_was_cut(&mut self, context: &Context) {
        for place in 0..SECTORS {
            self.check_power_cut(context, place);
            let sector = &mut self.sectors[place];
            sector.now = sector.layers.iter().map(|layer| layer.word).collect();
            sector.layers.iter_mut().for_each(|layer| layer.settled = u64::MAX);
        }
    }

    /// Compare all content.
    pub(crate) fn check_all(&self, context: &Context) {
        for place in 0..SECTORS {
            let cached = context.disk().cached(place);
            if !self.sectors[place].now.contains(&cached) {
                context.violated(|| format!("sector {place} holds {cached:#x}; it may be {:x?}", self.sectors[place].now));
            }
            self.check_power_cut(context, place);
        }
    }
}
