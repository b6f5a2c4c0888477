// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * What the block layer calls.
 */
#include <linux/blk-mq-virtio.h>
#include <linux/slab.h>

#include "fip_blk.h"

/* Longest that a task that removes the device waits for a request. */
#define FIP_REMOVE_SECONDS 30U

static bool fip_is_polled(const struct fip_disk *disk, const struct blk_mq_hw_ctx *hctx)
{
	return hctx->queue_num >= disk->ring_count;
}

/* A flush of a disk that has no cache is done. */
static bool fip_is_done_at_once(const struct fip_disk *disk, const struct request *rq)
{
	if (req_op(rq) != REQ_OP_FLUSH)
		return false;
	return disk->path == FIP_PATH_RINGS ? !(disk->capabilities & FIPSEE_CAPABILITY_FLUSH) : !disk->has_flush;
}

static blk_status_t fip_submit_virtqueue(struct fip_ring *ring, struct request *rq, bool is_last)
{
	blk_status_t status = fip_virtqueue_issue(ring->virtqueue, rq);

	if (is_last || status != BLK_STS_OK)
		fip_virtqueue_kick(ring->virtqueue);
	return status;
}

/* The end of a batch, under submit_lock, which it gives back. */
static void fip_submit_end(struct fip_ring *ring, bool is_polled) __releases(&ring->submit_lock)
{
	/* A poller waits now; whether others do is unknown. */
	bool kick = fip_ring_publish_end(ring, is_polled);

	spin_unlock(&ring->submit_lock);
	if (kick)
		virtqueue_notify(ring->virtqueue->vq);
	fip_reap_after_publish(ring, is_polled);
}

static blk_status_t fip_queue_rq(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *data)
{
	struct fip_disk *disk = hctx->queue->queuedata;
	struct fip_ring *ring = fip_ring_of(disk, hctx);
	struct request *rq = data->rq;
	bool misfit = false;
	blk_status_t status;

	if (unlikely(READ_ONCE(disk->is_broken)))
		return BLK_STS_IOERR;
	if (unlikely(fip_is_done_at_once(disk, rq))) {
		blk_mq_start_request(rq);
		blk_mq_end_request(rq, BLK_STS_OK);
		return BLK_STS_OK;
	}
	if (disk->path == FIP_PATH_VIRTQUEUE)
		return fip_submit_virtqueue(ring, rq, data->last);
	spin_lock(&ring->submit_lock);
	fip_ring_begin(ring, fip_is_polled(disk, hctx));
	status = fip_ring_issue(ring, rq, &misfit);
	if (data->last)
		fip_submit_end(ring, fip_is_polled(disk, hctx));
	else
		spin_unlock(&ring->submit_lock);
	/* Memory that a ring cannot name, such as a piece that begins within a sector. */
	return unlikely(misfit) ? fip_submit_virtqueue(ring, rq, true) : status;
}

/* A whole list of one device. What cannot go onto a ring now is left in it, and comes to queue_rq. */
static void fip_queue_rqs(fip_rq_list *list)
{
	fip_rq_list left = FIP_RQ_LIST_NONE;
	struct fip_ring *ring = NULL;
	bool is_polled = false;
	struct request *rq;

	while ((rq = rq_list_pop(list))) {
		struct fip_disk *disk = rq->q->queuedata;
		struct fip_ring *its = fip_ring_of(disk, rq->mq_hctx);
		bool misfit = false;

		if (unlikely(disk->path != FIP_PATH_RINGS || READ_ONCE(disk->is_broken) || fip_is_done_at_once(disk, rq))) {
			fip_rq_list_add(&left, rq);
			continue;
		}
		if (its != ring) {
			if (ring)
				fip_submit_end(ring, is_polled);
			ring = its;
			is_polled = fip_is_polled(disk, rq->mq_hctx);
			if (fip_ring_outstanding(ring))
				fip_reap(ring, NULL);
			spin_lock(&ring->submit_lock);
			fip_ring_begin(ring, is_polled);
		}
		/* On this path the block layer does not enter it, and without it the request is not found by its tag. */
		rq->mq_hctx->tags->rqs[rq->tag] = rq;
		if (unlikely(fip_ring_issue(ring, rq, &misfit) != BLK_STS_OK || misfit))
			fip_rq_list_add(&left, rq);
	}
	if (ring)
		fip_submit_end(ring, is_polled);
	*list = left;
}

