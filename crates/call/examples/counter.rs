//! A counter that several processes share. `counter serve SOCKET` in one terminal, `counter add SOCKET 5` in another.

use fipsee_call::{Client, Server, Service};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// What a client asks for: an operation and a number. No padding: 7 bytes fill the gap.
#[derive(Clone, Copy, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Request {
    operation: Operation,
    zero: [u8; 7],
    value: i64,
}

#[derive(Clone, Copy, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
enum Operation {
    Add,
    Divide,
}

/// The counter after it, or why not: errors are part of the reply.
#[derive(Clone, Copy, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Reply {
    value: i64,
    failed: bool,
    zero: [u8; 7],
}

struct Counter;

impl Service for Counter {
    const NAME: &str = "org.example.counter/1";
    type Request = Request;
    type Reply = Reply;
}

fn serve(socket: &str) -> Result<(), fipsee_call::Error> {
    let server = Server::<Counter>::bind(socket)?;
    println!("serving at {socket}");
    let mut count = 0_i64;
    server.serve(|request, _call| {
        let result = match request.operation {
            Operation::Add => count.checked_add(request.value),
            Operation::Divide => count.checked_div(request.value),
        };
        count = result.unwrap_or(count);
        Reply { value: count, failed: result.is_none(), zero: [0; 7] }
    })
}

fn call(socket: &str, operation: Operation, value: i64) -> Result<(), fipsee_call::Error> {
    let mut counter = Client::<Counter>::connect(socket)?;
    let reply = counter.call(&Request { operation, zero: [0; 7], value })?;
    println!("{}{}", reply.value, if reply.failed { ", unchanged: that cannot be done" } else { "" });
    Ok(())
}

fn run(arguments: &[&str]) -> Result<(), Box<dyn std::error::Error>> {
    match arguments {
        ["serve", socket] => serve(socket)?,
        ["add", socket, value] => call(socket, Operation::Add, value.parse()?)?,
        ["divide", socket, value] => call(socket, Operation::Divide, value.parse()?)?,
        _ => return Err("usage: counter serve SOCKET | counter add|divide SOCKET NUMBER".into()),
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}
