// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * How many threads look after a disk's rings, and which has which. Samples are taken while threads work; rules.h decides.
 *
 * A ring moves without a stop: a thread that reaps holds its reap bit, so that two may look at it for a moment, and completions
 * stay in order. No wake-up is lost: the new thread has the ring's bit before `ring->thread` names it, and is woken after that. A
 * submitter that still wakes the old one published before, and the new one looks for that after its fence (fip_thread_run()).
 */
#include <linux/cpu.h>
#include <linux/kthread.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/sysfs.h>

#include "fip_blk.h"

#define FIP_SAMPLE_MS 20
/* While no thread is busy. */
#define FIP_IDLE_SAMPLE_MS 100
/* In thousandths of an interval. */
#define FIP_BUSY 50
/* After a thread could not be started. */
#define FIP_RETRY_MS 5000

/* For disks that are taken from now on. */
static DEFINE_MUTEX(fip_usual_lock);
static struct fip_range fip_usual = { 1, 0 };

static_assert(FIP_RULES_MOST == FIPSEE_MAX_QUEUES);

/* ---- Assignment: under the governor's lock ----------------------------------------------------------------------- */

static void fip_assign(struct fip_ring *ring, struct fip_thread *thread)
{
	struct fip_thread *before = ring->thread;

	if (before == thread)
		return;
	set_bit(ring->index, &thread->rings);
	smp_mb();	/* What finds the thread in `ring->thread` wakes one that finds the ring. */
	WRITE_ONCE(ring->thread, thread);
	if (before)
		clear_bit(ring->index, &before->rings);
	ring->disk->governor.moved += !!before;
	smp_mb();	/* Pairs with the fence before a thread sleeps: it finds the ring, or we find it asleep. */
	fip_thread_wake(thread);
}

/*
 * So many threads from now on; `thread_of` says which ring is whose. If no further one can be started, as many as there
 * are. The lock of CPUs is taken within the governor's, which no callback of CPUs that come and go takes.
 */
static int fip_use_threads(struct fip_disk *disk, unsigned int count, const u8 *thread_of)
{
	struct fip_governor *governor = &disk->governor;
	unsigned int index;
	int error = 0;

	cpus_read_lock();
	for (index = 0; index < count && !error; index++) {
		if (!disk->threads[index].task)
			error = fip_thread_start(&disk->threads[index]);
	}
	cpus_read_unlock();
	if (error && !--index)
		return error;
	if (error) {
		count = max(index, governor->used);
		dev_warn_ratelimited(&disk->vdev->dev, "no further thread can be started (%d): %u look after the rings\n", error, count);
		governor->retry_at = get_jiffies_64() + msecs_to_jiffies(FIP_RETRY_MS);
		if (count == governor->used)
			return 0;
		thread_of = NULL;
	}
	governor->added += count > governor->used ? count - governor->used : 0;
	governor->removed += count < governor->used ? governor->used - count : 0;
	WRITE_ONCE(governor->used, count);
	for (index = 0; index < disk->ring_count; index++)
		fip_assign(&disk->rings[index], &disk->threads[thread_of ? thread_of[index] : index % count]);
	return 0;
}

/* A thread whose CPU went was put on any other: it gets one of its own again, also if that CPU is back meanwhile. */
static void fip_follow_cpus(struct fip_disk *disk)
{
	unsigned int index;

	cpus_read_lock();
	for (index = 0; index < disk->virtqueue_count; index++) {
		struct fip_thread *thread = &disk->threads[index];

		if (!thread->task || (cpu_online(thread->cpu) && cpumask_equal(thread->task->cpus_ptr, cpumask_of(thread->cpu))))
			continue;
		if (!cpu_online(thread->cpu))
			fip_place_thread(thread);
		set_cpus_allowed_ptr(thread->task, cpumask_of(thread->cpu));
	}
	cpus_read_unlock();
}

