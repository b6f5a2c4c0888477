//! libblkio, an independent virtio client, on the daemon's vhost-user-blk device.

use std::mem::MaybeUninit;

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use fipsee_testkit::guest::machine::{socket_of, start_with};
use fipsee_testkit::stamp;

const BLOCK: usize = 4096;
const DEPTH: usize = 32;

/// A started client with memory for `DEPTH` blocks a queue.
struct Client {
    device: Blkio,
    queues: Vec<Blkioq>,
    memory: MemoryRegion,
}

impl Client {
    fn start(socket: &std::path::Path, queues: i32, polling: bool) -> Self {
        let mut device = Blkio::new("virtio-blk-vhost-user").expect("libblkio");
        device.set_str("path", &socket.to_string_lossy()).expect("a path");
        device.connect().expect("connected");
        device.set_i32("num-queues", if polling { 0 } else { queues }).expect("queues");
        device.set_i32("num-poll-queues", if polling { queues } else { 0 }).expect("queues");
        let started = device.start().expect("started");
        let bytes = usize::try_from(queues).expect("small") * DEPTH * BLOCK;
        let memory = device.alloc_mem_region(bytes).expect("memory");
        device.map_mem_region(&memory).expect("mapped");
        Self { queues: if polling { started.poll_queues } else { started.queues }, device, memory }
    }

    fn buffer(&self, queue: usize, slot: usize) -> *mut u8 {
        (self.memory.addr + (queue * DEPTH + slot) * BLOCK) as *mut u8
    }

    fn finish(&mut self, queue: usize, count: usize) {
        let mut done = [const { MaybeUninit::<Completion>::uninit() }; DEPTH];
        let mut left = count;
        while left > 0 {
            let found = self.queues[queue].do_io(&mut done[..left], 1, None, None).expect("it goes on");
            for completion in &done[..found] {
                // SAFETY: do_io wrote as many completions as it returned.
                let completion = unsafe { completion.assume_init_ref() };
                assert_eq!(completion.ret, 0, "request {}", completion.user_data);
            }
            left -= found;
        }
    }

    fn put(&self, queue: usize, slot: usize, bytes: &[u8]) {
        // SAFETY: the buffer has BLOCK bytes; no request in flight uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.buffer(queue, slot), bytes.len()) };
    }

    fn get(&self, queue: usize, slot: usize) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(self.buffer(queue, slot), bytes.as_mut_ptr(), BLOCK) };
        bytes
    }
}

fn run(disk: &str, queues: usize, polling: bool) {
    let daemon = start_with(&["--disk", disk, "--workers", "2"]);
    let mut client = Client::start(&socket_of(&daemon, "d"), i32::try_from(queues).expect("small"), polling);
    assert_eq!(client.device.get_u64("capacity").expect("a size"), 8 << 20);
    for round in 0..100_u64 {
        for queue in 0..queues {
            for slot in 0..DEPTH {
                let place = (queue * DEPTH + slot) as u64;
                client.put(queue, slot, &stamp(BLOCK, place, round));
                let buffer = client.buffer(queue, slot);
                client.queues[queue].write(place * BLOCK as u64, buffer, BLOCK, slot, ReqFlags::empty());
            }
        }
        (0..queues).for_each(|queue| client.finish(queue, DEPTH));
        for queue in 0..queues {
            client.queues[queue].flush(0, ReqFlags::empty());
            client.finish(queue, 1);
            // The block that another queue wrote.
            for slot in 0..DEPTH {
                let place = ((queue + 1) % queues * DEPTH + slot) as u64;
                let buffer = client.buffer(queue, slot);
                client.put(queue, slot, &[0xee; BLOCK]);
                client.queues[queue].read(place * BLOCK as u64, buffer, BLOCK, slot, ReqFlags::empty());
                client.finish(queue, 1);
                assert_eq!(client.get(queue, slot), stamp(BLOCK, place, round), "place {place}");
            }
        }
    }
    client.queues[0].write_zeroes(0, 8 * BLOCK as u64, 0, ReqFlags::empty());
    client.finish(0, 1);
    client.queues[0].discard(8 * BLOCK as u64, 8 * BLOCK as u64, 0, ReqFlags::empty());
    client.finish(0, 1);
    let buffer = client.buffer(0, 0);
    client.queues[0].read(0, buffer, BLOCK, 0, ReqFlags::empty());
    client.finish(0, 1);
    assert_eq!(client.get(0, 0), [0; BLOCK]);
}

#[test]
fn one_queue_with_interrupts() {
    run("d=memory:8M", 1, false);
}

#[test]
fn four_queues_with_interrupts() {
    run("d=memory:8M", 4, false);
}

#[test]
fn four_polling_queues() {
    run("d=memory:8M", 4, true);
}

#[test]
fn four_queues_of_a_file_disk() {
    run("d=file:{dir}/f,size=8M", 4, false);
}
