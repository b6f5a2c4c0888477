//! Control messages of Rust in the neutral form of C.

use fipsee_ring::control::{Control, Page, Refusal, RefusalCode, Wanted};

use crate::ffi::CControl;

/// Where the entries of LISTED begin.
const LISTED_ENTRIES: usize = 16;

/// The number of a refusal code, as in a message.
pub fn refusal_number(code: RefusalCode) -> u32 {
    let bytes = Control::Refused(Refusal { code, text: String::new() }).encode();
    u32::from_le_bytes(*bytes[12..].first_chunk().expect("REFUSED is longer"))
}

/// `control` in the form that C gives and takes.
pub fn neutral(control: &Control) -> CControl {
    let mut out = CControl::EMPTY;
    let entries;
    let (fields, text): (Vec<u64>, &[u8]) = match control {
        Control::Hello { version_min, version_max, features } => {
            (vec![1, (*version_min).into(), (*version_max).into(), *features], &[])
        }
        Control::Welcome { version, max_queues, max_depth, features, max_pool_bytes } => {
            (vec![2, (*version).into(), (*max_queues).into(), (*max_depth).into(), *features, *max_pool_bytes], &[])
        }
        Control::Attach(Wanted { service, queue_count, depth, flags, pool_bytes, name }) => {
            (vec![3, (*service).into(), (*queue_count).into(), (*depth).into(), (*flags).into(), *pool_bytes], name.as_bytes())
        }
        Control::Attached { queue_count, region_bytes, service_info } => {
            (vec![4, (*queue_count).into(), *region_bytes], service_info)
        }
        Control::Refused(Refusal { code, text }) => (vec![5, refusal_number(*code).into()], text.as_bytes()),
        Control::Register { region, access, length_bytes } => (vec![6, (*region).into(), (*access).into(), *length_bytes], &[]),
        Control::Registered { region } => (vec![7, (*region).into()], &[]),
        Control::Unregister { region } => (vec![8, (*region).into()], &[]),
        Control::Unregistered { region } => (vec![9, (*region).into()], &[]),
        Control::Detach => (vec![10], &[]),
        Control::Detached => (vec![11], &[]),
        Control::List { service, after } => (vec![12, (*service).into()], after.as_bytes()),
        Control::Listed(Page { entries: listed, more }) => {
            entries = control.encode()[LISTED_ENTRIES..].to_vec();
            let count = u64::try_from(listed.len()).expect("few");
            (vec![13, count, (*more).into()], &entries)
        }
    };
    out.values[..fields.len()].copy_from_slice(&fields);
    out.text[..text.len()].copy_from_slice(text);
    out.text_bytes = u32::try_from(text.len()).expect("texts are short");
    out
}
