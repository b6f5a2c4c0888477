//! Rules for Rust.

use super::code::without_comments_and_literals;
use super::{File, at, is_allowed};

/// The files that may contain unsafe code. Everything else is safe Rust over these.
const UNSAFE_FILES: &[&str] = &[
    "crates/ring/src/mapped.rs",
    "crates/ring/src/memory.rs",
    "crates/ring/src/region.rs",
    "crates/ring/src/clock.rs",
    "crates/ring/src/sync.rs",
    "crates/ring/src/ring.rs",
    "crates/ring/src/ring/slots.rs",
    "crates/ring/src/cpu.rs",
    "crates/ring/src/wait/instructions.rs",
    "crates/topology/src/lines.rs",
    "crates/topology/src/numa.rs",
    "bench/measure/src/harness/classic.rs",
    "crates/block/src/disk/",
    "crates/block/src/server",
    "crates/block/src/client/",
    "crates/serve/src/poll_set.rs",
    "crates/serve/src/poll_set/tests.rs",
    "crates/serve/src/uring",
    "crates/virtio/src/core/",
    "crates/virtio/src/blk/server",
    "crates/virtio/src/blk/upgrade/rings.rs",
    "crates/virtio/src/net/server/",
    "crates/net/src/server/",
    "crates/capi/src/",
    "crates/python/src/memory.rs",
    "crates/daemon/src/transport/inherited.rs",
    "crates/serve/src/unix/peer.rs",
];

/// The one file that names the machine's atomics.
const ATOMICS_FILE: &str = "crates/ring/src/sync.rs";

/// How far above unsafe code its proof may end: a statement that begins some lines earlier carries it.
const PROOF_REACH_LINES: usize = 12;

/// What a limit is called after which something hangs: minutes, not what is measured.
const HANG_LIMITS: [&str; 3] = ["DEADLINE", "TIMEOUT", "LIMIT"];

/// A call that must not be in code, and what to do instead.
const FORBIDDEN_CALLS: [(&str, &str); 3] = [
    ("todo!", "write it, or leave it out of this change"),
    ("unimplemented!", "write it, or return an error that says what is not supported"),
    ("dbg!", "remove it; use the log"),
];

/// What must not stand in the code below a folder, in any case, and why.
const FORBIDDEN_WORDS: [(&str, &[&str], &str); 3] = [
    (
        "crates/ring/src/",
        &["sector", "disk", "export_", "sole_writer", "service_block", "service_calls"],
        "ring knows no service: what a service adds is in its crate, and in the channel::Profile it gives",
    ),
    (
        "crates/serve/src/",
        &["sector", "disk", "hypervisor", "guest", "virtqueue", "vhost", "export_", "service_block", "service_calls"],
        "the runtime knows no service and no transport but its own: what a service needs, it declares or does itself",
    ),
    (
        "crates/virtio/src/core/",
        &["fipsee_block", "fipsee_serve", "crate::blk", "super::blk", "virtio_blk", "sector"],
        "what every virtio device is built on knows none of them, and no runtime: have the device give it, or do it",
    ),
];

pub(crate) fn check(file: &File) -> Vec<String> {
    let code = without_comments_and_literals(&file.text);
    let lines: Vec<&str> = file.text.lines().collect();
    let code_lines: Vec<&str> = code.lines().collect();
    let test_start = test_start(file, &code_lines);
    let mut errors = Vec::new();
    for (index, code) in code_lines.iter().enumerate() {
        let in_test = index >= test_start;
        let mut report = |what: &str| errors.push(at(file, index, what));
        for (call, instead) in FORBIDDEN_CALLS {
            if has_word(code, call) {
                report(&format!("{call} is forbidden: {instead}"));
            }
        }
        for (folder, words, why) in FORBIDDEN_WORDS {
            if let Some(word) = words.iter().find(|word| code.to_lowercase().contains(**word))
                && file.path.starts_with(folder)
            {
                report(&format!("`{word}` below {folder}: {why}"));
            }
        }
        if has_word(code, "thread::sleep") && !is_allowed(&lines, index, "sleep") {
            report("sleeping is no synchronisation: wait for the event, or say `tidy: allow sleep, <reason>`");
        }
        if in_test && asserts_most_time(code) && !is_allowed(&lines, index, "time") {
            report("a machine may be busy for any time: assert what happens, or say `tidy: allow time, <reason>`");
        }
        if names_machine_atomic(code) && file.path != ATOMICS_FILE && !is_allowed(&lines, index, "atomic") {
            report("use fipsee_ring::AtomicU32, which the model checker can replace; only crates/ring/src/sync.rs names atomics");
        }
        if is_unsafe(code) {
            if !may_be_unsafe(&file.path) && !in_test {
                report("unsafe code outside the files for it (xtask/src/tidy/source.rs): build on what those offer");
            }
            if needs_proof(code) && !has_proof(&lines, &code_lines, index) {
                report("unsafe without a `// SAFETY:` proof above it");
            }
        }
    }
    errors
}

