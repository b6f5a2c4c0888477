// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The submitting side of a ring: its memory, and requests of the block layer as messages (docs/protocol.md section 5).
 */
#include <linux/mm.h>

#include "fip_blk.h"

/* The wait of one in this many requests is measured. */
#define FIP_SAMPLE_EVERY 16
/* How far ahead a slot's cache line is fetched for writing. */
#define FIP_PREFETCH_SLOTS 4

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

/* Pages of the page allocator: they have a physical address, and user-mode Linux shares them with the back end. */
int fip_memory_alloc(struct fip_memory *memory, u32 depth, u32 virtqueue)
{
	u32 requests = roundup_pow_of_two(max_t(u32, depth, FIPSEE_MIN_SLOTS));
	u32 completions = roundup_pow_of_two(depth + FIPSEE_EVENT_CREDITS);
	size_t slots_bytes = (size_t)(requests + completions) * FIPSEE_SLOT_BYTES;
	u64 address;

	memory->bytes = slots_bytes + 2 * FIPSEE_COLD_BYTES;
	memory->pages = alloc_pages_exact(memory->bytes, GFP_KERNEL | __GFP_ZERO);
	if (!memory->pages)
		return -ENOMEM;
	address = virt_to_phys(memory->pages);
	memset(&memory->entry, 0, sizeof(memory->entry));
	memory->entry.request_address = address;
	memory->entry.completion_address = address + (u64)requests * FIPSEE_SLOT_BYTES;
	memory->entry.cold_address = address + slots_bytes;
	memory->entry.request_slots = requests;
	memory->entry.completion_slots = completions;
	memory->entry.depth = depth;
	memory->entry.virtqueue = virtqueue;
	return 0;
}

void fip_memory_free(struct fip_memory *memory)
{
	if (memory->pages)
		free_pages_exact(memory->pages, memory->bytes);
	memory->pages = NULL;
}

/*
 * Apply the disk's choices to the ring, but for the stores: the kernel has no vector registers to spare. The pacing search
 * tries other methods where the daemon says that they may gain; without that, or pinned, nothing is searched or asked for.
 */
static void fip_ring_choose(struct fip_ring *ring)
{
	u32 choices = ring->disk->choices;

	fipsee_writer_choose(&ring->requests, choices);
	fipsee_reader_choose(&ring->completions, choices);
	fipsee_pace_init(&ring->pace, (u32)fip_ticks_per_us);
	fipsee_pace_choose(&ring->pace, choices);
	ring->is_paced = fip_pace_wanted && !fip_choices && ring->pace.search.methods;
	ring->first_look = 0;
}

/* Only statistics are kept of the attachment before. */
int fip_ring_start(struct fip_ring *ring, struct fip_memory *memory)
{
	struct fipsee_slot *slots = memory->pages;
	struct fipsee_cold *cold = memory->pages + memory->bytes - 2 * FIPSEE_COLD_BYTES;
	struct fipsee_ring requests = { slots, &cold[0], memory->entry.request_slots };
	struct fipsee_ring completions = { slots + requests.slot_count, &cold[1], memory->entry.completion_slots };
	int fault;

	spin_lock(&ring->submit_lock);
	fip_reap_lock(ring);
	fault = fipsee_writer_init(&ring->requests, requests, fipsee_cursor_at_start(0));
	fault |= fipsee_reader_init(&ring->completions, completions, fipsee_cursor_at_start(0));
	fip_ring_choose(ring);
	ring->memory = *memory;
	memory->pages = NULL;
	ring->depth = memory->entry.depth;
	ring->submitted = 0;
	ring->finished = 0;
	ring->is_armed = false;
	ring->was_rung = false;
	ring->is_faulty = false;
	ring->ack_outstanding = false;
	ring->resize_unacknowledged = false;
	ring->detach_seen = false;
	ring->info_outstanding = false;
	ring->sample_tag = FIP_NO_SAMPLE;
	ring->spin_score = 256;
	ring->mean_wait = 0;
	memset(ring->in_flight, 0, sizeof(ring->in_flight));
	fip_notify_start(ring);
	ring->is_live = !fault;
	fip_reap_unlock(ring);
	spin_unlock(&ring->submit_lock);
	return fault ? -EINVAL : 0;
}

