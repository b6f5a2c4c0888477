//! Publishing staged requests and reaping completions.

use std::ffi::{CString, c_char, c_int};
use std::sync::LazyLock;
use std::time::Duration;

use fipsee_block::client::Completion;
use fipsee_block::wire::Status;

use crate::blocking::settle;
use crate::failure::{Failure, guarded, null, result_of};
use crate::options::Outcome;
use crate::queue::{OpenQueue, count};

/// The caller's array, filled from its start.
struct Results {
    next: *mut Outcome,
    room: usize,
    taken: usize,
}

impl Results {
    /// # Safety
    /// `results` is null or leads to room for `max_results`.
    #[inline(always)]
    unsafe fn new(results: *mut Outcome, max_results: u32) -> Result<Self, Failure> {
        if results.is_null() || max_results == 0 {
            return Err(no_results(results.is_null()));
        }
        Ok(Self { next: results, room: max_results as usize, taken: 0 })
    }

    /// Write one if there is room.
    #[inline(always)]
    fn push(&mut self, completion: Completion) -> bool {
        if self.taken == self.room {
            return false;
        }
        let outcome =
            Outcome { token: completion.token, result: result_of(completion.status), status: completion.status.to_wire().into() };
        // SAFETY: there is room for one more.
        unsafe { self.next.write(outcome) };
        self.next = self.next.wrapping_add(1);
        self.taken += 1;
        true
    }
}

#[cold]
fn no_results(is_null: bool) -> Failure {
    if is_null { null("results") } else { Failure::invalid("max_results is 0; give room for at least one result") }
}

impl OpenQueue {
    /// Return results that did not fit before; true when the caller has any.
    #[inline(always)]
    fn take_kept(&mut self, results: &mut Results) -> bool {
        if self.kept.is_empty() {
            return false;
        }
        while let Some(completion) = self.kept.front()
            && results.push(*completion)
        {
            self.kept.pop_front();
        }
        true
    }

    #[cold]
    fn wait_with_timeout(&mut self, results: &mut Results, timeout_ns: i64) -> Result<(), Failure> {
        let timeout = Duration::from_nanos(timeout_ns.unsigned_abs());
        let kept = &mut self.kept;
        let outcome = self.queue.wait_timeout(timeout, &mut |completion| {
            if !results.push(completion) {
                kept.push_back(completion);
            }
        });
        settle(&self.common, &mut self.queue, outcome)
    }
}

/// See the header.
///
/// # Safety
/// `queue` is null or of an open disk, and no other call on it runs meanwhile. So for all functions below.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_submit(queue: *mut OpenQueue) -> c_int {
    guarded(|| {
        // SAFETY: promised by the caller.
        unsafe { OpenQueue::from_c(queue) }?.queue.submit();
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// As [`fipsee_submit`]; `results` is null or leads to room for `max_results`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_reap(queue: *mut OpenQueue, results: *mut Outcome, max_results: u32) -> c_int {
    guarded(|| {
        // SAFETY: promised by the caller.
        let queue = unsafe { OpenQueue::from_c(queue) }?;
        // SAFETY: promised by the caller.
        let mut results = unsafe { Results::new(results, max_results) }?;
        if !queue.take_kept(&mut results) {
            let kept = &mut queue.kept;
            queue.queue.reap(&mut |completion| {
                if !results.push(completion) {
                    kept.push_back(completion);
                }
            })?;
        }
        Ok(count(results.taken))
    })
}

/// See the header.
///
/// # Safety
/// As [`fipsee_reap`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_wait(
    queue: *mut OpenQueue,
    results: *mut Outcome,
    max_results: u32,
    timeout_ns: i64,
) -> c_int {
    guarded(|| {
        // SAFETY: promised by the caller.
        let queue = unsafe { OpenQueue::from_c(queue) }?;
        // SAFETY: promised by the caller.
        let mut results = unsafe { Results::new(results, max_results) }?;
        if queue.take_kept(&mut results) {
            queue.queue.submit();
            return Ok(count(results.taken));
        }
        if timeout_ns >= 0 {
            queue.wait_with_timeout(&mut results, timeout_ns)?;
            return Ok(count(results.taken));
        }
        loop {
            let kept = &mut queue.kept;
            let outcome = queue.queue.wait(&mut |completion| {
                if !results.push(completion) {
                    kept.push_back(completion);
                }
            });
            if outcome.is_ok() {
                return Ok(count(results.taken));
            }
            settle(&queue.common, &mut queue.queue, outcome)?;
        }
    })
}

/// See the header.
///
/// # Safety
/// `result` is null or a result of `fipsee_reap` or `fipsee_wait`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_result_message(result: *const Outcome) -> *const c_char {
    static TEXTS: LazyLock<Vec<CString>> =
        LazyLock::new(|| Status::ALL.iter().map(|status| CString::new(status.text()).unwrap_or_default()).collect());
    // SAFETY: promised by the caller.
    let status = unsafe { result.as_ref() }.map(|outcome| outcome.status as usize);
    status.and_then(|status| TEXTS.get(status)).map_or(c"this is not a result of a request".as_ptr(), |text| text.as_ptr())
}
