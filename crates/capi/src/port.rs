//! Ports for C: opening, describing, reconnecting and closing them. `include/fipsee_port.h` documents every function.

mod list;
mod options;
mod receive;
mod send;
mod slab;

use std::borrow::{Borrow, BorrowMut};
use std::ffi::{CString, c_char, c_int};
use std::os::fd::AsRawFd;
use std::sync::LazyLock;
use std::time::Duration;

use fipsee_net::frame::Mac;
use fipsee_net::wire::Status;
use fipsee_net::{AttachOptions, Buffer, Error, Frame, Port, ReconnectPolicy};
use fipsee_ring::doorbell::DoorbellCounts;

use self::options::{Counters, FrameOffload, Info, Options, PortStatus};
use self::slab::Slab;
use crate::failure::{Failure, guarded, null};
use crate::fork::Opener;
use crate::function::functions;
use crate::queue::count;

#[cfg(test)]
pub(crate) use self::options::layouts;

/// `struct fipsee_port`.
pub(crate) struct OpenPort {
    port: Port,
    /// What C has a handle of.
    buffers: Slab<Buffer>,
    frames: Slab<Frame>,
    opener: Opener,
}

impl OpenPort {
    fn new(port: Port, opener: Opener) -> Self {
        let (sends, receives) = port.depths();
        Self { buffers: Slab::new(sends), frames: Slab::new(receives), port, opener }
    }

    /// C's handle of a port.
    ///
    /// # Safety
    /// `port` is null or open, and no other call on it runs while the reference exists.
    #[inline(always)]
    pub(crate) unsafe fn from_c<'a>(port: *mut Self) -> Result<&'a mut Self, Failure> {
        // SAFETY: promised by the caller.
        let port = unsafe { port.as_mut() }.ok_or_else(no_port)?;
        port.opener.check()?;
        Ok(port)
    }

    pub(crate) fn doorbell_counts(&self) -> DoorbellCounts {
        self.port.doorbell_counts()
    }

    fn describe(&self) -> Info {
        let (info, (sends, receives)) = (self.port.info(), self.port.depths());
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Info {
            size_bytes: 0,
            mac: info.mac,
            mtu: info.mtu,
            max_frame_bytes: info.max_frame_bytes,
            offloads: info.offloads,
            vlan: info.vlan,
            pairs: info.pairs,
            send_depth: number(sends),
            receive_depth: number(receives),
        }
    }
}

#[cold]
fn no_port() -> Failure {
    null("port")
}

/// # Safety
/// `group` is null or leads to 6 bytes.
unsafe fn address(group: *const u8) -> Result<Mac, Failure> {
    if group.is_null() {
        return Err(null("group"));
    }
    // SAFETY: not null, the rest was promised; bytes have no alignment.
    Ok(Mac(unsafe { group.cast::<[u8; 6]>().read() }))
}

/// # Safety
/// `options` is null or as the header says.
unsafe fn open(options: *const Options, pairs: u16) -> Result<Vec<Port>, Failure> {
    // SAFETY: promised by the caller.
    let (socket, attach) = unsafe { options::read(options) }?;
    let attach = AttachOptions { pairs, ..attach };
    Port::attach_pairs(&socket, &attach).map_err(|error| match error {
        Error::Refused { text, .. } if attach.name.is_empty() => Failure::invalid(format!("{text}; set options->port")),
        other => other.into(),
    })
}

/// See the header.
///
/// # Safety
/// `options` is null or as the header says; `port` is null or valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_port_open(options: *const Options, port: *mut *mut OpenPort) -> c_int {
    guarded(|| {
        if port.is_null() {
            return Err(null("port"));
        }
        let opener = Opener::this();
        // SAFETY: promised by the caller.
        let opened = unsafe { open(options, 1) }?.pop().ok_or(Error::Disconnected)?;
        // SAFETY: not null, the rest was promised.
        unsafe { port.write(Box::into_raw(Box::new(OpenPort::new(opened, opener)))) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// `options` is null or as the header says; `ports` is null or valid for `max_ports` writes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_port_open_pairs(
    options: *const Options,
    ports: *mut *mut OpenPort,
    max_ports: u32,
) -> c_int {
    guarded(|| {
        if ports.is_null() || max_ports == 0 {
            return Err(if ports.is_null() {
                null("ports")
            } else {
                Failure::invalid("max_ports is 0; give room for at least one port")
            });
        }
        let opener = Opener::this();
        // SAFETY: promised by the caller. No daemon grants more than was asked for.
        let opened = unsafe { open(options, u16::try_from(max_ports).unwrap_or(u16::MAX)) }?;
        let granted = opened.len();
        for (index, port) in opened.into_iter().enumerate() {
            let open = Box::into_raw(Box::new(OpenPort::new(port, opener)));
            // SAFETY: there is room for so many.
            unsafe { ports.wrapping_add(index).write(open) };
        }
        Ok(count(granted))
    })
}

/// See the header.
///
/// # Safety
/// `port` is null or open, and neither it nor its buffers and frames are still in use.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_port_close(port: *mut OpenPort) -> c_int {
    guarded(|| {
        if port.is_null() {
            return Ok(0);
        }
        // SAFETY: promised by the caller.
        unsafe { OpenPort::from_c(port) }?;
        // SAFETY: it came from a box, and it is the caller's to give.
        let open = unsafe { Box::from_raw(port) };
        open.port.close()?;
        Ok(0)
    })
}

/// A port of several that C named.
struct Named<'a>(&'a mut OpenPort);

