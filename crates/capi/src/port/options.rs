//! The structures of `fipsee_port.h`, field by field; `crates/capi/abi/abi.txt` pins both sides to the same places.

use std::ffi::{OsStr, c_char, c_void};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use fipsee_block::client::default_socket_path;
use fipsee_net::AttachOptions;
use fipsee_net::wire::{MAX_MTU, OFFLOADS, Offload};

use crate::failure::{Failure, null};
use crate::options::{copy, give, text, wait_mode};

/// `struct fipsee_port_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Options {
    size_bytes: usize,
    socket_path: *const c_char,
    port: *const c_char,
    depth: u32,
    buffer_bytes: u32,
    wait: u32,
    receive_depth: u32,
    look_ns: u64,
    offloads: u32,
    least_mtu: u32,
}

/// `struct fipsee_port_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Info {
    pub(super) size_bytes: usize,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u16,
    pub(super) max_frame_bytes: u32,
    pub(super) offloads: u32,
    pub(super) vlan: u16,
    pub(super) pairs: u16,
    pub(super) send_depth: u32,
    pub(super) receive_depth: u32,
}

/// `struct fipsee_port_counters`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Counters {
    pub(super) size_bytes: usize,
    pub(super) sent_back: u64,
    pub(super) refused: u64,
    pub(super) lost: u64,
    pub(super) newest_refusal: u32,
    pub(super) unsent: u32,
}

/// `struct fipsee_port_status`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PortStatus {
    pub(super) size_bytes: usize,
    pub(super) changes: u64,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u16,
    pub(super) flags: u32,
    pub(super) reserved: u32,
}

/// `struct fipsee_port_offload`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FrameOffload {
    flags: u8,
    segmentation: u8,
    header_bytes: u16,
    segment_bytes: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl FrameOffload {
    /// # Safety
    /// `offload` is null or valid for a read.
    pub(super) unsafe fn read(offload: *const Self) -> Offload {
        // SAFETY: promised by the caller.
        let Some(&offload) = (unsafe { offload.as_ref() }) else { return Offload::NONE };
        let Self { flags, segmentation, header_bytes, segment_bytes, checksum_start, checksum_offset } = offload;
        Offload { flags, segmentation, header_bytes, segment_bytes, checksum_start, checksum_offset }
    }

    /// # Safety
    /// `to` is null or valid for a write.
    pub(super) unsafe fn give(offload: Offload, to: *mut Self) -> Result<(), Failure> {
        if to.is_null() {
            return Err(null("offload"));
        }
        let Offload { flags, segmentation, header_bytes, segment_bytes, checksum_start, checksum_offset } = offload;
        // SAFETY: not null, the rest was promised.
        unsafe { to.write(Self { flags, segmentation, header_bytes, segment_bytes, checksum_start, checksum_offset }) };
        Ok(())
    }
}

/// `struct fipsee_port_buffer`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PortBuffer {
    pub(super) data: *mut c_void,
    pub(super) handle: u64,
    pub(super) capacity_bytes: u32,
    pub(super) reserved: u32,
}

/// `struct fipsee_port_frame`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PortFrame {
    pub(super) data: *const c_void,
    pub(super) length_bytes: u32,
    pub(super) piece_bytes: u32,
    pub(super) handle: u64,
}

/// `struct fipsee_listed_port`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ListedPort {
    pub(super) size_bytes: usize,
    pub(super) name: *const c_char,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u16,
    pub(super) flags: u32,
    pub(super) reserved: u32,
}

