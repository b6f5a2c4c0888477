//! The C library as C programs use it: found by pkg-config, compiled with two compilers, linked both ways, and run.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use fipsee_acceptance::c::{Library, Link, UNDEFINED, Under, root};
use fipsee_acceptance::{DEADLINE, Daemon, Guard, Scratch, has_program, run, serve, serve_file, shipped};
use fipsee_testkit::eventually;

const DISKS: [&str; 4] = ["a=memory:16M,max=64M", "f=file:{dir}/f.img,size=16M,block=4096", "r=memory:1M,ro", "n=null:1G"];

/// For `ports.c` and `offloads.c`, and the example with ports.
const NETWORK: &str = "[[network]]\nname = \"lan\"\nmtu = 9000\n\
    [[network.port]]\nname = \"a\"\nmac = \"02:00:00:00:00:0a\"\n\
    [[network.port]]\nname = \"b\"\nmac = \"02:00:00:00:00:0b\"\n";

/// Run the C test `name` against a daemon of its own, and do what it asks for.
fn play(name: &str, under: Under, arguments: &[&str]) {
    let what = format!("c-{name}-{}", ["plain", "sanitizers", "valgrind"][under as usize]);
    let what = [what.as_str(), arguments.first().unwrap_or(&"")].join("");
    let Some(library) = Library::new(&what) else { return };
    if under == Under::Valgrind && !has_program(&what, "valgrind") {
        return;
    }
    let served = if matches!(name, "ports" | "offloads") { serve_file(&what, NETWORK) } else { serve(&what, &DISKS) };
    let Some(daemon) = served else { return };
    let program = daemon.dir.path("program");
    // The sanitizers see more of a static library: calls between it and the program go through nothing.
    let (link, extra) = if under == Under::Sanitizers { (Link::Static, UNDEFINED) } else { (Link::Shared, &[][..]) };
    library.compile("gcc", link, extra, &format!("tests/acceptance/c/{name}.c"), &program);
    let mut command = under.command(&program);
    library.able(&mut command).arg(daemon.socket()).args(arguments);
    Play { what, daemon, measured: None }.run(command);
}

struct Play {
    what: String,
    daemon: Daemon,
    /// Descriptors and resident kilobytes of the daemon, when the program asked to measure.
    measured: Option<(usize, u64)>,
}

impl Play {
    fn run(mut self, mut command: Command) {
        let log = self.daemon.dir.path("stderr");
        let errors = std::fs::File::create(&log).expect("a file for messages");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = Guard(command.spawn().expect("the program starts"));
        let mut input = child.0.stdin.take().expect("a pipe to it");
        let output = BufReader::new(child.0.stdout.take().expect("a pipe from it"));
        let (sender, receiver) = mpsc::channel();
        let reader = std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut last = String::new();
        let said = |last: &str| format!("{}: after '{last}': {}", self.what, std::fs::read_to_string(&log).unwrap_or_default());
        loop {
            match receiver.recv_timeout(DEADLINE) {
                Ok(line) => last = line,
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs: {}", said(&last)),
            }
            act(&mut self.daemon, &mut self.measured, last.trim_end_matches('?'));
            if last.ends_with('?') {
                // The status shows whether the program failed meanwhile.
                let _ = input.write_all(b"ok\n");
            }
        }
        let _ = reader.join();
        let status = child.0.wait().expect("its status");
        assert!(status.success() && last == "done", "{status}: {}", said(&last));
    }
}

fn act(daemon: &mut Daemon, measured: &mut Option<(usize, u64)>, request: &str) {
    match request.split_once(' ').map_or((request, ""), |(verb, rest)| (verb, rest)) {
        ("kill", _) => daemon.kill_9(),
        ("restart", _) => daemon.restart(),
        ("bounce", _) => {
            daemon.kill_9();
            daemon.restart();
        }
        ("resize", size) => {
            let fipsee = shipped("c", "bin/fipsee").expect("shipped with the daemon");
            run(Command::new(fipsee).arg("--connect").arg(daemon.socket()).args(["resize", "a", size, "--shrink", "--force"]));
        }
        ("link", option) => {
            let fipsee = shipped("c", "bin/fipsee").expect("shipped with the daemon");
            run(Command::new(fipsee).arg("--connect").arg(daemon.socket()).args(["net", "set", "lan/b", option]));
        }
        ("terminate", _) => {
            let pid = i32::try_from(daemon.pid()).ok().and_then(rustix::process::Pid::from_raw).expect("its pid");
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("the daemon is asked to end");
        }
        ("measure", _) => *measured = Some(footprint(daemon.pid())),
        ("compare", _) => {
            let ((descriptors, before_kb), now) = (measured.expect("measured before"), footprint(daemon.pid()));
            assert_eq!(now.0, descriptors, "descriptors of the daemon");
            assert!(now.1 <= before_kb + 1024, "the daemon grew from {before_kb} kB to {} kB", now.1);
        }
        ("settle" | "done", _) => {}
        other => panic!("the program says {other:?}"),
    }
}