impl Borrow<Port> for Named<'_> {
    fn borrow(&self) -> &Port {
        &self.0.port
    }
}

impl BorrowMut<Port> for Named<'_> {
    fn borrow_mut(&mut self) -> &mut Port {
        &mut self.0.port
    }
}

/// See the header.
///
/// # Safety
/// `ports` is null or leads to `ports_count` ports, which are open, different, and in no other call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_port_reconnect(
    ports: *const *mut OpenPort,
    ports_count: u32,
    give_up_after_ns: u64,
) -> c_int {
    guarded(|| {
        if ports.is_null() {
            return Err(null("ports"));
        }
        let mut named = Vec::new();
        for index in 0..ports_count as usize {
            // SAFETY: there are so many.
            let port = unsafe { ports.wrapping_add(index).read() };
            // SAFETY: promised by the caller.
            named.push(Named(unsafe { OpenPort::from_c(port) }?));
        }
        Port::reconnect(&mut named, &ReconnectPolicy::within(Duration::from_nanos(give_up_after_ns)), &mut |_| {})?;
        for Named(open) in named {
            let (sends, receives) = open.port.depths();
            open.buffers.grow(sends);
            open.frames.grow(receives);
        }
        Ok(0)
    })
}

functions! {
    "`port` is null or open, and no other call on it runs meanwhile; `info`, `status`, `offload`, `counters` and `group` are null or as the header says."

    fn fipsee_port_get_info(port: OpenPort, info: *mut Info) {
        // SAFETY: promised by the caller.
        unsafe { port.describe().give(info) }?;
        Ok(0)
    }

    fn fipsee_port_get_status(port: OpenPort, status: *mut PortStatus) {
        const UP: u32 = 1;
        let flags = if port.port.is_up() { UP } else { 0 };
        let (mac, mtu) = (port.port.mac().0, port.port.mtu());
        let found = PortStatus { size_bytes: 0, changes: port.port.changes(), mac, mtu, flags, reserved: 0 };
        // SAFETY: promised by the caller.
        unsafe { found.give(status) }?;
        Ok(0)
    }

    fn fipsee_port_received_offload(port: OpenPort, offload: *mut FrameOffload) {
        // SAFETY: promised by the caller.
        unsafe { FrameOffload::give(port.port.received_offload(), offload) }?;
        Ok(0)
    }

    fn fipsee_port_get_counters(port: OpenPort, counters: *mut Counters) {
        port.port.reap()?;
        let found = port.port.counters();
        let counted = Counters {
            size_bytes: 0,
            sent_back: found.sent_back,
            refused: found.refused,
            lost: found.lost,
            newest_refusal: found.newest_refusal.map_or(0, |status| status.to_wire().into()),
            unsent: port.port.unsent(),
        };
        // SAFETY: promised by the caller.
        unsafe { counted.give(counters) }?;
        Ok(0)
    }

    fn fipsee_port_join(port: OpenPort, group: *const u8) {
        // SAFETY: promised by the caller.
        port.port.join(unsafe { address(group) }?.to_join().map_err(Failure::invalid)?)?;
        Ok(0)
    }

    fn fipsee_port_leave(port: OpenPort, group: *const u8) {
        // SAFETY: promised by the caller.
        port.port.leave(unsafe { address(group) }?.to_join().map_err(Failure::invalid)?)?;
        Ok(0)
    }

    fn fipsee_port_all_groups(port: OpenPort, all: c_int) {
        port.port.all_groups(all != 0)?;
        Ok(0)
    }

    fn fipsee_port_descriptor(port: OpenPort) {
        Ok(port.port.descriptor()?.as_raw_fd())
    }

    fn fipsee_port_arm(port: OpenPort) {
        Ok(c_int::from(port.port.arm()?))
    }

    fn fipsee_port_woken(port: OpenPort) {
        port.port.woken()?;
        Ok(0)
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fipsee_port_refusal_message(refusal: u32) -> *const c_char {
    static TEXTS: LazyLock<Vec<CString>> =
        LazyLock::new(|| Status::ALL.iter().map(|status| CString::new(status.text()).unwrap_or_default()).collect());
    TEXTS.get(refusal as usize).map_or(c"this is not a refusal of a frame".as_ptr(), |text| text.as_ptr())
}
