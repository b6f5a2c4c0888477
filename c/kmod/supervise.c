// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Which path a disk is on (docs/protocol.md sections 9.2 to 9.5): attaching, leaving the rings, and requests meanwhile. All
 * of it is in one work item per disk. The path changes only while the block layer's queue is quiesced.
 */
#include <linux/delay.h>
#include <linux/rcupdate.h>
#include <linux/reboot.h>
#include <linux/slab.h>

#include "fip_blk.h"

/* How soon attaching is tried again; the second after a back end that does not support it. */
#define FIP_RETRY_SECONDS 1
#define FIP_RETRY_UNKNOWN_SECONDS 30
/* What a ring needs at least. */
#define FIP_LEAST_DEPTH 4

static struct request_queue *fip_queue(struct fip_disk *disk)
{
	return disk->gendisk ? disk->gendisk->queue : NULL;
}

static void fip_quiesce(struct fip_disk *disk)
{
	if (fip_queue(disk))
		blk_mq_quiesce_queue(fip_queue(disk));
}

static void fip_unquiesce(struct fip_disk *disk)
{
	if (!fip_queue(disk))
		return;
	blk_mq_unquiesce_queue(fip_queue(disk));
	blk_mq_start_stopped_hw_queues(fip_queue(disk), true);
	blk_mq_kick_requeue_list(fip_queue(disk));
}

static bool fip_is_over(unsigned long began, unsigned int seconds)
{
	return time_after(jiffies, began + seconds * HZ);
}

/* ---- Attaching ------------------------------------------------------------------------------------------------- */

static void fip_free_pending(struct fip_disk *disk)
{
	unsigned int index;

	for (index = 0; disk->pending && index < disk->ring_count; index++)
		fip_memory_free(&disk->pending[index]);
	kfree(disk->pending);
	disk->pending = NULL;
}

static int fip_alloc_pending(struct fip_disk *disk, u32 depth)
{
	unsigned int index;
	int error = 0;

	disk->pending = kcalloc(disk->ring_count, sizeof(*disk->pending), GFP_KERNEL);
	if (!disk->pending)
		return -ENOMEM;
	for (index = 0; !error && index < disk->ring_count; index++)
		error = fip_memory_alloc(&disk->pending[index], depth, index);
	if (error)
		fip_free_pending(disk);
	return error;
}

/* The block info, asked for on the first ring. */
static int fip_read_info(struct fip_disk *disk, struct fipsee_block_info *info)
{
	struct fip_ring *ring = &disk->rings[0];
	void *sector = kzalloc(FIPSEE_SECTOR_BYTES, GFP_KERNEL);
	unsigned long began = jiffies;
	uint64_t value;
	int error;

	if (!sector)
		return -ENOMEM;
	error = fip_ring_send_info(ring, sector);
	while (!error && smp_load_acquire(&ring->info_outstanding)) {
		if (fip_is_over(began, max(fip_query_seconds, 1U)) || test_bit(FIP_EVENT_DEAD, &disk->events))
			error = -ETIMEDOUT;
		fip_reap(ring, NULL);
		if (smp_load_acquire(&ring->info_outstanding))
			usleep_range(20, 50);
	}
	if (!error && ring->info_status != FIPSEE_STATUS_OK)
		error = -EIO;
	memcpy(info, sector, sizeof(*info));
	if (error == -ETIMEDOUT)
		return error;		/* the daemon may still write there: this sector is leaked */
	kfree(sector);
	if (!error && fipsee_block_info_fault(info, &value))
		error = -EPROTO;
	return error;
}

/* Does the disk still keep what its limits promised? */
static bool fip_info_is_enough(struct fip_disk *disk, const struct fipsee_block_info *info)
{
	const struct fip_limits *limits = &disk->limits;

	return info->block_bytes <= limits->block_bytes && info->max_segments >= limits->max_segments &&
	       info->max_transfer_bytes >> FIPSEE_SECTOR_SHIFT >= limits->max_sectors &&
	       (info->capabilities & disk->required_capabilities) == disk->required_capabilities &&
	       info->max_range_sectors >= max(limits->max_discard_sectors, limits->max_zero_sectors);
}

static void fip_stop_rings(struct fip_disk *disk)
{
	unsigned int index;

	for (index = 0; index < disk->ring_count; index++)
		fip_ring_stop(&disk->rings[index]);
	synchronize_rcu();		/* a thread may wait on a word of one, see fip_thread_pause() */
}

