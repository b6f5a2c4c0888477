// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * fip_load: random requests to a block device, from within the kernel, where no system call hides the driver's cost.
 *
 *	echo "device=/dev/fip0 depth=64 batch=32 ms=50" >/sys/kernel/debug/fip_load/run
 *	cat /sys/kernel/debug/fip_load/run
 *
 * The write returns when every request has ended; the read gives the results, in one line of NAME=VALUE. WRITES DESTROY DATA.
 * Options and their defaults are in fip_options.
 */
#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/kstrtox.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "histogram.h"
#include "ticks.h"

/* A batch flag of old kernels: newer ones never sleep before they poll. */
#ifndef BLK_POLL_NOSLEEP
#define BLK_POLL_NOSLEEP 0
#endif

#define FIP_MAX_DEPTH 1024U
#define FIP_MAX_BLOCK_BYTES (64U << 10)
#define FIP_MAX_MS 60000U
/* Most requests to come that io_uring announces to the block layer. */
#define FIP_MAX_PLUG 32U

struct fip_load_options {
	char device[64];
	u32 block;				/* bytes of a request */
	u32 write;				/* 1: writes, 0: reads */
	u32 depth;				/* most requests in flight */
	u32 batch;				/* most submitted under one plug; 0: half the depth */
	u32 refill;				/* submit again when this many or fewer are in flight; none: depth less batch */
	u32 polled;				/* 1: completions are polled for */
	u32 sample;				/* one of this many requests is timed; 0: none */
	u32 warm_ms;				/* what ends before this is not counted */
	u32 ms;
	u32 requests;				/* stop after this many; 0: when the time is over */
	u32 span_mib;				/* use only the beginning; 0: all */
};

static const struct {
	const char *name;
	size_t at;
	u32 usual, least, most;
} fip_options[] = {
#define FIP_OPTION(field, usual, least, most) { #field, offsetof(struct fip_load_options, field), usual, least, most }
	FIP_OPTION(block, 4096, SECTOR_SIZE, FIP_MAX_BLOCK_BYTES),
	FIP_OPTION(write, 0, 0, 1),
	FIP_OPTION(depth, 1, 1, FIP_MAX_DEPTH),
	FIP_OPTION(batch, 0, 0, FIP_MAX_DEPTH),
	FIP_OPTION(refill, U32_MAX, 0, U32_MAX),
	FIP_OPTION(polled, 0, 0, 1),
	FIP_OPTION(sample, 1, 0, U32_MAX),
	FIP_OPTION(warm_ms, 0, 0, FIP_MAX_MS),
	FIP_OPTION(ms, 100, 1, FIP_MAX_MS),
	FIP_OPTION(requests, 0, 0, U32_MAX),
	FIP_OPTION(span_mib, 0, 0, U32_MAX),
#undef FIP_OPTION
};

struct fip_slot {
	struct bio bio;
	struct bio_vec vec;
	struct page *page;
	struct fip_load *load;
	struct fip_slot *next;
	u64 since;				/* ticks when it was submitted; 0: is not timed */
};

struct fip_load {
	struct fip_load_options options;
	struct file *file;
	struct block_device *bdev;
	struct fip_slot *slots;
	blk_opf_t operation;
	u64 places;				/* where a request may begin */
	u64 random;
	u64 submitted;

	/* What completions touch, which may come from any context and CPU. */
	spinlock_t lock ____cacheline_aligned_in_smp;
	struct fip_slot *free;
	u32 in_flight;
	u32 wake_at;
	bool is_waiting;
	struct completion woken;
	u64 done;
	u64 errors;
	u64 unpolled;
	struct fip_histogram times;
};

static DEFINE_MUTEX(fip_running);
static char fip_result[512];
static struct dentry *fip_debugfs;
static u64 fip_ticks_per_ms;

/* ---- Time -------------------------------------------------------------------------------------------------------- */

/* Not before all that precedes it. */
static u64 fip_now(void)
{
	rmb();
	return fip_ticks();
}

