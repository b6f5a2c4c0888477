//! `fipseed` with one more service: the line that adds it is `SUMS`.

use std::process::ExitCode;
use std::sync::Arc;

use fipsee_daemon::services::Entry;
use fipsee_serve::Needs;
use fipsee_service::Sums;

const SUMS: Entry = Entry {
    needs: |_| Needs { calls: vec![libc::SYS_getpriority], ..Needs::default() },
    make: |_, _, workers| Box::new(Sums(workers.to_vec(), Arc::default())),
};

fn main() -> ExitCode {
    fipsee_daemon::program(&[SUMS])
}