/// Copy and check the options of `fipsee_port_open`.
///
/// # Safety
/// `options` is null or leads to as many bytes as its first field says; its strings are null or end in a zero byte.
pub(super) unsafe fn read(options: *const Options) -> Result<(PathBuf, AttachOptions), Failure> {
    const ADVICE: &str = "call fipsee_port_options_init first";
    // SAFETY: promised by the caller; numbers and pointers, for which every pattern of bits is a value.
    let options = unsafe { copy::<Options>(options, offset_of!(Options, depth), ADVICE) }?;
    // SAFETY: promised by the caller.
    let name = unsafe { text(options.port) }.ok_or_else(|| null("options->port, the name of network and port,"))?;
    let name = name.to_str().map_err(|_| Failure::invalid("options->port is no UTF-8; fipsee net ls shows the ports' names"))?;
    // SAFETY: promised by the caller.
    let socket = unsafe { socket(options.socket_path) };
    let mut attach = AttachOptions { wait: wait_mode(options.wait)?, ..AttachOptions::new(name) };
    let given = |value: u32| (value != 0).then_some(value);
    attach.depth = given(options.depth).unwrap_or(attach.depth);
    (attach.buffer_bytes, attach.posted) = (given(options.buffer_bytes), given(options.receive_depth));
    if options.look_ns != 0 {
        attach.look = Duration::from_nanos(options.look_ns);
    }
    if options.offloads & !OFFLOADS != 0 {
        let text =
            format!("options->offloads is {:#x}; this library knows FIPSEE_PORT_OFFLOAD_* of {OFFLOADS:#x}", options.offloads);
        return Err(Failure::invalid(text));
    }
    attach.offloads = options.offloads;
    let least_mtu = u16::try_from(options.least_mtu);
    attach.least_mtu = least_mtu.map(|mtu| (mtu != 0).then_some(mtu)).map_err(|_| {
        Failure::invalid(format!("options->least_mtu is {}; no network has an MTU above {MAX_MTU}", options.least_mtu))
    })?;
    Ok((socket, attach))
}

/// The daemon's socket, or its default.
///
/// # Safety
/// `path` is null or ends in a zero byte.
pub(super) unsafe fn socket(path: *const c_char) -> PathBuf {
    // SAFETY: promised by the caller.
    unsafe { text(path) }.map_or_else(default_socket_path, |path| OsStr::from_bytes(path.to_bytes()).into())
}

/// What a caller gets, as far as its version has it.
macro_rules! given {
    ($($type:ident: $first:ident, $what:literal, $name:literal;)+) => {$(
        impl $type {
            /// # Safety
            /// `to` is null or leads to as many bytes as its first field says.
            pub(super) unsafe fn give(self, to: *mut Self) -> Result<(), Failure> {
                // SAFETY: promised by the caller; it begins with its size.
                unsafe { give(&self, to, offset_of!(Self, $first), ($what, $name)) }
            }
        }
    )+};
}

given! {
    Info: max_frame_bytes, "info", "fipsee_port_info";
    Counters: refused, "counters", "fipsee_port_counters";
    PortStatus: mac, "status", "fipsee_port_status";
    ListedPort: mac, "port", "fipsee_listed_port";
}

/// These structures as in crates/capi/abi/abi.txt, from Rust's side.
#[cfg(test)]
pub(crate) fn layouts() -> [Vec<String>; 8] {
    use crate::options::tests::layout;
    [
        layout!("fipsee_port_options", Options: size_bytes, socket_path, port, depth, buffer_bytes, wait, receive_depth, look_ns, offloads,
            least_mtu),
        layout!("fipsee_port_info", Info: size_bytes, mac, mtu, max_frame_bytes, offloads, vlan, pairs, send_depth, receive_depth),
        layout!("fipsee_port_status", PortStatus: size_bytes, changes, mac, mtu, flags, reserved),
        layout!("fipsee_port_counters", Counters: size_bytes, sent_back, refused, lost, newest_refusal, unsent),
        layout!("fipsee_port_offload", FrameOffload: flags, segmentation, header_bytes, segment_bytes, checksum_start, checksum_offset),
        layout!("fipsee_port_buffer", PortBuffer: data, handle, capacity_bytes, reserved),
        layout!("fipsee_port_frame", PortFrame: data, length_bytes, piece_bytes, handle),
        layout!("fipsee_listed_port", ListedPort: size_bytes, name, mac, mtu, flags, reserved),
    ]
}