/* Afterwards the ring's memory is not touched. */
void fip_ring_stop(struct fip_ring *ring)
{
	spin_lock(&ring->submit_lock);
	fip_reap_lock(ring);
	ring->is_live = false;
	fip_reap_unlock(ring);
	spin_unlock(&ring->submit_lock);
	timer_delete_sync(&ring->backstop);
	fip_notify_stop(ring);
}

/* ---- Messages -------------------------------------------------------------------------------------------------- */

/*
 * Words of a message, little-endian as the protocol is. Messages are published word by word, and a load that spans several
 * stores waits until they have left the store buffer: that took 4 % of a request in user-mode Linux.
 */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are written as the CPU writes numbers");

static __always_inline void fip_put_word(union fipsee_message *message, unsigned int index, u64 word)
{
	message->words[index] = word;
}

static __always_inline void fip_put_head(union fipsee_message *message, u8 operation, u8 segment_count, u16 flags, u16 tag)
{
	fip_put_word(message, 0, operation | segment_count << 8 | (u64)flags << 16 | (u64)tag << 32);
}

/* A segment; 0, which is none, if the ring cannot name that memory. */
static __always_inline u64 fip_segment(phys_addr_t address, unsigned int bytes)
{
	u64 last = (u64)address + bytes - 1;

	if (((address | bytes) & (FIPSEE_SECTOR_BYTES - 1)) || !bytes || bytes >> FIPSEE_SECTOR_SHIFT > U16_MAX ||
	    last >> FIPSEE_VM_REGION_SHIFT != (u64)address >> FIPSEE_VM_REGION_SHIFT ||
	    last >> FIPSEE_VM_REGION_SHIFT >= FIPSEE_MAX_REGIONS)
		return 0;
	return (u32)(address >> FIPSEE_SECTOR_SHIFT) | (u64)(bytes >> FIPSEE_SECTOR_SHIFT) << 32 |
	       (u64)address >> FIPSEE_VM_REGION_SHIFT << 48;
}

/* The general case of a transfer: what the block layer merged, cut as the limits say. */
static u8 fip_map(struct fip_ring *ring, struct request *rq, union fipsee_message *message)
{
	struct fip_request *own = blk_mq_rq_to_pdu(rq);
	u64 *segments = (u64 *)message->request.segments;
	struct scatterlist *piece;
	int count, index;

	sg_init_table(ring->sg, FIP_MAX_SEGMENTS);
	count = blk_rq_map_sg(rq->q, rq, ring->sg);
	if (count < 1 || count > ring->disk->max_indirect)
		return 0;
	if (count > FIPSEE_MAX_INLINE_SEGMENTS)
		segments = (u64 *)own->table;
	for_each_sg(ring->sg, piece, count, index) {
		segments[index] = fip_segment(sg_phys(piece), piece->length);
		if (!segments[index])
			return 0;
	}
	if (count <= FIPSEE_MAX_INLINE_SEGMENTS)
		return (u8)count;
	message->request.aux = count;
	ring->submit_stats.indirect++;
	segments = (u64 *)message->request.segments;
	segments[0] = fip_segment(virt_to_phys(own->table), round_up(count * sizeof(*segments), FIPSEE_SECTOR_BYTES));
	return segments[0] ? FIPSEE_SEGMENTS_INDIRECT : 0;
}

/* Puts the memory of a transfer into the message. The segment count; 0 if the ring cannot name that memory. */
static __always_inline u8 fip_transfer(struct fip_ring *ring, struct request *rq, union fipsee_message *message)
{
	if (likely(rq->nr_phys_segments == 1)) {
		struct bio_vec piece = req_bvec(rq);

		/* One segment may still be of several bios. */
		if (likely(piece.bv_len == blk_rq_bytes(rq))) {
			u64 segment = fip_segment(page_to_phys(piece.bv_page) + piece.bv_offset, piece.bv_len);

			fip_put_word(message, 2, segment);
			return !!segment;
		}
	}
	return fip_map(ring, rq, message);
}

