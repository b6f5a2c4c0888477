//! Nothing acknowledged is lost: daemon and clients are killed with SIGKILL under load, again and again, and what is on the
//! disk is compared with the records. docs/reliability.md says what is promised and how to run it.
#![allow(missing_docs, reason = "parts of a test, whose names say what they are")]

pub mod campaign;
pub mod oracle;
pub mod record;
pub mod writer;
