//! Frames of 200 bytes from one port to another.

use std::path::Path;

use fipsee_net::{AttachOptions, Port};

use super::{DEPTH, Victim};

const FRAME_BYTES: usize = 200;
/// Of the time that a frame carries, behind the Ethernet header.
const TOKEN: std::ops::Range<usize> = 14..22;
/// More than the pair has on their way: frames of others that come to all ports have places, too, as many as come while other programs
/// have the pair's CPU for most of a second.
const PORT_DEPTH: u32 = 1024;

/// A correct client of two ports.
pub(in super::super) struct Pair {
    sender: Port,
    receiver: Port,
    frame: Vec<u8>,
    receive_buffer: Vec<u8>,
    /// Sent, and not received.
    outstanding: u32,
}

impl Pair {
    pub(in super::super) fn attach(socket: &Path, names: [&str; 2]) -> Result<Self, String> {
        let attach = |name: &str| {
            let options = AttachOptions { depth: PORT_DEPTH, ..AttachOptions::new(name) };
            Port::attach(socket, &options).map_err(|error| format!("cannot attach to port {name}: {error}"))
        };
        let (sender, receiver) = (attach(names[0])?, attach(names[1])?);
        let mut frame = [&receiver.mac().0[..], &sender.mac().0, &[0x88, 0xb5]].concat();
        frame.resize(FRAME_BYTES, 0x5a);
        Ok(Self { sender, receiver, frame, receive_buffer: Vec::new(), outstanding: 0 })
    }
}

impl Victim for Pair {
    fn begin(&mut self) -> Result<(), String> {
        // Otherwise no buffer may be left for its own frames.
        for port in [&mut self.sender, &mut self.receiver] {
            while port.receive(&mut self.receive_buffer).map_err(|error| error.to_string())? {}
        }
        Ok(())
    }

    fn fill(&mut self, now: u64) -> Result<(), String> {
        let mut token = now;
        while self.outstanding < DEPTH {
            self.frame[TOKEN].copy_from_slice(&token.to_le_bytes());
            self.sender.stage(&self.frame).map_err(|error| error.to_string())?;
            self.outstanding += 1;
            token = 0;
        }
        self.sender.submit();
        // What others send to all.
        while self.sender.receive(&mut self.receive_buffer).map_err(|error| error.to_string())? {}
        Ok(())
    }

    fn look(&mut self, mut came: impl FnMut(u64)) -> Result<u64, String> {
        let mut count = 0;
        while self.receiver.receive(&mut self.receive_buffer).map_err(|error| error.to_string())? {
            if self.receive_buffer.len() == FRAME_BYTES && self.receive_buffer[6..12] == self.frame[6..12] {
                came(u64::from_le_bytes(self.receive_buffer[TOKEN].try_into().unwrap_or_default()));
                count += 1;
            }
        }
        self.outstanding =
            self.outstanding.checked_sub(u32::try_from(count).unwrap_or(u32::MAX)).ok_or("more came than was sent")?;
        self.sender.reap().map_err(|error| error.to_string())?;
        match self.sender.refused() {
            (0, _) => Ok(count),
            (_, status) => Err(format!("a frame of the victim was refused: {status:?}")),
        }
    }

    fn is_idle(&self) -> bool {
        self.outstanding == 0
    }
}
