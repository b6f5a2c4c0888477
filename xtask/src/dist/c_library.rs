//! `libfipsee`: the shared and the static library, the headers, the pkg-config file, and the C benchmark.
//!
//! Rust's own linking of a `cdylib` sets no soname and brings a version script of its own, so the C compiler links what
//! Rust compiled: all of it first becomes one object in which only the public symbols are global. Both libraries are made
//! of that object, so neither can clash with another Rust library in the same program.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Dist, debug, notices};
use crate::files::{self, make_folder, read_text};
use crate::step;

const PACKAGE: &str = "fipsee-capi";
/// Version of the binary interface: part of the soname, and the node of its symbols. It changes when a program that was
/// linked before would break (crates/capi/abi/README.md).
const ABI: &str = "0";
const SYMBOL_NODE: &str = "FIPSEE_0.1";

const HEADERS: [&str; 8] = [
    "fipsee_client.h",
    "fipsee_doorbells.h",
    "fipsee_port.h",
    "fipsee.h",
    "fipsee_block.h",
    "fipsee_ring.h",
    "fipsee_stream.h",
    "fipsee_pace.h",
];

pub(super) fn build(dist: &Dist) -> Result<String, String> {
    dist.cargo_build(&[PACKAGE])?;
    let work = dist.target.join("c-library");
    make_folder(&work)?;
    let object = one_object(&dist.built("libfipsee_capi.a"), &work)?;
    let version = env!("CARGO_PKG_VERSION");
    let system_libraries = system_libraries(&work)?;
    shared_library(dist, &object, &work, version, &system_libraries)?;
    static_library(dist, &object, &work)?;
    for header in HEADERS {
        dist.install(&dist.root.join("include").join(header), &format!("include/{header}"))?;
    }
    let description = write(&work, "fipsee.pc", &pkg_config(version, &system_libraries))?;
    dist.install(&description, "lib/pkgconfig/fipsee.pc")?;
    // The static library is in the package of the headers.
    notices::install(dist, &["libfipsee0", "libfipsee-dev"], PACKAGE, &[PACKAGE])?;
    benchmark(dist, &work)?;
    Ok(format!("libfipsee.so.{version}"))
}

/// Everything of the archive that the public functions reach, as one object with its other symbols local.
fn one_object(archive: &Path, work: &Path) -> Result<PathBuf, String> {
    let object = work.join("fipsee.o");
    let mut link = Command::new("ld");
    // Sections stay apart, so that a program's own link can still leave out what it does not use.
    link.args(["--relocatable", "--whole-archive"]).arg(archive).arg("-o").arg(&object);
    step::succeed(&mut link)?;
    let mut hide = Command::new("objcopy");
    hide.args(["--wildcard", "--keep-global-symbol=fipsee_*"]);
    // LLVM's intermediate code of Rust's own library: of no use here, and tools of another LLVM fail on it.
    step::succeed(hide.args(["--remove-section=.llvmbc", "--remove-section=.llvmcmd"]).arg(&object))?;
    Ok(object)
}

fn shared_library(dist: &Dist, object: &Path, work: &Path, version: &str, libraries: &str) -> Result<(), String> {
    let script = write(work, "fipsee.map", &format!("{SYMBOL_NODE} {{ global: fipsee_*; local: *; }};\n"))?;
    let library = work.join("libfipsee.so");
    let mut link = Command::new("cc");
    link.args(["-shared", "-Wl,--gc-sections", "-Wl,-z,relro,-z,now", "-Wl,-z,defs", "-Wl,--as-needed"]);
    // Rust keeps thread-local values with destructors: the library cannot be unloaded.
    link.args(["-Wl,-z,nodelete".to_owned(), format!("-Wl,-soname,libfipsee.so.{ABI}")]);
    link.arg(format!("-Wl,--version-script={}", script.display())).arg(object);
    step::succeed(link.args(libraries.split_whitespace()).arg("-o").arg(&library))?;
    let file = format!("libfipsee.so.{version}");
    debug::split(dist, &library, &dist.prefix.join("lib").join(&file))?;
    for name in [format!("libfipsee.so.{ABI}"), "libfipsee.so".to_owned()] {
        let link = dist.prefix.join("lib").join(&name);
        let _ = fs::remove_file(&link);
        symlink(&file, &link).map_err(|error| format!("cannot create {}: {error}", link.display()))?;
    }
    Ok(())
}

fn static_library(dist: &Dist, object: &Path, work: &Path) -> Result<(), String> {
    // Programs bring the debug information of their own code only.
    let bare = work.join("libfipsee.o");
    step::succeed(Command::new("objcopy").arg("--strip-debug").arg(object).arg(&bare))?;
    let library = work.join("libfipsee.a");
    // `ar` would add to what an earlier build left.
    let _ = fs::remove_file(&library);
    step::succeed(Command::new("ar").arg("rcsD").arg(&library).arg(&bare))?;
    dist.install(&library, "lib/libfipsee.a")
}

/// What Rust's standard library wants linked besides. The C compiler adds its own support library (gcc_s) itself, and
/// the one that suits a static program, too.
fn system_libraries(work: &Path) -> Result<String, String> {
    let list = work.join("native-libraries.txt");
    let empty = write(work, "empty.rs", "")?;
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--crate-type=staticlib", "--crate-name=empty"]).arg("-o").arg(work.join("empty.a"));
    rustc.arg(format!("--print=native-static-libs={}", list.display())).arg(empty);
    step::succeed(&mut rustc)?;
    let text = read_text(&list)?;
    let mut libraries: Vec<&str> = Vec::new();
    for library in text.split_whitespace().filter(|library| !matches!(*library, "-lgcc_s" | "-lc")) {
        if !libraries.contains(&library) {
            libraries.push(library);
        }
    }
    Ok(libraries.join(" "))
}

/// Relative to its own place, so that the prefix can be moved.
fn pkg_config(version: &str, libraries: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         \n\
         Name: fipsee\n\
         Description: Client of Fip-see: disks, calls and frames over shared memory\n\
         Version: {version}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -lfipsee\n\
         Libs.private: {libraries}\n"
    )
}

/// `fipsee-bench-c`, for `cargo xtask bench block`.
fn benchmark(dist: &Dist, work: &Path) -> Result<(), String> {
    let program = work.join("fipsee-bench-c");
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    compile.arg("-I").arg(dist.prefix.join("include")).arg(dist.root.join("bench/c/fipsee_bench.c"));
    // Found from where it is installed, libexec.
    compile.arg("-L").arg(dist.prefix.join("lib")).args(["-lfipsee", "-Wl,-rpath,$ORIGIN/../lib", "-o"]).arg(&program);
    step::succeed(&mut compile)?;
    dist.install(&program, "libexec/fipsee-bench-c")
}

fn write(work: &Path, name: &str, text: &str) -> Result<PathBuf, String> {
    let path = work.join(name);
    files::write(&path, text).map(|()| path)
}
