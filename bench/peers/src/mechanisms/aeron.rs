//! Aeron IPC: its C client and its C media driver. The settings of its ping-pong sample: an exclusive publication each way
//! with messages claimed and written in place, polling without idling. The driver is a third process; messages do not
//! pass through it, but it reports to the publisher how far the subscriber is. With two CPUs, both polling, it cannot have
//! one for itself: it runs in one thread on either, with the idle strategy that is meant for shared CPUs. The client's
//! conductor is invoked, so that it has no thread.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{null_mut, slice_from_raw_parts};

use fipsee_ring::Message;
use libaeron_driver_sys as sys;
use rustix::process::{Pid, Signal};

use crate::harness::spin_backoff::SpinBackoff;
use crate::harness::{End, Mechanism, Plan, Side, process};

const PAYLOAD_BYTES: usize = 60;
const CHANNEL: &CStr = c"aeron:ipc";
const CALLS_STREAM: i32 = 1001;
const ANSWERS_STREAM: i32 = 1002;
/// Half of it is the window: so much is written before the driver must have looked again.
const TERM_BYTES: usize = 16 << 20;
/// Where the driver keeps its files: in memory, as its documentation advises.
const FOLDER: &str = "/dev/shm";
const FOLDER_PREFIX: &str = "fipsee-peers-aeron-";

/// The driver's process and where its files are.
pub struct Aeron {
    folder: PathBuf,
    driver: Pid,
}

/// One side: a client of the driver with a publication and a subscription.
pub struct AeronEnd {
    publication: *mut sys::aeron_exclusive_publication_t,
    subscription: *mut sys::aeron_subscription_t,
    /// The client's side ends the driver with itself.
    driver: Option<Aeron>,
}

/// A call that reports failure by a negative number.
fn succeed(what: &str, code: c_int) -> Result<(), String> {
    if code >= 0 {
        return Ok(());
    }
    // SAFETY: always allowed.
    let text = unsafe { sys::aeron_errmsg() };
    // SAFETY: it ends with a zero and is valid until the next call in this thread.
    let text = unsafe { CStr::from_ptr(text) };
    Err(format!("cannot {what}: {}", text.to_string_lossy()))
}

