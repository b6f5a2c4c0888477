//! The layout tables of C and Rust are the same table.

use std::collections::BTreeMap;

use fipsee_interop::{ffi, layout};

#[test]
fn c_and_rust_fix_the_same_sizes_offsets_and_constants() {
    let c: BTreeMap<String, u64> = ffi::layout().into_iter().collect();
    let rust: BTreeMap<String, u64> = layout::table().into_iter().collect();
    assert_eq!(c.len(), ffi::layout().len(), "a name is twice in c/layout.c");
    assert_eq!(rust.len(), layout::table().len(), "a name is twice in src/layout.rs");
    let mut differences = Vec::new();
    for name in c.keys().chain(rust.keys()) {
        let pair = (c.get(name), rust.get(name));
        if pair.0 != pair.1 {
            differences.push(format!("{name}: C {:?}, Rust {:?}", pair.0, pair.1));
        }
    }
    differences.dedup();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(c.len() > 200, "the table lost most of its {} entries", c.len());
}
