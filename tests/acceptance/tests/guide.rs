//! Every command block of the documents that users follow does what the document says.

use fipsee_acceptance::{guide, shipped};

#[test]
fn every_page_does_what_it_says() {
    let Some(programs) = shipped("guide", "bin") else { return };
    // Python with the module and numpy.
    let Some(python) = shipped("guide", "../python-venv/bin") else { return };
    let path = format!("{}:{}:{}", programs.display(), python.display(), std::env::var("PATH").unwrap_or_default());
    let pages = guide::pages();
    assert!(pages.len() > 1, "no pages found");
    let failures: Vec<String> = pages.iter().filter_map(|page| guide::run(page, &path).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
