//! A number bounced between two CPUs: what any message between them takes at least.

use std::time::{Duration, Instant};

use fipsee_ring::{AtomicU32, Ordering};

use crate::pin;

/// The number that ends the other side.
const END: u32 = u32::MAX;

/// One side: it writes numbers to a word, the caller odd ones and the answerer even ones, and waits for the next on another word,
/// or on the same. No side can take an old number for a new one.
#[derive(Debug)]
pub struct Bounce<'a> {
    out: &'a AtomicU32,
    into: &'a AtomicU32,
    count: u32,
}

impl<'a> Bounce<'a> {
    /// Write to `out` and wait on `into`, each zero and in a line of its own, or both the same.
    #[must_use]
    pub const fn new(out: &'a AtomicU32, into: &'a AtomicU32) -> Self {
        Self { out, into, count: 0 }
    }

    #[inline(always)]
    fn next(&mut self) -> u32 {
        self.count = (self.count + 1) & (END >> 1);
        self.count
    }

    /// There and back; `idle` after each look in vain.
    ///
    /// # Errors
    /// That of `idle`.
    #[inline(always)]
    pub fn call<E>(&mut self, mut idle: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        let sent = self.next();
        self.out.store(sent, Ordering::Release);
        let wanted = self.next();
        while self.into.load(Ordering::Acquire) != wanted {
            idle()?;
        }
        Ok(())
    }

    /// Wait for the next number and send the one after it; `false`: the caller has ended.
    ///
    /// # Errors
    /// That of `idle`.
    #[inline(always)]
    pub fn answer<E>(&mut self, mut idle: impl FnMut() -> Result<(), E>) -> Result<bool, E> {
        let wanted = self.next();
        loop {
            match self.into.load(Ordering::Acquire) {
                END => return Ok(false),
                seen if seen == wanted => break,
                _ => idle()?,
            }
        }
        let answer = self.next();
        self.out.store(answer, Ordering::Release);
        Ok(true)
    }

    /// End the answerer.
    pub fn end(&self) {
        self.out.store(END, Ordering::Release);
    }
}

/// A word alone in its pair of lines.
#[repr(align(128))]
struct Line(AtomicU32);

/// Nanoseconds per round trip between two CPUs, the best of short stretches over `duration`; `None` if they are one.
///
/// On a virtual machine this changes when the host moves virtual CPUs between cores. On the machine of the first results a
/// message's round trip (`fipsee ping --queue 1`) became 460 ns instead of 110 and went back within minutes. Latencies of
/// different runs compare only if this does.
#[must_use]
pub fn round_trip_ns([here, there]: [usize; 2], duration: Duration) -> Option<f64> {
    const ROUND_TRIPS: u32 = 1000;
    if here == there {
        return None;
    }
    let line = Line(AtomicU32::new(0));
    let idle = || {
        std::hint::spin_loop();
        Ok::<(), std::io::Error>(())
    };
    let measure = || {
        pin::bind(here)?;
        let mut caller = Bounce::new(&line.0, &line.0);
        let (until, mut best) = (Instant::now() + duration, f64::MAX);
        while Instant::now() < until {
            let started = Instant::now();
            (0..ROUND_TRIPS).try_for_each(|_| caller.call(idle))?;
            best = best.min(started.elapsed().as_secs_f64() * 1e9 / f64::from(ROUND_TRIPS));
        }
        Ok::<f64, std::io::Error>(best)
    };
    std::thread::scope(|scope| {
        let answerer = scope.spawn(|| {
            // It answers all the same: the caller waits for it.
            let bound = pin::bind(there);
            let mut side = Bounce::new(&line.0, &line.0);
            while side.answer(idle)? {}
            bound
        });
        let measured = scope.spawn(measure).join();
        Bounce::new(&line.0, &line.0).end();
        answerer.join().ok()?.ok()?;
        measured.ok()?.ok()
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn numbers_go_there_and_back_until_the_end_on_one_word_or_two() {
        for words in [[0, 0], [0, 1]] {
            let lines = [AtomicU32::new(0), AtomicU32::new(0)];
            let (out, into) = (&lines[words[0]], &lines[words[1]]);
            let idle = || {
                std::thread::yield_now();
                Ok::<(), Infallible>(())
            };
            let count = std::thread::scope(|scope| {
                let answerer = scope.spawn(move || {
                    let mut side = Bounce::new(into, out);
                    let mut count = 0;
                    while side.answer(idle) == Ok(true) {
                        count += 1;
                    }
                    count
                });
                let mut caller = Bounce::new(out, into);
                (0..100).for_each(|_| assert_eq!(caller.call(idle), Ok(())));
                caller.end();
                answerer.join().expect("no panic")
            });
            assert_eq!(count, 100, "{words:?}");
        }
    }
}
