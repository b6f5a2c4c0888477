//! SIGINT and SIGTERM end a run in order, so that what was mounted and attached is released.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on these signals are only noted.
pub fn arm() -> Result<(), String> {
    let flag = FLAG.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        // The second one ends the process at once, for a run that hangs.
        signal_hook::flag::register_conditional_shutdown(signal, 2, Arc::clone(flag)).map_err(|error| error.to_string())?;
        signal_hook::flag::register(signal, Arc::clone(flag)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

pub fn check() -> Result<(), String> {
    if FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) { Err("interrupted".to_owned()) } else { Ok(()) }
}
