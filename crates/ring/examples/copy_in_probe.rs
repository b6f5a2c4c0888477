//! The machine code of this program is read by `tests/copy_in_assembly.rs`: `Reader::receive` over mapped memory, alone in a
//! function that the compiler can neither inline nor rename.

use fipsee_ring::Message;
use fipsee_ring::mapped::MappedRing;
use fipsee_ring::ring::Reader;

/// Receive one message.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn fipsee_probe_receive(reader: &mut Reader<MappedRing>, message: &mut Message) -> bool {
    reader.receive(message)
}

fn main() {
    let probe: fn(&mut Reader<MappedRing>, &mut Message) -> bool = fipsee_probe_receive;
    std::hint::black_box(probe);
    println!("this program is disassembled, not run: cargo test -p fipsee-ring --test ring copy_in_assembly");
}
