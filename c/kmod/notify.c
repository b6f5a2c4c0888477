// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * When a daemon that sleeps is kicked for requests on a ring (docs/decisions/0036-notification-control.md). Without a policy it is
 * at once. What is held back has a timer that kicks; the daemon's flag stays set until then (docs/protocol.md R-2.4-7).
 *
 * As in crates/ring/src/notify.rs, the maximum rate wins over the maximum delay.
 */
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/sysfs.h>

#include "fip_blk.h"

/* How long requests gather where a minimum is set and no delay. */
#define FIP_USUAL_DELAY_US 100
/* The same where rate and occupancy decide; and over so many such times the rate is measured. */
#define FIP_AUTO_DELAY_US 50
#define FIP_AUTO_DELAYS 16

static struct fip_notify_setting {
	const char *name;
	unsigned int most;
	unsigned int usual;			/* of disks that are taken from now on: the module parameter */
} fip_notify_settings[FIP_NOTIFY_SETTINGS] = {
	[FIP_NOTIFY_MAX_RATE] = { "notify_max_rate", 10000000 },
	/* The protocol allows no more. */
	[FIP_NOTIFY_MAX_DELAY_US] = { "notify_max_delay_us", USEC_PER_SEC },
	[FIP_NOTIFY_MIN_REQUESTS] = { "notify_min_requests", 4096 },
	[FIP_NOTIFY_AUTO] = { "notify_auto", 1 },
};

static DEFINE_MUTEX(fip_notify_changing);

/* ---- The decision: under the lock of `notify` -------------------------------------------------------------------- */

/* The daemon sleeps: the time for a look at the rate. */
static void fip_notify_measure(struct fip_notify *notify, u64 now_ns)
{
	u64 passed_ns = now_ns - notify->interval_began_ns;

	if (passed_ns < notify->gathering_ns * FIP_AUTO_DELAYS)
		return;
	notify->expected = min_t(u64, div64_u64(notify->interval_count * notify->gathering_ns, passed_ns), U32_MAX);
	notify->interval_began_ns = now_ns;
	notify->interval_count = 0;
}

/*
 * So many requests are waited for. By `auto` as many as come in that time, but no more than half of those that are in flight or
 * held back: a lone request never waits.
 */
static u32 fip_notify_least(const struct fip_ring *ring)
{
	const struct fip_notify *notify = &ring->notify;

	return notify->is_auto ? min(notify->expected, fip_ring_outstanding(ring) / 2) : notify->least;
}

/* `to_come`: so many more requests may be published before the first is answered. */
static u64 fip_notify_due(const struct fip_ring *ring, u64 now_ns, u32 to_come)
{
	const struct fip_notify *notify = &ring->notify;
	bool is_enough = !to_come || notify->held_count >= fip_notify_least(ring);
	u64 gathered_ns = is_enough ? now_ns : notify->held_since_ns + notify->gathering_ns;

	return notify->has_kicked ? max(gathered_ns, notify->last_ns + notify->spacing_ns) : gathered_ns;
}

/* `count` requests were published, and a fence followed. Is the daemon to be kicked now? If not, the timer is set if it must be. */
static bool fip_notify_decide(struct fip_ring *ring, u32 count, u32 to_come)
{
	struct fip_notify *notify = &ring->notify;
	struct fipsee_cold *cold = ring->requests.ring.cold;
	u64 now_ns = ktime_get_ns(), due_ns;

	notify->interval_count += count;
	if (!FIPSEE_LOAD_ACQUIRE(&cold->asleep)) {
		/* It finds everything by itself. */
		WRITE_ONCE(notify->is_held, false);
		return false;
	}
	fip_notify_measure(notify, now_ns);
	if (!notify->is_held) {
		notify->held_since_ns = now_ns;
		notify->held_count = 0;
	}
	notify->held_count += count;
	due_ns = fip_notify_due(ring, now_ns, to_come);
	if (now_ns >= due_ns) {
		WRITE_ONCE(notify->is_held, false);
		notify->has_kicked = true;
		notify->last_ns = now_ns;
		FIPSEE_STORE_RELEASE(&cold->asleep, 0);
		return true;
	}
	if (!notify->is_held || due_ns != notify->due_ns) {
		notify->due_ns = due_ns;
		hrtimer_start(&notify->timer, ns_to_ktime(due_ns), HRTIMER_MODE_ABS);
	}
	WRITE_ONCE(notify->is_held, true);
	return false;
}

