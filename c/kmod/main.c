// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The module: its parameters, and devices that are added and removed.
 */
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/virtio_ids.h>

#include "fip_blk.h"

static char *fip_devices = "";
module_param_named(devices, fip_devices, charp, 0444);
MODULE_PARM_DESC(devices, "devices to take, such as virtio0,virtio3; all if empty");

static bool fip_keep;
module_param_named(keep, fip_keep, bool, 0644);
MODULE_PARM_DESC(keep, "drive devices over virtio whose back end is no Fip-see daemon, instead of leaving them to virtio_blk");

bool fip_rings_wanted = true;
module_param_named(rings, fip_rings_wanted, bool, 0644);
MODULE_PARM_DESC(rings, "use rings; without, virtio only");

unsigned int fip_choices;
module_param_named(choices, fip_choices, hexint, 0644);
MODULE_PARM_DESC(choices, "how rings are gone about, as a word of docs/protocol.md section 2.6, from the next attachment on; 0: as the daemon advises");

bool fip_pace_wanted = true;
module_param_named(pace, fip_pace_wanted, bool, 0644);
MODULE_PARM_DESC(pace, "search by measurement, where the daemon's advice says that it may gain, when to look first; from the next attachment on");

unsigned int fip_depth = FIP_MAX_TAGS;
module_param_named(depth, fip_depth, uint, 0444);
MODULE_PARM_DESC(depth, "requests per hardware queue, 1 to 128");

unsigned int fip_max_queues;
module_param_named(queues, fip_max_queues, uint, 0444);
MODULE_PARM_DESC(queues, "most virtqueues and rings of a disk; 0: as many as CPUs");

unsigned int fip_spin_us = 20;
module_param_named(spin_us, fip_spin_us, uint, 0644);
MODULE_PARM_DESC(spin_us, "longest that a submitter looks for its completions; 0: never");

unsigned int fip_thread_us = 100;
module_param_named(thread_us, fip_thread_us, uint, 0644);
MODULE_PARM_DESC(thread_us, "how long a thread looks before it sleeps; disks that are slower are left to the interrupt");

bool fip_mwait_wanted;
module_param_named(mwait, fip_mwait_wanted, bool, 0644);
MODULE_PARM_DESC(mwait, "threads wait with UMWAIT or MWAIT where the CPU has it");

unsigned int fip_query_seconds = 5;
module_param_named(query_seconds, fip_query_seconds, uint, 0644);
MODULE_PARM_DESC(query_seconds, "a request that takes longer makes the driver ask the back end whether it is there");

unsigned int fip_fail_seconds = 300;
module_param_named(fail_seconds, fip_fail_seconds, uint, 0644);
MODULE_PARM_DESC(fail_seconds, "a request that takes longer fails, and the disk with it; 0: never");

struct workqueue_struct *fip_workqueue;
u64 fip_ticks_per_us;
static DEFINE_IDA(fip_minors);

static bool fip_is_wanted(struct virtio_device *vdev)
{
	const char *name = dev_name(&vdev->dev), *at = fip_devices;
	size_t length = strlen(name);

	if (!*at)
		return true;
	while (at) {
		if (!strncmp(at, name, length) && (at[length] == ',' || !at[length]))
			return true;
		at = strchr(at, ',');
		at = at ? at + 1 : NULL;
	}
	return false;
}

/* ---- A disk's own memory ----------------------------------------------------------------------------------------- */

static void fip_disk_free(struct fip_disk *disk)
{
	unsigned int index;

	for (index = 0; disk->virtqueues && index < disk->virtqueue_count; index++) {
		fip_exchange_free(&disk->virtqueues[index].doorbell);
		kfree(disk->virtqueues[index].sg);
	}
	for (index = 0; disk->rings && index < disk->virtqueue_count; index++)
		fip_memory_free(&disk->rings[index].memory);
	for (index = 0; disk->pending && index < disk->ring_count; index++)
		fip_memory_free(&disk->pending[index]);
	kfree(disk->pending);
	fip_exchange_free(&disk->query);
	fip_exchange_free(&disk->attach);
	fip_exchange_free(&disk->detach);
	kvfree(disk->rings);
	kfree(disk->virtqueues);
	kfree(disk->threads);
	if (disk->minor >= 0)
		ida_free(&fip_minors, disk->minor);
	kfree(disk);
}

static int fip_disk_init_queue(struct fip_disk *disk, unsigned int index)
{
	struct fip_virtqueue *virtqueue = &disk->virtqueues[index];
	struct fip_ring *ring = &disk->rings[index];

	spin_lock_init(&virtqueue->lock);
	virtqueue->disk = disk;
	virtqueue->index = index;
	virtqueue->sg = kmalloc_array(FIP_MAX_SEGMENTS, sizeof(*virtqueue->sg), GFP_KERNEL);
	spin_lock_init(&ring->submit_lock);
	ring->disk = disk;
	ring->index = index;
	ring->virtqueue = virtqueue;
	timer_setup(&ring->backstop, fip_reap_backstop, 0);
	fip_notify_init(ring);
	return virtqueue->sg ? fip_exchange_init(&virtqueue->doorbell, 0) : -ENOMEM;
}

