//! Structures of the wire as types, with the places that docs/protocol.md gives to their fields.
//!
//! Numbers are in the byte order of the machine, which is that of the wire (lib.rs refuses others), as in `include/`.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::fault::PeerFault;

/// A structure that [`wire_structures`](crate::wire_structures) declares.
pub trait Structure: FromBytes + IntoBytes + Immutable {
    /// Name, offset and length in bytes of every field, to be compared with `include/`.
    const FIELDS: &[(&str, usize, usize)];
}

/// Check the reserved words that begin `offset_bytes` into a structure.
pub fn all_zero<W: Copy + Into<u64>>(offset_bytes: usize, words: &[W]) -> Result<(), PeerFault> {
    match words.iter().map(|word| (*word).into()).enumerate().find(|(_, value)| *value != 0) {
        Some((index, value)) => {
            let offset_bytes = u32::try_from(offset_bytes + index * size_of::<W>()).unwrap_or(0);
            Err(PeerFault::ReservedSet { offset_bytes, value })
        }
        None => Ok(()),
    }
}

/// Declare structures: name, length in bytes, and of each field the offset, the name and the type. A field at another
/// offset, or a gap that no field names, does not compile.
#[macro_export]
macro_rules! wire_structures {
    ($($(#[$meta:meta])* $visibility:vis $name:ident: $length:literal {
        $($(#[$about:meta])* $offset:literal $field:ident: $type:ty),+ $(,)?
    })+) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
        #[repr(C)]
        $visibility struct $name {
            $($(#[$about])* #[doc = concat!("At byte ", $offset, ".")] pub $field: $type,)+
        }
        const _: () = {
            assert!(size_of::<$name>() == $length);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)+
        };
        impl $crate::wire::Structure for $name {
            const FIELDS: &[(&str, usize, usize)] =
                &[$((stringify!($field), core::mem::offset_of!($name, $field), size_of::<$type>())),+];
        }
    )+};
}
