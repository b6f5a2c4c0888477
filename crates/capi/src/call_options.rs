//! The structures of the header's part on calls, field by field; `crates/capi/abi/abi.txt` pins both sides to the same places.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use fipsee_call::{Allow, ConnectOptions, Credentials, ServerOptions};

use crate::failure::{Failure, null};
use crate::options::{copy, text, wait_mode};

/// `struct fipsee_caller_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CallerOptions {
    size_bytes: usize,
    socket_path: *const c_char,
    name: *const c_char,
    request_bytes: u32,
    reply_bytes: u32,
    depth: u32,
    wait: u32,
    look_ns: u64,
}

/// `struct fipsee_service_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ServiceOptions {
    size_bytes: usize,
    socket_path: *const c_char,
    name: *const c_char,
    request_bytes: u32,
    reply_bytes: u32,
    request_payload_bytes: u32,
    reply_payload_bytes: u32,
    max_clients: u32,
    max_depth: u32,
    wait: u32,
    socket_mode: u32,
    look_ns: u64,
    allow: Option<AllowFunction>,
    context: *mut c_void,
}

type AllowFunction = unsafe extern "C" fn(context: *mut c_void, pid: i32, uid: u32, gid: u32) -> c_int;

/// `struct fipsee_taken`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TakenCall {
    pub(crate) request: *const c_void,
    pub(crate) request_payload: *const c_void,
    pub(crate) reply_payload: *mut c_void,
    pub(crate) request_payload_bytes: u32,
    pub(crate) reply_payload_bytes: u32,
    pub(crate) client: u64,
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) reserved: u32,
}

/// The socket of a service, and the lengths of its values.
pub(crate) struct Named {
    pub(crate) socket: PathBuf,
    pub(crate) name: String,
    pub(crate) request_bytes: u32,
    pub(crate) reply_bytes: u32,
}

/// # Safety
/// Both strings are null or end in a zero byte.
unsafe fn named(socket_path: *const c_char, name: *const c_char, sizes: (u32, u32)) -> Result<Named, Failure> {
    // SAFETY: promised by the caller.
    let socket = unsafe { text(socket_path) }.ok_or_else(|| null("options->socket_path"))?;
    // SAFETY: promised by the caller.
    let name = unsafe { text(name) }.ok_or_else(|| null("options->name, the name of the service,"))?;
    let name = name.to_str().map_err(|_| Failure::invalid("options->name is no UTF-8; name the service in letters"))?;
    let (request_bytes, reply_bytes) = sizes;
    if request_bytes.max(reply_bytes) > fipsee_call::MAX_VALUE_BYTES {
        let text = format!(
            "requests of {request_bytes} and replies of {reply_bytes} bytes; each has at most {}, send the rest as payload",
            fipsee_call::MAX_VALUE_BYTES
        );
        return Err(Failure::invalid(text));
    }
    Ok(Named { socket: OsStr::from_bytes(socket.to_bytes()).into(), name: name.to_owned(), request_bytes, reply_bytes })
}

const ADVICE: &str = "set it to the size of the structure, and fields that are not used to 0";

/// Copy and check the options of `fipsee_caller_open`.
///
/// # Safety
/// `options` is null or leads to as many bytes as its first field says; its strings are null or end in a zero byte.
pub(crate) unsafe fn read_caller(options: *const CallerOptions) -> Result<(Named, ConnectOptions), Failure> {
    // SAFETY: promised by the caller; numbers and pointers, for which every pattern of bits is a value.
    let options = unsafe { copy::<CallerOptions>(options, offset_of!(CallerOptions, depth), ADVICE) }?;
    // SAFETY: promised by the caller.
    let named = unsafe { named(options.socket_path, options.name, (options.request_bytes, options.reply_bytes)) }?;
    let mut connect = ConnectOptions { wait: wait_mode(options.wait)?, ..ConnectOptions::default() };
    set(&mut connect.depth, options.depth);
    if options.look_ns != 0 {
        connect.look = Duration::from_nanos(options.look_ns);
    }
    Ok((named, connect))
}

/// Copy and check the options of `fipsee_service_open`.
///
/// # Safety
/// As [`read_caller`].
pub(crate) unsafe fn read_service(options: *const ServiceOptions) -> Result<(Named, ServerOptions), Failure> {
    // SAFETY: promised by the caller; numbers and pointers, for which every pattern of bits is a value.
    let options = unsafe { copy::<ServiceOptions>(options, offset_of!(ServiceOptions, request_payload_bytes), ADVICE) }?;
    // SAFETY: promised by the caller.
    let named = unsafe { named(options.socket_path, options.name, (options.request_bytes, options.reply_bytes)) }?;
    let mut serve = ServerOptions {
        request_payload_bytes: options.request_payload_bytes,
        reply_payload_bytes: options.reply_payload_bytes,
        wait: wait_mode(options.wait)?,
        allow: options.allow.map(|function| allow(Ask { function, context: options.context })),
        ..ServerOptions::default()
    };
    if options.max_clients != 0 {
        serve.max_clients = options.max_clients as usize;
    }
    set(&mut serve.max_depth, options.max_depth);
    set(&mut serve.socket_mode, options.socket_mode);
    if options.look_ns != 0 {
        serve.look = Duration::from_nanos(options.look_ns);
    }
    Ok((named, serve))
}

/// 0 means the default.
const fn set(field: &mut u32, value: u32) {
    if value != 0 {
        *field = value;
    }
}

struct Ask {
    function: AllowFunction,
    context: *mut c_void,
}

// SAFETY: the header says that the function is called on another thread, with this context.
unsafe impl Send for Ask {}

impl Ask {
    fn allows(&self, peer: &Credentials) -> bool {
        // SAFETY: the header says what the function is given; it is valid as long as the service is open.
        unsafe { (self.function)(self.context, peer.pid, peer.uid, peer.gid) != 0 }
    }
}

fn allow(ask: Ask) -> Allow {
    Box::new(move |peer| ask.allows(peer))
}

/// These structures as in crates/capi/abi/abi.txt, from Rust's side.
#[cfg(test)]
pub(crate) fn layouts() -> [Vec<String>; 3] {
    use crate::options::tests::layout;
    [
        layout!("fipsee_caller_options", CallerOptions: size_bytes, socket_path, name, request_bytes, reply_bytes, depth,
                wait, look_ns),
        layout!("fipsee_service_options", ServiceOptions: size_bytes, socket_path, name, request_bytes, reply_bytes,
                request_payload_bytes, reply_payload_bytes, max_clients, max_depth, wait, socket_mode, look_ns, allow, context),
        layout!("fipsee_taken", TakenCall: request, request_payload, reply_payload, request_payload_bytes,
                reply_payload_bytes, client, pid, uid, gid, reserved),
    ]
}