/* Requests that may follow. Once every tag is in use, all wait. */
static u32 fip_notify_to_come(const struct fip_ring *ring)
{
	u32 depth = ring->disk->tags.queue_depth, outstanding = fip_ring_outstanding(ring);

	return depth > outstanding ? depth - outstanding : 0;
}

/* After a batch, under submit_lock. With `is_last` the caller now waits for the answers. */
bool fip_notify_published(struct fip_ring *ring, bool is_last)
{
	struct fip_notify *notify = &ring->notify;
	u32 count = ring->submitted - notify->seen;
	unsigned long flags;
	bool kick;

	notify->seen = ring->submitted;
	fipsee_writer_fence(&ring->requests);
	spin_lock_irqsave(&notify->lock, flags);
	kick = fip_notify_decide(ring, count, is_last ? 0 : fip_notify_to_come(ring));
	notify->suppressed += notify->is_held;
	spin_unlock_irqrestore(&notify->lock, flags);
	return kick;
}

/* What was held back is due. Not under submit_lock, which the timer may have interrupted: the writer is not touched. */
static enum hrtimer_restart fip_notify_fire(struct hrtimer *timer)
{
	struct fip_notify *notify = container_of(timer, struct fip_notify, timer);
	struct fip_ring *ring = container_of(notify, struct fip_ring, notify);
	unsigned long flags;
	bool kick = false;

	spin_lock_irqsave(&notify->lock, flags);
	if (notify->is_held && ktime_get_ns() < notify->due_ns) {
		/* Another time was set while this one ran out. */
		hrtimer_start(timer, ns_to_ktime(notify->due_ns), HRTIMER_MODE_ABS);
	} else if (notify->is_held) {
		FIPSEE_FULL_FENCE();		/* S, as fipsee_writer_needs_doorbell() has it */
		kick = fip_notify_decide(ring, 0, 0);
		notify->late_kicks += kick;
	}
	spin_unlock_irqrestore(&notify->lock, flags);
	if (kick)
		virtqueue_notify(ring->virtqueue->vq);
	return HRTIMER_NORESTART;
}

/* ---- A ring's life ----------------------------------------------------------------------------------------------- */

/* Takes over the disk's settings. What is held back is decided on anew; the time of the last kick still counts. */
static void fip_notify_apply(struct fip_ring *ring)
{
	const unsigned int *settings = ring->disk->notify;
	struct fip_notify *notify = &ring->notify;
	unsigned int rate = settings[FIP_NOTIFY_MAX_RATE], delay_us = settings[FIP_NOTIFY_MAX_DELAY_US];
	unsigned int least = settings[FIP_NOTIFY_MIN_REQUESTS], is_auto = settings[FIP_NOTIFY_AUTO];
	unsigned long flags;
	bool kick = false;

	spin_lock(&ring->submit_lock);
	spin_lock_irqsave(&notify->lock, flags);
	notify->spacing_ns = rate ? DIV_ROUND_UP_ULL(NSEC_PER_SEC, rate) : 0;
	notify->gathering_ns = (u64)(delay_us ?: is_auto ? FIP_AUTO_DELAY_US : FIP_USUAL_DELAY_US) * NSEC_PER_USEC;
	notify->is_auto = is_auto;
	/* Without a number, a delay alone is waited. */
	notify->least = least ?: delay_us ? U32_MAX : 1;
	if (!ring->is_moderated)
		notify->seen = ring->submitted;
	ring->is_moderated = rate || delay_us || least || is_auto;
	if (notify->is_held && ring->is_live) {
		FIPSEE_FULL_FENCE();
		kick = fip_notify_decide(ring, 0, ring->is_moderated ? fip_notify_to_come(ring) : 0);
		notify->late_kicks += kick;
	}
	spin_unlock_irqrestore(&notify->lock, flags);
	spin_unlock(&ring->submit_lock);
	if (kick)
		virtqueue_notify(ring->virtqueue->vq);
}

