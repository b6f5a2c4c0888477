// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A disk as the block layer sees it: its limits, its queues, its name.
 */
#include <linux/sysfs.h>

#include "fip_blk.h"

#define FIP_OPTIMAL_ALIGN_BYTES 4096U

/* What virtio's configuration says. */
static void fip_read_virtio_limits(struct fip_disk *disk, struct fip_limits *limits)
{
	struct virtio_device *vdev = disk->vdev;
	u32 segments = 1, bytes = FIP_MAX_SEGMENT_BYTES, block = SECTOR_SIZE, optimal = 0, value;
	u8 exponent = 0, alignment = 0;
	u16 least = 0;

	virtio_cread_feature(vdev, VIRTIO_BLK_F_SEG_MAX, struct virtio_blk_config, seg_max, &segments);
	virtio_cread_feature(vdev, VIRTIO_BLK_F_SIZE_MAX, struct virtio_blk_config, size_max, &bytes);
	virtio_cread_feature(vdev, VIRTIO_BLK_F_BLK_SIZE, struct virtio_blk_config, blk_size, &block);
	virtio_cread_feature(vdev, VIRTIO_BLK_F_TOPOLOGY, struct virtio_blk_config, physical_block_exp, &exponent);
	virtio_cread_feature(vdev, VIRTIO_BLK_F_TOPOLOGY, struct virtio_blk_config, alignment_offset, &alignment);
	virtio_cread_feature(vdev, VIRTIO_BLK_F_TOPOLOGY, struct virtio_blk_config, min_io_size, &least);
	virtio_cread_feature(vdev, VIRTIO_BLK_F_TOPOLOGY, struct virtio_blk_config, opt_io_size, &optimal);
	if (block < SECTOR_SIZE || block > PAGE_SIZE || !is_power_of_2(block))
		block = SECTOR_SIZE;
	limits->block_bytes = block;
	limits->physical_bytes = exponent && exponent < 16 ? block << exponent : block;
	limits->alignment_offset = (block * alignment) & (limits->physical_bytes - 1);
	limits->optimal_min_bytes = least ? block * least : block;
	limits->optimal_bytes = block * min(optimal, U32_MAX / block);
	limits->max_segments = clamp_t(u32, segments, 1, FIP_MAX_SEGMENTS);
	limits->max_segment_bytes = clamp_t(u32, round_down(bytes, PAGE_SIZE), PAGE_SIZE, FIP_MAX_SEGMENT_BYTES);
	limits->max_sectors = FIP_DEFAULT_MAX_SECTORS;
	limits->segment_boundary_mask = (1ULL << FIPSEE_VM_REGION_SHIFT) - 1;
	limits->discard_granularity = block;
	if (virtio_has_feature(vdev, VIRTIO_BLK_F_DISCARD)) {
		virtio_cread(vdev, struct virtio_blk_config, max_discard_sectors, &value);
		limits->max_discard_sectors = value ?: UINT_MAX >> 9;
		virtio_cread(vdev, struct virtio_blk_config, discard_sector_alignment, &value);
		limits->discard_granularity = max(value << 9, block);
	}
	if (virtio_has_feature(vdev, VIRTIO_BLK_F_WRITE_ZEROES)) {
		virtio_cread(vdev, struct virtio_blk_config, max_write_zeroes_sectors, &value);
		limits->max_zero_sectors = value ?: UINT_MAX >> 9;
	}
}

static bool fip_virtio_has_cache(struct fip_disk *disk)
{
	u8 write_back = 1;

	if (!virtio_has_feature(disk->vdev, VIRTIO_BLK_F_FLUSH))
		return false;
	virtio_cread_feature(disk->vdev, VIRTIO_BLK_F_CONFIG_WCE, struct virtio_blk_config, wce, &write_back);
	return write_back;
}

/* A range that both paths take, if virtio offers the operation at all. */
static unsigned int fip_range(unsigned int virtio, const struct fipsee_block_info *info, u32 capability)
{
	unsigned int ring = info->capabilities & capability ? info->max_range_sectors : 0;

	return virtio ? min(virtio, ring) : ring;
}

