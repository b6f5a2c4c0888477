// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Memory of requests that failed because the back end is silent, and that it may still access. A reset would take the
 * memory from it; but a hypervisor that passes the reset on waits for the back end's answer, and its whole machine stops
 * meanwhile. So the reset waits instead. The owner of the memory may free it, but it is not reused: its pages are held
 * until the device was reset.
 */
#include <linux/blk-mq.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "fip_blk.h"

struct fip_aside {
	struct fip_aside *next;
	unsigned int count;
	struct page *pages[];
};

static bool fip_hold(struct fip_disk *disk, struct request *rq)
{
	struct fip_aside *aside;
	struct req_iterator at;
	struct bio_vec piece;
	size_t count = 0;

	if (req_op(rq) != REQ_OP_READ && req_op(rq) != REQ_OP_WRITE)
		return true;
	rq_for_each_segment(piece, rq, at)
		count++;
	aside = kmalloc(struct_size(aside, pages, count), GFP_NOIO | __GFP_NORETRY | __GFP_NOWARN);
	if (!aside)
		return false;
	aside->count = 0;
	aside->next = disk->aside;
	disk->aside = aside;
	rq_for_each_segment(piece, rq, at) {
		struct page *page = compound_head(piece.bv_page);

		/* A slab object is reused even if its page is held; and not every page of a larger allocation is counted. */
		if (PageSlab(page) || !get_page_unless_zero(page))
			return false;
		aside->pages[aside->count++] = page;
	}
	return true;
}

/*
 * Holds the memory of everything in flight. The rings are stopped. False, and nothing is held: some memory cannot be held,
 * or a request is on a virtqueue, which only a reset clears.
 */
bool fip_set_aside(struct fip_disk *disk)
{
	bool is_held = true;
	unsigned int index, tag;

	for (index = 0; index < disk->virtqueue_count; index++)
		is_held &= !READ_ONCE(disk->virtqueues[index].in_flight);
	for (index = 0; is_held && index < disk->ring_count; index++) {
		struct fip_ring *ring = &disk->rings[index];

		for (tag = 0; is_held && tag < ARRAY_SIZE(ring->in_flight); tag++) {
			if (ring->in_flight[tag])
				is_held = fip_hold(disk, ring->in_flight[tag]);
		}
	}
	if (!is_held)
		fip_give_back(disk);
	return is_held;
}

/* The back end does not touch it any more. */
void fip_give_back(struct fip_disk *disk)
{
	while (disk->aside) {
		struct fip_aside *aside = disk->aside;

		disk->aside = aside->next;
		while (aside->count)
			put_page(aside->pages[--aside->count]);
		kfree(aside);
	}
}