/* What is wanted, as far as this disk allows it. */
static void fip_apply_range(struct fip_disk *disk)
{
	struct fip_governor *governor = &disk->governor;
	unsigned int rings = disk->ring_count;

	governor->most = min(governor->wanted.most ?: max(rings - 1, 1U), rings);
	governor->least = min(governor->wanted.least, governor->most);
}

/* ---- Samples ----------------------------------------------------------------------------------------------------- */

/* The load of the last interval. True if a thread was busy. */
static bool fip_sample(struct fip_disk *disk, struct fip_load *load, u64 passed)
{
	struct fip_governor *governor = &disk->governor;
	u64 reaped[FIPSEE_MAX_QUEUES] = { 0 }, by_ring[FIPSEE_MAX_QUEUES];
	unsigned int index, thread;
	bool is_busy = false;

	load->rings = disk->ring_count;
	load->threads = governor->used;
	for (index = 0; index < disk->ring_count; index++) {
		u64 now = READ_ONCE(disk->rings[index].reap_stats.by_thread);

		thread = disk->rings[index].thread->index;
		load->thread_of[index] = thread;
		by_ring[index] = now - governor->by_thread[index];
		governor->by_thread[index] = now;
		reaped[thread] += by_ring[index];
	}
	for (index = 0; index < disk->virtqueue_count; index++) {
		u64 now = READ_ONCE(disk->threads[index].busy_ticks);
		u64 busy = now - governor->busy_ticks[index];

		governor->busy_ticks[index] = now;
		governor->shares[index] = div64_u64(min(busy, passed) * 1000, passed);
		is_busy |= governor->shares[index] >= FIP_BUSY;
	}
	for (index = 0; index < disk->ring_count; index++) {
		thread = load->thread_of[index];
		load->shares[index] = reaped[thread] ? div64_u64(governor->shares[thread] * by_ring[index], reaped[thread]) : 0;
	}
	return is_busy;
}

static bool fip_is_any_polling(const struct fip_disk *disk)
{
	unsigned int index;

	for (index = 0; index < disk->virtqueue_count; index++) {
		if (disk->threads[index].task && READ_ONCE(disk->threads[index].is_polling))
			return true;
	}
	return false;
}

static void fip_decide(struct fip_disk *disk, const struct fip_load *load, u64 passed)
{
	struct fip_governor *governor = &disk->governor;
	bool may_add = get_jiffies_64() >= governor->retry_at;
	u8 thread_of[FIPSEE_MAX_QUEUES];
	enum fip_decision decision;

	if (governor->used < governor->least && may_add)
		fip_use_threads(disk, governor->least, NULL);
	if (governor->used < governor->least || governor->least == governor->most)
		return;
	decision = fip_rules_decide(&governor->rules, load, governor->least, may_add ? governor->most : governor->used,
				    min_t(u64, div64_u64(passed, fip_ticks_per_us * 1000), FIP_IDLE_SAMPLE_MS), thread_of);
	if (decision != FIP_KEEP)
		fip_use_threads(disk, governor->used + (decision == FIP_ADD) - (decision == FIP_REMOVE), thread_of);
}

/* 0: none, when all threads sleep and no more than the least are used; the first that wakes asks for one. */
static unsigned int fip_next_sample_ms(const struct fip_disk *disk, bool is_busy)
{
	const struct fip_governor *governor = &disk->governor;

	if (governor->used < governor->least)
		return FIP_RETRY_MS;
	if (governor->least == governor->most)
		return 0;
	if (is_busy)
		return FIP_SAMPLE_MS;
	return governor->used > governor->least || fip_is_any_polling(disk) ? FIP_IDLE_SAMPLE_MS : 0;
}

static void fip_sample_in(struct fip_governor *governor, unsigned int ms)
{
	/* Not where the supervisor works: a thread is made with memory for which the disk may have to be written. */
	queue_delayed_work(system_unbound_wq, &governor->work, msecs_to_jiffies(ms));
}