static void fip_free_rings(struct fip_disk *disk)
{
	unsigned int index;

	for (index = 0; index < disk->ring_count; index++)
		fip_memory_free(&disk->rings[index].memory);
}

/* The daemon accepted: the rings are in force, and the first request asks for the disk's properties. */
static int fip_attached(struct fip_disk *disk, u64 attachment, bool is_first)
{
	struct fipsee_block_info info;
	unsigned int index;
	int error = 0;

	clear_bit(FIP_EVENT_DEAD, &disk->events);
	clear_bit(FIP_EVENT_DETACH, &disk->events);
	WRITE_ONCE(disk->attachment, attachment);
	for (index = 0; index < disk->ring_count; index++)
		error = fip_ring_start(&disk->rings[index], &disk->pending[index]) ?: error;
	fip_free_pending(disk);
	fip_doorbell_wanted(disk, true);
	error = error ?: fip_read_info(disk, &info);
	if (!error && !is_first && !fip_info_is_enough(disk, &info))
		error = -EMEDIUMTYPE;
	if (error) {
		dev_warn(&disk->vdev->dev, "the daemon's description of the disk cannot be used (%d): staying on virtio\n", error);
		return error;
	}
	disk->info = info;
	for (index = 0; index < disk->ring_count; index++)
		fip_reap_or_arm(&disk->rings[index]);
	fip_quiesce(disk);
	disk->capabilities = info.capabilities;
	disk->path = FIP_PATH_RINGS;
	disk->attach_count++;
	fip_unquiesce(disk);
	return 0;
}

/*
 * 0: on rings. -EOPNOTSUPP: this back end cannot. -EBADR: it refused the rings, perhaps of a virtqueue that it has not begun.
 * Others: not now.
 */
int fip_attach(struct fip_disk *disk, bool is_first)
{
	struct fipsee_vm_reply reply;
	u64 features;
	int error;

	error = fip_ask_query(disk, &reply);
	if (error)
		return error;
	features = reply.features & FIPSEE_VM_FEATURES;
	if (reply.result == FIPSEE_VM_BAD_VERSION || reply.max_depth < FIP_LEAST_DEPTH || !reply.max_queues)
		return -EOPNOTSUPP;
	if (reply.result != FIPSEE_VM_DONE)
		return -EAGAIN;
	if (is_first) {
		disk->ring_count = min_t(unsigned int, disk->virtqueue_count, reply.max_queues);
		disk->tags.queue_depth = clamp_t(u32, reply.max_depth / 2, 1, disk->tags.queue_depth);
	} else if (reply.max_queues < disk->ring_count) {
		return -EOPNOTSUPP;
	}
	if (!disk->pending) {
		error = fip_alloc_pending(disk, min_t(u32, reply.max_depth, 2 * disk->tags.queue_depth));
		if (error)
			return error;
	}
	error = fip_ask_attach(disk, disk->pending, features, &reply);
	if (error == -ETIMEDOUT)
		return error;		/* the answer may still come: the memory stays */
	if (!error && reply.result == FIPSEE_VM_DONE && reply.attachment) {
		disk->choices = fip_choices ?: reply.choices;
		error = fip_attached(disk, reply.attachment, is_first);
		if (!error)
			return 0;
		fip_leave_rings(disk, false);
		/* Another description would come only from another daemon; a daemon that was killed meanwhile comes back. */
		return error == -EPROTO || error == -EMEDIUMTYPE ? -EOPNOTSUPP : -EAGAIN;
	}
	fip_free_pending(disk);
	if (error)
		return error;
	if (reply.result == FIPSEE_VM_INVALID) {
		disk->refused_queue = reply.queue;
		return -EBADR;
	}
	return reply.result == FIPSEE_VM_NOT_NOW ? -EAGAIN : -EOPNOTSUPP;
}

/* ---- Leaving --------------------------------------------------------------------------------------------------- */

/* Is the attachment still there? A doorbell request may have been lost, so the back end is asked. */
static void fip_check(struct fip_disk *disk)
{
	struct fipsee_vm_reply reply;
	int error = fip_ask_query(disk, &reply);

	if (error == -ETIMEDOUT) {
		dev_warn_ratelimited(&disk->vdev->dev, "the back end does not answer; waiting\n");
		if (READ_ONCE(disk->is_removing))
			fip_break(disk, "the back end does not answer and the device is being removed", "");
		return;
	}
	if (disk->path == FIP_PATH_RINGS &&
	    (error == -EOPNOTSUPP || (!error && reply.attachment != disk->attachment)))
		set_bit(FIP_EVENT_DEAD, &disk->events);
}