void fip_notify_init(struct fip_ring *ring)
{
	spin_lock_init(&ring->notify.lock);
	fip_hrtimer_setup(&ring->notify.timer, fip_notify_fire);
	fip_notify_apply(ring);
}

/* Before the rings of a disk are initialised. */
void fip_notify_read_parameters(struct fip_disk *disk)
{
	unsigned int index;

	for (index = 0; index < FIP_NOTIFY_SETTINGS; index++)
		disk->notify[index] = READ_ONCE(fip_notify_settings[index].usual);
}

/* A new attachment. The timer does not run. */
void fip_notify_start(struct fip_ring *ring)
{
	ring->notify.is_held = false;
	ring->notify.seen = 0;
}

/* The ring is not live any more. */
void fip_notify_stop(struct fip_ring *ring)
{
	hrtimer_cancel(&ring->notify.timer);
}

/* ---- Module parameters and sysfs --------------------------------------------------------------------------------- */

static int fip_notify_parse(const struct fip_notify_setting *setting, const char *text, unsigned int *value)
{
	int length = (int)strcspn(text, "\n");

	if (!kstrtouint(text, 0, value) && *value <= setting->most)
		return 0;
	pr_warn_ratelimited(FIP_NAME ": %s=%.*s is not possible; use 1 to %u, or 0 for none\n", setting->name, min(length, 24), text,
			    setting->most);
	return -EINVAL;
}

/* `auto` decides about what a minimum would say. */
static bool fip_notify_contradicts(enum fip_notify_index index, unsigned int value, unsigned int least, unsigned int is_auto)
{
	if (!value || !(index == FIP_NOTIFY_AUTO ? least : index == FIP_NOTIFY_MIN_REQUESTS && is_auto))
		return false;
	pr_warn_ratelimited(FIP_NAME ": notify_auto decides how many requests are waited for; set notify_min_requests to 0 or notify_auto to 0\n");
	return true;
}

static int fip_notify_parameter_set(const char *text, const struct kernel_param *parameter)
{
	struct fip_notify_setting *setting = parameter->arg;
	unsigned int value;
	int error = fip_notify_parse(setting, text, &value);

	if (error)
		return error;
	mutex_lock(&fip_notify_changing);
	if (fip_notify_contradicts(setting - fip_notify_settings, value, fip_notify_settings[FIP_NOTIFY_MIN_REQUESTS].usual,
				   fip_notify_settings[FIP_NOTIFY_AUTO].usual))
		error = -EINVAL;
	else
		WRITE_ONCE(setting->usual, value);
	mutex_unlock(&fip_notify_changing);
	return error;
}

static int fip_notify_parameter_get(char *buffer, const struct kernel_param *parameter)
{
	const struct fip_notify_setting *setting = parameter->arg;

	return sysfs_emit(buffer, "%u\n", READ_ONCE(setting->usual));
}

static const struct kernel_param_ops fip_notify_parameter_ops = {
	.set = fip_notify_parameter_set,
	.get = fip_notify_parameter_get,
};

module_param_cb(notify_max_rate, &fip_notify_parameter_ops, &fip_notify_settings[FIP_NOTIFY_MAX_RATE], 0644);
MODULE_PARM_DESC(notify_max_rate, "most kicks per second of a ring's daemon, for disks that are taken from then on; 0: no limit");
module_param_cb(notify_max_delay_us, &fip_notify_parameter_ops, &fip_notify_settings[FIP_NOTIFY_MAX_DELAY_US], 0644);
MODULE_PARM_DESC(notify_max_delay_us, "how long requests wait for others before a kick, for disks that are taken from then on; 0: not");
module_param_cb(notify_min_requests, &fip_notify_parameter_ops, &fip_notify_settings[FIP_NOTIFY_MIN_REQUESTS], 0644);
MODULE_PARM_DESC(notify_min_requests, "so many requests are worth a kick, for disks that are taken from then on; 0: any");
module_param_cb(notify_auto, &fip_notify_parameter_ops, &fip_notify_settings[FIP_NOTIFY_AUTO], 0644);
MODULE_PARM_DESC(notify_auto, "1: rate and occupancy decide how many requests are worth a kick, for disks that are taken from then on");