/* Before the disk is created, and after attaching if that was possible: requests must fit both paths, which can change at any time. */
void fip_disk_read_limits(struct fip_disk *disk)
{
	struct fip_limits *limits = &disk->limits;
	const struct fipsee_block_info *info = &disk->info;

	fip_read_virtio_limits(disk, limits);
	limits->has_cache = fip_virtio_has_cache(disk);
	disk->has_flush = virtio_has_feature(disk->vdev, VIRTIO_BLK_F_FLUSH);
	disk->required_capabilities = virtio_has_feature(disk->vdev, VIRTIO_BLK_F_RO) ? 0 : FIPSEE_CAPABILITY_WRITE;
	if (disk->path == FIP_PATH_RINGS) {
		limits->block_bytes = max(limits->block_bytes, info->block_bytes);
		limits->physical_bytes = max(limits->physical_bytes, limits->block_bytes);
		limits->discard_granularity = max(limits->discard_granularity, limits->block_bytes);
		if (!limits->optimal_bytes && IS_ALIGNED(info->optimal_bytes, FIP_OPTIMAL_ALIGN_BYTES))
			limits->optimal_bytes = info->optimal_bytes;
		limits->max_segments = min(limits->max_segments, info->max_segments);
		limits->max_sectors = min(info->max_transfer_bytes, FIP_MAX_SEGMENT_BYTES) >> SECTOR_SHIFT;
		limits->has_cache |= !!(info->capabilities & FIPSEE_CAPABILITY_FLUSH);
		limits->has_fua = limits->has_cache && (info->capabilities & FIPSEE_CAPABILITY_FUA);
		limits->max_discard_sectors = fip_range(limits->max_discard_sectors, info, FIPSEE_CAPABILITY_DISCARD);
		limits->max_zero_sectors = fip_range(limits->max_zero_sectors, info, FIPSEE_CAPABILITY_WRITE_ZEROES);
		disk->required_capabilities &= info->capabilities;
		disk->required_capabilities |= limits->has_fua ? FIPSEE_CAPABILITY_FUA : 0;
	}
	disk->required_capabilities |= limits->max_discard_sectors ? FIPSEE_CAPABILITY_DISCARD : 0;
	disk->required_capabilities |= limits->max_zero_sectors ? FIPSEE_CAPABILITY_WRITE_ZEROES : 0;
	disk->max_indirect = limits->max_segments;
}

static ssize_t serial_show(struct device *device, struct device_attribute *attribute, char *buffer)
{
	struct fip_disk *disk = dev_to_disk(device)->private_data;

	return sysfs_emit(buffer, "%s\n", disk->serial);
}
static DEVICE_ATTR_RO(serial);

static struct attribute *fip_attributes[] = { &dev_attr_serial.attr, NULL };
static const struct attribute_group fip_attribute_group = { .attrs = fip_attributes };
static const struct attribute_group *fip_attribute_groups[] = { &fip_attribute_group, &fip_notify_group, &fip_threads_group, NULL };

static const struct block_device_operations fip_operations = {
	.owner = THIS_MODULE,
};

int fip_disk_alloc_tags(struct fip_disk *disk)
{
	struct blk_mq_tag_set *tags = &disk->tags;

	tags->ops = &fip_mq_ops;
	tags->nr_hw_queues = 2 * disk->ring_count;
	tags->nr_maps = HCTX_MAX_TYPES;
	tags->numa_node = dev_to_node(&disk->vdev->dev);
	tags->cmd_size = sizeof(struct fip_request);
	tags->timeout = max(fip_query_seconds, 1U) * HZ;
	tags->flags = BLK_MQ_F_SHOULD_MERGE | BLK_MQ_F_NO_SCHED_BY_DEFAULT;
	tags->driver_data = disk;
	return blk_mq_alloc_tag_set(tags);
}

int fip_disk_create(struct fip_disk *disk)
{
	struct gendisk *gendisk;
	u64 sectors;
	int error;

	virtio_cread(disk->vdev, struct virtio_blk_config, capacity, &sectors);
	if (disk->path == FIP_PATH_RINGS)
		sectors = disk->info.sector_count;
	gendisk = fip_alloc_disk(&disk->tags, &disk->limits, disk);
	if (IS_ERR(gendisk))
		return PTR_ERR(gendisk);
	snprintf(gendisk->disk_name, sizeof(gendisk->disk_name), "fip%d", disk->minor);
	gendisk->fops = &fip_operations;
	gendisk->private_data = disk;
	if (virtio_has_feature(disk->vdev, VIRTIO_BLK_F_RO) ||
	    (disk->path == FIP_PATH_RINGS && !(disk->info.capabilities & FIPSEE_CAPABILITY_WRITE)))
		set_disk_ro(gendisk, true);
	set_capacity(gendisk, sectors);
	disk->gendisk = gendisk;
	error = device_add_disk(&disk->vdev->dev, gendisk, fip_attribute_groups);
	if (error) {
		disk->gendisk = NULL;
		put_disk(gendisk);
	}
	return error;
}
