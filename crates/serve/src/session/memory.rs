//! REGISTER and UNREGISTER: memory that clients hand over.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fipsee_ring::control::{ACCESS_READ, ACCESS_WRITE, Control, MAX_REGIONS, Refusal, RefusalCode};
use fipsee_ring::handshake::refuse;
use fipsee_ring::region::{Access, MAX_REGION_BYTES, Region, RegionError};

use super::{Attachment, Done, Host, Registered, Sessions, State};
use crate::Engine;

impl Registered {
    /// Map what a client handed over; `access`: `ACCESS_*` bits.
    pub fn map(file: OwnedFd, length_bytes: u64, access: u16) -> Result<Self, RegionError> {
        let mapping = if access & ACCESS_WRITE != 0 { Access::ReadWrite } else { Access::Read };
        Ok(Self { region: Arc::new(Region::from_peer(file, length_bytes, mapping)?), access, is_going: false })
    }
}

impl<E: Engine, H: Host<E>> Sessions<E, H> {
    /// REGISTER: check, map, and hand the memory to the workers.
    pub(super) fn register(
        &mut self,
        client: u64,
        (id, access, length_bytes): (u16, u16, u64),
        mut files: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let Some(uid) = self.sessions.get(&client).map(|session| session.credentials.uid) else { return Ok(()) };
        self.check_descriptors(uid, 1)?;
        let Some(session) = self.sessions.get_mut(&client) else { return Ok(()) };
        let limit_bytes = session.limits.max_memory_bytes;
        let State::Attached(held) = &mut session.state else {
            return Err(refuse(RefusalCode::Malformed, "REGISTER follows ATTACH"));
        };
        if held.attachment.memory().is_none() {
            return Err(refuse(RefusalCode::BadMemory, "this service takes no memory; send data with its messages"));
        }
        if id == 0 || id >= MAX_REGIONS || held.memory.contains_key(&id) {
            let text = format!("region id {id} is in use or not in 1..{MAX_REGIONS}; choose a free one");
            return Err(refuse(RefusalCode::BadMemory, text));
        }
        if access == 0 || access & !(ACCESS_READ | ACCESS_WRITE) != 0 {
            return Err(refuse(RefusalCode::BadMemory, format!("access {access:#x} is neither reading nor writing nor both")));
        }
        if length_bytes == 0 || length_bytes > MAX_REGION_BYTES {
            let text = format!("{length_bytes} bytes cannot be registered in one piece; a region has 1 to {MAX_REGION_BYTES}");
            return Err(refuse(RefusalCode::BadMemory, text));
        }
        let held_bytes = held.registered_bytes();
        if length_bytes > limit_bytes.saturating_sub(held_bytes) {
            let text = format!(
                "{held_bytes} bytes are registered and {length_bytes} more asked for; a client may register {limit_bytes} (max_memory_bytes)"
            );
            return Err(refuse(RefusalCode::Limit, text));
        }
        self.check_memory(uid, length_bytes)?;
        let Some(State::Attached(held)) = self.sessions.get_mut(&client).map(|session| &mut session.state) else {
            return Ok(());
        };
        let (Some(file), true) = (files.pop(), files.is_empty()) else {
            return Err(refuse(RefusalCode::BadMemory, "REGISTER carries exactly one descriptor, the memory file"));
        };
        let memory =
            Registered::map(file, length_bytes, access).map_err(|error| refuse(RefusalCode::BadMemory, error.to_string()))?;
        let region = Arc::clone(&memory.region);
        held.memory.insert(id, memory);
        let order = move |held: &dyn Attachment<E>, ack| Some(held.memory()?.add_region(client, id, &region, access, ack));
        self.command_workers(client, Done::Registered(id), Box::new(order));
        Ok(())
    }

    /// UNREGISTER: the id stays in use until the workers have released it.
    pub(super) fn unregister(&mut self, client: u64, id: u16) -> Result<(), Refusal> {
        let Some(session) = self.sessions.get_mut(&client) else { return Ok(()) };
        let State::Attached(held) = &mut session.state else {
            return Err(refuse(RefusalCode::Malformed, "UNREGISTER follows ATTACH"));
        };
        let found = held.memory.get_mut(&id).filter(|memory| !memory.is_going);
        let memory = found.ok_or_else(|| refuse(RefusalCode::BadMemory, format!("there is no registered region {id}")))?;
        memory.is_going = true;
        let order = move |held: &dyn Attachment<E>, ack| Some(held.memory()?.remove_region(client, id, ack));
        self.command_workers(client, Done::Unregistered(id), Box::new(order));
        Ok(())
    }

    pub(super) fn unregistered(&mut self, client: u64, id: u16) {
        if let Some(State::Attached(held)) = self.sessions.get_mut(&client).map(|session| &mut session.state) {
            held.memory.remove(&id);
        }
        self.send(client, Control::Unregistered { region: id });
    }
}
