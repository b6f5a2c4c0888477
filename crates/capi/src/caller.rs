//! Calling a service from C.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use fipsee_call::Payload;
use fipsee_call::raw::RawClient;
use fipsee_ring::doorbell::DoorbellCounts;
use fipsee_ring::layout::PAYLOAD_BYTES;
use fipsee_ring::{Message, clock};
use rustix::io::Errno;

use crate::call_options::{CallerOptions, read_caller};
use crate::failure::{Failure, guarded, null};
use crate::fork::Opener;
use crate::function::functions;

/// `struct fipsee_caller`.
pub(crate) struct OpenCaller {
    client: RawClient,
    request_bytes: usize,
    reply_bytes: usize,
    opener: Opener,
}

impl OpenCaller {
    /// C's handle of a caller.
    ///
    /// # Safety
    /// `caller` is null or open, and no other call on it runs while the reference exists.
    #[inline(always)]
    pub(crate) unsafe fn from_c<'a>(caller: *mut Self) -> Result<&'a mut Self, Failure> {
        // SAFETY: promised by the caller.
        let caller = unsafe { caller.as_mut() }.ok_or_else(|| null("caller"))?;
        caller.opener.check()?;
        Ok(caller)
    }

    pub(crate) const fn doorbell_counts(&self) -> DoorbellCounts {
        self.client.doorbell_counts()
    }

    /// Take replies into the caller's array, beginning with its `taken`-th.
    ///
    /// # Safety
    /// `replies` leads to room for `max_replies`.
    #[inline(always)]
    unsafe fn take(&mut self, replies: *mut u8, mut taken: u32, max_replies: u32) -> Result<u32, Failure> {
        let mut message = Message::ZERO;
        while taken < max_replies {
            match self.client.poll(&mut message) {
                // SAFETY: there is room for one more.
                Ok(true) => unsafe { self.give(&message, replies.wrapping_add(taken as usize * self.reply_bytes)) },
                Ok(false) => break,
                // Replies already taken are the caller's; the error is reported again.
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error.into()),
            }
            taken += 1;
        }
        Ok(taken)
    }

    /// # Safety
    /// `reply` leads to room for a reply.
    #[inline(always)]
    unsafe fn give(&self, message: &Message, reply: *mut u8) {
        // SAFETY: promised by the caller; the message is ours.
        unsafe { std::ptr::copy_nonoverlapping(message.words().as_ptr().cast::<u8>(), reply, self.reply_bytes) };
    }
}

/// The message that holds the value of `length_bytes` bytes at `value`.
///
/// # Safety
/// `value` is null or leads to that many bytes, at most 60.
#[inline(always)]
pub(crate) unsafe fn message_from(value: *const c_void, length_bytes: usize, what: &str) -> Result<Message, Failure> {
    if value.is_null() && length_bytes != 0 {
        return Err(null(what));
    }
    let mut payload = [0_u8; PAYLOAD_BYTES];
    if length_bytes != 0 {
        // SAFETY: promised by the caller, and there is room for 60 bytes.
        unsafe { std::ptr::copy_nonoverlapping(value.cast::<u8>(), payload.as_mut_ptr(), length_bytes.min(PAYLOAD_BYTES)) };
    }
    Ok(Message::from_payload(&payload))
}

/// The deadline of a wait of `timeout_ns`; negative: none.
#[inline(always)]
pub(crate) fn deadline_ticks(timeout_ns: i64) -> Option<u64> {
    let timeout = Duration::from_nanos(u64::try_from(timeout_ns).ok()?);
    Some(clock::ticks().saturating_add(clock::duration_to_ticks(timeout)))
}

/// Address and length of a payload.
pub(crate) fn place_of(payload: &Payload<'_>) -> (*mut c_void, u32) {
    payload.pointer().map_or((std::ptr::null_mut(), 0), |place| (place.as_ptr().cast(), payload.length_bytes()))
}