/// Files of drivers left by a benchmark that was killed.
fn remove_leftovers() {
    for entry in std::fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(FOLDER_PREFIX));
        if owner.is_some_and(|pid| !PathBuf::from(format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The media driver, until it is killed.
fn drive(folder: &CStr, cpus: &[usize]) -> Result<(), String> {
    process::bind_to(cpus)?;
    let mut context = null_mut();
    // SAFETY: an out-pointer.
    succeed("make the driver's context", unsafe { sys::aeron_driver_context_init(&raw mut context) })?;
    let shared = sys::aeron_threading_mode_enum::AERON_THREADING_MODE_SHARED;
    // SAFETY: the context was made above; so for all that follow. Texts are copied.
    let mut set = unsafe { sys::aeron_driver_context_set_dir(context, folder.as_ptr()) };
    // SAFETY: as above.
    set |= unsafe { sys::aeron_driver_context_set_threading_mode(context, shared) };
    // SAFETY: as above.
    set |= unsafe { sys::aeron_driver_context_set_shared_idle_strategy(context, c"backoff".as_ptr()) };
    // SAFETY: as above.
    set |= unsafe { sys::aeron_driver_context_set_ipc_term_buffer_length(context, TERM_BYTES) };
    // SAFETY: as above. Pages that are there before the measurement cost none during it.
    set |= unsafe { sys::aeron_driver_context_set_term_buffer_sparse_file(context, false) };
    succeed("configure the driver", set)?;
    let mut driver = null_mut();
    // SAFETY: an out-pointer and the context.
    succeed("make the driver", unsafe { sys::aeron_driver_init(&raw mut driver, context) })?;
    // SAFETY: the driver was made above. `true`: we run its loop.
    succeed("start the driver", unsafe { sys::aeron_driver_start(driver, true) })?;
    loop {
        // SAFETY: as above.
        let work = unsafe { sys::aeron_driver_main_do_work(driver) };
        // SAFETY: as above.
        unsafe { sys::aeron_driver_main_idle_strategy(driver, work) };
    }
}

impl Mechanism for Aeron {
    type End = AeronEnd;

    fn share(plan: &Plan) -> Result<Self, String> {
        remove_leftovers();
        let folder = PathBuf::from(format!("{FOLDER}/{FOLDER_PREFIX}{}", std::process::id()));
        let name = as_text(&folder)?;
        let driver = process::fork(|| {
            if let Err(error) = drive(&name, &plan.cpus) {
                eprintln!("{error}");
            }
        })?;
        Ok(Self { folder, driver })
    }

    fn open(self, side: Side, _: &Plan) -> Result<AeronEnd, String> {
        let client = connect(&as_text(&self.folder)?)?;
        let (outgoing, incoming) =
            if side == Side::Client { (CALLS_STREAM, ANSWERS_STREAM) } else { (ANSWERS_STREAM, CALLS_STREAM) };
        let publication = add_publication(client, outgoing)?;
        let subscription = add_subscription(client, incoming)?;
        let is_connected = || {
            // SAFETY: the client was made above; so for the others.
            unsafe { sys::aeron_main_do_work(client) };
            // SAFETY: as above.
            let is_received = unsafe { sys::aeron_exclusive_publication_is_connected(publication) };
            // SAFETY: as above.
            is_received && unsafe { sys::aeron_subscription_is_connected(subscription) }
        };
        wait_until(is_connected);
        let driver = (side == Side::Client).then_some(self);
        Ok(AeronEnd { publication, subscription, driver })
    }
}

fn as_text(path: &std::path::Path) -> Result<CString, String> {
    CString::new(path.to_string_lossy().as_bytes()).map_err(|error| error.to_string())
}

/// While client, driver and the other side find each other.
fn wait_until(mut is_done: impl FnMut() -> bool) {
    while !is_done() {
        std::thread::yield_now();
    }
}

/// A client of the driver, which may not be up yet: then it waits for it.
fn connect(folder: &CStr) -> Result<*mut sys::aeron_t, String> {
    let mut context = null_mut();
    // SAFETY: an out-pointer.
    succeed("make the client's context", unsafe { sys::aeron_context_init(&raw mut context) })?;
    // SAFETY: the context was made above. Texts are copied.
    succeed("configure the client", unsafe { sys::aeron_context_set_dir(context, folder.as_ptr()) })?;
    // SAFETY: as above.
    succeed("configure the client", unsafe { sys::aeron_context_set_use_conductor_agent_invoker(context, true) })?;
    let mut client = null_mut();
    // SAFETY: an out-pointer and the context.
    succeed("make the client", unsafe { sys::aeron_init(&raw mut client, context) })?;
    // SAFETY: the client was made above.
    succeed("start the client", unsafe { sys::aeron_start(client) })?;
    Ok(client)
}

fn add_publication(client: *mut sys::aeron_t, stream: i32) -> Result<*mut sys::aeron_exclusive_publication_t, String> {
    let (mut adding, mut publication) = (null_mut(), null_mut());
    let channel: *const c_char = CHANNEL.as_ptr();
    // SAFETY: an out-pointer, the client, a text.
    let asked = unsafe { sys::aeron_async_add_exclusive_publication(&raw mut adding, client, channel, stream) };
    succeed("add a publication", asked)?;
    let mut added = 0;
    wait_until(|| {
        // SAFETY: the client was made by `connect`.
        unsafe { sys::aeron_main_do_work(client) };
        // SAFETY: an out-pointer, and what was asked for above.
        added = unsafe { sys::aeron_async_add_exclusive_publication_poll(&raw mut publication, adding) };
        added != 0
    });
    succeed("add a publication", added)?;
    Ok(publication)
}

fn add_subscription(client: *mut sys::aeron_t, stream: i32) -> Result<*mut sys::aeron_subscription_t, String> {
    let (mut adding, mut subscription) = (null_mut(), null_mut());
    let channel: *const c_char = CHANNEL.as_ptr();
    // SAFETY: an out-pointer, the client, a text, and no handlers.
    let asked = unsafe {
        sys::aeron_async_add_subscription(&raw mut adding, client, channel, stream, None, null_mut(), None, null_mut())
    };
    succeed("add a subscription", asked)?;
    let mut added = 0;
    wait_until(|| {
        // SAFETY: the client was made by `connect`.
        unsafe { sys::aeron_main_do_work(client) };
        // SAFETY: an out-pointer, and what was asked for above.
        added = unsafe { sys::aeron_async_add_subscription_poll(&raw mut subscription, adding) };
        added != 0
    });
    succeed("add a subscription", added)?;
    Ok(subscription)
}

/// Where a poll puts what it finds.
struct PollBuffer<'a> {
    into: &'a mut [Message],
    count: usize,
}

extern "C" fn on_fragment(poll_buffer: *mut c_void, bytes: *const u8, length: usize, _: *mut sys::aeron_header_t) {
    // SAFETY: the buffer that `receive` gave to the poll that calls us.
    let poll_buffer = unsafe { &mut *poll_buffer.cast::<PollBuffer<'_>>() };
    // SAFETY: Aeron hands out a whole fragment of that length.
    let fragment = unsafe { &*slice_from_raw_parts(bytes, length) };
    let (Some(place), Some(payload)) = (poll_buffer.into.get_mut(poll_buffer.count), fragment.first_chunk()) else { return };
    *place = Message::from_payload(payload);
    poll_buffer.count += 1;
}

impl End for AeronEnd {
    #[inline(always)]
    fn send(&mut self, messages: &[Message]) {
        let mut backoff = SpinBackoff::default();
        for message in messages {
            let mut claim = sys::aeron_buffer_claim_t { frame_header: null_mut(), data: null_mut(), length: 0 };
            // Back pressure, or the end of a term: again.
            // SAFETY: the publication exists as long as self; an out-pointer.
            while unsafe { sys::aeron_exclusive_publication_try_claim(self.publication, PAYLOAD_BYTES, &raw mut claim) } < 0 {
                backoff.pause();
            }
            // SAFETY: the claim is for 60 bytes, and ours until it is committed.
            unsafe { std::ptr::copy_nonoverlapping(message.words().as_ptr().cast::<u8>(), claim.data, PAYLOAD_BYTES) };
            // SAFETY: as above.
            unsafe { sys::aeron_buffer_claim_commit(&raw mut claim) };
        }
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [Message]) -> usize {
        let limit = into.len();
        let mut poll_buffer = PollBuffer { into, count: 0 };
        let mut backoff = SpinBackoff::default();
        while poll_buffer.count == 0 {
            // SAFETY: the subscription exists as long as self; the handler gets the buffer during this call only.
            let polled = unsafe {
                sys::aeron_subscription_poll(self.subscription, Some(on_fragment), (&raw mut poll_buffer).cast(), limit)
            };
            assert!(polled >= 0, "cannot poll the subscription");
            if polled == 0 {
                backoff.pause();
            }
        }
        poll_buffer.count
    }
}

impl Drop for AeronEnd {
    fn drop(&mut self) {
        if let Some(Aeron { folder, driver }) = self.driver.take() {
            let _ = rustix::process::kill_process(driver, Signal::KILL);
            process::wait_for(driver);
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
