// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * What a disk did, below debugfs. Counters are read without locks.
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "fip_blk.h"

static struct dentry *fip_debugfs;

static const char *fip_state(const struct fip_disk *disk)
{
	if (READ_ONCE(disk->is_broken))
		return "broken";
	return READ_ONCE(disk->path) == FIP_PATH_RINGS ? "rings" : "virtio";
}

static int fip_stats_show(struct seq_file *file, void *unused)
{
	struct fip_disk *disk = file->private;
	unsigned int index;

	seq_printf(file, "path %s\nattachments %llu\nrepeated %llu\n", fip_state(disk), disk->attach_count, disk->repeated);
	seq_printf(file, "choices %#x %s\n", disk->choices, fip_choices ? "pinned" : "advised");
	for (index = 0; index < disk->ring_count; index++) {
		const struct fip_ring *ring = &disk->rings[index];
		const struct fip_virtqueue *virtqueue = &disk->virtqueues[index];

		seq_printf(file, "queue %u requests %llu batches %llu kicks %llu indirect %llu outstanding %u\n", index,
			   ring->submit_stats.requests, ring->submit_stats.batches, fip_ring_kicks(ring),
			   ring->submit_stats.indirect, fip_ring_outstanding(ring));
		seq_printf(file, "queue %u messages %llu by_spin %llu spin_hits %llu spin_misses %llu bells %llu arms %llu events %llu redirected %llu\n",
			   index, ring->reap_stats.messages, ring->reap_stats.by_spin, ring->reap_stats.spin_hits,
			   ring->reap_stats.spin_misses, ring->reap_stats.doorbells, ring->reap_stats.arms, ring->reap_stats.events,
			   ring->reap_stats.redirected);
		seq_printf(file, "queue %u spin_score %u mean_wait_ns %llu virtqueue_requests %llu interrupts %llu interrupts_spurious %llu kicks_suppressed %llu\n", index,
			   ring->spin_score, div64_u64(ring->mean_wait * 1000, fip_ticks_per_us), virtqueue->requests,
			   virtqueue->interrupts, virtqueue->spurious, ring->notify.suppressed);
	}
	for (index = 0; index < disk->ring_count; index++) {
		const struct fip_ring *ring = &disk->rings[index];

		seq_printf(file, "queue %u ownership %u touch_first %u touch_rest %u hold %u asked %#x\n", index, ring->requests.ownership,
			   ring->completions.touch_first, ring->completions.touch_rest, ring->pace.delays.caller,
			   ring->is_paced ? ring->pace.choices : 0);
	}
	for (index = 0; index < disk->virtqueue_count; index++) {
		const struct fip_thread *thread = &disk->threads[index];

		if (thread->task)
			seq_printf(file, "thread %u reaped %llu sleeps %llu mwaits %llu cpu %u rings %#lx busy_permille %u\n", index,
				   thread->reaped, thread->sleeps, thread->mwaits, thread->cpu, thread->rings,
				   disk->governor.shares[index]);
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(fip_stats);

/* Without debugfs these do nothing, and a failure of it is no reason to be without the disk. */
void fip_stats_create(struct fip_disk *disk)
{
	disk->debugfs = debugfs_create_dir(disk->gendisk->disk_name, fip_debugfs);
	debugfs_create_file("stats", 0444, disk->debugfs, disk, &fip_stats_fops);
}

void fip_stats_remove(struct fip_disk *disk)
{
	debugfs_remove_recursive(disk->debugfs);
}

void fip_stats_init(void)
{
	fip_debugfs = debugfs_create_dir(FIP_NAME, NULL);
}

void fip_stats_exit(void)
{
	debugfs_remove_recursive(fip_debugfs);
}
