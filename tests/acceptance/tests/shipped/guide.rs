//! Every command block of the documents that users follow does what the document says.

use std::sync::{Mutex, PoisonError};
use std::thread;

use fipsee_acceptance::{guide, shipped};

/// Pages at a time. Each has a daemon and a folder of its own, and waits for other programs most of the time.
const AT_A_TIME: usize = 2;

#[test]
fn every_page_does_what_it_says() {
    let Some(programs) = shipped("guide", "bin") else { return };
    // Python with the module and numpy.
    let Some(python) = shipped("guide", "../python-venv/bin") else { return };
    let path = format!("{}:{}:{}", programs.display(), python.display(), std::env::var("PATH").unwrap_or_default());
    let pages = guide::pages();
    assert!(pages.len() > 1, "no pages found");
    let (pages, failures) = (Mutex::new(pages.iter()), Mutex::new(Vec::new()));
    let next = || pages.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || {
        while let Some(page) = next() {
            let failed = guide::run(page, &path).err();
            failures.lock().unwrap_or_else(PoisonError::into_inner).extend(failed);
        }
    };
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(run);
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
