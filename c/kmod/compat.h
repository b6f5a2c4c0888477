/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What differs between Linux 6.1 to 6.8 and 6.11 on. Kbuild defines the FIP_HAS_ macros by the kernel's headers.
 */
#ifndef FIP_COMPAT_H
#define FIP_COMPAT_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/hrtimer.h>
#include <linux/topology.h>
#include <linux/version.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0) || \
	(LINUX_VERSION_CODE >= KERNEL_VERSION(6, 9, 0) && LINUX_VERSION_CODE < KERNEL_VERSION(6, 11, 0))
#error "fip_blk is written for Linux 6.1 to 6.8 and 6.11 on; the block layer between changed twice"
#endif

/* ---- Lists of requests ----------------------------------------------------------------------------------------- */

#ifdef FIP_HAS_RQ_LIST
typedef struct rq_list fip_rq_list;
#define FIP_RQ_LIST_NONE { NULL, NULL }
#define fip_rq_list_is_empty(list) rq_list_empty(list)
#define fip_rq_list_add(list, rq) rq_list_add_tail(list, rq)
#else
typedef struct request *fip_rq_list;
#define FIP_RQ_LIST_NONE NULL
#define fip_rq_list_is_empty(list) rq_list_empty(*(list))
#define fip_rq_list_add(list, rq) rq_list_add(list, rq)
#endif

/* ---- Virtqueues ------------------------------------------------------------------------------------------------ */

static inline int fip_find_vqs(struct virtio_device *vdev, unsigned int count, struct virtqueue **vqs, vq_callback_t *callback,
			       const char *const *names, struct irq_affinity *affinity)
{
	unsigned int index;
	int error;
#ifdef FIP_HAS_VIRTQUEUE_INFO
	struct virtqueue_info *infos = kcalloc(count, sizeof(*infos), GFP_KERNEL);

	if (!infos)
		return -ENOMEM;
	for (index = 0; index < count; index++) {
		infos[index].name = names[index];
		infos[index].callback = callback;
	}
	error = virtio_find_vqs(vdev, count, vqs, infos, affinity);
	kfree(infos);
#else
	vq_callback_t **callbacks = kcalloc(count, sizeof(*callbacks), GFP_KERNEL);

	if (!callbacks)
		return -ENOMEM;
	for (index = 0; index < count; index++)
		callbacks[index] = callback;
	error = virtio_find_vqs(vdev, count, vqs, callbacks, names, affinity);
	kfree(callbacks);
#endif
	return error;
}

/* ---- Limits of a disk ------------------------------------------------------------------------------------------ */

/* What fip_blk asks of the block layer, whatever that calls it. Sectors are of 512 bytes; 0 in the ranges: not offered. */
struct fip_limits {
	unsigned int block_bytes;
	unsigned int physical_bytes;
	unsigned int optimal_min_bytes;
	unsigned int optimal_bytes;
	unsigned int alignment_offset;
	unsigned int max_sectors;
	unsigned int max_segments;
	unsigned int max_segment_bytes;
	u64 segment_boundary_mask;
	unsigned int max_discard_sectors;
	unsigned int discard_granularity;
	unsigned int max_zero_sectors;
	bool has_cache;
	bool has_fua;
};

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
#define fip_alloc_disk(set, want, data) ({							\
	struct queue_limits __limits;								\
												\
	fip_fill_limits(&__limits, want);							\
	blk_mq_alloc_disk(set, &__limits, data);						\
})

static inline void fip_fill_limits(struct queue_limits *limits, const struct fip_limits *want)
{
	memset(limits, 0, sizeof(*limits));
	limits->logical_block_size = want->block_bytes;
	limits->physical_block_size = want->physical_bytes;
	limits->io_min = want->optimal_min_bytes;
	limits->io_opt = want->optimal_bytes;
	limits->alignment_offset = want->alignment_offset;
	limits->max_hw_sectors = want->max_sectors;
	limits->max_segments = want->max_segments;
	limits->max_segment_size = want->max_segment_bytes;
	limits->seg_boundary_mask = want->segment_boundary_mask;
	limits->dma_alignment = SECTOR_SIZE - 1;
	limits->max_hw_discard_sectors = want->max_discard_sectors;
	limits->discard_granularity = want->max_discard_sectors ? want->discard_granularity : 0;
	limits->max_discard_segments = 1;
	limits->max_write_zeroes_sectors = want->max_zero_sectors;
	if (want->has_cache)
		limits->features |= BLK_FEAT_WRITE_CACHE;
	if (want->has_fua)
		limits->features |= BLK_FEAT_FUA;
}
#else
#define fip_alloc_disk(set, want, data) ({							\
	struct gendisk *__disk = blk_mq_alloc_disk(set, data);					\
												\
	if (!IS_ERR(__disk))									\
		fip_apply_limits(__disk->queue, want);						\
	__disk;											\
})

