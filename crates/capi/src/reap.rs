//! Publishing staged requests and reaping completions.

use std::collections::VecDeque;
use std::ffi::{CString, c_char};
use std::sync::LazyLock;
use std::time::Duration;

use fipsee_block::client::Completion;
use fipsee_block::wire::Status;

use crate::blocking::settle;
use crate::failure::{Failure, null, result_of};
use crate::function::functions;
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

    #[inline(always)]
    fn push_or_keep(&mut self, completion: Completion, kept: &mut VecDeque<Completion>) {
        if !self.push(completion) {
            kept.push_back(completion);
        }
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
        let outcome = self.queue.wait_timeout(timeout, &mut |completion| results.push_or_keep(completion, kept));
        settle(&self.common, &mut self.queue, outcome)
    }
}

functions! {
    "`queue` is null or of an open disk, and no other call on it runs meanwhile; `results` is null or has room for `max_results`."

    fn fipsee_submit(queue: OpenQueue) {
        queue.queue.submit();
        Ok(0)
    }

    /// `results` is null or leads to room for `max_results`.
    fn fipsee_reap(queue: OpenQueue, results: *mut Outcome, max_results: u32) {
        // SAFETY: promised by the caller.
        let mut results = unsafe { Results::new(results, max_results) }?;
        if !queue.take_kept(&mut results) {
            let kept = &mut queue.kept;
            queue.queue.reap(&mut |completion| results.push_or_keep(completion, kept))?;
        }
        Ok(count(results.taken))
    }

    fn fipsee_wait(queue: OpenQueue, results: *mut Outcome, max_results: u32, timeout_ns: i64) {
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
            let outcome = queue.queue.wait(&mut |completion| results.push_or_keep(completion, kept));
            if outcome.is_ok() {
                return Ok(count(results.taken));
            }
            settle(&queue.common, &mut queue.queue, outcome)?;
        }
    }
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
