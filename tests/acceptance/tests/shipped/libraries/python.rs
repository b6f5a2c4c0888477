//! The Python module, installed from its wheel: the tests in crates/python/tests, one file of them at a time, and its source.

use std::path::{Path, PathBuf};
use std::process::Command;

use fipsee_acceptance::{Scratch, run, serve, shipped};

/// The interpreter in which `cargo xtask dist` installed the wheel, beside the prefix.
fn python(what: &str) -> Option<PathBuf> {
    shipped(what, "wheels").and_then(|_| shipped(what, "../python-venv/bin/python3"))
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/python")
}

/// Without leaving compiled files in the source.
fn command(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.current_dir(source()).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn pytest(file: &str) {
    let Some(python) = python(file) else { return };
    let Some(bin) = shipped(file, "bin/fipseed") else { return };
    let Some(prefix) = bin.parent().and_then(Path::parent).and_then(|prefix| prefix.canonicalize().ok()) else { return };
    let directory = Scratch::new();
    let mut command = command(&python);
    command.args(["-m", "pytest", "-q", "--basetemp"]).arg(directory.path("t")).arg(format!("tests/{file}.py"));
    // Checks every block of the interpreter's memory, and warns of what is not closed.
    let said = run(command.env("PYTHONDEVMODE", "1").env("FIPSEE_DIST", prefix));
    assert!(said.contains(" passed") && !said.contains("skipped"), "{said}");
}

#[test]
fn blocking_calls_move_every_byte() {
    pytest("test_blocking");
}

#[test]
fn batches_move_every_block_and_name_what_failed() {
    pytest("test_batch");
}

#[test]
fn memory_lives_as_long_as_its_views() {
    pytest("test_memory");
}

#[test]
fn misuse_is_refused_with_words() {
    pytest("test_misuse");
}

#[test]
fn death_of_the_daemon_is_an_exception() {
    pytest("test_death");
}

#[test]
fn threads_share_a_disk() {
    pytest("test_threads");
}

#[test]
fn awaits_share_a_queue() {
    pytest("test_aio");
}

#[test]
fn wake_ups_are_counted() {
    pytest("test_doorbells");
}

#[test]
fn frames_go_between_ports() {
    pytest("test_port");
}

#[test]
fn frames_are_read_and_filled_in_shared_memory() {
    pytest("test_port_memory");
}

#[test]
fn stubs_are_true_and_strict() {
    pytest("test_types");
}

#[test]
fn benchmark_prints_its_line() {
    let Some(python) = python("python benchmark") else { return };
    let Some(daemon) = serve("python-benchmark", &["n=null:1G"]) else { return };
    let said = run(command(&python).arg("../../bench/python/bench.py").arg(daemon.socket()).args(["n", "0.2"]));
    for key in ["\"batch_iops\": ", "\"single_p50_ns\": ", "\"single_p99_ns\": "] {
        let value = said.split_once(key).map(|(_, after)| after.trim_start_matches(char::is_numeric).len() < after.len());
        assert_eq!(value, Some(true), "{said}");
    }
}

/// Installed alone into a new environment, as from an index; what it says of itself, and that its tag is true.
#[test]
fn wheel_describes_itself_and_runs_where_its_tag_says() {
    const SAY: &str = "
import fipsee
from importlib.metadata import distribution
wheel = distribution('fipsee')
meta = wheel.metadata
assert fipsee.__version__ == wheel.version == meta['Version'], fipsee.__version__
for key in ('Summary', 'License-Expression', 'Requires-Python', 'Description-Content-Type', 'Classifier'):
    assert meta[key], key
assert 'fipsee.open(' in meta.get_payload(), meta.get_payload()
names = sorted(meta.get_all('License-File'))
assert names == ['LICENSE-APACHE', 'LICENSE-MIT', 'THIRD-PARTY-NOTICES'], names
texts = {file.name: file.read_text() for file in wheel.files if 'licenses' in file.parts}
assert 'pyo3' in texts['THIRD-PARTY-NOTICES'] and sorted(texts) == names, sorted(texts)
";
    let Some(python) = python("python wheel") else { return };
    let wheels = shipped("python wheel", "wheels").expect("just seen");
    let wheel = std::fs::read_dir(wheels).expect("a directory").flatten().next().expect("a wheel").path();
    let name = wheel.file_name().expect("a file").to_string_lossy().into_owned();
    let tag = name.split_once("-manylinux_").and_then(|(_, tag)| tag.strip_suffix(".whl")).unwrap_or_else(|| panic!("{name}"));
    // The least that it needs, by the judge of those tags.
    let judged =
        run(command(&python).args(["-m", "auditwheel", "show"]).arg(&wheel)).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(judged.contains(&format!("constrains the platform tag to \"manylinux_{tag}\"")), "{tag}: {judged}");
    let directory = Scratch::new();
    let venv = directory.path("venv");
    run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv));
    let mut install = Command::new("python3");
    install.args(["-m", "pip", "--disable-pip-version-check", "--quiet", "--python"]).arg(venv.join("bin/python3"));
    run(install.args(["install", "--no-index", "--no-deps"]).arg(&wheel));
    run(command(&venv.join("bin/python3")).args(["-c", SAY]));
}

/// What `pip install crates/python` does in a checkout, with the build tools that are here already.
#[test]
fn module_is_installed_from_its_source() {
    let Some(python) = python("python source") else { return };
    let directory = Scratch::new();
    let mut install = Command::new("python3");
    install.args(["-m", "pip", "--disable-pip-version-check", "--quiet", "--python"]).arg(&python);
    install.args(["install", "--no-build-isolation", "--no-deps", "--no-index", "--target"]).arg(directory.path("site"));
    // Last, so that the machine's pip is found before.
    let tools = python.parent().map(Path::to_owned);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::env::split_paths(&paths).chain(tools)).expect("a path that has maturin");
    // The same release build as the wheel's: nothing is compiled twice.
    let target = python.parent().and_then(Path::parent).and_then(Path::parent).expect("the venv is in the target directory");
    run(install.arg(source()).env("PATH", path).env("CARGO_TARGET_DIR", target.canonicalize().expect("it exists")));
    let mut import = Command::new(&python);
    import.args(["-c", "import fipsee; print(fipsee.__file__, fipsee.Disk)"]);
    let said = run(import.env("PYTHONPATH", directory.path("site")));
    let site = directory.path("site").display().to_string();
    assert!(said.contains(&site) && said.contains("fipsee.Disk"), "{said}");
}
