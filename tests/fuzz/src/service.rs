//! What a server of calls says of its service.

use fipsee_call::{MAX_VALUE_BYTES, PAYLOAD_UNIT_BYTES, ServiceInfo};

use crate::take;

pub(crate) fn one(mut bytes: &[u8]) {
    let bytes: [u8; 64] = take(&mut bytes);
    if let Ok(info) = ServiceInfo::from_bytes(&bytes) {
        assert_eq!(info.to_bytes(), bytes, "what we send is what we meant");
        assert!(info.request_bytes <= MAX_VALUE_BYTES && info.reply_bytes <= MAX_VALUE_BYTES, "{info:?}");
        assert!(info.request_payload_bytes.is_multiple_of(PAYLOAD_UNIT_BYTES), "{info:?}");
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let info = ServiceInfo { request_bytes: 60, reply_bytes: 8, request_payload_bytes: 4096, reply_payload_bytes: 64 };
    vec![info.to_bytes().to_vec()]
}
