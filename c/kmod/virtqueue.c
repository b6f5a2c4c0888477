// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The virtqueue path: plain virtio-blk requests, and what comes back from a virtqueue, upgrade requests included.
 */
#include <linux/interrupt.h>
#include <linux/slab.h>

#include "fip_blk.h"

/* ---- Requests -------------------------------------------------------------------------------------------------- */

static bool fip_fill_header(struct fip_disk *disk, struct request *rq)
{
	struct fip_request *own = blk_mq_rq_to_pdu(rq);
	struct virtio_device *vdev = disk->vdev;
	u32 type;

	own->flush_follows = false;
	switch (req_op(rq)) {
	case REQ_OP_READ:
		type = VIRTIO_BLK_T_IN;
		break;
	case REQ_OP_WRITE:
		type = VIRTIO_BLK_T_OUT;
		own->flush_follows = (rq->cmd_flags & REQ_FUA) && disk->has_flush;
		break;
	case REQ_OP_FLUSH:
		type = VIRTIO_BLK_T_FLUSH;
		break;
	case REQ_OP_DISCARD:
		type = VIRTIO_BLK_T_DISCARD;
		if (!virtio_has_feature(vdev, VIRTIO_BLK_F_DISCARD))
			return false;
		break;
	case REQ_OP_WRITE_ZEROES:
		type = VIRTIO_BLK_T_WRITE_ZEROES;
		own->flush_follows = (rq->cmd_flags & REQ_FUA) && disk->has_flush;
		if (!virtio_has_feature(vdev, VIRTIO_BLK_F_WRITE_ZEROES))
			return false;
		break;
	default:
		return false;
	}
	own->header.type = cpu_to_virtio32(vdev, type);
	own->header.ioprio = 0;
	own->header.sector = 0;
	if (req_op(rq) == REQ_OP_READ || req_op(rq) == REQ_OP_WRITE)
		own->header.sector = cpu_to_virtio64(vdev, blk_rq_pos(rq));
	own->range.sector = cpu_to_le64(blk_rq_pos(rq));
	own->range.num_sectors = cpu_to_le32(blk_rq_sectors(rq));
	own->range.flags = 0;
	if (req_op(rq) == REQ_OP_WRITE_ZEROES && !(rq->cmd_flags & REQ_NOUNMAP))
		own->range.flags = cpu_to_le32(VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP);
	return true;
}

/* Under the virtqueue's lock. */
static int fip_add_request(struct fip_virtqueue *virtqueue, struct request *rq)
{
	struct fip_request *own = blk_mq_rq_to_pdu(rq);
	struct scatterlist header, range, status, *sgs[3];
	unsigned int out = 0, in = 0;

	own->status = VIRTIO_BLK_S_IOERR;
	sg_init_one(&header, &own->header, sizeof(own->header));
	sg_init_one(&status, &own->status, sizeof(own->status));
	sgs[out++] = &header;
	if (req_op(rq) == REQ_OP_DISCARD || req_op(rq) == REQ_OP_WRITE_ZEROES) {
		sg_init_one(&range, &own->range, sizeof(own->range));
		sgs[out++] = &range;
	} else if (req_op(rq) != REQ_OP_FLUSH) {
		sg_init_table(virtqueue->sg, FIP_MAX_SEGMENTS);
		if (blk_rq_map_sg(rq->q, rq, virtqueue->sg) < 1)
			return -EINVAL;
		sgs[out + in] = virtqueue->sg;
		if (req_op(rq) == REQ_OP_WRITE)
			out++;
		else
			in++;
	}
	sgs[out + in] = &status;
	in++;
	return virtqueue_add_sgs(virtqueue->vq, sgs, out, in, &own->token, GFP_ATOMIC);
}

blk_status_t fip_virtqueue_issue(struct fip_virtqueue *virtqueue, struct request *rq)
{
	struct fip_request *own = blk_mq_rq_to_pdu(rq);
	blk_status_t status = BLK_STS_OK;
	unsigned long flags;
	int error;

	if (!fip_fill_header(virtqueue->disk, rq))
		return BLK_STS_NOTSUPP;
	own->since = jiffies;
	own->result = BLK_STS_OK;
	blk_mq_start_request(rq);
	spin_lock_irqsave(&virtqueue->lock, flags);
	error = fip_add_request(virtqueue, rq);
	if (!error) {
		virtqueue->in_flight++;
		virtqueue->requests++;
	} else if (error == -ENOSPC && virtqueue->in_flight) {
		/* Some of them will come back, and that starts the queue again. */
		blk_mq_stop_hw_queue(rq->mq_hctx);
		status = BLK_STS_DEV_RESOURCE;
	} else if (error == -ENOSPC || error == -ENOMEM) {
		status = BLK_STS_RESOURCE;
	} else {
		status = BLK_STS_IOERR;
	}
	spin_unlock_irqrestore(&virtqueue->lock, flags);
	return status;
}