static struct fip_disk *fip_disk_alloc(struct virtio_device *vdev)
{
	struct fip_disk *disk = kzalloc(sizeof(*disk), GFP_KERNEL);
	unsigned int index;
	u16 queues = 1;
	int error = -ENOMEM;

	if (!disk)
		return ERR_PTR(-ENOMEM);
	disk->vdev = vdev;
	disk->minor = ida_alloc(&fip_minors, GFP_KERNEL);
	mutex_init(&disk->supervising);
	INIT_DELAYED_WORK(&disk->supervisor, fip_supervise);
	fip_notify_read_parameters(disk);
	fip_governor_init(disk);
	virtio_cread_feature(vdev, VIRTIO_BLK_F_MQ, struct virtio_blk_config, num_queues, &queues);
	disk->virtqueue_count = clamp_t(unsigned int, queues, 1, min_t(unsigned int, num_online_cpus(), FIPSEE_MAX_QUEUES));
	if (fip_max_queues)
		disk->virtqueue_count = min(disk->virtqueue_count, fip_max_queues);
	disk->ring_count = disk->virtqueue_count;
	disk->tags.queue_depth = clamp(fip_depth, 1U, FIP_MAX_TAGS);
	disk->virtqueues = kcalloc(disk->virtqueue_count, sizeof(*disk->virtqueues), GFP_KERNEL);
	disk->rings = kvcalloc(disk->virtqueue_count, sizeof(*disk->rings), GFP_KERNEL);
	disk->threads = kcalloc(disk->virtqueue_count, sizeof(*disk->threads), GFP_KERNEL);
	if (disk->minor < 0 || !disk->virtqueues || !disk->rings || !disk->threads)
		goto fail;
	error = fip_exchange_init(&disk->query, 0) ?: fip_exchange_init(&disk->attach, disk->virtqueue_count) ?:
		fip_exchange_init(&disk->detach, 0);
	for (index = 0; !error && index < disk->virtqueue_count; index++)
		error = fip_disk_init_queue(disk, index);
	if (!error)
		return disk;
fail:
	fip_disk_free(disk);
	return ERR_PTR(error);
}

/* ---- Probing ----------------------------------------------------------------------------------------------------- */

/* A back end may be asked on the first virtqueue before it has begun the last: with 16 of them that happens. */
#define FIP_FIRST_TRIES 50
#define FIP_FIRST_PAUSE_MS 20

/* The first attempt decides whether we take the device, and the disk's limits. */
static int fip_first_attach(struct fip_disk *disk)
{
	struct device *device = &disk->vdev->dev;
	unsigned int tries = 0;
	int error = -EOPNOTSUPP;

	if (!fip_rings_wanted)
		return 0;
	mutex_lock(&disk->supervising);
	if (virtio_has_feature(disk->vdev, VIRTIO_F_ACCESS_PLATFORM)) {
		dev_info(device, "the device sees memory through an IOMMU, where rings cannot be\n");
	} else {
		while ((error = fip_attach(disk, true)) == -EBADR && ++tries < FIP_FIRST_TRIES)
			msleep(FIP_FIRST_PAUSE_MS);
	}
	if (error == -EBADR)
		dev_warn(device, "the daemon refuses the rings of queue %u: staying on virtio\n", disk->refused_queue);
	disk->next_attach = jiffies + HZ;
	mutex_unlock(&disk->supervising);
	if ((error == -EOPNOTSUPP || error == -EBADR) && !fip_keep) {
		dev_info(device, "the back end offers no rings: leaving the device to virtio_blk (fip_blk.keep=1 would keep it)\n");
		return -ENODEV;
	}
	if (error == -ETIMEDOUT)
		dev_err(device, "the back end does not answer\n");
	return error == -ETIMEDOUT ? error : 0;
}

/* The supervisor does nothing any more when it is woken. */
static void fip_pause(struct fip_disk *disk)
{
	mutex_lock(&disk->supervising);
	disk->is_paused = true;
	mutex_unlock(&disk->supervising);
}

/* No request is in flight. The daemon releases the rings; the reset takes them from one that does not answer. */
static void fip_disk_quit(struct fip_disk *disk)
{
	unsigned int index;

	fip_pause(disk);
	if (disk->path == FIP_PATH_RINGS && !READ_ONCE(disk->is_broken) && !virtqueue_is_broken(disk->virtqueues[0].vq))
		fip_leave_rings(disk, false);
	/* Unanswered requests: where a reset is not passed on, only their answers say that the back end released the memory. */
	if (disk->aside && fip_ask_detach(disk))
		dev_warn(&disk->vdev->dev, "the back end still does not answer\n");
	fip_threads_stop(disk);
	virtio_reset_device(disk->vdev);
	cancel_delayed_work_sync(&disk->supervisor);
	for (index = 0; index < disk->ring_count; index++)
		fip_ring_stop(&disk->rings[index]);
	for (index = 0; disk->is_failed && index < disk->virtqueue_count; index++)
		fip_virtqueue_fail_all(&disk->virtqueues[index]);
	fip_give_back(disk);
	fip_virtqueues_delete(disk);
}