fn footprint(pid: u32) -> (usize, u64) {
    // The daemon releases a client that left some time later.
    let count = || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count();
    let mut descriptors = count();
    for _ in 0..1000 {
        std::thread::yield_now();
        descriptors = descriptors.min(count());
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its resident memory");
    (descriptors, line.trim_end_matches("kB").trim().parse().expect("a number of kB"))
}

#[test]
fn every_call_does_what_the_header_says() {
    play("calls", Under::Nothing, &[]);
    play("batches", Under::Nothing, &[]);
    play("doorbells", Under::Nothing, &[]);
    play("ports", Under::Nothing, &[]);
    play("offloads", Under::Nothing, &[]);
}

#[test]
fn threads_with_their_own_queues_read_what_they_wrote() {
    play("verify", Under::Nothing, &["a", "1000"]);
    play("verify", Under::Nothing, &["f", "300"]);
}

#[test]
fn a_killed_daemon_gives_clean_errors_and_can_be_outlived() {
    play("death", Under::Nothing, &[]);
}

#[test]
fn events_reach_idle_and_busy_programs() {
    play("events", Under::Nothing, &[]);
}

#[test]
fn ten_million_requests_leave_memory_and_descriptors_as_they_were() {
    play("endurance", Under::Nothing, &[]);
}

#[test]
fn sanitizers_find_nothing() {
    for name in ["calls", "batches", "doorbells", "death", "events", "ports", "offloads"] {
        play(name, Under::Sanitizers, &[]);
    }
    play("verify", Under::Sanitizers, &["a", "100"]);
}

#[test]
fn valgrind_finds_nothing() {
    for name in ["calls", "batches", "doorbells", "death", "events", "ports", "offloads"] {
        play(name, Under::Valgrind, &[]);
    }
    play("verify", Under::Valgrind, &["a", "20"]);
}

#[test]
fn examples_are_short_and_run_however_they_are_built() {
    let Some(library) = Library::new("c-examples") else { return };
    for example in ["copy", "epoll", "frames"] {
        let text = std::fs::read_to_string(root().join(format!("examples/c/{example}.c"))).expect("the example");
        assert!(text.lines().count() <= 60, "examples/c/{example}.c has more than 60 lines");
    }
    let disks = ["a=file:{dir}/a.img,size=8M", "b=file:{dir}/b.img,size=9M"];
    let Some(daemon) = serve("c-examples", &disks) else { return };
    let image = |name: &str| daemon.dir.path(name);
    let ways = [
        ("gcc", Link::Shared),
        ("clang", Link::Shared),
        ("gcc", Link::Static),
        ("clang", Link::Static),
        ("gcc", Link::AllStatic),
    ];
    for (round, (compiler, link)) in (0_u32..).zip(ways) {
        let data: Vec<u8> = (0..2_u32 << 20).flat_map(|word| word.wrapping_mul(0x9e37_79b1 + 2 * round).to_le_bytes()).collect();
        std::fs::write(image("a.img"), &data).expect("the image is written");
        let program = image("program");
        let run_example = |name: &str, arguments: &[&str]| {
            library.compile(compiler, link, &["-Wpedantic"], &format!("examples/c/{name}.c"), &program);
            run(library.able(&mut Command::new(&program)).env("FIPSEE_SOCKET", daemon.socket()).args(arguments))
        };
        assert_eq!(run_example("copy", &["a", "b"]), "8388608 bytes copied\n");
        assert!(std::fs::read(image("b.img")).expect("the copy")[..data.len()] == data, "{compiler}: the copy differs");
        assert_eq!(run_example("epoll", &["a"]), "128 blocks read\n");
    }
}

#[test]
fn example_of_ports_sends_frames_back() {
    let Some(library) = Library::new("c-frames") else { return };
    let Some(daemon) = serve_file("c-frames", NETWORK) else { return };
    let Some(fipsee) = shipped("c-frames", "bin/fipsee") else { return };
    let program = daemon.dir.path("program");
    library.compile("gcc", Link::Shared, &["-Wpedantic"], "examples/c/frames.c", &program);
    let mut example = Command::new(&program);
    library.able(&mut example).env("FIPSEE_SOCKET", daemon.socket()).args(["lan/b", "200"]).stdout(Stdio::piped());
    let example = Guard(example.spawn().expect("it starts"));
    let fipsee = |arguments: &[&str]| run(Command::new(&fipsee).arg("--connect").arg(daemon.socket()).args(arguments));
    eventually("it has its port", || fipsee(&["net", "ls"]).lines().any(|line| line.contains("lan/b") && line.contains("yes")));
    for (count, length) in [("100", "64"), ("100", "9014")] {
        let said = fipsee(&["net", "ping", "lan/a", "--to", "lan/b", "--count", count, "--length", length, "--timeout", "60"]);
        assert!(said.contains("100 came back"), "{said}");
    }
    let mut example = example;
    let mut said = String::new();
    example.0.stdout.take().expect("its output").read_to_string(&mut said).expect("text");
    assert!(example.0.wait().expect("it ends").success() && said == "lan/b sent all back\n", "{said}");
}

/// C++ programs use the header as it is.
#[test]
fn cpp_programs_compile_and_link() {
    let Some(library) = Library::new("c-cpp") else { return };
    let directory = Scratch::new();
    let source = directory.path("a.cpp");
    let text = "#include <fipsee_port.h>\n#include <cstdio>\nint main() { fipsee_options options; \
                fipsee_options_init(&options); fipsee_port_options port; fipsee_port_options_init(&port); std::puts(fipsee_version()); return options.depth; }\n";
    std::fs::write(&source, text).expect("the source is written");
    for compiler in ["g++", "clang++"] {
        let program = directory.path("program");
        let mut command = Command::new(compiler);
        command.args(["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).arg(&source).arg("-o").arg(&program);
        run(command.args(library.pkg_config(&["--cflags", "--libs"])));
        assert_eq!(run(library.able(&mut Command::new(&program))).trim(), library.pkg_config(&["--modversion"])[0]);
    }
}

/// The binary interface as it was built, in the form of crates/capi/abi/abi.txt.
fn built_interface(library: &Library, directory: &Scratch) -> BTreeSet<String> {
    let shared = library.prefix.join("lib/libfipsee.so");
    let symbols = run(Command::new("nm").args(["--dynamic", "--defined-only", "--with-symbol-versions"]).arg(shared));
    let mut lines: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2)?.split_once("@@"))
        .map(|(symbol, node)| format!("symbol {symbol} {node}"))
        .collect();
    // It includes the others.
    let header = library.prefix.join("include/fipsee_port.h");
    let constants = run(Command::new("gcc").args(["-E", "-dM"]).arg(&header));
    let is_constant = |name: &str| {
        name.starts_with("FIPSEE_")
            && !matches!(name, "FIPSEE_CLIENT_H" | "FIPSEE_DOORBELLS_H" | "FIPSEE_PORT_H" | "FIPSEE_CLIENT_VERSION")
    };
    lines.extend(constants.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("#define ")?.split_once(' ')?;
        is_constant(name).then(|| format!("constant {name} {value}"))
    }));
    let declarations = run(Command::new("gcc").args(["-E", "-P"]).arg(&header));
    lines.extend(declarations.split(';').filter_map(|declaration| {
        // What is before the last brace belongs to an inline function or a structure.
        let declaration = declaration.rsplit('}').next()?.split_whitespace().collect::<Vec<_>>().join(" ");
        (declaration.contains(" fipsee_") || declaration.contains("*fipsee_"))
            .then_some(declaration)
            .filter(|declaration| declaration.ends_with(')'))
            .map(|declaration| format!("function {declaration}"))
    }));
    let program = directory.path("layout");
    library.compile("gcc", Link::Shared, &[], "tests/acceptance/c/layout.c", &program);
    lines.extend(run(library.able(&mut Command::new(program))).lines().map(str::to_owned));
    lines
}