static u32 fip_outstanding(struct fip_disk *disk)
{
	unsigned int index;
	u32 count = 0;

	for (index = 0; index < disk->ring_count; index++) {
		fip_reap_for_others(&disk->rings[index]);
		count += fip_ring_outstanding(&disk->rings[index]);
	}
	return count;
}

/* Waits until everything published was answered and the daemon released the rings. False if it does not. */
static bool fip_detach(struct fip_disk *disk)
{
	unsigned int timeout = fip_fail_seconds ?: UINT_MAX / HZ / 2;
	unsigned long began = jiffies, checked = jiffies;

	if (READ_ONCE(disk->is_removing) || !disk->gendisk)
		timeout = max(fip_query_seconds, 1U);
	while (fip_outstanding(disk) && !READ_ONCE(disk->is_broken)) {
		if (test_bit(FIP_EVENT_DEAD, &disk->events))
			return true;
		if (fip_is_over(began, timeout))
			return false;
		if (fip_is_over(checked, max(fip_query_seconds, 1U))) {
			fip_check(disk);
			checked = jiffies;
		}
		usleep_range(50, 100);
	}
	fip_doorbell_wanted(disk, false);
	while (!READ_ONCE(disk->is_broken)) {
		int error = fip_ask_detach(disk);

		if (!error)
			return true;
		if (fip_is_over(began, timeout))
			return false;
		if (error != -ETIMEDOUT)
			msleep(100);
	}
	return false;
}

/* What was published and not answered, to be done again on the virtqueue or, if `result` says so, failed. */
static void fip_take_back(struct fip_disk *disk, blk_status_t result)
{
	unsigned int index, tag;

	for (index = 0; index < disk->ring_count; index++) {
		struct fip_ring *ring = &disk->rings[index];

		for (tag = 0; tag < ARRAY_SIZE(ring->in_flight); tag++) {
			struct request *rq = ring->in_flight[tag];
			struct fip_request *own;

			if (!rq)
				continue;
			ring->in_flight[tag] = NULL;
			own = blk_mq_rq_to_pdu(rq);
			own->result = result;
			disk->repeated += result == BLK_STS_AGAIN;
			fip_end_request(rq);
		}
		WRITE_ONCE(ring->finished, ring->submitted);
	}
}

/* Back to virtqueues. With `is_dead` the daemon has ended the attachment by itself and does not touch the rings. */
void fip_leave_rings(struct fip_disk *disk, bool is_dead)
{
	bool is_quit;

	fip_quiesce(disk);
	is_quit = is_dead || fip_detach(disk);
	fip_doorbell_wanted(disk, false);
	if (!is_quit) {
		/* Only a reset takes the rings from it. Until then the memory stays as it is. */
		fip_break(disk, "the back end does not let go of the rings", "");
		fip_unquiesce(disk);
		return;
	}
	fip_outstanding(disk);
	fip_stop_rings(disk);
	WRITE_ONCE(disk->attachment, 0);
	WRITE_ONCE(disk->path, FIP_PATH_VIRTQUEUE);
	fip_take_back(disk, BLK_STS_AGAIN);
	fip_free_rings(disk);
	disk->next_attach = jiffies + (is_dead ? 0 : FIP_RETRY_SECONDS * HZ);
	fip_unquiesce(disk);
}

/*
 * The end of a disk that cannot be trusted, or is gone. Detaching and the reset come first: requests end when the device can
 * no longer write. Not every transport notifies the back end of a reset (user-mode Linux does not). For a back end that does
 * not answer see aside.c.
 */
static void fip_fail_all(struct fip_disk *disk)
{
	bool is_set_aside = false;
	unsigned int index;
	int error = 0;

	if (disk->is_failed)
		return;
	disk->is_failed = true;
	fip_quiesce(disk);
	fip_doorbell_wanted(disk, false);
	if (disk->path == FIP_PATH_RINGS && !virtqueue_is_broken(disk->virtqueues[0].vq))
		error = fip_ask_detach(disk);
	if (error == -ETIMEDOUT) {
		fip_stop_rings(disk);
		is_set_aside = fip_set_aside(disk);
	}
	if (is_set_aside)
		dev_warn(&disk->vdev->dev, "the back end does not answer: memory of failed requests is set aside until the device is unbound\n");
	else if (error)
		dev_warn(&disk->vdev->dev, "the back end did not let go of the rings before the reset\n");
	if (!is_set_aside) {
		virtio_break_device(disk->vdev);
		virtio_reset_device(disk->vdev);
	}
	fip_stop_rings(disk);
	fip_take_back(disk, BLK_STS_IOERR);
	WRITE_ONCE(disk->path, FIP_PATH_VIRTQUEUE);
	for (index = 0; !is_set_aside && index < disk->virtqueue_count; index++)
		fip_virtqueue_fail_all(&disk->virtqueues[index]);
	fip_unquiesce(disk);
}

