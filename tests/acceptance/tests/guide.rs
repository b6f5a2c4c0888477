//! Every command block of the documents that users follow does what the document says.

use std::sync::{Mutex, PoisonError};

use fipsee_acceptance::{guide, shipped};

#[test]
fn every_page_does_what_it_says() {
    let Some(programs) = shipped("guide", "bin") else { return };
    // Python with the module and numpy.
    let Some(python) = shipped("guide", "../python-venv/bin") else { return };
    let path = format!("{}:{}:{}", programs.display(), python.display(), std::env::var("PATH").unwrap_or_default());
    let pages = guide::pages();
    assert!(pages.len() > 1, "no pages found");
    // Two at a time: most of them wait for a system that boots.
    let next = Mutex::new(pages.iter());
    let run = || {
        let page = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
        std::iter::from_fn(page).filter_map(|page| guide::run(page, &path).err()).collect::<Vec<String>>()
    };
    let failures = std::thread::scope(|scope| {
        let other = scope.spawn(run);
        [run(), other.join().expect("no page makes the test panic")].concat()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
