//! Write the first blocks of a disk and read them back, in batches: `copy_blocks SOCKET DISK`.
use fipsee_block::client::{AttachOptions, Disk, DiskError, Error, Queue};
use fipsee_block::wire::{SECTOR_BYTES, Status};

const BLOCK_BYTES: u64 = 4096;

fn main() -> Result<(), Error> {
    let (socket, name) = (std::env::args().nth(1).expect("a socket"), std::env::args().nth(2).expect("a disk"));
    let (disk, mut queues) = Disk::attach(socket.as_ref(), &AttachOptions::new(&name))?;
    let queue = &mut queues[0];
    let batch = queue.depth() as u64;
    let buffer = disk.allocate(batch * BLOCK_BYTES)?; // Memory shared with the daemon.
    let piece = |block: u64| buffer.segment(block * BLOCK_BYTES, BLOCK_BYTES);
    let sector = |block: u64| block * BLOCK_BYTES / SECTOR_BYTES;
    let data: Vec<u8> = (0..buffer.length_bytes()).map(|place| (place / BLOCK_BYTES + place).to_le_bytes()[0]).collect();
    buffer.fill(0, &data);
    (0..batch).try_for_each(|block| queue.write(sector(block), piece(block), false, block))?;
    finish(queue)?;
    queue.flush(0)?; // Completed writes are durable afterwards.
    finish(queue)?;
    buffer.fill(0, &vec![0; data.len()]);
    (0..batch).try_for_each(|block| queue.read(sector(block), piece(block), block))?;
    finish(queue)?;
    let mut copy = vec![0; data.len()];
    buffer.copy_to(0, &mut copy);
    assert!(copy == data, "the disk returns what was written");
    println!("{batch} blocks written, flushed and read back");
    disk.detach(queues)
}

/// Publish what is staged and wait until all of it is answered, in any order.
fn finish(queue: &mut Queue) -> Result<(), Error> {
    let mut failed = None;
    while queue.outstanding() > 0 {
        queue.wait(&mut |done| failed = if done.status == Status::Ok { failed } else { Some(done.status) })?;
    }
    failed.map_or(Ok(()), |status| Err(Error::Service(DiskError::Request(status))))
}
