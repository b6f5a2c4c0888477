//! `include/` alone, without anything around it, compiles cleanly wherever it says it does.

use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

const SOURCE: &str = "#include \"fipsee_pace.h\"\n\
    #include \"fipsee_vm.h\"\n\
    #include \"fipsee_net.h\"\n\
    extern int use_of_the_ring(struct fipsee_reader *reader, union fipsee_message *into);\n\
    int use_of_the_ring(struct fipsee_reader *reader, union fipsee_message *into)\n\
    { return fipsee_reader_receive(reader, into) + (fipsee_reader_arm_and_work_remains(reader) ? 1 : 0); }\n\
    extern void use_of_the_pace(struct fipsee_pace *pace, struct fipsee_writer *calls, struct fipsee_reader *answers);\n\
    void use_of_the_pace(struct fipsee_pace *pace, struct fipsee_writer *calls, struct fipsee_reader *answers)\n\
    { fipsee_pace_init(pace, 2000); fipsee_pace_choose(pace, FIPSEE_CHOICES_MEASURED);\n\
      fipsee_writer_prefetch(calls, 4, true); (void)fipsee_writer_needs_doorbell(calls); fipsee_reader_begin_run(answers);\n\
      if (fipsee_pace_begin(pace, 1, answers->ring.cold)) fipsee_pace_apply(pace, calls, answers);\n\
      while (fipsee_pace_is_early(pace, 2)) ; }\n";

fn is_installed(compiler: &str) -> bool {
    Command::new(compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

fn compile(compiler: &str, arguments: &[&str]) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let suffix = if arguments.contains(&"-std=c++17") { "cpp" } else { "c" };
    let name = format!("header-{}.{suffix}", [compiler, &arguments.concat()].concat().replace(['+', '/'], "x"));
    let source = directory.join(name);
    fs::write(&source, SOURCE).expect("the temporary directory of this target is writable");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let status = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow", "-fsyntax-only"])
        .args(arguments)
        .arg("-I")
        .arg(include)
        .arg(&source)
        .status()
        .unwrap_or_else(|error| panic!("cannot run {compiler}: {error}; install it (Debian: gcc, g++)"));
    assert!(status.success(), "{compiler} {arguments:?} refuses the headers");
}

fn compile_everywhere(c: &str, cpp: &str) {
    for hosted in [&[][..], &["-ffreestanding"]] {
        for level in ["-O0", "-O2"] {
            compile(c, &[&["-std=c11", level], hosted].concat());
            compile(cpp, &[&["-std=c++17", level], hosted].concat());
        }
    }
}

#[test]
fn gcc_takes_the_headers_as_c11_and_cpp17_hosted_and_freestanding() {
    compile_everywhere("gcc", "g++");
}

#[test]
fn clang_takes_the_headers_as_c11_and_cpp17_hosted_and_freestanding() {
    if !is_installed("clang") {
        let line = "fipsee-skip: headers with clang: clang is not installed (Debian: apt-get install clang)\n";
        return std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).expect("standard error is open");
    }
    compile_everywhere("clang", "clang++");
}

/// A kernel build has none of the C library's headers; `c/kernel` has substitutes for the few of its own that are named.
#[test]
fn kernel_c_takes_the_headers_without_a_c_library() {
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/kernel");
    let kernel = kernel.to_str().expect("the path of the sources is UTF-8");
    compile("gcc", &["-std=gnu11", "-O2", "-D__KERNEL__", "-nostdinc", "-ffreestanding", "-isystem", kernel]);
}