/// See the header.
///
/// # Safety
/// `options` is null or as the header says; `caller` is null or valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_caller_open(options: *const CallerOptions, caller: *mut *mut OpenCaller) -> c_int {
    guarded(|| {
        if caller.is_null() {
            return Err(null("caller"));
        }
        // SAFETY: promised by the caller.
        let (named, connect) = unsafe { read_caller(options) }?;
        let opener = Opener::this();
        let client = RawClient::connect(&named.socket, &named.name, &connect)?;
        client.expect_sizes(named.request_bytes, named.reply_bytes)?;
        let (request_bytes, reply_bytes) = (named.request_bytes as usize, named.reply_bytes as usize);
        let open = Box::into_raw(Box::new(OpenCaller { client, request_bytes, reply_bytes, opener }));
        // SAFETY: not null, the rest was promised.
        unsafe { caller.write(open) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// `caller` is null or open, and no longer in use.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_caller_close(caller: *mut OpenCaller) -> c_int {
    guarded(|| {
        if !caller.is_null() {
            // SAFETY: promised by the caller.
            unsafe { OpenCaller::from_c(caller) }?;
            // SAFETY: it came from a box in `fipsee_caller_open`, and it is the caller's to give.
            drop(unsafe { Box::from_raw(caller) });
        }
        Ok(0)
    })
}

/// The caller's array, if there is room in it.
fn room(replies: *mut c_void, max_replies: u32) -> Result<*mut u8, Failure> {
    match max_replies {
        _ if replies.is_null() => Err(null("replies")),
        0 => Err(Failure::invalid("max_replies is 0; give room for at least one reply")),
        _ => Ok(replies.cast()),
    }
}

functions! {
    "`caller` is null or open, no other call on it runs meanwhile, and values are null or of the sizes given when opening."

    fn fipsee_call(caller: OpenCaller, request: *const c_void, reply: *mut c_void, timeout_ns: i64) {
        // SAFETY: promised by the caller.
        let message = unsafe { message_from(request, caller.request_bytes, "request") }?;
        if reply.is_null() && caller.reply_bytes != 0 {
            return Err(null("reply"));
        }
        let mut answer = Message::ZERO;
        caller.client.call(&message, deadline_ticks(timeout_ns), &mut answer)?;
        // SAFETY: promised by the caller.
        unsafe { caller.give(&answer, reply.cast()) };
        Ok(0)
    }

    fn fipsee_call_start(caller: OpenCaller, request: *const c_void) {
        // SAFETY: promised by the caller.
        let message = unsafe { message_from(request, caller.request_bytes, "request") }?;
        caller.client.start(&message)?;
        Ok(0)
    }

    fn fipsee_call_submit(caller: OpenCaller) {
        caller.client.submit();
        Ok(0)
    }

    /// `replies` is null or leads to room for `max_replies`.
    fn fipsee_call_poll(caller: OpenCaller, replies: *mut c_void, max_replies: u32) {
        let replies = room(replies, max_replies)?;
        // SAFETY: promised by the caller.
        let taken = unsafe { caller.take(replies, 0, max_replies) }?;
        Ok(crate::queue::count(taken as usize))
    }

    fn fipsee_call_wait(caller: OpenCaller, replies: *mut c_void, max_replies: u32, timeout_ns: i64) {
        let replies = room(replies, max_replies)?;
        let mut first = Message::ZERO;
        if !caller.client.wait(deadline_ticks(timeout_ns), &mut first)? {
            return Ok(0);
        }
        // SAFETY: there is room for at least one.
        unsafe { caller.give(&first, replies) };
        // SAFETY: promised by the caller.
        let taken = unsafe { caller.take(replies, 1, max_replies) }?;
        Ok(crate::queue::count(taken as usize))
    }
}

/// Return the address of a payload.
///
/// # Safety
/// `caller` is null or open and no other call on it runs meanwhile; `length_bytes` is null or valid for a write.
unsafe fn give_place(
    caller: *mut OpenCaller,
    length_bytes: *mut u32,
    payload: impl FnOnce(&RawClient) -> Result<Payload<'_>, fipsee_call::Error>,
) -> *mut c_void {
    let mut place = (std::ptr::null_mut(), 0);
    guarded(|| {
        // SAFETY: promised by the caller.
        let caller = unsafe { OpenCaller::from_c(caller) }?;
        place = place_of(&payload(&caller.client)?);
        if place.0.is_null() {
            return Err(Failure::new(Errno::NODATA, "the service has no payload in this direction; its server decides"));
        }
        Ok(0)
    });
    if !length_bytes.is_null() {
        // SAFETY: promised by the caller.
        unsafe { length_bytes.write(place.1) };
    }
    place.0
}

/// See the header.
///
/// # Safety
/// `caller` is null or open and no other call on it runs meanwhile; `length_bytes` is null or valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_request_payload(caller: *mut OpenCaller, length_bytes: *mut u32) -> *mut c_void {
    // SAFETY: promised by the caller.
    unsafe { give_place(caller, length_bytes, RawClient::request_payload) }
}

/// See the header.
///
/// # Safety
/// As [`fipsee_request_payload`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_reply_payload(caller: *mut OpenCaller, age: u32, length_bytes: *mut u32) -> *const c_void {
    // SAFETY: promised by the caller.
    unsafe { give_place(caller, length_bytes, |client| Ok(client.reply_payload(age))) }
}

functions! {
    "`caller` is null or open, no other call on it runs meanwhile, and values are null or of the sizes given when opening."

    fn fipsee_caller_descriptor(caller: OpenCaller) {
        Ok(caller.client.as_fd().as_raw_fd())
    }

    fn fipsee_caller_arm(caller: OpenCaller) {
        Ok(c_int::from(caller.client.arm_and_reply_is_there()))
    }

    fn fipsee_caller_woken(caller: OpenCaller) {
        caller.client.woken()?;
        Ok(0)
    }
}
