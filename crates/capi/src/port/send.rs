//! Sending from C.

use std::ffi::{c_int, c_void};

use rustix::io::Errno;

use super::OpenPort;
use super::options::{FrameOffload, PortBuffer};
use crate::caller::deadline_ticks;
use crate::failure::{Failure, null};
use crate::function::functions;

/// # Safety
/// `frame` is null or leads to `length_bytes` bytes, which stay and do not change while the result exists.
#[inline(always)]
unsafe fn bytes<'a>(frame: *const c_void, length_bytes: usize) -> Result<&'a [u8], Failure> {
    if frame.is_null() {
        return Err(null("frame"));
    }
    // SAFETY: promised by the caller.
    Ok(unsafe { std::slice::from_raw_parts(frame.cast(), length_bytes) })
}

/// # Safety
/// `buffer` is null or valid for a read.
unsafe fn handle(buffer: *const PortBuffer) -> Result<u64, Failure> {
    // SAFETY: promised by the caller.
    unsafe { buffer.as_ref() }.map(|buffer| buffer.handle).ok_or_else(|| null("buffer"))
}

impl OpenPort {
    fn take_buffer(&mut self, handle: u64) -> Result<fipsee_net::Buffer, Failure> {
        let buffer = self.buffers.take(handle);
        buffer.ok_or_else(|| {
            Failure::invalid("the buffer is not of this port, or was given before; fipsee_port_get_buffer takes another")
        })
    }
}

functions! {
    "`port` is null or open, and no other call on it runs meanwhile; `frame` is null or leads to so many bytes, `buffer` and `offload` are null or valid."

    fn fipsee_port_send(port: OpenPort, frame: *const c_void, length_bytes: usize) {
        // SAFETY: promised by the caller.
        port.port.send(unsafe { bytes(frame, length_bytes) }?)?;
        Ok(0)
    }

    fn fipsee_port_stage(port: OpenPort, frame: *const c_void, length_bytes: usize) {
        // SAFETY: promised by the caller.
        port.port.stage(unsafe { bytes(frame, length_bytes) }?)?;
        Ok(0)
    }

    fn fipsee_port_stage_offloaded(port: OpenPort, frame: *const c_void, length_bytes: usize, offload: *const FrameOffload) {
        // SAFETY: promised by the caller.
        let frame = unsafe { bytes(frame, length_bytes) }?;
        // SAFETY: likewise.
        let offload = unsafe { FrameOffload::read(offload) };
        port.port.stage_offloaded(frame, offload)?;
        Ok(0)
    }

    fn fipsee_port_submit(port: OpenPort) {
        port.port.submit();
        Ok(0)
    }

    fn fipsee_port_get_buffer(port: OpenPort, buffer: *mut PortBuffer) {
        if buffer.is_null() {
            return Err(null("buffer"));
        }
        if port.buffers.is_full() {
            // Some are of an attachment before.
            return Err(Failure::new(Errno::AGAIN, "the program has as many buffers as there are; send some, or put them back"));
        }
        let taken = port.port.buffer()?;
        let (data, capacity_bytes) = (taken.as_ptr().cast(), taken.length_bytes());
        let handle = port.buffers.put(taken).unwrap_or(u64::MAX);
        // SAFETY: not null, the rest was promised.
        unsafe { buffer.write(PortBuffer { data, handle, capacity_bytes, reserved: 0 }) };
        Ok(0)
    }

    fn fipsee_port_stage_buffer(port: OpenPort, buffer: *const PortBuffer, length_bytes: u32) {
        // SAFETY: promised by the caller.
        let taken = port.take_buffer(unsafe { handle(buffer) }?)?;
        port.port.send_buffer(taken, length_bytes)?;
        Ok(0)
    }

    fn fipsee_port_stage_buffer_offloaded(
        port: OpenPort,
        buffer: *const PortBuffer,
        length_bytes: u32,
        offload: *const FrameOffload,
    ) {
        // SAFETY: promised by the caller.
        let handle = unsafe { handle(buffer) }?;
        // SAFETY: likewise.
        let offload = unsafe { FrameOffload::read(offload) };
        let taken = port.take_buffer(handle)?;
        port.port.send_buffer_offloaded(taken, length_bytes, offload)?;
        Ok(0)
    }

    fn fipsee_port_put_back(port: OpenPort, buffer: *const PortBuffer) {
        // SAFETY: promised by the caller.
        let taken = port.take_buffer(unsafe { handle(buffer) }?)?;
        port.port.put_back(taken)?;
        Ok(0)
    }

    fn fipsee_port_reap(port: OpenPort) {
        Ok(c_int::try_from(port.port.reap()?).unwrap_or(c_int::MAX))
    }

    fn fipsee_port_wait_sent(port: OpenPort, timeout_ns: i64) {
        Ok(c_int::from(port.port.wait_sent(deadline_ticks(timeout_ns))?))
    }
}