void fip_virtqueue_kick(struct fip_virtqueue *virtqueue)
{
	unsigned long flags;
	bool kick;

	spin_lock_irqsave(&virtqueue->lock, flags);
	kick = virtqueue_kick_prepare(virtqueue->vq);
	spin_unlock_irqrestore(&virtqueue->lock, flags);
	if (kick)
		virtqueue_notify(virtqueue->vq);
}

/* ---- What comes back ------------------------------------------------------------------------------------------- */

struct fip_returned {
	struct request *requests;		/* by rq_next */
	unsigned int count;
	bool is_any;				/* of requests or exchanges */
	bool was_rung;
	bool kick;
};

/* The second half of a write that must be durable. */
static bool fip_add_flush(struct fip_virtqueue *virtqueue, struct fip_request *own)
{
	struct scatterlist header, status, *sgs[2] = { &header, &status };

	own->flush_follows = false;
	own->header.type = cpu_to_virtio32(virtqueue->disk->vdev, VIRTIO_BLK_T_FLUSH);
	own->header.sector = 0;
	own->status = VIRTIO_BLK_S_IOERR;
	sg_init_one(&header, &own->header, sizeof(own->header));
	sg_init_one(&status, &own->status, sizeof(own->status));
	return !virtqueue_add_sgs(virtqueue->vq, sgs, 1, 1, &own->token, GFP_ATOMIC);
}

static void fip_take_request(struct fip_virtqueue *virtqueue, struct fip_request *own, struct fip_returned *returned)
{
	struct request *rq = blk_mq_rq_from_pdu(own);
	u8 status = READ_ONCE(own->status);

	if (own->flush_follows && status == VIRTIO_BLK_S_OK && fip_add_flush(virtqueue, own)) {
		returned->kick = true;
		return;
	}
	own->result = status == VIRTIO_BLK_S_OK && !own->flush_follows ? BLK_STS_OK :
		      status == VIRTIO_BLK_S_UNSUPP ? BLK_STS_NOTSUPP : BLK_STS_IOERR;
	virtqueue->in_flight--;
	returned->count++;
	rq->rq_next = returned->requests;
	returned->requests = rq;
}

/* A doorbell request came back: it was rung, or its attachment is gone. One of an earlier attachment means nothing. */
static void fip_take_doorbell(struct fip_virtqueue *virtqueue, struct fip_returned *returned)
{
	struct fip_exchange *doorbell = &virtqueue->doorbell;
	u32 result = READ_ONCE(doorbell->reply.result);

	if (!virtqueue->doorbell_wanted || doorbell->request->attachment != READ_ONCE(virtqueue->disk->attachment))
		return;
	if (READ_ONCE(doorbell->status) == VIRTIO_BLK_S_OK && result == FIPSEE_VM_RUNG)
		returned->was_rung = true;
	else
		fip_disk_wake(virtqueue->disk, FIP_EVENT_DEAD);
}

static void fip_take_exchange(struct fip_virtqueue *virtqueue, struct fip_exchange *exchange, struct fip_returned *returned)
{
	exchange->busy = false;
	if (exchange == &virtqueue->doorbell)
		fip_take_doorbell(virtqueue, returned);
	else
		complete(&exchange->done);
}

/* At most what was on the virtqueue: what is added meanwhile waits for the next interrupt. */
static void fip_take_all(struct fip_virtqueue *virtqueue, struct fip_returned *returned)
{
	struct fip_token *token;
	unsigned int length;

	do {
		virtqueue_disable_cb(virtqueue->vq);
		while ((token = virtqueue_get_buf(virtqueue->vq, &length))) {
			returned->is_any = true;
			if (token->is_exchange)
				fip_take_exchange(virtqueue, container_of(token, struct fip_exchange, token), returned);
			else
				fip_take_request(virtqueue, container_of(token, struct fip_request, token), returned);
		}
	} while (!virtqueue_is_broken(virtqueue->vq) && !virtqueue_enable_cb(virtqueue->vq));
}