static void fip_commit_rqs(struct blk_mq_hw_ctx *hctx)
{
	struct fip_disk *disk = hctx->queue->queuedata;
	struct fip_ring *ring = fip_ring_of(disk, hctx);

	if (disk->path == FIP_PATH_VIRTQUEUE) {
		fip_virtqueue_kick(ring->virtqueue);
		return;
	}
	spin_lock(&ring->submit_lock);
	fip_submit_end(ring, fip_is_polled(disk, hctx));
}

static int fip_poll(struct blk_mq_hw_ctx *hctx, struct io_comp_batch *batch)
{
	struct fip_disk *disk = hctx->queue->queuedata;
	struct fip_ring *ring = fip_ring_of(disk, hctx);

	if (READ_ONCE(disk->path) == FIP_PATH_VIRTQUEUE)
		return fip_virtqueue_reap(ring->virtqueue);
	return fip_ring_is_early(ring) ? 0 : fip_reap(ring, batch);
}

/* A request takes long. The supervisor asks the back end about it; this only decides when the time is up. */
static enum blk_eh_timer_return fip_timeout(struct request *rq)
{
	struct fip_disk *disk = rq->q->queuedata;
	struct fip_request *own = blk_mq_rq_to_pdu(rq);
	unsigned int seconds = fip_fail_seconds;

	if (READ_ONCE(disk->is_removing))
		seconds = seconds ? min(seconds, FIP_REMOVE_SECONDS) : FIP_REMOVE_SECONDS;
	if (seconds && time_after(jiffies, READ_ONCE(own->since) + seconds * HZ))
		fip_disk_wake(disk, FIP_EVENT_STUCK);
	else
		fip_disk_wake(disk, FIP_EVENT_CHECK);
	return BLK_EH_RESET_TIMER;
}

static int fip_init_request(struct blk_mq_tag_set *set, struct request *rq, unsigned int hctx_index, unsigned int node)
{
	struct fip_disk *disk = set->driver_data;
	struct fip_request *own = blk_mq_rq_to_pdu(rq);
	size_t bytes = disk->max_indirect * sizeof(struct fipsee_segment);

	/* Powers of two are aligned to themselves, thus to sectors. */
	bytes = roundup_pow_of_two(max_t(size_t, bytes, FIPSEE_SECTOR_BYTES));
	own->token.is_exchange = false;
	own->table = kzalloc_node(bytes, GFP_KERNEL, node);
	return own->table ? 0 : -ENOMEM;
}

static void fip_exit_request(struct blk_mq_tag_set *set, struct request *rq, unsigned int hctx_index)
{
	struct fip_request *own = blk_mq_rq_to_pdu(rq);

	kfree(own->table);
	own->table = NULL;
}

/* Ordinary requests go to the first half of the hardware queues, near the virtqueue's interrupt; polled ones to the second. */
static void fip_map_queues(struct blk_mq_tag_set *set)
{
	struct fip_disk *disk = set->driver_data;
	struct blk_mq_queue_map *map = &set->map[HCTX_TYPE_DEFAULT];

	map->nr_queues = min(disk->ring_count, set->nr_hw_queues);
	map->queue_offset = 0;
	blk_mq_virtio_map_queues(map, disk->vdev, 0);
	if (set->nr_maps <= HCTX_TYPE_POLL)
		return;
	set->map[HCTX_TYPE_READ].nr_queues = 0;
	map = &set->map[HCTX_TYPE_POLL];
	map->nr_queues = disk->ring_count;
	map->queue_offset = disk->ring_count;
	blk_mq_map_queues(map);
}

const struct blk_mq_ops fip_mq_ops = {
	.queue_rq = fip_queue_rq,
	.queue_rqs = fip_queue_rqs,
	.commit_rqs = fip_commit_rqs,
	.poll = fip_poll,
	.timeout = fip_timeout,
	.init_request = fip_init_request,
	.exit_request = fip_exit_request,
	.map_queues = fip_map_queues,
};
