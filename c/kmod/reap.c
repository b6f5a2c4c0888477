// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The reaping side of a ring. Submitters, pollers, the threads, the interrupt and a timer reap. One that finds another reaping
 * does not wait; the interrupt then leaves its part to a thread.
 *
 * Something must await what is outstanding. Either the ring is armed, and the daemon rings; or a thread polls; or the
 * backstop timer runs. It arms the ring when a tick passed without a new request.
 */
#include <linux/blk-mq.h>

#include "fip_blk.h"

/* Spinning stops below this score of 256, and is tried again once in this many batches. */
#define FIP_LEAST_SCORE 64
#define FIP_BATCHES_PER_TRY 64
/* Looks at the ring between two at the clock. */
#define FIP_LOOKS_PER_CLOCK 8

/* ---- The reap bit ---------------------------------------------------------------------------------------------- */

/*
 * Not a spinlock: the interrupt may find that it has interrupted the holder on its own CPU, where spin_trylock() and
 * bit_spin_trylock() of a kernel for one CPU do not look and succeed. The bit operations are an acquire and a release.
 */
bool fip_reap_trylock(struct fip_ring *ring)
{
	preempt_disable();
	if (test_and_set_bit_lock(FIP_RING_REAPING, &ring->bits)) {
		preempt_enable();
		return false;
	}
	if (unlikely(READ_ONCE(ring->was_rung))) {
		WRITE_ONCE(ring->was_rung, false);
		WRITE_ONCE(ring->is_armed, false);
	}
	return true;
}

/* From a task only. The holder of the bit is running, or was interrupted on another CPU. */
void fip_reap_lock(struct fip_ring *ring)
{
	while (!fip_reap_trylock(ring))
		cpu_relax();
}

void fip_reap_unlock(struct fip_ring *ring)
{
	clear_bit_unlock(FIP_RING_REAPING, &ring->bits);
	preempt_enable();
}

/* ---- Messages -------------------------------------------------------------------------------------------------- */

/* The disk is no longer trusted. Logged once; the supervisor fails what is in flight. `detail` may be empty. */
void fip_break(struct fip_disk *disk, const char *why, const char *detail)
{
	if (!xchg(&disk->is_broken, true))
		dev_err(&disk->vdev->dev, "%s%s: every request fails from now on; unbind and bind the device to start again\n", why,
			detail);
	fip_disk_wake(disk, FIP_EVENT_STUCK);
}

static blk_status_t fip_blk_status(u16 status)
{
	switch (status) {
	case FIPSEE_STATUS_OK:
		return BLK_STS_OK;
	case FIPSEE_STATUS_NO_SPACE:
		return BLK_STS_NOSPC;
	case FIPSEE_STATUS_UNSUPPORTED:
		return BLK_STS_NOTSUPP;
	default:
		return BLK_STS_IOERR;
	}
}

/* What is to be done with the requests of a visit, after the bit was given back: ending one may submit another. */
struct fip_visit {
	struct io_comp_batch *batch;
	struct request *others;			/* by rq_next: failed, or the batch does not take them */
	struct llist_node *elsewhere;		/* by ipi_list: they end on the CPU that submitted (redirect.c) */
	unsigned int count;
	const char *fault;
	bool wants_supervisor;
	bool may_redirect;			/* not what submits or polls: it would have to wait for another CPU */
};

static void fip_end_batch(struct io_comp_batch *batch)
{
	blk_mq_end_request_batch(batch);
}

/* Private copies only. The tag is of a request that was published on this ring and not completed, or the daemon is faulty. */
static bool fip_take_entry(struct fip_ring *ring, struct fipsee_completion_entry entry, struct fip_visit *visit)
{
	struct fip_request *own;
	struct request *rq;

	if (unlikely(entry.tag >= ARRAY_SIZE(ring->in_flight))) {
		bool *flag = entry.tag == FIP_TAG_ACK ? &ring->ack_outstanding : &ring->info_outstanding;

		if ((entry.tag != FIP_TAG_ACK && entry.tag != FIP_TAG_INFO) || !READ_ONCE(*flag))
			return false;
		if (entry.tag == FIP_TAG_INFO)
			ring->info_status = entry.status;
		smp_store_release(&ring->finished, ring->finished + 1);
		smp_store_release(flag, false);
		return true;
	}
	rq = smp_load_acquire(&ring->in_flight[entry.tag]);
	if (unlikely(!rq))
		return false;
	WRITE_ONCE(ring->in_flight[entry.tag], NULL);
	smp_store_release(&ring->finished, ring->finished + 1);
	if (unlikely(READ_ONCE(ring->sample_tag) == entry.tag)) {
		u64 wait = fip_ticks() - ring->sample_began;

		WRITE_ONCE(ring->mean_wait, ring->mean_wait - ring->mean_wait / 8 + wait / 8);
		WRITE_ONCE(ring->sample_tag, FIP_NO_SAMPLE);
	}
	visit->count++;
	if (visit->may_redirect && entry.status == FIPSEE_STATUS_OK && fip_redirect_is_due(rq)) {
		rq->ipi_list.next = visit->elsewhere;
		visit->elsewhere = &rq->ipi_list;
		ring->reap_stats.redirected++;
		return true;
	}
	if (likely(blk_mq_add_to_batch(rq, visit->batch, entry.status != FIPSEE_STATUS_OK, fip_end_batch)))
		return true;
	own = blk_mq_rq_to_pdu(rq);
	own->result = entry.status == FIPSEE_STATUS_DETACHED ? BLK_STS_AGAIN : fip_blk_status(entry.status);
	rq->rq_next = visit->others;
	visit->others = rq;
	return true;
}