/* Requests that move no data. */
static blk_status_t fip_message_without_data(const struct fip_ring *ring, struct request *rq, union fipsee_message *message, u16 tag)
{
	u64 capabilities = ring->disk->capabilities;
	u16 flags = rq->cmd_flags & REQ_FUA ? FIPSEE_FLAG_FUA : 0;

	switch (req_op(rq)) {
	case REQ_OP_FLUSH:
		fip_put_head(message, FIPSEE_FLUSH, 0, 0, tag);
		return BLK_STS_OK;
	case REQ_OP_DISCARD:
		if (!(capabilities & FIPSEE_CAPABILITY_DISCARD))
			return BLK_STS_NOTSUPP;
		fip_put_head(message, FIPSEE_DISCARD, 0, 0, tag);
		break;
	case REQ_OP_WRITE_ZEROES:
		if (!(capabilities & FIPSEE_CAPABILITY_WRITE_ZEROES))
			return BLK_STS_NOTSUPP;
		if (!(rq->cmd_flags & REQ_NOUNMAP))
			flags |= FIPSEE_FLAG_UNMAP;
		fip_put_head(message, FIPSEE_WRITE_ZEROES, 0, flags, tag);
		break;
	default:
		return BLK_STS_NOTSUPP;
	}
	fip_put_word(message, 1, blk_rq_pos(rq));
	fip_put_word(message, 2, blk_rq_sectors(rq));
	return BLK_STS_OK;
}

/* A request as a message; the status if it cannot be one. */
static __always_inline blk_status_t fip_message(struct fip_ring *ring, struct request *rq, u16 tag,
						union fipsee_message *message, bool *misfit)
{
	bool is_read = req_op(rq) == REQ_OP_READ;
	u16 flags = 0;
	u8 count;

	memset(message, 0, sizeof(*message));
	if (unlikely(!is_read && req_op(rq) != REQ_OP_WRITE))
		return fip_message_without_data(ring, rq, message, tag);
	if (!is_read && rq->cmd_flags & REQ_FUA)
		flags |= FIPSEE_FLAG_FUA;
	count = fip_transfer(ring, rq, message);
	*misfit = !count;
	fip_put_head(message, is_read ? FIPSEE_READ : FIPSEE_WRITE, count, flags, tag);
	fip_put_word(message, 1, blk_rq_pos(rq));
	return BLK_STS_OK;
}

/* ---- Submitting: all under submit_lock --------------------------------------------------------------------------- */

/* Before a batch: if we are going to look for the answers ourselves, the daemon need not ring. */
void fip_ring_begin(struct fip_ring *ring, bool is_polled)
{
	if (READ_ONCE(ring->is_armed) && (is_polled || fip_ring_is_fast(ring)))
		fip_reap_disarm(ring);
}

static __always_inline void fip_ring_publish(struct fip_ring *ring, const union fipsee_message *message)
{
	fipsee_writer_prefetch(&ring->requests, FIP_PREFETCH_SLOTS, ring->requests.fresh != 0);
	/* Counted before the daemon can answer, or the reaper would see more answers than requests. */
	WRITE_ONCE(ring->submitted, ring->submitted + 1);
	fipsee_writer_publish(&ring->requests, message);
}

/*
 * Publishes a request, or says why not; with `misfit` it was not published because the ring cannot name its memory. Once
 * its tag is in in_flight, a faulty daemon may complete it: nothing of it is read after that.
 */
