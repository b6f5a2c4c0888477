//! Receiving in C.

use std::ffi::{c_int, c_void};

use fipsee_net::Frame;
use fipsee_net::wire::MAX_FRAME_BUFFERS;
use rustix::io::Errno;

use super::OpenPort;
use super::options::{FrameOffload, PortFrame};
use crate::caller::deadline_ticks;
use crate::failure::{Failure, null};
use crate::function::functions;
use crate::options::Piece;
use crate::queue::count;

/// # Safety
/// `buffer` is null or leads to `buffer_bytes` bytes that nothing else uses while the result exists.
#[inline(always)]
unsafe fn room<'a>(buffer: *mut c_void, buffer_bytes: usize) -> Result<&'a mut [u8], Failure> {
    if buffer.is_null() {
        return Err(null("buffer"));
    }
    // SAFETY: promised by the caller.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), buffer_bytes) })
}

/// The length of a frame, 0 if there was none.
fn length(received: Option<u32>) -> c_int {
    received.map_or(0, |length_bytes| c_int::try_from(length_bytes).unwrap_or(c_int::MAX))
}

fn check_room(frames: *mut PortFrame, max_frames: u32) -> Result<(), Failure> {
    match max_frames {
        _ if frames.is_null() => Err(null("frames")),
        0 => Err(Failure::invalid("max_frames is 0; give room for at least one frame")),
        _ => Ok(()),
    }
}

impl OpenPort {
    /// # Safety
    /// `to` is valid for a write.
    unsafe fn give(&mut self, frame: Frame, to: *mut PortFrame) {
        let (length_bytes, first) = (frame.length_bytes(), frame.pieces().next());
        let (data, piece_bytes) =
            first.map_or((std::ptr::null(), 0), |(place, bytes)| (place.as_ptr().cast_const().cast(), bytes));
        let handle = self.frames.put(frame).unwrap_or(u64::MAX);
        // SAFETY: promised by the caller.
        unsafe { to.write(PortFrame { data, length_bytes, piece_bytes, handle }) };
    }

    fn check_free_place(&self) -> Result<(), Failure> {
        if self.frames.is_full() {
            return Err(Failure::new(Errno::AGAIN, "the program has as many frames as there are receive buffers; release some"));
        }
        Ok(())
    }

    /// Take frames from the `taken`-th on.
    ///
    /// # Safety
    /// `frames` leads to room for `max_frames`.
    unsafe fn take_frames(&mut self, frames: *mut PortFrame, mut taken: u32, max_frames: u32) -> Result<u32, Failure> {
        while taken < max_frames && !self.frames.is_full() {
            match self.port.take() {
                // SAFETY: there is room for one more.
                Ok(Some(frame)) => unsafe { self.give(frame, frames.wrapping_add(taken as usize)) },
                Ok(None) => break,
                // Frames already taken are the caller's; the error is reported again.
                Err(_) if taken > 0 => break,
                Err(error) => return Err(error.into()),
            }
            taken += 1;
        }
        Ok(taken)
    }

    fn no_frame() -> Failure {
        Failure::invalid("the frame is not of this port, or was released before; release each frame once")
    }
}

functions! {
    "`port` is null or open, and no other call on it runs meanwhile; buffers and arrays are null or of the lengths given."

    fn fipsee_port_receive(port: OpenPort, buffer: *mut c_void, buffer_bytes: usize) {
        // SAFETY: promised by the caller.
        Ok(length(port.port.receive_into(unsafe { room(buffer, buffer_bytes) }?)?))
    }

    fn fipsee_port_wait(port: OpenPort, buffer: *mut c_void, buffer_bytes: usize, timeout_ns: i64) {
        // SAFETY: promised by the caller.
        let into = unsafe { room(buffer, buffer_bytes) }?;
        Ok(length(port.port.wait_into(deadline_ticks(timeout_ns), into)?))
    }

    fn fipsee_port_take(port: OpenPort, frames: *mut PortFrame, max_frames: u32) {
        check_room(frames, max_frames)?;
        port.check_free_place()?;
        // SAFETY: promised by the caller.
        Ok(count(unsafe { port.take_frames(frames, 0, max_frames) }? as usize))
    }

    fn fipsee_port_wait_take(port: OpenPort, frames: *mut PortFrame, max_frames: u32, timeout_ns: i64) {
        check_room(frames, max_frames)?;
        port.check_free_place()?;
        let Some(first) = port.port.wait_frame(deadline_ticks(timeout_ns))? else { return Ok(0) };
        // SAFETY: there is room for at least one.
        unsafe { port.give(first, frames) };
        // SAFETY: promised by the caller.
        Ok(count(unsafe { port.take_frames(frames, 1, max_frames) }? as usize))
    }

    fn fipsee_port_frame_pieces(port: OpenPort, frame: *const PortFrame, pieces: *mut Piece, max_pieces: u32) {
        // SAFETY: promised by the caller.
        let handle = unsafe { frame.as_ref() }.ok_or_else(|| null("frame"))?.handle;
        let frame = port.frames.get(handle).ok_or_else(OpenPort::no_frame)?;
        if pieces.is_null() {
            return Err(null("pieces"));
        }
        let found = frame.pieces().count();
        if found > max_pieces as usize {
            let text = format!("the frame has {found} pieces, max_pieces is {max_pieces}; none has more than {MAX_FRAME_BUFFERS}");
            return Err(Failure::new(Errno::MSGSIZE, text));
        }
        for (index, (place, length_bytes)) in frame.pieces().enumerate() {
            let piece = Piece { base: place.as_ptr(), length_bytes: length_bytes as usize };
            // SAFETY: there is room for so many.
            unsafe { pieces.wrapping_add(index).write(piece) };
        }
        Ok(count(found))
    }

    fn fipsee_port_frame_offload(port: OpenPort, frame: *const PortFrame, offload: *mut FrameOffload) {
        // SAFETY: promised by the caller.
        let handle = unsafe { frame.as_ref() }.ok_or_else(|| null("frame"))?.handle;
        let frame = port.frames.get(handle).ok_or_else(OpenPort::no_frame)?;
        // SAFETY: promised by the caller.
        unsafe { FrameOffload::give(frame.offload(), offload) }?;
        Ok(0)
    }

    fn fipsee_port_release(port: OpenPort, frames: *const PortFrame, frames_count: u32) {
        if frames.is_null() {
            return Err(null("frames"));
        }
        for index in 0..frames_count as usize {
            // SAFETY: there are so many.
            let handle = unsafe { frames.wrapping_add(index).read() }.handle;
            port.frames.take(handle).ok_or_else(OpenPort::no_frame)?;
        }
        // An event loop may wait already.
        port.port.post_returned();
        Ok(0)
    }
}