/// The first line of test code: line 0 of a test file, else where the test module begins.
fn test_start(file: &File, code_lines: &[&str]) -> usize {
    if is_test_file(&file.path) {
        return 0;
    }
    code_lines.iter().position(|line| line.contains("#[cfg(test)]")).unwrap_or(usize::MAX)
}

fn is_test_file(path: &str) -> bool {
    let is_benchmark = path.starts_with("bench/") && !path.starts_with("bench/measure/");
    path.starts_with("tests/") || path.contains("/tests/") || is_benchmark
}

fn may_be_unsafe(path: &str) -> bool {
    let is_listed = |listed: &&str| path == *listed || (!listed.ends_with(".rs") && path.starts_with(*listed));
    is_test_file(path) || UNSAFE_FILES.iter().any(is_listed)
}

/// Is it asserted that something takes less than a time, which is no limit for what hangs?
fn asserts_most_time(code: &str) -> bool {
    let compared = code.split_once('<').filter(|_| has_word(code, "assert!"));
    compared.is_some_and(|(left, right)| {
        let is_time = left.contains("elapsed()") || right.trim_start_matches(['=', ' ']).starts_with("Duration::from_");
        is_time && !HANG_LIMITS.iter().any(|limit| right.contains(limit))
    })
}

/// Is `word` in `code`, not as the end of a longer name?
fn has_word(code: &str, word: &str) -> bool {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    code.match_indices(word).any(|(position, _)| !code[..position].ends_with(is_name))
}

fn names_machine_atomic(code: &str) -> bool {
    let Some((_, after)) = code.split_once("sync::atomic::") else { return false };
    after.contains("AtomicU32") && (code.contains("core::") || code.contains("std::"))
}

/// What follows the keyword `unsafe` in this line, if it is there.
fn after_unsafe(code: &str) -> Option<&str> {
    let (before, after) = code.split_once("unsafe")?;
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    (!before.ends_with(is_name) && after.starts_with([' ', '{'])).then(|| after.trim_start())
}

fn is_unsafe(code: &str) -> bool {
    after_unsafe(code).is_some()
}

/// Blocks and impls prove something; an unsafe function or trait states what its caller must prove.
fn needs_proof(code: &str) -> bool {
    after_unsafe(code).is_some_and(|after| after.starts_with('{') || after.starts_with("impl"))
}

