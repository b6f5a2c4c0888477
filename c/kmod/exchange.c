// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Upgrade requests (docs/protocol.md section 9.1): asking the back end, and the doorbell requests that it completes.
 */
#include <linux/slab.h>

#include "fip_blk.h"

int fip_exchange_init(struct fip_exchange *exchange, unsigned int entries)
{
	exchange->token.is_exchange = true;
	exchange->request_bytes = sizeof(*exchange->request);
	exchange->request = kzalloc(sizeof(*exchange->request) + entries * sizeof(struct fipsee_vm_queue), GFP_KERNEL);
	init_completion(&exchange->done);
	return exchange->request ? 0 : -ENOMEM;
}

void fip_exchange_free(struct fip_exchange *exchange)
{
	kfree(exchange->request);
	exchange->request = NULL;
}

static void fip_fill_upgrade_request(struct fip_exchange *exchange, u16 operation, u64 attachment)
{
	memset(exchange->request, 0, sizeof(*exchange->request));
	exchange->request->magic = FIPSEE_VM_MAGIC;
	exchange->request->version = FIPSEE_VM_VERSION;
	exchange->request->operation = operation;
	exchange->request->attachment = attachment;
	exchange->request_bytes = sizeof(*exchange->request);
}

/* Under the virtqueue's lock; not while it is busy. The caller kicks. */
int fip_exchange_add(struct fip_virtqueue *virtqueue, struct fip_exchange *exchange)
{
	struct scatterlist header, upgrade_request, reply, status, *sgs[4] = { &header, &upgrade_request, &reply, &status };
	struct scatterlist *serial_sgs[3] = { &header, &reply, &status };
	bool is_serial = !exchange->request_bytes;
	int error;

	exchange->header.type = cpu_to_virtio32(virtqueue->disk->vdev, is_serial ? VIRTIO_BLK_T_GET_ID : FIPSEE_VM_REQUEST_TYPE);
	exchange->header.ioprio = 0;
	exchange->header.sector = 0;
	exchange->status = VIRTIO_BLK_S_IOERR;
	memset(&exchange->reply, 0, sizeof(exchange->reply));
	sg_init_one(&header, &exchange->header, sizeof(exchange->header));
	sg_init_one(&reply, &exchange->reply, is_serial ? FIP_SERIAL_BYTES : sizeof(exchange->reply));
	sg_init_one(&status, &exchange->status, sizeof(exchange->status));
	if (!is_serial)
		sg_init_one(&upgrade_request, exchange->request, exchange->request_bytes);
	error = virtqueue_add_sgs(virtqueue->vq, is_serial ? serial_sgs : sgs, is_serial ? 1 : 2, 2, &exchange->token, GFP_ATOMIC);
	exchange->busy = !error;
	return error;
}

/*
 * Sends a request, unless the same is unanswered: then this waits for that answer. 0: the reply was written. -EOPNOTSUPP: the
 * back end supports no upgrades.
 */
