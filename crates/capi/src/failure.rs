//! Errors as C sees them: a negative errno, and a message.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fipsee_block::client::{DiskError, Error};
use fipsee_block::wire::Status;
use fipsee_call::CallError;
use fipsee_net::NetError;
use fipsee_ring::control::RefusalCode;
use fipsee_ring::error::ServiceError;
use rustix::io::Errno;

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: Errno,
    text: Cow<'static, str>,
}

impl Failure {
    /// A failure with its message: what was wrong and what to do.
    pub(crate) fn new(errno: Errno, text: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, text: text.into() }
    }

    /// The caller's mistake.
    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Errno::INVAL, text)
    }

    /// Save the message for `fipsee_error_message` and return the number.
    #[cold]
    fn report(self) -> c_int {
        // A thread that is ending may have lost its message; the number is still returned.
        let _ = MESSAGE.try_with(|message| message.replace(Message { text: self.text, printed: None }));
        -self.errno.raw_os_error()
    }
}

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Self {
        let text = text_of(&error);
        let errno = errno_of(&error, |error| match error {
            DiskError::Request(status) => Errno::from_raw_os_error(status.errno()),
            DiskError::PoolExhausted { .. } => Errno::NOMEM,
            DiskError::Different(_) => Errno::STALE,
            _ => Errno::PROTO,
        });
        Self::new(errno, text)
    }
}

impl From<fipsee_net::Error> for Failure {
    #[cold]
    fn from(error: fipsee_net::Error) -> Self {
        let text = text_of(&error);
        let errno = errno_of(&error, |error| match error {
            NetError::Length { .. } => Errno::MSGSIZE,
            NetError::PoolTooSmall { .. } => Errno::NOMEM,
            // Handles of other ports are not found: it is of the attachment before.
            NetError::OtherBuffer | NetError::Different(_) => Errno::STALE,
            _ => Errno::PROTO,
        });
        Self::new(errno, text)
    }
}

/// Of a daemon's client: how a program says where the socket is.
fn text_of<S: ServiceError>(error: &fipsee_ring::error::Error<S>) -> String {
    use fipsee_ring::error::Error as Any;
    match error {
        Any::Connect { path, source } if source.kind() == std::io::ErrorKind::NotFound => format!(
            "no daemon at {}: there is no such socket; start fipseed, or name its socket in options.socket_path or FIPSEE_SOCKET",
            path.display()
        ),
        other => other.to_string(),
    }
}

impl From<fipsee_call::Error> for Failure {
    #[cold]
    fn from(error: fipsee_call::Error) -> Self {
        let errno = errno_of(&error, |error| match error {
            CallError::RepliesDue { .. } => Errno::BUSY,
            CallError::OtherTypes { .. } => Errno::MSGSIZE,
            CallError::OutsidePayload { .. } => Errno::INVAL,
            CallError::Serve(_) => Errno::ADDRINUSE,
            _ => Errno::PROTO,
        });
        Self::new(errno, error.to_string())
    }
}

const fn errno_of_refusal(code: RefusalCode) -> Errno {
    match code {
        RefusalCode::Version => Errno::PROTONOSUPPORT,
        RefusalCode::UnknownName => Errno::NOENT,
        RefusalCode::NotAllowed => Errno::ACCESS,
        RefusalCode::Busy => Errno::BUSY,
        RefusalCode::Limit => Errno::DQUOT,
        RefusalCode::BadMemory => Errno::INVAL,
        RefusalCode::ShuttingDown => Errno::CONNREFUSED,
        _ => Errno::PROTO,
    }
}

/// `of_service`: of an error that only this service has.
fn errno_of<S>(error: &fipsee_ring::error::Error<S>, of_service: impl FnOnce(&S) -> Errno) -> Errno {
    use fipsee_ring::error::Error as Any;
    match error {
        Any::Wait(_) | Any::Unsupported(_) => Errno::OPNOTSUPP,
        Any::Connect { source, .. } | Any::Io { source, .. } => source.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error),
        Any::Refused { code, .. } => errno_of_refusal(*code),
        Any::Disconnected => Errno::NOTCONN,
        Any::TimedOut(_) => Errno::TIMEDOUT,
        Any::Full => Errno::AGAIN,
        Any::Service(error) => of_service(error),
        _ => Errno::PROTO,
    }
}

/// The status of a request, as a C result: 0 or a negative errno.
#[inline(always)]
pub(crate) fn result_of(status: Status) -> i32 {
    if status == Status::Ok { 0 } else { -status.errno() }
}

struct Message {
    text: Cow<'static, str>,
    /// The same for C, formatted only on request: a full queue is no reason to allocate.
    printed: Option<CString>,
}

thread_local! {
    static MESSAGE: RefCell<Message> = const { RefCell::new(Message { text: Cow::Borrowed(""), printed: None }) };
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fipsee_error_message() -> *const c_char {
    let printed = MESSAGE.try_with(|message| {
        let Message { text, printed } = &mut *message.borrow_mut();
        let printed = printed.get_or_insert_with(|| CString::new(text.replace('\0', "?")).unwrap_or_default());
        printed.as_ptr()
    });
    printed.unwrap_or(c"".as_ptr())
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fipsee_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

/// Run the body of a C function: its value, or the negative errno of its failure. A panic is a failure, too.
#[inline(always)]
pub(crate) fn guarded(run: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => failure.report(),
        Err(panic) => report_panic(&*panic),
    }
}

#[cold]
fn report_panic(panic: &(dyn std::any::Any + Send)) -> c_int {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = format!("libfipsee has an internal error ({}); close the disk, please report this", said.unwrap_or("no words"));
    Failure::new(Errno::NOTRECOVERABLE, text).report()
}

/// The failure for a null pointer in place of `what`.
#[cold]
pub(crate) fn null(what: &str) -> Failure {
    Failure::invalid(format!("{what} is a null pointer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: the function returns a string that ends in a zero byte and is valid until the next failure.
        unsafe { CStr::from_ptr(fipsee_error_message()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_an_error_that_says_what_happened() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = guarded(|| panic!("broken by {}", "a test"));
        std::panic::set_hook(hook);
        assert_eq!(result, -Errno::NOTRECOVERABLE.raw_os_error());
        assert!(message().contains("broken by a test"), "{}", message());
    }

    #[test]
    fn the_message_is_that_of_the_last_failure_of_this_thread() {
        assert_eq!(message(), "");
        assert_eq!(guarded(|| Err(Failure::invalid("first"))), -22);
        assert_eq!((message(), message()), ("first".to_owned(), "first".to_owned()));
        assert_eq!(guarded(|| Ok(7)), 7);
        assert_eq!(guarded(|| Err(Error::Full.into())), -11);
        assert!(message().contains("reap"), "{}", message());
        std::thread::scope(|scope| scope.spawn(|| assert_eq!(message(), "")).join()).expect("no panic in the thread");
    }
}