static u64 fip_to_ns(u64 ticks)
{
	return mul_u64_u64_div_u64(ticks, NSEC_PER_MSEC, fip_ticks_per_ms);
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static void fip_end_io(struct bio *bio)
{
	struct fip_slot *slot = container_of(bio, struct fip_slot, bio);
	struct fip_load *load = slot->load;
	u64 ticks = slot->since ? fip_now() - slot->since : 0;
	unsigned long flags;

	spin_lock_irqsave(&load->lock, flags);
	if (slot->since)
		fip_histogram_add(&load->times, ticks);
	if (unlikely(bio->bi_status))
		load->errors++;
	if (load->options.polled && !(bio->bi_opf & REQ_POLLED))
		load->unpolled++;
	load->done++;
	slot->next = load->free;
	load->free = slot;
	load->in_flight--;
	if (load->is_waiting && load->in_flight <= load->wake_at) {
		load->is_waiting = false;
		complete(&load->woken);
	}
	spin_unlock_irqrestore(&load->lock, flags);
}

/* Xorshift: every place is as likely, to the precision of 32 bits. */
static sector_t fip_random_sector(struct fip_load *load)
{
	load->random ^= load->random << 13;
	load->random ^= load->random >> 7;
	load->random ^= load->random << 17;
	return mul_u64_u32_shr(load->places, (u32)(load->random >> 16), 32) * (load->options.block >> SECTOR_SHIFT);
}

static void fip_submit(struct fip_load *load, struct fip_slot *slot)
{
	u32 sample = load->options.sample;

	bio_init(&slot->bio, load->bdev, &slot->vec, 1, load->operation);
	slot->bio.bi_iter.bi_sector = fip_random_sector(load);
	slot->bio.bi_end_io = fip_end_io;
	__bio_add_page(&slot->bio, slot->page, load->options.block, 0);
	slot->since = sample && !(load->submitted++ % sample) ? fip_now() : 0;
	submit_bio(&slot->bio);
}

/* Up to a batch of those that are free. */
static struct fip_slot *fip_take(struct fip_load *load, u32 most)
{
	struct fip_slot *first, **end;
	unsigned long flags;
	u32 count;

	spin_lock_irqsave(&load->lock, flags);
	first = load->free;
	for (end = &load->free, count = 0; *end && count < most; count++)
		end = &(*end)->next;
	load->free = *end;
	*end = NULL;
	load->in_flight += count;
	spin_unlock_irqrestore(&load->lock, flags);
	return count ? first : NULL;
}

static void fip_submit_batch(struct fip_load *load)
{
	struct fip_slot *slot, *next = fip_take(load, load->options.batch);
	struct blk_plug plug;
	bool has_plug = load->options.batch > 1;

	if (has_plug) {
		blk_start_plug(&plug);
		plug.nr_ios = min(load->options.batch, FIP_MAX_PLUG);
	}
	while ((slot = next)) {
		/* It may be submitted again as soon as it has ended. */
		next = slot->next;
		fip_submit(load, slot);
	}
	if (has_plug)
		blk_finish_plug(&plug);
}

static void fip_sleep(struct fip_load *load, u32 wake_at)
{
	unsigned long flags;
	bool must_wait;

	spin_lock_irqsave(&load->lock, flags);
	must_wait = load->in_flight > wake_at;
	if (must_wait) {
		reinit_completion(&load->woken);
		load->wake_at = wake_at;
		load->is_waiting = true;
	}
	spin_unlock_irqrestore(&load->lock, flags);
	if (must_wait)
		wait_for_completion(&load->woken);
}

static void fip_poll(struct fip_load *load)
{
	DEFINE_IO_COMP_BATCH(batch);
	u32 index;

	/* Any request that was started leads to the queue that all are on. */
	for (index = 0; index < load->options.depth; index++) {
		struct bio *bio = &load->slots[index].bio;

		if (bio->bi_bdev && READ_ONCE(bio->bi_cookie) != BLK_QC_T_NONE) {
			bio_poll(bio, &batch, BLK_POLL_NOSLEEP | BLK_POLL_ONESHOT);
			break;
		}
	}
	if (!fip_rq_list_is_empty(&batch.req_list))
		batch.complete(&batch);
	cond_resched();
}

static void fip_wait(struct fip_load *load, u32 wake_at)
{
	if (!load->options.polled) {
		if (READ_ONCE(load->in_flight) > wake_at)
			fip_sleep(load, wake_at);
		return;
	}
	while (READ_ONCE(load->in_flight) > wake_at)
		fip_poll(load);
}

/* ---- A run ------------------------------------------------------------------------------------------------------- */

/* Until this many ms have passed, or the wanted number of requests has ended. */
static void fip_go_on(struct fip_load *load, u32 ms)
{
	const struct fip_load_options *options = &load->options;
	u64 began = fip_ticks(), limit = ms * fip_ticks_per_ms;

	do {
		fip_submit_batch(load);
		fip_wait(load, options->refill);
	} while (fip_ticks() - began < limit && (!options->requests || READ_ONCE(load->done) < options->requests));
}

static void fip_forget(struct fip_load *load)
{
	spin_lock_irq(&load->lock);
	load->done = 0;
	memset(&load->times, 0, sizeof(load->times));
	spin_unlock_irq(&load->lock);
}

static void fip_measure(struct fip_load *load)
{
	const struct fip_load_options *options = &load->options;
	const struct fip_histogram *times = &load->times;
	u64 began_ns, done, errors, ns;

	if (options->warm_ms) {
		fip_go_on(load, options->warm_ms);
		fip_forget(load);
	}
	began_ns = ktime_get_ns();
	fip_go_on(load, options->ms);
	done = READ_ONCE(load->done);
	ns = max_t(u64, ktime_get_ns() - began_ns, 1);
	fip_wait(load, 0);
	/* The completion of the last one may not have returned yet. */
	spin_lock_irq(&load->lock);
	errors = load->errors;
	spin_unlock_irq(&load->lock);
	scnprintf(fip_result, sizeof(fip_result),
		  "device=%s block=%u write=%u depth=%u batch=%u refill=%u polled=%u requests=%llu ns=%llu iops=%llu errors=%llu unpolled=%llu samples=%llu mean_ns=%llu p50_ns=%llu p99_ns=%llu most_ns=%llu",
		  options->device, options->block, options->write, options->depth, options->batch, options->refill, options->polled,
		  done, ns, mul_u64_u64_div_u64(done, NSEC_PER_SEC, ns), errors, load->unpolled, times->samples,
		  fip_to_ns(div64_u64(times->sum, max(times->samples, 1ULL))), fip_to_ns(fip_histogram_quantile(times, 500)),
		  fip_to_ns(fip_histogram_quantile(times, 990)), fip_to_ns(times->most));
}

static int fip_alloc_slots(struct fip_load *load)
{
	unsigned int order = get_order(load->options.block);
	u32 index;

	load->slots = kvcalloc(load->options.depth, sizeof(*load->slots), GFP_KERNEL);
	if (!load->slots)
		return -ENOMEM;
	for (index = 0; index < load->options.depth; index++) {
		struct fip_slot *slot = &load->slots[index];

		slot->page = alloc_pages(GFP_KERNEL | __GFP_ZERO | __GFP_COMP, order);
		if (!slot->page)
			return -ENOMEM;
		slot->load = load;
		slot->next = load->free;
		load->free = slot;
	}
	return 0;
}

static void fip_free_slots(struct fip_load *load)
{
	unsigned int order = get_order(load->options.block);
	u32 index;

	for (index = 0; load->slots && index < load->options.depth; index++) {
		if (load->slots[index].page)
			__free_pages(load->slots[index].page, order);
	}
	kvfree(load->slots);
}

/* Opened as a file: the other ways to open a device change from kernel to kernel. */
static int fip_open(struct fip_load *load)
{
	u64 bytes, span = (u64)load->options.span_mib << 20;

	load->file = filp_open(load->options.device, (load->options.write ? O_RDWR : O_RDONLY) | O_LARGEFILE, 0);
	if (IS_ERR(load->file))
		return PTR_ERR(load->file);
	if (!S_ISBLK(file_inode(load->file)->i_mode))
		return -ENOTBLK;
	load->bdev = I_BDEV(load->file->f_mapping->host);
	bytes = bdev_nr_bytes(load->bdev);
	load->places = div_u64(span ? min(span, bytes) : bytes, load->options.block);
	load->operation = load->options.write ? REQ_OP_WRITE | REQ_SYNC | REQ_IDLE : REQ_OP_READ;
	if (load->options.polled)
		load->operation |= REQ_POLLED;
	return load->places ? 0 : -ENOSPC;
}

static int fip_parse(struct fip_load_options *options, char *text)
{
	char *word;
	size_t index;

	for (index = 0; index < ARRAY_SIZE(fip_options); index++)
		*(u32 *)((void *)options + fip_options[index].at) = fip_options[index].usual;
	while ((word = strsep(&text, " \n"))) {
		char *value = word;
		u32 number;
		int error;

		if (!*word)
			continue;
		strsep(&value, "=");
		if (!value)
			return -EINVAL;
		if (!strcmp(word, "device")) {
			if (strscpy(options->device, value, sizeof(options->device)) < 0)
				return -ENAMETOOLONG;
			continue;
		}
		for (index = 0; index < ARRAY_SIZE(fip_options) && strcmp(word, fip_options[index].name); index++)
			;
		if (index == ARRAY_SIZE(fip_options))
			return -EINVAL;
		error = kstrtou32(value, 10, &number);
		if (error)
			return error;
		if (number < fip_options[index].least || number > fip_options[index].most)
			return -ERANGE;
		*(u32 *)((void *)options + fip_options[index].at) = number;
	}
	options->batch = options->batch ? min(options->batch, options->depth) : max(options->depth / 2, 1U);
	options->refill = options->refill == U32_MAX ? options->depth - options->batch : min(options->refill, options->depth - 1);
	return options->block % SECTOR_SIZE ? -EINVAL : 0;
}

static int fip_run(char *text)
{
	struct fip_load *load = kvzalloc(sizeof(*load), GFP_KERNEL);
	int error;

	if (!load)
		return -ENOMEM;
	spin_lock_init(&load->lock);
	init_completion(&load->woken);
	load->random = 0x9e3779b97f4a7c15ULL;
	error = fip_parse(&load->options, text);
	if (error)
		goto free;
	error = fip_open(load) ?: fip_alloc_slots(load);
	if (!error)
		fip_measure(load);
	fip_free_slots(load);
	if (!IS_ERR_OR_NULL(load->file))
		filp_close(load->file, NULL);
free:
	kvfree(load);
	return error;
}

/* ---- debugfs ----------------------------------------------------------------------------------------------------- */

static int fip_show(struct seq_file *file, void *unused)
{
	mutex_lock(&fip_running);
	seq_printf(file, "%s\n", fip_result);
	mutex_unlock(&fip_running);
	return 0;
}

static int fip_file_open(struct inode *inode, struct file *file)
{
	return single_open(file, fip_show, NULL);
}

static ssize_t fip_file_write(struct file *file, const char __user *from, size_t length, loff_t *at)
{
	char text[256];
	int error;

	if (length >= sizeof(text))
		return -E2BIG;
	if (copy_from_user(text, from, length))
		return -EFAULT;
	text[length] = '\0';
	error = mutex_lock_interruptible(&fip_running);
	if (error)
		return error;
	fip_result[0] = '\0';
	error = fip_run(text);
	mutex_unlock(&fip_running);
	return error ?: (ssize_t)length;
}

static const struct file_operations fip_file = {
	.owner = THIS_MODULE,
	.open = fip_file_open,
	.read = seq_read,
	.write = fip_file_write,
	.llseek = seq_lseek,
	.release = single_release,
};

static int __init fip_load_init(void)
{
	fip_ticks_per_ms = fip_measure_ticks_per_ms();
	fip_debugfs = debugfs_create_dir("fip_load", NULL);
	debugfs_create_file("run", 0600, fip_debugfs, NULL, &fip_file);
	return 0;
}

static void __exit fip_load_exit(void)
{
	debugfs_remove_recursive(fip_debugfs);
}

module_init(fip_load_init);
module_exit(fip_load_exit);
MODULE_DESCRIPTION("random requests to a block device, measured");
MODULE_LICENSE("Dual MIT/GPL");