/* ---- The work item --------------------------------------------------------------------------------------------- */

static void fip_set_size(struct fip_disk *disk, u64 sectors)
{
	if (!disk->gendisk || READ_ONCE(disk->is_removing))
		return;
	if (!set_capacity_and_notify(disk->gendisk, sectors))
		return;
	dev_info(&disk->vdev->dev, "%s has %llu sectors now\n", disk->gendisk->disk_name, sectors);
}

static void fip_resize(struct fip_disk *disk)
{
	bool is_done = true;
	unsigned int index;

	fip_set_size(disk, READ_ONCE(disk->new_sectors));
	for (index = 0; index < disk->ring_count; index++)
		is_done &= fip_ring_send_ack(&disk->rings[index]);
	if (is_done)
		return;
	set_bit(FIP_EVENT_RESIZE, &disk->events);
	queue_delayed_work(fip_workqueue, &disk->supervisor, 1);
}

static void fip_supervise_rings(struct fip_disk *disk)
{
	if (test_and_clear_bit(FIP_EVENT_CHECK, &disk->events))
		fip_check(disk);
	if (test_bit(FIP_EVENT_DEAD, &disk->events)) {
		dev_info(&disk->vdev->dev, "the daemon ended the attachment: repeating what was in flight\n");
		fip_leave_rings(disk, true);
	} else if (test_bit(FIP_EVENT_DETACH, &disk->events)) {
		dev_info(&disk->vdev->dev, "the daemon wants the disk back on virtio\n");
		fip_leave_rings(disk, false);
	} else if (test_and_clear_bit(FIP_EVENT_RESIZE, &disk->events)) {
		fip_resize(disk);
	}
}

static void fip_supervise_virtqueues(struct fip_disk *disk)
{
	int error;

	clear_bit(FIP_EVENT_RESIZE, &disk->events);
	if (test_and_clear_bit(FIP_EVENT_CHECK, &disk->events) && READ_ONCE(disk->is_removing))
		fip_check(disk);
	if (!fip_rings_wanted || READ_ONCE(disk->is_removing) || READ_ONCE(disk->is_broken))
		return;
	if (time_after_eq(jiffies, disk->next_attach)) {
		error = fip_attach(disk, false);
		if (!error) {
			dev_info(&disk->vdev->dev, "attached to the daemon\n");
			return;
		}
		if (error == -EBADR)
			dev_warn_once(&disk->vdev->dev, "the daemon refused the rings of queue %u: on virtio for now\n", disk->refused_queue);
		disk->next_attach = jiffies + HZ * (error == -EOPNOTSUPP ? FIP_RETRY_UNKNOWN_SECONDS : FIP_RETRY_SECONDS);
	}
	queue_delayed_work(fip_workqueue, &disk->supervisor, max_t(long, disk->next_attach - jiffies, 1));
}

void fip_supervise(struct work_struct *work)
{
	struct fip_disk *disk = container_of(to_delayed_work(work), struct fip_disk, supervisor);

	mutex_lock(&disk->supervising);
	if (disk->is_paused)
		goto out;
	/* A machine that goes down breaks its devices; that is no error. */
	if (system_state > SYSTEM_RUNNING)
		goto out;
	if (!READ_ONCE(disk->is_broken) && virtqueue_is_broken(disk->virtqueues[0].vq))
		fip_break(disk, "the device is gone", "");
	else if (!READ_ONCE(disk->is_broken) && test_and_clear_bit(FIP_EVENT_STUCK, &disk->events))
		fip_break(disk, "the back end did not complete a request in time", "");
	if (READ_ONCE(disk->is_broken)) {
		fip_fail_all(disk);
		goto out;
	}
	if (test_and_clear_bit(FIP_EVENT_CONFIG, &disk->events)) {
		u64 sectors;

		virtio_cread(disk->vdev, struct virtio_blk_config, capacity, &sectors);
		fip_set_size(disk, sectors);
	}
	if (disk->path == FIP_PATH_RINGS)
		fip_supervise_rings(disk);
	if (disk->path == FIP_PATH_VIRTQUEUE)
		fip_supervise_virtqueues(disk);
out:
	mutex_unlock(&disk->supervising);
}