static void fip_govern(struct work_struct *work)
{
	struct fip_governor *governor = container_of(to_delayed_work(work), struct fip_governor, work);
	struct fip_disk *disk = container_of(governor, struct fip_disk, governor);
	u64 now = fip_ticks(), passed = now - governor->sampled_ticks;
	unsigned int next_ms = FIP_IDLE_SAMPLE_MS;
	struct fip_load *load;
	bool is_busy;

	mutex_lock(&governor->lock);
	if (!governor->is_running)
		goto out;
	fip_follow_cpus(disk);
	load = kmalloc(sizeof(*load), GFP_NOIO);
	if (load) {
		governor->sampled_ticks = now;
		is_busy = fip_sample(disk, load, max(passed, 1ULL));
		fip_decide(disk, load, passed);
		next_ms = fip_next_sample_ms(disk, is_busy);
		kfree(load);
	}
	if (next_ms)
		fip_sample_in(governor, next_ms);
out:
	mutex_unlock(&governor->lock);
}

/* A thread has something to do. */
void fip_governor_wake(struct fip_disk *disk)
{
	struct fip_governor *governor = &disk->governor;

	if (READ_ONCE(governor->used) < READ_ONCE(governor->most) || READ_ONCE(governor->least) < READ_ONCE(governor->most))
		fip_governor_follow(disk);
}

/* A thread may run where it should not. */
void fip_governor_follow(struct fip_disk *disk)
{
	struct fip_governor *governor = &disk->governor;

	if (!delayed_work_pending(&governor->work))
		fip_sample_in(governor, FIP_SAMPLE_MS);
}

/* ---- A disk's life ----------------------------------------------------------------------------------------------- */

void fip_governor_init(struct fip_disk *disk)
{
	mutex_init(&disk->governor.lock);
	INIT_DELAYED_WORK(&disk->governor.work, fip_govern);
	mutex_lock(&fip_usual_lock);
	disk->governor.wanted = fip_usual;
	mutex_unlock(&fip_usual_lock);
}

int fip_threads_start(struct fip_disk *disk)
{
	struct fip_governor *governor = &disk->governor;
	unsigned int index;
	u64 added;
	int error;

	for (index = 0; index < disk->virtqueue_count; index++) {
		disk->threads[index].disk = disk;
		disk->threads[index].index = index;
	}
	mutex_lock(&governor->lock);
	fip_apply_range(disk);
	governor->sampled_ticks = fip_ticks();
	/* Those that a disk has from its start, or again after the machine slept, were not added. */
	added = governor->added;
	governor->used = 0;
	error = fip_use_threads(disk, governor->least, NULL);
	governor->added = added;
	governor->is_running = !error;
	mutex_unlock(&governor->lock);
	return error;
}

/* Threads that end may still ask for a sample. */
void fip_threads_stop(struct fip_disk *disk)
{
	unsigned int index;

	mutex_lock(&disk->governor.lock);
	disk->governor.is_running = false;
	mutex_unlock(&disk->governor.lock);
	for (index = 0; index < disk->virtqueue_count; index++)
		fip_thread_stop(&disk->threads[index]);
	cancel_delayed_work_sync(&disk->governor.work);
}

/* ---- Module parameter and sysfs ---------------------------------------------------------------------------------- */

/* "auto", "2", "1..4" */
static int fip_range_parse(const char *text, struct fip_range *range)
{
	int length = (int)strcspn(text, "\n");
	unsigned int least, most;
	char end = '\n';

	if (length == 4 && !strncmp(text, "auto", 4)) {
		*range = (struct fip_range){ 1, 0 };
		return 0;
	}
	if (sscanf(text, "%u..%u%c", &least, &most, &end) < 2) {
		if (kstrtouint(text, 10, &least))
			goto fail;
		most = least;
	}
	if (end == '\n' && least && least <= most && most <= FIPSEE_MAX_QUEUES) {
		*range = (struct fip_range){ least, most };
		return 0;
	}
fail:
	pr_warn_ratelimited(FIP_NAME ": threads=%.*s is not possible; use a number from 1 to %u, a range such as 1..4, or auto\n",
			    min(length, 24), text, FIPSEE_MAX_QUEUES);
	return -EINVAL;
}

