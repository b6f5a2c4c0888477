//! On which NUMA node memory is taken (Linux: Documentation/admin-guide/mm/numa_memory_policy.rst). A node that is full, or that
//! this process may not use, is no error: the kernel then takes memory elsewhere.

use std::io;

use fipsee_ring::region::Region;

/// Nodes that a mask has room for: as many as Linux can be built for.
const MAX_NODE_COUNT: usize = 1024;
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

type NodeMask = [libc::c_ulong; MAX_NODE_COUNT / WORD_BITS];

fn mask_of(node: usize) -> io::Result<NodeMask> {
    let mut mask: NodeMask = [0; MAX_NODE_COUNT / WORD_BITS];
    let beyond = || io::Error::new(io::ErrorKind::InvalidInput, format!("Linux has at most {MAX_NODE_COUNT} NUMA nodes"));
    let word = mask.get_mut(node / WORD_BITS).ok_or_else(beyond)?;
    *word = 1 << (node % WORD_BITS);
    Ok(mask)
}

/// The kernel uses one bit less than the length that it is given.
const MASK_BITS: libc::c_ulong = MAX_NODE_COUNT as libc::c_ulong + 1;

/// Have the pages of `region` that are not touched yet allocated on `node`, whichever process touches them first.
///
/// # Errors
/// There is no such node, or the kernel knows no nodes or forbids the call.
pub fn prefer_for_region(region: &Region, node: usize) -> io::Result<()> {
    let mask = mask_of(node)?;
    let (address, length_bytes) = (region.base().as_ptr(), region.length_bytes());
    // SAFETY: the range is one whole mapping of ours, whose bytes a policy does not change; the kernel reads `MASK_BITS - 1`
    // bits, which the mask has, and keeps no pointer to it.
    let outcome =
        unsafe { libc::syscall(libc::SYS_mbind, address, length_bytes, libc::MPOL_PREFERRED, mask.as_ptr(), MASK_BITS, 0) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Have memory that this thread, or one that it starts from now on, touches first taken from `node`.
///
/// # Errors
/// As [`prefer_for_region`].
pub fn prefer_for_thread(node: usize) -> io::Result<()> {
    let mask = mask_of(node)?;
    // SAFETY: the kernel reads `MASK_BITS - 1` bits, which the mask has, keeps no pointer to it, and changes no byte of memory.
    let outcome = unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, mask.as_ptr(), MASK_BITS) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_0_is_taken_and_a_node_that_cannot_be_is_an_error() {
        let region = Region::create("fipsee-numa", 1 << 20).expect("a region");
        match prefer_for_region(&region, 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                eprintln!("fipsee-skip: memory on a NUMA node: the kernel knows no nodes");
                return;
            }
            outcome => outcome.expect("every machine has node 0"),
        }
        let start = format!("{:x} ", region.base().as_ptr().addr());
        let maps = std::fs::read_to_string("/proc/self/numa_maps").expect("a kernel with nodes has it");
        let ours = maps.lines().find_map(|line| line.strip_prefix(&start)).expect("the mapping");
        assert!(ours.starts_with("prefer"), "{ours}");
        let mut byte = [1];
        region.write(4096, &[9]).and_then(|()| region.read(4096, &mut byte)).expect("usable as before");
        assert_eq!(byte, [9]);
        assert!(prefer_for_region(&region, MAX_NODE_COUNT - 1).is_err());
        assert!(prefer_for_region(&region, MAX_NODE_COUNT).is_err());
        std::thread::spawn(|| {
            prefer_for_thread(0).expect("as above");
            assert!(prefer_for_thread(usize::MAX).is_err());
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_node_is_a_bit_of_the_mask() {
        assert_eq!(mask_of(0).expect("a node")[0], 1);
        assert_eq!(mask_of(64).expect("a node")[1], 1);
    }
}