static void fip_take_event(struct fip_ring *ring, struct fipsee_completions *reader, struct fip_visit *visit)
{
	struct fip_disk *disk = ring->disk;
	u32 resize = ring->resize_unacknowledged ? 1U << FIPSEE_KIND_RESIZE : 0;
	u32 detach = ring->detach_seen ? 1U << FIPSEE_KIND_DETACH : 0;
	const struct fipsee_event *event = fipsee_completions_event(reader, resize | detach);

	if (!event)
		return;
	ring->reap_stats.events++;
	visit->wants_supervisor = true;
	if (event->kind == FIPSEE_KIND_DETACH) {
		ring->detach_seen = true;
		set_bit(FIP_EVENT_DETACH, &disk->events);
		return;
	}
	WRITE_ONCE(disk->new_sectors, event->sector_count);
	WRITE_ONCE(ring->resize_unacknowledged, true);
	set_bit(FIP_EVENT_RESIZE, &disk->events);
}

static const char *fip_take_message(struct fip_ring *ring, const union fipsee_message *message, struct fip_visit *visit)
{
	const struct fipsee_completion_entry *entry;
	struct fipsee_completions reader;

	fipsee_completions_begin(&reader, message);
	while ((entry = fipsee_completions_next(&reader))) {
		if (unlikely(!fip_take_entry(ring, *entry, visit)))
			return "the tag of a completion that is not in flight";
	}
	if (unlikely(fipsee_completions_is_event(&reader)))
		fip_take_event(ring, &reader, visit);
	return reader.fault;
}

/* Under the bit. Bounded by the ring's slots, however fast the daemon writes. */
static void fip_take(struct fip_ring *ring, struct fip_visit *visit)
{
	union fipsee_message message;
	u32 left = ring->completions.ring.slot_count;

	while (left-- && !ring->is_faulty && fipsee_reader_receive(&ring->completions, &message)) {
		prefetch(&ring->completions.ring.slots[ring->completions.cursor.index]);
		ring->reap_stats.messages++;
		visit->fault = fip_take_message(ring, &message, visit);
		if (unlikely(visit->fault))
			ring->is_faulty = true;
	}
}

/* A request with a known result; one that the daemon would not serve any more waits for the virtqueue. */
void fip_end_request(struct request *rq)
{
	struct fip_request *own = blk_mq_rq_to_pdu(rq);

	if (own->result == BLK_STS_AGAIN)
		blk_mq_requeue_request(rq, false);
	else
		blk_mq_end_request(rq, own->result);
}

static void fip_end_visit(struct fip_ring *ring, struct fip_visit *visit)
{
	struct fip_disk *disk = ring->disk;

	if (visit->elsewhere)
		fip_redirect(visit->elsewhere);
	while (visit->others) {
		struct request *rq = visit->others;
		struct fip_request *own = blk_mq_rq_to_pdu(rq);

		visit->others = rq->rq_next;
		if (own->result == BLK_STS_AGAIN) {
			WRITE_ONCE(disk->repeated, disk->repeated + 1);
			set_bit(FIP_EVENT_DETACH, &disk->events);
			visit->wants_supervisor = true;
		}
		fip_end_request(rq);
	}
	if (unlikely(visit->fault))
		fip_break(disk, "the back end broke the protocol: ", visit->fault);
	else if (unlikely(visit->wants_supervisor))
		mod_delayed_work(fip_workqueue, &disk->supervisor, 0);
}

static __always_inline unsigned int fip_reap_as(struct fip_ring *ring, struct io_comp_batch *batch, bool may_redirect)
{
	DEFINE_IO_COMP_BATCH(own_batch);
	struct fip_visit visit = { .batch = batch ?: &own_batch, .may_redirect = may_redirect };

	if (!fip_reap_trylock(ring))
		return 0;
	if (likely(ring->is_live))
		fip_take(ring, &visit);
	fip_reap_unlock(ring);
	fip_end_visit(ring, &visit);
	if (!fip_rq_list_is_empty(&own_batch.req_list))
		blk_mq_end_request_batch(&own_batch);
	return visit.count;
}

/* For what submits or polls: takes and ends what is there; with `batch`, what can be is left to its owner. Returns how many requests. */
unsigned int fip_reap(struct fip_ring *ring, struct io_comp_batch *batch)
{
	return fip_reap_as(ring, batch, false);
}

/* For all others: what is there ends on the CPU that submitted it. */
unsigned int fip_reap_for_others(struct fip_ring *ring)
{
	return fip_reap_as(ring, NULL, true);
}

/* ---- The next look --------------------------------------------------------------------------------------------- */