blk_status_t fip_ring_issue(struct fip_ring *ring, struct request *rq, bool *misfit)
{
	struct fip_disk *disk = ring->disk;
	struct fip_request *own = blk_mq_rq_to_pdu(rq);
	union fipsee_message message;
	blk_status_t status;
	u32 tag;

	if (unlikely(!ring->is_live || fip_ring_outstanding(ring) >= ring->depth))
		return BLK_STS_RESOURCE;
	tag = rq->tag + (rq->mq_hctx->queue_num >= disk->ring_count ? FIP_MAX_TAGS : 0);
	status = fip_message(ring, rq, (u16)tag, &message, misfit);
	if (unlikely(status != BLK_STS_OK || *misfit))
		return status;
	own->since = jiffies;
	own->result = BLK_STS_OK;
	blk_mq_start_request(rq);
	if (ring->sample_tag == FIP_NO_SAMPLE && ring->submitted % FIP_SAMPLE_EVERY == 0) {
		ring->sample_began = fip_ticks();
		WRITE_ONCE(ring->sample_tag, tag);
	}
	smp_store_release(&ring->in_flight[tag], rq);
	fip_ring_publish(ring, &message);
	ring->submit_stats.requests++;
	return BLK_STS_OK;
}

/* After a batch. With one request outstanding its answer cannot be there for a while: see fipsee_pace.h. */
static void fip_ring_pace(struct fip_ring *ring)
{
	u64 now = fip_ticks();

	if (fip_ring_outstanding(ring) != 1) {
		fipsee_pace_interrupt(&ring->pace);
		WRITE_ONCE(ring->first_look, now);
		return;
	}
	if (unlikely(fipsee_pace_begin(&ring->pace, now, ring->completions.ring.cold))) {
		/* Once in thousands of requests. The bit is never held for long. */
		fip_reap_lock(ring);
		fipsee_pace_apply(&ring->pace, &ring->requests, &ring->completions);
		fip_reap_unlock(ring);
	}
	WRITE_ONCE(ring->first_look, now + ring->pace.delays.caller);
}

/* After a batch, with `is_last` until its answers: must the daemon be woken? Then the caller notifies the virtqueue. */
bool fip_ring_publish_end(struct fip_ring *ring, bool is_last)
{
	bool kick;

	ring->submit_stats.batches++;
	if (!ring->is_live)
		return false;
	if (unlikely(ring->is_moderated))
		kick = fip_notify_published(ring, is_last);
	else
		kick = fipsee_writer_needs_doorbell(&ring->requests);
	if (ring->is_paced)
		fip_ring_pace(ring);
	ring->submit_stats.kicks += kick;
	return kick;
}

static int fip_ring_send(struct fip_ring *ring, const union fipsee_message *message, bool *flag)
{
	bool kick = false;
	int error = -EAGAIN;

	spin_lock(&ring->submit_lock);
	if (ring->is_live && !READ_ONCE(*flag) && fip_ring_outstanding(ring) < ring->depth) {
		WRITE_ONCE(*flag, true);
		fip_ring_publish(ring, message);
		kick = fip_ring_publish_end(ring, true);
		error = 0;
	}
	spin_unlock(&ring->submit_lock);
	if (kick)
		virtqueue_notify(ring->virtqueue->vq);
	return error;
}

/* Asks for the block info; `into` is a sector of memory. */
int fip_ring_send_info(struct fip_ring *ring, void *into)
{
	u64 segment = fip_segment(virt_to_phys(into), FIPSEE_SECTOR_BYTES);
	union fipsee_message message = {};

	if (!segment)
		return -EFAULT;
	fip_put_head(&message, FIPSEE_GET_INFO, 1, 0, FIP_TAG_INFO);
	fip_put_word(&message, 2, segment);
	return fip_ring_send(ring, &message, &ring->info_outstanding);
}

/* Acknowledges the resize that was seen. False if it must be tried again. */
bool fip_ring_send_ack(struct fip_ring *ring)
{
	union fipsee_message message = {};

	if (!READ_ONCE(ring->resize_unacknowledged))
		return true;
	fip_put_head(&message, FIPSEE_ACK_EVENT, 0, 0, FIP_TAG_ACK);
	message.request.aux = FIPSEE_KIND_RESIZE;
	/* The next resize may come as soon as the daemon has read this. */
	WRITE_ONCE(ring->resize_unacknowledged, false);
	if (!fip_ring_send(ring, &message, &ring->ack_outstanding))
		return true;
	WRITE_ONCE(ring->resize_unacknowledged, true);
	return false;
}
