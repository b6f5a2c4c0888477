//! Transports: how clients reach the daemon. One folder per kind.

pub(crate) mod inherited;
mod log_quota;
pub(crate) mod tap;
pub(crate) mod unix;
pub mod vhost_user;

pub(crate) use log_quota::LogQuota;