bool fip_ring_is_fast(const struct fip_ring *ring)
{
	return READ_ONCE(ring->mean_wait) <= fip_thread_us * fip_ticks_per_us;
}

void fip_reap_disarm(struct fip_ring *ring)
{
	if (!fip_reap_trylock(ring))
		return;
	if (ring->is_live && ring->is_armed) {
		WRITE_ONCE(ring->is_armed, false);
		fipsee_reader_disarm(&ring->completions);
		ring->submitted_at_tick = ring->submitted;
		mod_timer(&ring->backstop, jiffies + 1);
	}
	fip_reap_unlock(ring);
}

/* Reaps until nothing is there and the daemon will ring. False if another is reaping, or the ring is gone. */
bool fip_reap_or_arm(struct fip_ring *ring)
{
	DEFINE_IO_COMP_BATCH(batch);
	struct fip_visit visit = { .batch = &batch, .may_redirect = true };
	bool is_armed = false;
	u32 rounds = 0;

	if (!fip_reap_trylock(ring))
		return false;
	while (ring->is_live && !ring->is_faulty && !is_armed && rounds++ < 4) {
		fip_take(ring, &visit);
		is_armed = !fipsee_reader_arm_and_work_remains(&ring->completions);
		if (!is_armed)
			fipsee_reader_disarm(&ring->completions);
	}
	ring->reap_stats.arms += is_armed;
	WRITE_ONCE(ring->is_armed, is_armed);
	fip_reap_unlock(ring);
	fip_end_visit(ring, &visit);
	if (!fip_rq_list_is_empty(&batch.req_list))
		blk_mq_end_request_batch(&batch);
	return is_armed;
}

/* Leaves the ring to the daemon's doorbell if it is slow, to a thread if not. */
static void fip_reap_entrust(struct fip_ring *ring)
{
	if (!fip_ring_outstanding(ring) || READ_ONCE(ring->is_armed))
		return;
	if ((fip_ring_is_fast(ring) && !fip_ring_is_held(ring)) || !fip_reap_or_arm(ring))
		fip_thread_wake(READ_ONCE(ring->thread));
}

/* The doorbell rang; in the interrupt. */
void fip_reap_rung(struct fip_ring *ring)
{
	u64 messages = READ_ONCE(ring->reap_stats.messages);

	ring->reap_stats.doorbells++;
	WRITE_ONCE(ring->was_rung, true);
	if (!fip_reap_or_arm(ring)) {
		smp_mb();	/* An attempt at the bit that fails orders nothing: what sleeps finds `was_rung`, or we find it asleep. */
		fip_thread_wake(READ_ONCE(ring->thread));
	} else if (messages == READ_ONCE(ring->reap_stats.messages)) {
		ring->virtqueue->spurious++;
	}
}

void fip_reap_backstop(struct timer_list *timer)
{
	struct fip_ring *ring = container_of(timer, struct fip_ring, backstop);
	u32 submitted = READ_ONCE(ring->submitted);

	fip_reap_for_others(ring);
	if (!READ_ONCE(ring->is_live) || READ_ONCE(ring->is_armed))
		return;
	if (submitted == ring->submitted_at_tick && fip_reap_or_arm(ring))
		return;
	ring->submitted_at_tick = submitted;
	mod_timer(timer, jiffies + 1);
}

/* Does spinning pay? A slow disk is tried only occasionally. */
static bool fip_spin_is_worth(struct fip_ring *ring)
{
	if (!fip_spin_us)
		return false;
	if (READ_ONCE(ring->spin_score) >= FIP_LEAST_SCORE)
		return true;
	if (++ring->batches_unspun < FIP_BATCHES_PER_TRY)
		return false;
	ring->batches_unspun = 0;
	return true;
}

/* Looks for the first answers, as long as they usually take. */
static void fip_spin(struct fip_ring *ring)
{
	u64 limit = min_t(u64, fip_spin_us * fip_ticks_per_us, READ_ONCE(ring->mean_wait) * 4 + fip_ticks_per_us * 2);
	u64 began = fip_ticks();
	u32 score = READ_ONCE(ring->spin_score), looks = 0;

	while (fip_ring_is_early(ring))
		cpu_relax();
	do {
		unsigned int count = fip_reap(ring, NULL);

		if (count || !fip_ring_outstanding(ring)) {
			ring->reap_stats.by_spin += count;
			ring->reap_stats.spin_hits++;
			WRITE_ONCE(ring->spin_score, score + (256 - score) / 8);
			return;
		}
		cpu_relax();
	} while (++looks % FIP_LOOKS_PER_CLOCK || (fip_ticks() - began < limit && !need_resched()));
	ring->reap_stats.spin_misses++;
	WRITE_ONCE(ring->spin_score, score - score / 8);
}

/* After a batch was published, without a lock. A poller comes back through .poll; should it not, the timer does. */
void fip_reap_after_publish(struct fip_ring *ring, bool is_polled)
{
	if (is_polled)
		return;
	if (!fip_ring_is_held(ring) && fip_spin_is_worth(ring))
		fip_spin(ring);
	fip_reap_entrust(ring);
}