#[test]
fn the_binary_interface_is_the_committed_one() {
    let Some(library) = Library::new("c-abi") else { return };
    let directory = Scratch::new();
    let built = built_interface(&library, &directory);
    let committed = include_str!("../../../../../crates/capi/abi/abi.txt");
    let committed: BTreeSet<String> = committed.lines().map(str::to_owned).collect();
    let list = |of: &BTreeSet<String>, not_in: &BTreeSet<String>| of.difference(not_in).cloned().collect::<Vec<_>>().join("\n  ");
    let (gone, new) = (list(&committed, &built), list(&built, &committed));
    assert!(
        gone.is_empty(),
        "programs linked with libfipsee would break; gone or changed:\n  {gone}\nnow there is:\n  {new}\n\
         Undo the change: add a function, or a field at the end of a structure that begins with size_bytes, instead. If such a \
         structure merely grew, replace its line in crates/capi/abi/abi.txt. README.md beside it says more."
    );
    assert!(
        new.is_empty(),
        "libfipsee has new parts, which break nothing. Add these lines to crates/capi/abi/abi.txt, as its README.md says:\n  {new}"
    );
    let functions = built.iter().filter(|line| line.starts_with("function ")).count();
    assert_eq!(functions, built.iter().filter(|line| line.starts_with("symbol ")).count(), "each symbol is in the header");
}

/// Two Rust libraries in one program must not meet each other's symbols.
#[test]
fn only_public_symbols_leave_the_libraries() {
    let Some(library) = Library::new("c-symbols") else { return };
    for (name, arguments) in [("libfipsee.so", &["--dynamic"][..]), ("libfipsee.a", &["--extern-only"])] {
        let mut command = Command::new("nm");
        let symbols = run(command.args(arguments).arg("--defined-only").arg(library.prefix.join("lib").join(name)));
        let names = symbols.lines().filter_map(|line| line.split_whitespace().nth(2));
        let foreign: Vec<_> = names.filter(|name| !name.starts_with("fipsee_") && !name.starts_with("FIPSEE_")).collect();
        assert!(foreign.is_empty(), "{name} lets out {foreign:?}");
    }
    let dynamic = run(Command::new("readelf").arg("-d").arg(library.prefix.join("lib/libfipsee.so")));
    assert!(dynamic.contains("Library soname: [libfipsee.so.0]"), "{dynamic}");
}