static struct fip_disk *fip_disk_of(struct device *device)
{
	return dev_to_disk(device)->private_data;
}

static const struct fip_notify_setting *fip_setting_of(struct device_attribute *attribute)
{
	return container_of(attribute, struct dev_ext_attribute, attr)->var;
}

static ssize_t fip_notify_show(struct device *device, struct device_attribute *attribute, char *buffer)
{
	return sysfs_emit(buffer, "%u\n", READ_ONCE(fip_disk_of(device)->notify[fip_setting_of(attribute) - fip_notify_settings]));
}

static ssize_t fip_notify_store(struct device *device, struct device_attribute *attribute, const char *buffer, size_t bytes)
{
	const struct fip_notify_setting *setting = fip_setting_of(attribute);
	struct fip_disk *disk = fip_disk_of(device);
	unsigned int value, index;
	int error = fip_notify_parse(setting, buffer, &value);

	if (error)
		return error;
	mutex_lock(&fip_notify_changing);
	if (fip_notify_contradicts(setting - fip_notify_settings, value, disk->notify[FIP_NOTIFY_MIN_REQUESTS],
				   disk->notify[FIP_NOTIFY_AUTO])) {
		mutex_unlock(&fip_notify_changing);
		return -EINVAL;
	}
	WRITE_ONCE(disk->notify[setting - fip_notify_settings], value);
	for (index = 0; index < disk->ring_count; index++)
		fip_notify_apply(&disk->rings[index]);
	mutex_unlock(&fip_notify_changing);
	return bytes;
}

#define FIP_SETTING(setting, index)									\
	static struct dev_ext_attribute fip_attribute_##setting = {					\
		__ATTR(setting, 0644, fip_notify_show, fip_notify_store), &fip_notify_settings[index]	\
	}

FIP_SETTING(notify_max_rate, FIP_NOTIFY_MAX_RATE);
FIP_SETTING(notify_max_delay_us, FIP_NOTIFY_MAX_DELAY_US);
FIP_SETTING(notify_min_requests, FIP_NOTIFY_MIN_REQUESTS);
FIP_SETTING(notify_auto, FIP_NOTIFY_AUTO);

/* A counter of all queues of a disk. Read without locks. */
#define FIP_COUNTER(name, of_ring)									\
	static ssize_t name##_show(struct device *device, struct device_attribute *attribute, char *buffer) \
	{												\
		struct fip_disk *disk = fip_disk_of(device);						\
		unsigned int index;									\
		u64 sum = 0;										\
													\
		for (index = 0; index < disk->ring_count; index++) {					\
			const struct fip_ring *ring = &disk->rings[index];				\
													\
			sum += of_ring;									\
		}											\
		return sysfs_emit(buffer, "%llu\n", sum);						\
	}												\
	static DEVICE_ATTR_RO(name)

FIP_COUNTER(kicks, fip_ring_kicks(ring));
FIP_COUNTER(kicks_suppressed, ring->notify.suppressed);
FIP_COUNTER(interrupts, ring->virtqueue->interrupts);
FIP_COUNTER(interrupts_spurious, ring->virtqueue->spurious);

static struct attribute *fip_notify_attributes[] = {
	&fip_attribute_notify_max_rate.attr.attr,
	&fip_attribute_notify_max_delay_us.attr.attr,
	&fip_attribute_notify_min_requests.attr.attr,
	&fip_attribute_notify_auto.attr.attr,
	&dev_attr_kicks.attr,
	&dev_attr_kicks_suppressed.attr,
	&dev_attr_interrupts.attr,
	&dev_attr_interrupts_spurious.attr,
	NULL
};
const struct attribute_group fip_notify_group = { .attrs = fip_notify_attributes };
