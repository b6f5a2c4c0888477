//! What each sector may hold, by the answers to clients (docs/protocol.md 5.4, docs/reliability.md).

use crate::context::Context;
use crate::disk::{MIXTURE, SECTORS, word_of};

/// A request on a range of sectors, from when it is published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) first: usize,
    pub(crate) count: usize,
    began: u64,
}

/// Content that some request gives to a sector.
#[derive(Clone, Copy, Debug)]
struct Change {
    word: u64,
    /// When the request was published, which names it, too.
    began: u64,
    /// When a client got the answer that the sector holds this, if nothing since has changed that.
    done: Option<u64>,
    /// From when on the request changes nothing any more.
    over: Option<u64>,
    /// When something that began later was done.
    displaced: Option<u64>,
    /// Likewise, and it was made durable.
    is_gone: bool,
}

#[derive(Debug)]
struct Sector {
    changes: Vec<Change>,
    /// Requests in flight that touch it.
    busy: u32,
}

/// Knows what was promised. Of requests that overlap in time any may win, for each sector on its own; one that began after
/// another's answer was taken wins over it; a discard leaves zeroes or what was there.
#[derive(Debug)]
pub(crate) struct Oracle {
    sectors: Vec<Sector>,
    clock: u64,
    versions: u64,
    /// When reads in flight began.
    reads: Vec<u64>,
    /// Requests of clients that are gone, which the daemon may still carry out; by its number for the client.
    lost: Vec<(u64, Span)>,
    /// Every size that the disk has had.
    sizes: Vec<usize>,
    /// Disk errors were injected.
    pub(crate) has_errors: bool,
    /// A daemon took over while a size was yet to be announced: which was announced last, it does not know.
    pub(crate) may_repeat_size: bool,
}

impl Default for Oracle {
    fn default() -> Self {
        let zeroes = Change { word: 0, began: 0, done: Some(0), over: Some(0), displaced: None, is_gone: false };
        let sector = || Sector { changes: vec![zeroes], busy: 0 };
        Self {
            sectors: std::iter::repeat_with(sector).take(SECTORS).collect(),
            clock: 1,
            versions: 0,
            reads: Vec::new(),
            lost: Vec::new(),
            sizes: vec![SECTORS],
            has_errors: false,
            may_repeat_size: false,
        }
    }
}

impl Sector {
    /// A change was done: what was over before it began is displaced; for ever if it is `durable`.
    fn displace(&mut self, began: u64, now: u64, durable: bool) {
        for other in self.changes.iter_mut().filter(|other| other.over.is_some_and(|over| over < began)) {
            other.displaced.get_or_insert(now);
            other.is_gone |= durable;
        }
    }

    fn find(&mut self, began: u64) -> Option<&mut Change> {
        self.changes.iter_mut().find(|change| change.began == began)
    }
}

impl Oracle {
    const fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Content that was never written.
    pub(crate) const fn new_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// Is a request on one of these sectors in flight?
    pub(crate) fn is_busy(&self, first: usize, count: usize) -> bool {
        self.sectors[first..first + count].iter().any(|sector| sector.busy > 0)
    }

    fn begin(&mut self, first: usize, count: usize) -> Span {
        self.sectors[first..first + count].iter_mut().for_each(|sector| sector.busy += 1);
        Span { first, count, began: self.tick() }
    }

    fn sectors_of(&mut self, span: Span) -> impl Iterator<Item = (usize, &mut Sector)> {
        self.sectors.iter_mut().enumerate().skip(span.first).take(span.count)
    }

    /// A read is published, or a flush, which touches no sector.
    pub(crate) fn reads(&mut self, first: usize, count: usize) -> Span {
        let span = self.begin(first, count);
        self.reads.push(span.began);
        span
    }

    /// A write of this version is published; of version 0: of zeroes, or a discard.
    pub(crate) fn writes(&mut self, first: usize, count: usize, version: u64) -> Span {
        let span = self.begin(first, count);
        for (place, sector) in self.sectors_of(span) {
            let word = word_of(version, place);
            sector.changes.push(Change { word, began: span.began, done: None, over: None, displaced: None, is_gone: false });
        }
        span
    }

    /// It is over: it was refused, it failed, it was a discard, or its process is gone. Some sectors may hold what it wrote.
    pub(crate) fn is_over(&mut self, span: Span) {
        let now = self.tick();
        self.reads.retain(|began| *began != span.began);
        for (_, sector) in self.sectors_of(span) {
            sector.busy -= 1;
            if let Some(change) = sector.find(span.began) {
                change.over.get_or_insert(now);
            }
        }
    }

    /// It was refused before anything was done.
    pub(crate) fn was_refused(&mut self, span: Span) {
        self.is_over(span);
        for (_, sector) in self.sectors_of(span) {
            sector.changes.retain(|change| change.began != span.began);
        }
    }

    /// Its client is gone; the daemon has that client as `session` until it releases it.
    pub(crate) fn is_lost(&mut self, span: Span, session: Option<u64>) {
        match session {
            Some(session) => self.lost.push((session, span)),
            None => self.is_over(span),
        }
    }

    /// The daemon has released this client. `None`: all of them, with itself.
    pub(crate) fn released(&mut self, session: Option<u64>) {
        let (over, lost) = std::mem::take(&mut self.lost).into_iter().partition(|(of, _)| session.is_none_or(|is| is == *of));
        self.lost = lost;
        let over: Vec<(u64, Span)> = over;
        over.into_iter().for_each(|(_, span)| self.is_over(span));
    }

