//! What a call costs here: `latency [SECONDS] [BATCH]` times calls of 60 bytes to a server in a process of its own, each
//! on a CPU of its own where there are two. `latency SECONDS BATCH counts` prints how often each number of ticks was seen.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fipsee_call::{Client, Error, Server, Service};
use fipsee_ring::clock;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

struct Echo;

impl Service for Echo {
    const NAME: &str = "org.fipsee.echo/1";
    type Request = [u32; 15];
    type Reply = [u32; 15];
}

/// Bind to the `index`-th of the CPUs this process may use.
fn bind_to(index: usize) -> Result<(), rustix::io::Errno> {
    let allowed = sched_getaffinity(None)?;
    let Some(cpu) = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).nth(index) else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}

/// Call `batch` times and check the replies.
fn exchange(client: &mut Client<Echo>, sequence: u32, batch: u32) -> Result<(), Error> {
    if batch == 1 {
        assert_eq!(client.call(&[sequence; 15])?, [!sequence; 15], "the reply to another call");
        return Ok(());
    }
    for call in 0..batch {
        client.start(&[sequence + call; 15])?;
    }
    let mut expected = sequence;
    while client.outstanding() > 0 {
        client.wait(&mut |reply, _| {
            assert_eq!(reply, [!expected; 15], "the reply to another call");
            expected += 1;
        })?;
    }
    Ok(())
}

fn measure(socket: &str, seconds: f64, batch: u32, counts: bool) -> Result<(), Error> {
    let mut client = loop {
        match Client::<Echo>::connect(socket) {
            Err(Error::Connect { .. }) => std::thread::yield_now(),
            other => break other?,
        }
    };
    let (mut ticks, started) = (Vec::new(), Instant::now());
    while started.elapsed() < Duration::from_secs_f64(seconds) {
        for _ in 0..64 {
            let (sequence, from) = (u32::try_from(ticks.len()).unwrap_or(0), clock::ticks_fenced());
            exchange(&mut client, sequence, batch)?;
            ticks.push(clock::ticks_fenced() - from);
        }
    }
    ticks.sort_unstable();
    if counts {
        ticks.chunk_by(|one, next| one == next).for_each(|same| println!("{} {}", same[0], same.len()));
        return Ok(());
    }
    let [min, p50, p99] = [0, 500, 990].map(|permille| ticks[(ticks.len() - 1) * permille / 1000]);
    println!("batch of {batch}: min {min}, p50 {p50}, p99 {p99} cycles; p50 {} ns", clock::ticks_to_ns(p50));
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let ["serve", socket] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        bind_to(1)?;
        return Ok(Server::<Echo>::bind(socket)?.serve(|request, _| request.map(|word| !word))?);
    }
    let seconds = arguments.first().map_or(Ok(1.0), |text| text.parse())?;
    let batch = arguments.get(1).map_or(Ok(1), |text| text.parse())?;
    let socket = std::env::temp_dir().join(format!("fipsee-latency-{}", std::process::id())).display().to_string();
    let mut server = Command::new(std::env::current_exe()?).args(["serve", &socket]).stdin(Stdio::null()).spawn()?;
    bind_to(0)?;
    let measured = measure(&socket, seconds, batch, arguments.get(2).is_some_and(|text| text == "counts"));
    server.kill()?;
    server.wait()?;
    let _ = (std::fs::remove_file(&socket), std::fs::remove_file(format!("{socket}.lock")));
    Ok(measured?)
}