int fip_ask(struct fip_disk *disk, struct fip_exchange *exchange, unsigned int timeout_seconds)
{
	struct fip_virtqueue *virtqueue = &disk->virtqueues[0];
	unsigned long flags;
	bool is_new;
	int error = 0;

	spin_lock_irqsave(&virtqueue->lock, flags);
	is_new = !exchange->busy;
	if (is_new) {
		reinit_completion(&exchange->done);
		error = fip_exchange_add(virtqueue, exchange);
	}
	spin_unlock_irqrestore(&virtqueue->lock, flags);
	if (error)
		return error;
	if (is_new)
		fip_virtqueue_kick(virtqueue);
	if (!wait_for_completion_timeout(&exchange->done, timeout_seconds * HZ))
		return -ETIMEDOUT;
	switch (READ_ONCE(exchange->status)) {
	case VIRTIO_BLK_S_OK:
		return 0;
	case VIRTIO_BLK_S_UNSUPP:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}

static bool fip_is_busy(struct fip_disk *disk, struct fip_exchange *exchange)
{
	unsigned long flags;
	bool is_busy;

	spin_lock_irqsave(&disk->virtqueues[0].lock, flags);
	is_busy = exchange->busy;
	spin_unlock_irqrestore(&disk->virtqueues[0].lock, flags);
	return is_busy;
}

int fip_ask_query(struct fip_disk *disk, struct fipsee_vm_reply *reply)
{
	int error;

	if (!fip_is_busy(disk, &disk->query))
		fip_fill_upgrade_request(&disk->query, FIPSEE_VM_QUERY, 0);
	error = fip_ask(disk, &disk->query, max(fip_query_seconds, 1U));
	*reply = disk->query.reply;
	return error;
}

/* `features` are wanted, of those that query offered. What was not asked for is not in the reply. */
int fip_ask_attach(struct fip_disk *disk, struct fip_memory *memory, u64 features, struct fipsee_vm_reply *reply)
{
	struct fip_exchange *attach = &disk->attach;
	struct fipsee_vm_queue *entries = (struct fipsee_vm_queue *)(attach->request + 1);
	unsigned int index;
	int error;

	if (!fip_is_busy(disk, attach)) {
		fip_fill_upgrade_request(attach, FIPSEE_VM_ATTACH, 0);
		attach->request->features = features;
		attach->request->queue_count = (u16)disk->ring_count;
		attach->request_bytes += disk->ring_count * sizeof(*entries);
		for (index = 0; index < disk->ring_count; index++)
			entries[index] = memory[index].entry;
	}
	error = fip_ask(disk, attach, max(fip_query_seconds, 1U));
	*reply = attach->reply;
	reply->features &= attach->request->features;
	if (!(reply->features & FIPSEE_VM_FEATURE_CHOICES))
		reply->choices = 0;
	return error;
}

/* 0 when the daemon does not touch the rings any more. */
int fip_ask_detach(struct fip_disk *disk)
{
	u32 result;
	int error;

	if (!fip_is_busy(disk, &disk->detach))
		fip_fill_upgrade_request(&disk->detach, FIPSEE_VM_DETACH, disk->attachment);
	error = fip_ask(disk, &disk->detach, max(fip_query_seconds, 1U));
	result = READ_ONCE(disk->detach.reply.result);
	if (error == -EOPNOTSUPP)
		return 0;
	if (error)
		return error;
	return result == FIPSEE_VM_DONE || result == FIPSEE_VM_NO_ATTACHMENT ? 0 : -EPROTO;
}

/* A device without a serial number has an empty one. */
void fip_ask_serial(struct fip_disk *disk)
{
	if (fip_is_busy(disk, &disk->query))
		return;
	disk->query.request_bytes = 0;
	if (!fip_ask(disk, &disk->query, max(fip_query_seconds, 1U)))
		memcpy(disk->serial, disk->query.serial, FIP_SERIAL_BYTES);
}

/* Under the virtqueue's lock, while no doorbell request is there. Without room, the backstop timer and the threads remain. */
void fip_doorbell_hold(struct fip_virtqueue *virtqueue)
{
	fip_fill_upgrade_request(&virtqueue->doorbell, FIPSEE_VM_DOORBELL, virtqueue->disk->attachment);
	virtqueue->doorbell.request->queue = (u16)virtqueue->index;
	if (!fip_exchange_add(virtqueue, &virtqueue->doorbell))
		virtqueue_kick(virtqueue->vq);
}

/* From now on a doorbell request is kept on each queue, or none is put there any more. */
void fip_doorbell_wanted(struct fip_disk *disk, bool is_wanted)
{
	unsigned int index;

	for (index = 0; index < disk->ring_count; index++) {
		struct fip_virtqueue *virtqueue = &disk->virtqueues[index];
		unsigned long flags;

		spin_lock_irqsave(&virtqueue->lock, flags);
		virtqueue->doorbell_wanted = is_wanted;
		if (is_wanted && !virtqueue->doorbell.busy)
			fip_doorbell_hold(virtqueue);
		spin_unlock_irqrestore(&virtqueue->lock, flags);
	}
}
