//! t
use clap::Parser;
use fipsee::bench;
#[derive(Parser)]
struct A {
    #[arg(long)]
    connect: std::path::PathBuf,
    #[command(flatten)]
    o: bench::Options,
}
fn main() {
    let a = A::parse();
    if let Err(e) = bench::run(&a.connect, &a.o) {
        eprintln!("error: {e}");
        std::process::exit(1);
    }
}
