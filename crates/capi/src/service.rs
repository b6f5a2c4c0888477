//! Serving calls from C.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use fipsee_call::raw::{RawServer, RawWorker, Taken};
use fipsee_ring::Message;
use rustix::io::Errno;

use crate::call_options::{ServiceOptions, TakenCall, read_service};
use crate::caller::{deadline_ticks, message_from, place_of};
use crate::failure::{Failure, guarded, null};
use crate::fork::Opener;
use crate::function::functions;
use crate::options::text;

/// `struct fipsee_service`.
pub(crate) struct OpenService {
    server: Arc<RawServer>,
    /// From a box. Raw, because one thread serves through it while others share or stop the service.
    serving: *mut Serving,
    opener: Opener,
}

/// State of the serving thread only.
struct Serving {
    worker: RawWorker,
    request: Message,
    reply_bytes: usize,
}

impl OpenService {
    fn new(server: Arc<RawServer>, opener: Opener) -> Result<*mut Self, Failure> {
        let worker = server.worker()?;
        let reply_bytes = worker.info().reply_bytes as usize;
        let serving = Box::into_raw(Box::new(Serving { worker, request: Message::ZERO, reply_bytes }));
        Ok(Box::into_raw(Box::new(Self { server, serving, opener })))
    }

    /// C's handle of a service.
    ///
    /// # Safety
    /// `service` is null or open, and stays so while the reference exists.
    #[inline(always)]
    unsafe fn from_c<'a>(service: *const Self) -> Result<&'a Self, Failure> {
        // SAFETY: promised by the caller; only `fipsee_service_close` ever makes more than a `&` of it.
        let service = unsafe { service.as_ref() }.ok_or_else(|| null("service"))?;
        service.opener.check()?;
        Ok(service)
    }
}

impl Serving {
    /// State of the serving thread.
    ///
    /// # Safety
    /// `service` is null or open, and no other thread serves through it while the reference exists.
    #[inline(always)]
    unsafe fn from_c<'a>(service: *const OpenService) -> Result<&'a mut Self, Failure> {
        // SAFETY: promised by the caller.
        let service = unsafe { OpenService::from_c(service) }?;
        // SAFETY: it came from a box, exists as long as the service, and is this thread's alone.
        Ok(unsafe { &mut *service.serving })
    }
}

/// See the header.
///
/// # Safety
/// `options` is null or as the header says; `service` is null or valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_service_open(options: *const ServiceOptions, service: *mut *mut OpenService) -> c_int {
    guarded(|| {
        if service.is_null() {
            return Err(null("service"));
        }
        // SAFETY: promised by the caller.
        let (named, serve) = unsafe { read_service(options) }?;
        let server = RawServer::bind(&named.socket, &named.name, (named.request_bytes, named.reply_bytes), serve)?;
        let open = OpenService::new(Arc::new(server), Opener::this())?;
        // SAFETY: not null, the rest was promised.
        unsafe { service.write(open) };
        Ok(0)
    })
}

#[cold]
fn nothing_taken() -> Failure {
    Failure::invalid("no call was taken; fipsee_service_next comes first")
}

functions! {
    "`service` is null or open, pointers are null or valid, and no other thread takes or answers a call through it meanwhile."

    fn fipsee_service_share(service: OpenService, another: *mut *mut OpenService) {
        if another.is_null() {
            return Err(null("another"));
        }
        let open = OpenService::new(Arc::clone(&service.server), service.opener)?;
        // SAFETY: not null, the rest was promised.
        unsafe { another.write(open) };
        Ok(0)
    }

    fn fipsee_service_next(serving: OpenService as Serving, call: *mut TakenCall, timeout_ns: i64) {
        if call.is_null() {
            return Err(null("call"));
        }
        if serving.worker.call().is_some() {
            return Err(Failure::new(Errno::BUSY, "a call was taken and not answered; fipsee_service_reply comes first"));
        }
        match serving.worker.take(&mut serving.request, deadline_ticks(timeout_ns)) {
            Taken::Call => {}
            Taken::TimedOut => return Ok(0),
            Taken::Stopped => return Err(Failure::new(Errno::SHUTDOWN, "the service was stopped; close it")),
        }
        let request = serving.request.words().as_ptr().cast();
        let Some(taken) = serving.worker.call() else { return Ok(0) };
        let (request_payload, request_payload_bytes) = place_of(&taken.request_payload);
        let (reply_payload, reply_payload_bytes) = place_of(&taken.reply_payload);
        let peer = taken.credentials;
        let taken = TakenCall {
            request,
            request_payload,
            reply_payload,
            request_payload_bytes,
            reply_payload_bytes,
            client: taken.client,
            pid: peer.pid,
            uid: peer.uid,
            gid: peer.gid,
            reserved: 0,
        };
        // SAFETY: not null, the rest was promised.
        unsafe { call.write(taken) };
        Ok(1)
    }

    fn fipsee_service_reply(serving: OpenService as Serving, reply: *const c_void) {
        // SAFETY: promised by the caller.
        let message = unsafe { message_from(reply, serving.reply_bytes, "reply") }?;
        if serving.worker.call().is_none() {
            return Err(nothing_taken());
        }
        serving.worker.reply(&message);
        Ok(0)
    }

    fn fipsee_service_refuse(serving: OpenService as Serving, why: *const c_char) {
        // SAFETY: promised by the caller.
        let why = unsafe { text(why) }.ok_or_else(|| null("why"))?;
        if serving.worker.call().is_none() {
            return Err(nothing_taken());
        }
        serving.worker.refuse(&why.to_string_lossy());
        Ok(0)
    }

    fn fipsee_service_stop(service: OpenService) {
        service.server.stopper().stop();
        Ok(0)
    }
}

/// See the header.
///
/// # Safety
/// `service` is null or open, and no longer in use.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_service_close(service: *mut OpenService) -> c_int {
    guarded(|| {
        if service.is_null() {
            return Ok(0);
        }
        // SAFETY: promised by the caller.
        unsafe { OpenService::from_c(service) }?;
        // SAFETY: it came from a box in `OpenService::new`, and it is the caller's to give.
        let open = unsafe { Box::from_raw(service) };
        // SAFETY: it came from a box in `OpenService::new`, and is not used elsewhere.
        drop(unsafe { Box::from_raw(open.serving) });
        Ok(0)
    })
}