static int fip_probe(struct virtio_device *vdev)
{
	struct fip_disk *disk;
	int error;

	if (!fip_is_wanted(vdev) || !vdev->config->get)
		return -ENODEV;
	disk = fip_disk_alloc(vdev);
	if (IS_ERR(disk))
		return PTR_ERR(disk);
	vdev->priv = disk;
	error = fip_virtqueues_find(disk);
	if (error)
		goto free;
	virtio_device_ready(vdev);
	fip_ask_serial(disk);
	/* Threads come last: the daemon has said by then how many rings there are. */
	error = fip_first_attach(disk) ?: fip_threads_start(disk);
	if (error)
		goto quit;
	fip_disk_read_limits(disk);
	error = fip_disk_alloc_tags(disk);
	if (error)
		goto quit;
	error = fip_disk_create(disk);
	if (error)
		goto free_tags;
	fip_stats_create(disk);
	dev_info(&vdev->dev, "%s: %s, %u queue(s), %llu sectors\n", disk->gendisk->disk_name,
		 disk->path == FIP_PATH_RINGS ? "rings" : "virtio", disk->ring_count, (u64)get_capacity(disk->gendisk));
	mod_delayed_work(fip_workqueue, &disk->supervisor, HZ);
	return 0;
free_tags:
	blk_mq_free_tag_set(&disk->tags);
quit:
	fip_disk_quit(disk);
free:
	fip_disk_free(disk);
	return error;
}

static void fip_remove(struct virtio_device *vdev)
{
	struct fip_disk *disk = vdev->priv;

	/* Requests still end: the supervisor looks at once whether the back end is there, and fails them if not. */
	WRITE_ONCE(disk->is_removing, true);
	fip_disk_wake(disk, FIP_EVENT_CHECK);
	del_gendisk(disk->gendisk);
	fip_stats_remove(disk);
	fip_disk_quit(disk);
	blk_mq_free_tag_set(&disk->tags);
	put_disk(disk->gendisk);
	fip_disk_free(disk);
}

static void fip_config_changed(struct virtio_device *vdev)
{
	struct fip_disk *disk = vdev->priv;

	fip_disk_wake(disk, FIP_EVENT_CONFIG);
}

#ifdef CONFIG_PM_SLEEP
static int fip_freeze(struct virtio_device *vdev)
{
	struct fip_disk *disk = vdev->priv;

	blk_mq_freeze_queue(disk->gendisk->queue);
	fip_disk_quit(disk);
	return 0;
}

static int fip_restore(struct virtio_device *vdev)
{
	struct fip_disk *disk = vdev->priv;
	int error;

	error = fip_virtqueues_find(disk);
	if (error)
		return error;
	virtio_device_ready(vdev);
	error = fip_threads_start(disk);
	disk->is_paused = false;
	disk->next_attach = jiffies;
	blk_mq_unfreeze_queue(disk->gendisk->queue);
	mod_delayed_work(fip_workqueue, &disk->supervisor, 0);
	return error;
}
#endif

/* ---- The module -------------------------------------------------------------------------------------------------- */

static const struct virtio_device_id fip_ids[] = {
	{ VIRTIO_ID_BLOCK, VIRTIO_DEV_ANY_ID },
	{ 0 },
};

static const unsigned int fip_features[] = {
	VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_TOPOLOGY,
	VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES,
};

static struct virtio_driver fip_driver = {
	.feature_table = fip_features,
	.feature_table_size = ARRAY_SIZE(fip_features),
	.driver.name = FIP_NAME,
	.driver.owner = THIS_MODULE,
	.id_table = fip_ids,
	.probe = fip_probe,
	.remove = fip_remove,
	.config_changed = fip_config_changed,
#ifdef CONFIG_PM_SLEEP
	.freeze = fip_freeze,
	.restore = fip_restore,
#endif
};

static int __init fip_init(void)
{
	int error;

	fip_ticks_per_us = max_t(u64, div_u64(fip_measure_ticks_per_ms(), 1000), 1);
	fip_workqueue = alloc_workqueue(FIP_NAME, WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	if (!fip_workqueue)
		return -ENOMEM;
	fip_redirect_init();
	fip_stats_init();
	error = register_virtio_driver(&fip_driver);
	if (error) {
		fip_stats_exit();
		destroy_workqueue(fip_workqueue);
	}
	return error;
}

static void __exit fip_exit(void)
{
	unregister_virtio_driver(&fip_driver);
	fip_stats_exit();
	destroy_workqueue(fip_workqueue);
	ida_destroy(&fip_minors);
}

/* No device table: loading fip_blk is a choice, or it would race with virtio_blk for every device (docs/guide/vm-driver.md). */
module_init(fip_init);
module_exit(fip_exit);
MODULE_DESCRIPTION("virtio-blk devices over Fip-see rings");
MODULE_LICENSE("Dual MIT/GPL");
