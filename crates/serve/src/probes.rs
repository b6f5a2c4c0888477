//! Static probes (USDT) for tracers such as bpftrace: a nop in the program, and a note in its file that says where it is and in which
//! registers the arguments are. One that no tracer uses costs the nop.
//!
//! docs/guide/tracing.md lists them. On the path of a disk that answers at once there is none per request, only per visit and per
//! message of completions.

#[doc(hidden)]
pub use ::probe as sdt;

/// A probe of provider `fipsee`. Arguments are integers.
#[macro_export]
macro_rules! probe {
    ($name:ident $(, $argument:expr)*) => {{
        // Miri has no assembler.
        #[cfg(not(miri))]
        $crate::probes::sdt::probe!(fipsee, $name $(, $argument)*);
        #[cfg(miri)]
        let _ = ($($argument,)*);
    }};
}
