/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* DPDK's rte_ring in memory of ours, without its environment: one producer, one consumer, elements of 64 bytes. */

#include <stddef.h>
#include <sys/types.h>

#include <rte_ring.h>
#include <rte_ring_elem.h>

#define ELEMENT_BYTES 64

/* A ring that holds exactly `slots` has one more, rounded up. */
static unsigned int element_count(unsigned int slots)
{
	return rte_align32pow2(slots + 1);
}

size_t peers_rte_ring_bytes(unsigned int slots)
{
	ssize_t bytes = rte_ring_get_memsize_elem(ELEMENT_BYTES, element_count(slots));

	return bytes < 0 ? 0 : (size_t)bytes;
}

int peers_rte_ring_init(void *memory, unsigned int slots)
{
	return rte_ring_init(memory, "peers", slots, RING_F_SP_ENQ | RING_F_SC_DEQ | RING_F_EXACT_SZ);
}

/* As many of `count` messages as there is room for; how many. */
unsigned int peers_rte_ring_send(void *ring, const void *messages, unsigned int count)
{
	return rte_ring_sp_enqueue_burst_elem(ring, messages, ELEMENT_BYTES, count, NULL);
}

/* As many messages as are there, at most `count`; how many. */
unsigned int peers_rte_ring_receive(void *ring, void *into, unsigned int count)
{
	return rte_ring_sc_dequeue_burst_elem(ring, into, ELEMENT_BYTES, count, NULL);
}