fn has_proof(lines: &[&str], code_lines: &[&str], index: usize) -> bool {
    if lines[index].contains("SAFETY:") {
        return true;
    }
    for above in (index.saturating_sub(PROOF_REACH_LINES)..index).rev() {
        if lines[above].contains("SAFETY:") {
            return true;
        }
        // Another unsafe block in between has used the proof up; an empty line separates it from this code.
        if lines[above].trim().is_empty() || needs_proof(code_lines[above]) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(path: &str, text: &str) -> Vec<String> {
        check(&File { path: path.to_owned(), text: text.to_owned() })
    }

    #[test]
    fn forbidden_calls_are_found_in_code_and_not_in_words_about_them() {
        for call in ["todo!()", "unimplemented!(\"x\")", "dbg!(x)"] {
            assert_eq!(errors("crates/block/src/a.rs", &format!("fn f() {{ {call} }}\n")).len(), 1, "{call}");
            assert_eq!(errors("crates/block/src/a.rs", &format!("// {call}\nlet a = r\"{call}\"; my_{call};\n")), [""; 0]);
        }
    }

    #[test]
    fn words_of_what_is_above_are_found_in_code_only() {
        for code in ["pub const SERVICE_BLOCK: u16 = 1;", "fn f(sector_count: u64) {}", "use fipsee_block::disk::Disk;"] {
            assert_eq!(errors("crates/ring/src/a.rs", code).len(), 1, "{code}");
            assert_eq!(errors("crates/block/src/a.rs", code), [""; 0]);
        }
        assert_eq!(errors("crates/ring/src/a.rs", "// of a disk\nconst WHAT: &str = \"sectors\";\n"), [""; 0]);
        assert_eq!(errors("crates/serve/src/a.rs", "fn f(disk: u32) {}").len(), 1);
        assert_eq!(errors("crates/virtio/src/core/a.rs", "use fipsee_serve::Queue;").len(), 1);
    }

    #[test]
    fn sleep_needs_a_reason_in_tests_too() {
        let sleep = "std::thread::sleep(pause);\n";
        assert_eq!(errors("crates/daemon/src/a.rs", sleep).len(), 1);
        assert_eq!(errors("crates/daemon/src/a.rs", &format!("// tidy: allow sleep, rate limit\n{sleep}")), [""; 0]);
        assert_eq!(errors("crates/daemon/src/a.rs", &format!("// tidy: allow sleep, \n{sleep}")).len(), 1, "no reason");
        for path in ["crates/ring/tests/a.rs", "tests/oracle/src/a.rs", "bench/suite/src/a.rs"] {
            assert_eq!(errors(path, sleep).len(), 1, "{path}");
        }
    }

    #[test]
    fn tests_assert_no_time_but_that_something_hangs() {
        let path = "crates/ring/tests/a.rs";
        for bad in ["assert!(begun.elapsed() < limit);\n", "assert!(times[0] <= Duration::from_millis(9), \"slow\");\n"] {
            assert_eq!(errors(path, bad).len(), 1, "{bad}");
            assert_eq!(errors(path, &format!("// tidy: allow time, a bound of the protocol\n{bad}")), [""; 0]);
            assert_eq!(errors("crates/ring/src/a.rs", bad), [""; 0], "not in a test");
        }
        let good = "assert!(begun.elapsed() < DEADLINE);\nassert!(begun.elapsed() > pause);\nassert!(a < b);\n";
        assert_eq!(errors(path, good), [""; 0]);
    }

    #[test]
    fn machine_atomics_are_in_one_file() {
        for text in ["use core::sync::atomic::AtomicU32;\n", "use std::sync::atomic::{AtomicBool, AtomicU32};\n"] {
            assert_eq!(errors("crates/daemon/src/a.rs", text).len(), 1, "{text}");
            assert_eq!(errors("crates/ring/src/sync.rs", text), [""; 0]);
        }
        assert_eq!(errors("crates/daemon/src/a.rs", "use std::sync::atomic::AtomicU64;\n"), [""; 0]);
    }

    #[test]
    fn unsafe_code_needs_a_proof_and_a_place() {
        let proven = "// SAFETY: fine.\nunsafe { f() };\n";
        assert_eq!(errors("crates/ring/src/mapped.rs", proven), [""; 0]);
        assert_eq!(errors("crates/block/src/disk/file.rs", proven), [""; 0]);
        assert_eq!(errors("crates/daemon/src/worker.rs", proven).len(), 1);
        assert_eq!(errors("crates/ring/src/mapped.rs", "unsafe { f() };\n").len(), 1);
        assert_eq!(errors("crates/ring/src/mapped.rs", "unsafe impl Send for A {}\n").len(), 1);
        assert_eq!(
            errors("crates/ring/src/mapped.rs", &format!("{proven}unsafe {{ g() }};\n")).len(),
            1,
            "one proof, two blocks"
        );
        assert_eq!(errors("crates/ring/src/mapped.rs", "unsafe fn f() {}\n#[unsafe(no_mangle)]\nfn g() {}\n"), [""; 0]);
        assert_eq!(errors("crates/daemon/src/a.rs", "#![deny(unsafe_op_in_unsafe_fn)]\n"), [""; 0]);
    }
}
