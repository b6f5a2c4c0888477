//! Calls between C and Rust, both ways, through the library that ships.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use fipsee_acceptance::c::{Library, Link, UNDEFINED, Under, root};
use fipsee_acceptance::{Guard, Scratch, has_program, run, wait_for};
use fipsee_call::{Client, Error, Server, Service};

/// The service of `examples/c/counter.c`, as bytes. A request: 0 to add or 1 to divide, seven zeroes, a number. A reply: a number,
/// whether it failed, seven zeroes.
struct Counter;

impl Service for Counter {
    const NAME: &str = "org.example.counter/1";
    type Request = [u8; 16];
    type Reply = [u8; 16];
}

fn request(operation: u8, value: i64) -> [u8; 16] {
    zerocopy::transmute!([u64::from(operation).to_le_bytes(), value.to_le_bytes()])
}

fn add(value: i64) -> [u8; 16] {
    request(0, value)
}

fn reply(value: i64, failed: bool) -> [u8; 16] {
    zerocopy::transmute!([value.to_le_bytes(), u64::from(failed).to_le_bytes()])
}

/// The C example, compiled.
fn example(library: &Library, directory: &Scratch, compiler: &str) -> std::path::PathBuf {
    let program = directory.path("counter");
    library.compile(compiler, Link::Shared, &["-Wpedantic"], "examples/c/counter.c", &program);
    program
}

#[test]
fn the_c_example_is_short() {
    let text = std::fs::read_to_string(root().join("examples/c/counter.c")).expect("the example");
    assert!(text.lines().count() <= 80, "examples/c/counter.c has {} lines", text.lines().count());
}

#[test]
fn c_calls_a_rust_server() {
    let Some(library) = Library::new("calls-c-client") else { return };
    let directory = Scratch::new();
    let program = example(&library, &directory, "clang");
    let socket = directory.path("s");
    let server = Server::<Counter>::bind(&socket).expect("a server");
    let stopper = server.stopper();
    let thread = std::thread::spawn(move || {
        let mut count = 0_i64;
        let outcome = server.serve(|request, _| {
            let [operation, value]: [i64; 2] = zerocopy::transmute!(request);
            let result = if operation == 0 { count.checked_add(value) } else { count.checked_div(value) };
            count = result.unwrap_or(count);
            reply(count, result.is_none())
        });
        outcome.expect("a worker");
    });
    let call =
        |operation: &str, value: &str| run(library.able(&mut Command::new(&program)).arg(operation).arg(&socket).arg(value));
    assert_eq!(call("add", "40"), "40\n");
    assert_eq!(call("add", "2"), "42\n");
    assert_eq!(call("divide", "0"), "42, unchanged: that cannot be done\n");
    assert_eq!(call("divide", "-2"), "-21\n");
    stopper.stop();
    thread.join().expect("in order");
}

/// Connect once the server is there.
fn connect(socket: &Path) -> Client<Counter> {
    wait_for("the server is there", || match Client::connect(socket) {
        Ok(client) => Some(client),
        Err(error) => {
            assert!(matches!(error, Error::Connect { .. }), "{error}");
            None
        }
    })
}

#[test]
fn rust_calls_a_c_server_and_outlives_it() {
    let Some(library) = Library::new("calls-c-server") else { return };
    let directory = Scratch::new();
    let program = example(&library, &directory, "gcc");
    let socket = directory.path("s");
    let mut serve = Command::new(&program);
    let mut child = Guard(library.able(serve.arg("serve").arg(&socket)).spawn().expect("the server starts"));
    let mut client = connect(&socket);
    for value in 1..=1000 {
        assert_eq!(client.call(&add(1)).expect("a reply"), reply(value, false));
    }
    for _ in 0..64 {
        client.start(&add(1)).expect("room");
    }
    let mut taken = 1000;
    while client.outstanding() > 0 {
        client
            .wait(&mut |answer, _| {
                taken += 1;
                assert_eq!(answer, reply(taken, false));
            })
            .expect("replies");
    }
    assert_eq!(client.call(&add(i64::MAX)).map(|answer| answer[8]).ok(), Some(1));
    let mut faulty = connect(&socket);
    let error = faulty.call(&request(9, 1)).expect_err("no operation");
    assert!(error.to_string().contains("a counter adds and divides"), "{error}");
    client.start(&add(1)).expect("room");
    child.0.kill().expect("killed");
    let died = child.0.wait().expect("its status");
    assert_eq!(died.signal(), Some(9), "it lived until then");
    let error = loop {
        if let Err(error) = client.call(&add(1)).map(|_| ()).or_else(|_| client.wait(&mut |_, _| ()).map(|_| ())) {
            break error;
        }
    };
    assert!(matches!(error, Error::Disconnected), "{error}");
}

/// Run `services.c`, which tests every function for calls.
fn play(under: Under) {
    let what = format!("calls-services-{under:?}");
    let Some(library) = Library::new(&what) else { return };
    if under == Under::Valgrind && !has_program(&what, "valgrind") {
        return;
    }
    let directory = Scratch::new();
    let program = directory.path("program");
    let (link, extra) = if under == Under::Sanitizers { (Link::Static, UNDEFINED) } else { (Link::Shared, &[][..]) };
    library.compile("gcc", link, extra, "tests/acceptance/c/services.c", &program);
    let mut command = under.command(&program);
    let output = library.able(&mut command).arg(directory.path("s")).stdin(Stdio::null()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout.ends_with(b"done\n"), "{}: {said}", output.status);
}

#[test]
fn every_function_does_what_the_header_says() {
    play(Under::Nothing);
}

#[test]
fn sanitizers_find_nothing() {
    play(Under::Sanitizers);
}

#[test]
fn valgrind_finds_nothing() {
    play(Under::Valgrind);
}
