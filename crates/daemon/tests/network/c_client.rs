//! The second client of the protocol, in C over `include/` alone (`c/net`), beside the Rust one.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use fipsee_net::Port;
use fipsee_net::wire::Status;
use fipsee_testkit::Guard;

use super::{all_sent, attach, frame, lan, mac, next, stat};

/// In small frames and others, with first bytes of either length, and to the longest.
const LENGTHS: [usize; 14] = [14, 15, 55, 56, 57, 58, 63, 64, 65, 127, 1514, 2049, 9013, 9014];

/// Under sanitizers: no access beyond a buffer, nothing undefined.
fn compiled() -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("net-echo");
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    compiler.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    for include in ["include", "c/fio"] {
        compiler.arg("-I").arg(root.join(include));
    }
    compiler.arg("-o").arg(&program);
    compiler.args(["c/net/echo.c", "c/net/frames.c", "c/net/port.c", "c/fio/control.c"].map(|source| root.join(source)));
    let said = compiler.output().unwrap_or_else(|error| panic!("cannot run gcc: {error}; install it (Debian: gcc)"));
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    program
}

#[test]
fn c_client_over_the_headers_alone_echoes_frames_of_every_length() {
    const ROUNDS: u64 = 40;
    let daemon = lan(9000, ["", "", ""]);
    let mut a = attach(&daemon.socket(), "a");
    let count = ROUNDS * LENGTHS.len() as u64;
    let mut command = Command::new(compiled());
    command.arg(daemon.socket()).args(["lan/b", &count.to_string()]).stdout(Stdio::piped());
    let mut echo = Guard(command.spawn().expect("it starts"));
    let mut said = BufReader::new(echo.0.stdout.take().expect("its output"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    for round in 0..ROUNDS {
        // One after the other, and as many at once as the C client has buffers.
        let check = |a: &mut Port, length: usize, seed: u64| {
            let back = next(a);
            let mut expected = frame(mac(1), mac(2), length, seed);
            expected[..6].copy_from_slice(&mac(1).0);
            expected[6..12].copy_from_slice(&mac(2).0);
            assert!(back == expected, "a frame of {length} bytes came back as one of {}", back.len());
        };
        if round % 2 == 0 {
            for (seed, length) in (100 * round..).zip(LENGTHS) {
                a.send(&frame(mac(1), mac(2), length, seed)).expect("sent");
                check(&mut a, length, seed);
            }
        } else {
            (100 * round..)
                .zip(LENGTHS)
                .for_each(|(seed, length)| a.stage(&frame(mac(1), mac(2), length, seed)).expect("staged"));
            a.submit();
            (100 * round..).zip(LENGTHS).for_each(|(seed, length)| check(&mut a, length, seed));
        }
    }
    all_sent(&mut a);
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("the rest");
    assert!(echo.0.wait().expect("it ends").success());
    assert_eq!(rest, format!("1 refused, the newest with status {}\n", Status::WrongSource.to_wire()));
    assert_eq!((stat(&daemon, "b")["sent"].as_u64(), a.refused()), (Some(count), (0, None)));
}