static inline void fip_apply_limits(struct request_queue *queue, const struct fip_limits *want)
{
	blk_queue_logical_block_size(queue, want->block_bytes);
	blk_queue_physical_block_size(queue, want->physical_bytes);
	blk_queue_io_min(queue, want->optimal_min_bytes);
	blk_queue_io_opt(queue, want->optimal_bytes);
	blk_queue_alignment_offset(queue, want->alignment_offset);
	blk_queue_max_hw_sectors(queue, want->max_sectors);
	blk_queue_max_segments(queue, want->max_segments);
	blk_queue_max_segment_size(queue, want->max_segment_bytes);
	blk_queue_segment_boundary(queue, want->segment_boundary_mask);
	blk_queue_dma_alignment(queue, SECTOR_SIZE - 1);
	if (want->max_discard_sectors) {
		queue->limits.discard_granularity = want->discard_granularity;
		blk_queue_max_discard_sectors(queue, want->max_discard_sectors);
	}
	blk_queue_max_write_zeroes_sectors(queue, want->max_zero_sectors);
	blk_queue_write_cache(queue, want->has_cache, want->has_fua);
	blk_queue_flag_set(QUEUE_FLAG_NONROT, queue);
	blk_queue_flag_clear(QUEUE_FLAG_ADD_RANDOM, queue);
}
#endif

/* ---- Timers ------------------------------------------------------------------------------------------------------ */

static inline void fip_hrtimer_setup(struct hrtimer *timer, enum hrtimer_restart (*function)(struct hrtimer *timer))
{
#ifdef FIP_HAS_HRTIMER_SETUP
	hrtimer_setup(timer, function, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS);
	timer->function = function;
#endif
}

/* ---- Caches ------------------------------------------------------------------------------------------------------ */

/* A number of the CPU's last-level cache. Masks of the CPUs that share one are not exported; elsewhere a package has one. */
#if defined(CONFIG_X86) && defined(topology_llc_id)
#define fip_cache_of(cpu) topology_llc_id(cpu)
#elif defined(FIP_HAS_GET_LLC_ID)
#define fip_cache_of(cpu) get_llc_id(cpu)
#else
#define fip_cache_of(cpu) topology_physical_package_id(cpu)
#endif

/* ---- Opening a block device from within -------------------------------------------------------------------------- */

#ifdef BLK_POLL_NOSLEEP
#define FIP_POLL_FLAGS (BLK_POLL_ONESHOT | BLK_POLL_NOSLEEP)
#else
#define FIP_POLL_FLAGS BLK_POLL_ONESHOT
#endif

struct fip_bdev_handle {
	struct block_device *device;
	struct file *file;
	bool is_writable;
};

static inline int fip_bdev_open(const char *path, bool is_writable, struct fip_bdev_handle *handle)
{
	handle->is_writable = is_writable;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
	handle->file = bdev_file_open_by_path(path, BLK_OPEN_READ | (is_writable ? BLK_OPEN_WRITE : 0), NULL, NULL);
	if (IS_ERR(handle->file))
		return PTR_ERR(handle->file);
	handle->device = file_bdev(handle->file);
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
	handle->device = blkdev_get_by_path(path, BLK_OPEN_READ | (is_writable ? BLK_OPEN_WRITE : 0), NULL, NULL);
#else
	handle->device = blkdev_get_by_path(path, FMODE_READ | (is_writable ? FMODE_WRITE : 0), NULL);
#endif
	return PTR_ERR_OR_ZERO(handle->device);
}

static inline void fip_bdev_close(struct fip_bdev_handle *handle)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
	bdev_fput(handle->file);
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
	blkdev_put(handle->device, NULL);
#else
	blkdev_put(handle->device, FMODE_READ | (handle->is_writable ? FMODE_WRITE : 0));
#endif
}

#endif
