//! `cargo xtask bench ipc`: every way to carry messages between two processes, in one interleaved run.

fn main() -> std::process::ExitCode {
    fipsee_peers::cli::main()
}