static void fip_end_returned(struct fip_virtqueue *virtqueue, struct fip_returned *returned)
{
	struct fip_disk *disk = virtqueue->disk;

	if (returned->kick)
		virtqueue_notify(virtqueue->vq);
	while (returned->requests) {
		struct request *rq = returned->requests;

		returned->requests = rq->rq_next;
		fip_end_request(rq);
	}
	if (returned->count && disk->gendisk)
		blk_mq_start_stopped_hw_queues(disk->gendisk->queue, true);
	if (returned->was_rung)
		fip_reap_rung(&disk->rings[virtqueue->index]);
}

static void fip_virtqueue_visit(struct fip_virtqueue *virtqueue, struct fip_returned *returned)
{
	unsigned long flags;

	spin_lock_irqsave(&virtqueue->lock, flags);
	fip_take_all(virtqueue, returned);
	if (virtqueue->doorbell_wanted && !virtqueue->doorbell.busy)
		fip_doorbell_hold(virtqueue);
	if (returned->kick)
		returned->kick = virtqueue_kick_prepare(virtqueue->vq);
	spin_unlock_irqrestore(&virtqueue->lock, flags);
	fip_end_returned(virtqueue, returned);
}

unsigned int fip_virtqueue_reap(struct fip_virtqueue *virtqueue)
{
	struct fip_returned returned = {};

	fip_virtqueue_visit(virtqueue, &returned);
	return returned.count;
}

static void fip_virtqueue_interrupt(struct virtqueue *vq)
{
	struct fip_disk *disk = vq->vdev->priv;
	struct fip_virtqueue *virtqueue = &disk->virtqueues[vq->index];

	struct fip_returned returned = {};

	virtqueue->interrupts++;
	fip_virtqueue_visit(virtqueue, &returned);
	virtqueue->spurious += !returned.is_any;
}

/* The device was reset and nothing else uses the virtqueue: what it still holds failed. */
void fip_virtqueue_fail_all(struct fip_virtqueue *virtqueue)
{
	struct fip_returned returned = {};
	struct fip_token *token;
	unsigned long flags;

	spin_lock_irqsave(&virtqueue->lock, flags);
	virtqueue->doorbell_wanted = false;
	while ((token = virtqueue_detach_unused_buf(virtqueue->vq))) {
		if (token->is_exchange) {
			container_of(token, struct fip_exchange, token)->status = VIRTIO_BLK_S_IOERR;
			fip_take_exchange(virtqueue, container_of(token, struct fip_exchange, token), &returned);
		} else {
			struct fip_request *own = container_of(token, struct fip_request, token);

			own->status = VIRTIO_BLK_S_IOERR;
			fip_take_request(virtqueue, own, &returned);
		}
	}
	spin_unlock_irqrestore(&virtqueue->lock, flags);
	returned.was_rung = false;
	fip_end_returned(virtqueue, &returned);
}

/* ---- Finding them ---------------------------------------------------------------------------------------------- */

int fip_virtqueues_find(struct fip_disk *disk)
{
	struct irq_affinity affinity = {};
	unsigned int count = disk->virtqueue_count, index;
	const char **names = kcalloc(count, sizeof(*names), GFP_KERNEL);
	struct virtqueue **vqs = kcalloc(count, sizeof(*vqs), GFP_KERNEL);
	int error = -ENOMEM;

	if (!names || !vqs)
		goto out;
	for (index = 0; index < count; index++) {
		snprintf(disk->virtqueues[index].name, sizeof(disk->virtqueues[index].name), "req.%u", index);
		names[index] = disk->virtqueues[index].name;
	}
	error = fip_find_vqs(disk->vdev, count, vqs, fip_virtqueue_interrupt, names, &affinity);
	for (index = 0; !error && index < count; index++)
		disk->virtqueues[index].vq = vqs[index];
out:
	kfree(names);
	kfree(vqs);
	return error;
}

void fip_virtqueues_delete(struct fip_disk *disk)
{
	unsigned int index;

	/* In user-mode Linux, interrupts come until this returns, reset or not. */
	disk->vdev->config->del_vqs(disk->vdev);
	for (index = 0; index < disk->virtqueue_count; index++)
		disk->virtqueues[index].vq = NULL;
}