    /// A write was acknowledged.
    pub(crate) fn wrote(&mut self, context: &Context, span: Span, fua: bool) {
        self.is_over(span);
        let now = self.tick();
        for (_, sector) in self.sectors_of(span) {
            if let Some(change) = sector.find(span.began) {
                change.done = Some(now);
            }
            sector.displace(span.began, now, fua);
        }
        self.forget();
        for place in span.first..span.first + span.count {
            self.check_now(context, place);
            if fua {
                self.check_power_cut(context, place);
            }
        }
    }

    /// A flush was acknowledged: what was done before it began is durable.
    pub(crate) fn flushed(&mut self, context: &Context, span: Span) {
        self.is_over(span);
        let now = self.tick();
        for sector in &mut self.sectors {
            let is_done = |change: &&Change| change.done.is_some_and(|done| done < span.began);
            if let Some(newest) = sector.changes.iter().filter(is_done).map(|change| change.began).max() {
                sector.displace(newest, now, true);
            }
        }
        self.forget();
        (0..SECTORS).for_each(|place| self.check_power_cut(context, place));
    }

    /// What cannot be found any more, neither by a read in flight nor after a power cut.
    fn forget(&mut self) {
        let oldest = self.reads.iter().min().copied().unwrap_or(u64::MAX);
        for sector in &mut self.sectors {
            sector.changes.retain(|change| !change.is_gone || change.displaced.is_some_and(|when| when > oldest));
        }
    }

    /// A read was acknowledged, which found this.
    pub(crate) fn read(&mut self, context: &Context, span: Span, found: impl Fn(usize) -> u64) {
        self.is_over(span);
        let now = self.tick();
        for (place, sector) in self.sectors_of(span) {
            let word = found(place - span.first);
            let may_be = |change: &&Change| change.displaced.is_none_or(|when| when > span.began);
            if word == MIXTURE {
                context.violated(|| format!("a read of sector {place} found a mixture"));
            } else if !sector.changes.iter().filter(may_be).any(|change| change.word == word) {
                let words: Vec<u64> = sector.changes.iter().filter(may_be).map(|change| change.word).collect();
                context.violated(|| format!("a read of sector {place} found {word:#x}; it may be {words:x?}"));
            }
            // Nothing changed beside it: so it stays.
            if sector.changes.iter().all(|change| change.over.is_some_and(|over| over < span.began)) {
                let others = sector.changes.iter_mut().filter(|change| change.word != word);
                others.for_each(|change| _ = change.displaced.get_or_insert(now));
            }
        }
    }

    /// The disk has another size from now on. What lay beyond is gone; what it gains is zeroes.
    pub(crate) fn resized(&mut self, size: usize) {
        let old = self.sizes.last().copied().unwrap_or(SECTORS);
        self.sizes.push(size);
        if size < old {
            let now = self.tick();
            for sector in &mut self.sectors[size..old] {
                sector.changes.push(Change {
                    word: 0,
                    began: now,
                    done: Some(now),
                    over: Some(now),
                    displaced: None,
                    is_gone: false,
                });
                sector.displace(now, now, true);
            }
            self.forget();
        }
    }

    /// How many sizes the disk has had: the newest is this minus one.
    pub(crate) const fn newest_size(&self) -> usize {
        self.sizes.len() - 1
    }

    /// A client that knew the size of this number is sent another: its number, the oldest it can be.
    pub(crate) fn size_after(&self, known: usize, sectors: u64) -> Option<usize> {
        let is_it = |size: &usize| self.sizes[*size] as u64 == sectors;
        let is_news = self.sizes[known] as u64 != sectors || self.may_repeat_size;
        (known + 1..self.sizes.len()).filter(|_| is_news).find(is_it)
    }

    /// The size of this number.
    pub(crate) fn size(&self, number: usize) -> usize {
        self.sizes[number]
    }

    /// Of a request of a client that knew the size of this number: may it be refused because of the size, must it?
    pub(crate) fn is_beyond(&self, known: usize, end: usize) -> (bool, bool) {
        let sizes = &self.sizes[known..];
        (sizes.iter().any(|size| *size < end), sizes.iter().all(|size| *size < end))
    }

    fn check_now(&self, context: &Context, place: usize) {
        let cached = context.disk().cached(place);
        let changes = self.sectors[place].changes.iter().filter(|change| change.displaced.is_none());
        if !changes.clone().any(|change| change.word == cached) {
            let words: Vec<u64> = changes.map(|change| change.word).collect();
            context.violated(|| format!("sector {place} holds {cached:#x}; it may be {words:x?}"));
        }
    }

    fn check_power_cut(&self, context: &Context, place: usize) {
        let changes = self.sectors[place].changes.iter().filter(|change| !change.is_gone);
        let disk = context.disk();
        let lost = disk.after_power_cut(place).find(|word| !changes.clone().any(|change| change.word == *word));
        if let Some(word) = lost {
            context.violated(|| {
                format!("sector {place}: a power cut may leave {word:#x}, although something else was made durable")
            });
        }
    }

    /// What was not durable may be lost.
    pub(crate) fn power_was_cut(&mut self, context: &Context) {
        (0..SECTORS).for_each(|place| self.check_power_cut(context, place));
        for change in self.sectors.iter_mut().flat_map(|sector| &mut sector.changes).filter(|change| !change.is_gone) {
            (change.done, change.displaced) = (None, None);
        }
    }

    /// Compare all content.
    pub(crate) fn check_all(&self, context: &Context) {
        for place in 0..SECTORS {
            self.check_now(context, place);
            self.check_power_cut(context, place);
        }
        if let Some(place) = self.sectors.iter().position(|sector| sector.busy > 0) {
            context.violated(|| format!("a request on sector {place} has neither been answered nor ended"));
        }
    }
}