static ssize_t fip_range_emit(char *buffer, unsigned int least, unsigned int most)
{
	return least == most ? sysfs_emit(buffer, "%u\n", least) : sysfs_emit(buffer, "%u..%u\n", least, most);
}

static int fip_threads_parameter_set(const char *text, const struct kernel_param *parameter)
{
	struct fip_range range;
	int error = fip_range_parse(text, &range);

	if (error)
		return error;
	mutex_lock(&fip_usual_lock);
	fip_usual = range;
	mutex_unlock(&fip_usual_lock);
	return 0;
}

static int fip_threads_parameter_get(char *buffer, const struct kernel_param *parameter)
{
	struct fip_range range = READ_ONCE(fip_usual);

	return range.most ? (int)fip_range_emit(buffer, range.least, range.most) : sysfs_emit(buffer, "auto\n");
}

static const struct kernel_param_ops fip_threads_parameter_ops = {
	.set = fip_threads_parameter_set,
	.get = fip_threads_parameter_get,
};
module_param_cb(threads, &fip_threads_parameter_ops, NULL, 0644);
MODULE_PARM_DESC(threads, "threads that look for completions, for disks that are taken from then on: 2, 1..4 or auto (1 to one less than rings)");

static struct fip_disk *fip_disk_of(struct device *device)
{
	return dev_to_disk(device)->private_data;
}

static ssize_t threads_show(struct device *device, struct device_attribute *attribute, char *buffer)
{
	const struct fip_governor *governor = &fip_disk_of(device)->governor;

	return fip_range_emit(buffer, READ_ONCE(governor->least), READ_ONCE(governor->most));
}

/* At once; what is more than the disk has rings is cut to that. */
static ssize_t threads_store(struct device *device, struct device_attribute *attribute, const char *buffer, size_t bytes)
{
	struct fip_disk *disk = fip_disk_of(device);
	struct fip_governor *governor = &disk->governor;
	struct fip_range range;
	int error = fip_range_parse(buffer, &range);

	if (error)
		return error;
	mutex_lock(&governor->lock);
	governor->wanted = range;
	fip_apply_range(disk);
	governor->rules = (struct fip_rules){ 0 };
	if (governor->is_running)
		error = fip_use_threads(disk, clamp(governor->used, governor->least, governor->most), NULL);
	mutex_unlock(&governor->lock);
	fip_governor_wake(disk);
	return error ?: bytes;
}
static DEVICE_ATTR_RW(threads);

#define FIP_GOVERNOR_NUMBER(name, field, format)							\
	static ssize_t name##_show(struct device *device, struct device_attribute *attribute, char *buffer) \
	{												\
		return sysfs_emit(buffer, format "\n", READ_ONCE(fip_disk_of(device)->governor.field));	\
	}												\
	static DEVICE_ATTR_RO(name)

FIP_GOVERNOR_NUMBER(threads_used, used, "%u");
FIP_GOVERNOR_NUMBER(threads_added, added, "%llu");
FIP_GOVERNOR_NUMBER(threads_removed, removed, "%llu");
FIP_GOVERNOR_NUMBER(rings_moved, moved, "%llu");

static struct attribute *fip_threads_attributes[] = {
	&dev_attr_threads.attr,
	&dev_attr_threads_used.attr,
	&dev_attr_threads_added.attr,
	&dev_attr_threads_removed.attr,
	&dev_attr_rings_moved.attr,
	NULL
};
const struct attribute_group fip_threads_group = { .attrs = fip_threads_attributes };
