//! Transports: how clients reach the daemon. One folder per kind.

pub mod inherited;
mod log_quota;
pub mod unix;
pub mod vhost_user;

use log_quota::LogQuota;
