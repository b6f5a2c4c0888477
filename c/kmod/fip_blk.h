/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * fip_blk: a virtio-blk device, driven over virtqueues or, when its back end is a Fip-see daemon, over rings in our memory
 * that both sides poll (docs/protocol.md section 9).
 *
 * A disk has pairs of hardware queues, one for ordinary and one for polled requests; a pair shares a virtqueue and a ring. Locks,
 * outer first: submit_lock of a ring, then its reap bit, then the lock of a virtqueue or of a ring's `notify`. Which path requests take changes only while the
 * block layer's queue is quiesced (supervise.c). Nothing that the back end wrote is read twice.
 */
#ifndef FIP_BLK_H
#define FIP_BLK_H

#include <linux/completion.h>
#include <linux/hrtimer.h>
#include <linux/prefetch.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/timer.h>
#include <linux/workqueue.h>
#include <uapi/linux/virtio_blk.h>

#include "compat.h"
#include "rules.h"
#include "ticks.h"
#include "fipsee_pace.h"
#include "fipsee_vm.h"

#define FIP_NAME "fip_blk"

/* Most requests of one hardware queue; a ring carries two of those. */
#define FIP_MAX_TAGS 128
#define FIP_MAX_SEGMENTS FIPSEE_MAX_INDIRECT_ENTRIES
/* A segment's length has 16 bits of sectors; no transfer of the block layer needs as much. */
#define FIP_MAX_SEGMENT_BYTES (16U << 20)
/* Data of one request before the daemon has sent its limits. */
#define FIP_DEFAULT_MAX_SECTORS 2048
/* Tags of requests of our own; those of the block layer count from 0. */
#define FIP_TAG_ACK 0xfff0
#define FIP_TAG_INFO 0xfff1
#define FIP_NO_SAMPLE 0xffffffffU
/* A serial number as virtio-blk reports it. */
#define FIP_SERIAL_BYTES VIRTIO_BLK_ID_BYTES

/* Module parameters (main.c). */
extern unsigned int fip_depth;
extern unsigned int fip_max_queues;
extern unsigned int fip_spin_us;
extern unsigned int fip_thread_us;
extern bool fip_mwait_wanted;
extern unsigned int fip_query_seconds;
extern unsigned int fip_fail_seconds;
extern bool fip_rings_wanted;
extern unsigned int fip_choices;
extern bool fip_pace_wanted;

extern struct workqueue_struct *fip_workqueue;
extern u64 fip_ticks_per_us;

struct fip_disk;

/* ---- What is on a virtqueue ------------------------------------------------------------------------------------ */

/* First in everything that is added to a virtqueue: what comes back. */
struct fip_token {
	bool is_exchange;
};

/* Beside each request of the block layer. */
struct fip_request {
	struct fip_token token;
	bool flush_follows;			/* virtqueue: a FUA write whose flush is still to come */
	blk_status_t result;
	u8 status;				/* virtqueue: written by the device */
	unsigned long since;			/* jiffies when it was given to the device */
	struct virtio_blk_outhdr header;
	struct virtio_blk_discard_write_zeroes range;
	struct fipsee_segment *table;		/* ring: more than five segments; aligned to sectors */
};

/* An upgrade request. Its memory is the device's while `busy`. */
struct fip_exchange {
	struct fip_token token;
	bool busy;				/* under the virtqueue's lock */
	u8 status;
	struct virtio_blk_outhdr header;
	struct fipsee_vm_question *request;
	unsigned int request_bytes;		/* with the entries that follow it; 0: asks for the serial number instead */
	union {
		struct fipsee_vm_reply reply;
		char serial[FIP_SERIAL_BYTES];
	};
	struct completion done;
};

struct fip_virtqueue {
	struct fip_disk *disk;
	struct virtqueue *vq;
	unsigned int index;
	spinlock_t lock;
	bool doorbell_wanted;			/* rings are attached: keep a doorbell request there */
	unsigned int in_flight;			/* requests of the block layer */
	struct fip_exchange doorbell;
	u64 interrupts;
	u64 spurious;				/* interrupts with which nothing was found */
	u64 requests;
	char name[16];
	struct scatterlist *sg;			/* FIP_MAX_SEGMENTS */
} ____cacheline_aligned_in_smp;

/* ---- A ring ---------------------------------------------------------------------------------------------------- */

/* Memory of one queue's rings. Of one attachment only: the next one gets new pages. */
struct fip_memory {
	void *pages;
	size_t bytes;
	struct fipsee_vm_queue entry;
};

struct fip_submit_stats {
	u64 requests;
	u64 batches;
	u64 kicks;
	u64 indirect;
};

struct fip_reap_stats {
	u64 messages;
	u64 by_spin;
	u64 spin_hits;
	u64 spin_misses;
	u64 doorbells;
	u64 arms;
	u64 events;
	u64 by_thread;
	u64 redirected;				/* ended on the CPU that submitted, by a call to it */
};

/* When the daemon is kicked; 0: not set. Each may be a module parameter, and is an attribute of a disk (notify.c). */
enum fip_notify_index {
	FIP_NOTIFY_MAX_RATE,			/* kicks per second; wins over the delay */
	FIP_NOTIFY_MAX_DELAY_US,
	FIP_NOTIFY_MIN_REQUESTS,
	FIP_NOTIFY_AUTO,			/* rate and occupancy decide instead of the minimum */
	FIP_NOTIFY_SETTINGS,
};

/* Kicks that are held back. */
struct fip_notify {
	spinlock_t lock;			/* innermost; the timer takes it in its interrupt */
	bool is_held;				/* the daemon sleeps and was not kicked */
	bool has_kicked;
	u32 seen;				/* under submit_lock: `submitted` when last decided on */
	u32 least;
	u32 held_count;
	bool is_auto;
	u32 expected;				/* auto: so many come within `gathering_ns`, by the last interval */
	u64 interval_count;
	u64 interval_began_ns;
	u64 spacing_ns;
	u64 gathering_ns;
	u64 last_ns;
	u64 held_since_ns;
	u64 due_ns;
	u64 suppressed;
	u64 late_kicks;				/* by the timer, or because of other settings */
	struct hrtimer timer;
};

enum fip_bit {
	FIP_RING_REAPING,			/* lock of the reaping side, see fip_reap_trylock() */
};

struct fip_ring {
	struct fip_disk *disk;
	unsigned int index;
	struct fip_virtqueue *virtqueue;
	struct fip_thread *thread;		/* changes at any time (govern.c) */

	/* Submitting side. */
	spinlock_t submit_lock ____cacheline_aligned_in_smp;
	bool is_live;				/* changed under submit_lock and the reap bit */
	u32 depth;
	u32 submitted;				/* modulo 2^32 */
	struct fipsee_writer requests;
	bool is_paced;
	bool is_moderated;			/* kicks may be held back */
	struct fipsee_pace pace;
	struct fip_submit_stats submit_stats;

	/* Reaping side. */
	unsigned long bits ____cacheline_aligned_in_smp;
	u32 finished;				/* modulo 2^32 */
	bool is_armed;				/* the daemon will ring; under the reap bit */
	bool was_rung;				/* it rang; from the interrupt, without the bit */
	bool is_faulty;				/* the daemon broke the protocol: nothing more is read */
	bool ack_outstanding;
	bool resize_unacknowledged;
	bool detach_seen;
	bool info_outstanding;
	int info_status;			/* of get-info, once it is not outstanding */
	struct fipsee_reader completions;
	struct fip_reap_stats reap_stats;

	/* How long to spin: written by each spinner, without a lock; a lost update does no harm. */
	u32 spin_score ____cacheline_aligned_in_smp;	/* 0 to 256: how often it paid recently */
	u32 batches_unspun;
	u64 mean_wait;				/* from request to completion, in ticks */
	u64 sample_began;
	u32 sample_tag;				/* its wait is being measured; FIP_NO_SAMPLE */
	u32 submitted_at_tick;
	u64 first_look;				/* no look for an answer is needed before these ticks */
	struct timer_list backstop;

	struct fip_notify notify ____cacheline_aligned_in_smp;

	struct fip_memory memory;
	struct scatterlist sg[FIP_MAX_SEGMENTS];
	struct request *in_flight[2 * FIP_MAX_TAGS];
};

/* ---- A thread that reaps --------------------------------------------------------------------------------------- */

struct fip_thread {
	struct fip_disk *disk;
	unsigned int index;
	unsigned int cpu;
	bool is_placed;				/* counted at `cpu` (place.c) */
	struct task_struct *task;		/* NULL until it is used first */
	unsigned long rings;			/* a bit for each that it looks after; changes at any time (govern.c) */
	bool is_polling;
	u64 busy_ticks;				/* in passes that found something, without what others had of the CPU */
	u64 sleeps;
	u64 reaped;
	u64 mwaits;
};

static_assert(FIPSEE_MAX_QUEUES <= BITS_PER_LONG);

/* How many threads reap: between `least` and `most`, as load decides (govern.c). */
struct fip_governor {
	struct mutex lock;			/* all of this, and which thread has which ring */
	bool is_running;
	struct fip_range wanted;
	unsigned int least;
	unsigned int most;
	unsigned int used;
	struct fip_rules rules;
	u64 retry_at;				/* jiffies: no further thread could be started, and none is before */
	u64 sampled_ticks;
	u64 busy_ticks[FIPSEE_MAX_QUEUES];	/* at the last sample: of threads, of rings */
	u64 by_thread[FIPSEE_MAX_QUEUES];
	u32 shares[FIPSEE_MAX_QUEUES];		/* of the last interval, of threads, in thousandths */
	u64 added;
	u64 removed;
	u64 moved;
	struct delayed_work work;
};

/* ---- A disk ---------------------------------------------------------------------------------------------------- */

enum fip_path {
	FIP_PATH_VIRTQUEUE,
	FIP_PATH_RINGS,
};

/* Reasons for the supervisor to run. */
enum fip_event {
	FIP_EVENT_DEAD,				/* a doorbell request said that the attachment ended */
	FIP_EVENT_DETACH,			/* the daemon calls us back to virtqueues */
	FIP_EVENT_RESIZE,
	FIP_EVENT_CONFIG,			/* virtio's configuration changed */
	FIP_EVENT_CHECK,			/* a request takes long */
	FIP_EVENT_STUCK,			/* a request took longer than we wait */
};

struct fip_disk {
	struct virtio_device *vdev;
	struct gendisk *gendisk;
	struct blk_mq_tag_set tags;
	int minor;				/* the number in the name */
	unsigned int virtqueue_count;
	unsigned int ring_count;		/* pairs of hardware queues */
	unsigned int max_indirect;		/* most segments of a request */
	struct fip_virtqueue *virtqueues;
	struct fip_ring *rings;
	struct fip_thread *threads;		/* as many as virtqueues; most are never used */
	struct fip_governor governor;

	enum fip_path path;			/* changes while the queue is quiesced */
	bool is_broken;				/* once set, every request fails */
	bool is_failed;				/* what was in flight was failed, the device was reset or memory set aside */
	bool is_removing;
	bool is_paused;				/* suspended */
	bool has_flush;				/* virtio offers it */

	u64 attachment;				/* 0: none */
	u32 refused_queue;			/* of the last attach that was refused */
	u64 capabilities;			/* of the rings in use */
	u64 required_capabilities;		/* what the limits promised the block layer */
	u32 choices;				/* of the rings in use: FIPSEE_CHOICES_*, pinned or advised; 0: neither */
	unsigned int notify[FIP_NOTIFY_SETTINGS];
	struct fipsee_block_info info;
	struct fip_limits limits;
	struct fip_memory *pending;		/* named in an attach that is not answered */
	struct fip_aside *aside;		/* memory of failed requests that the back end may still use */

	struct fip_exchange query;
	struct fip_exchange attach;		/* with room for an entry of each queue */
	struct fip_exchange detach;

	unsigned long events;
	sector_t new_sectors;
	unsigned long next_attach;		/* jiffies */
	struct delayed_work supervisor;
	struct mutex supervising;

	char serial[FIP_SERIAL_BYTES + 1];
	u64 attach_count;
	u64 repeated;
	struct dentry *debugfs;
};

static inline struct fip_ring *fip_ring_of(struct fip_disk *disk, struct blk_mq_hw_ctx *hctx)
{
	unsigned int index = hctx->queue_num;

	/* Not a modulo: a division costs as much as the rest of a look at the ring. */
	return &disk->rings[index >= disk->ring_count ? index - disk->ring_count : index];
}

/*
 * Requests given to the daemon and not completed. Both counters are private; either may move meanwhile. Acquire: a CPU that
 * publishes because a completion was received, on any CPU, does so after that completion's stamp was touched.
 */
static inline u32 fip_ring_outstanding(const struct fip_ring *ring)
{
	return READ_ONCE(ring->submitted) - smp_load_acquire(&ring->finished);
}

/* Would a look now take the line of the answer from the daemon before it is written? */
static inline bool fip_ring_is_early(const struct fip_ring *ring)
{
	return ring->is_paced && READ_ONCE(ring->first_look) - fip_ticks() - 1 < FIPSEE_PACE_MAX_HOLD;
}

/* Does the daemon sleep on although something was published? */
static inline bool fip_ring_is_held(const struct fip_ring *ring)
{
	return READ_ONCE(ring->is_moderated) && READ_ONCE(ring->notify.is_held);
}

static inline u64 fip_ring_kicks(const struct fip_ring *ring)
{
	return READ_ONCE(ring->submit_stats.kicks) + READ_ONCE(ring->notify.late_kicks);
}

static inline void fip_disk_wake(struct fip_disk *disk, enum fip_event event)
{
	set_bit(event, &disk->events);
	mod_delayed_work(fip_workqueue, &disk->supervisor, 0);
}

/* disk.c */
int fip_disk_create(struct fip_disk *disk);
void fip_disk_read_limits(struct fip_disk *disk);
int fip_disk_alloc_tags(struct fip_disk *disk);

/* submit.c */
extern const struct blk_mq_ops fip_mq_ops;

/* ring.c */
int fip_memory_alloc(struct fip_memory *memory, u32 depth, u32 virtqueue);
void fip_memory_free(struct fip_memory *memory);
int fip_ring_start(struct fip_ring *ring, struct fip_memory *memory);
void fip_ring_stop(struct fip_ring *ring);
blk_status_t fip_ring_issue(struct fip_ring *ring, struct request *rq, bool *misfit);
void fip_ring_begin(struct fip_ring *ring, bool is_polled);
bool fip_ring_publish_end(struct fip_ring *ring, bool is_last);
int fip_ring_send_info(struct fip_ring *ring, void *into);
bool fip_ring_send_ack(struct fip_ring *ring);

/* reap.c */
bool fip_reap_trylock(struct fip_ring *ring);
void fip_reap_lock(struct fip_ring *ring);
void fip_reap_unlock(struct fip_ring *ring);
unsigned int fip_reap(struct fip_ring *ring, struct io_comp_batch *batch);
unsigned int fip_reap_for_others(struct fip_ring *ring);
bool fip_reap_or_arm(struct fip_ring *ring);
void fip_reap_disarm(struct fip_ring *ring);
void fip_reap_rung(struct fip_ring *ring);
bool fip_ring_is_fast(const struct fip_ring *ring);
void fip_reap_after_publish(struct fip_ring *ring, bool is_polled);
void fip_reap_backstop(struct timer_list *timer);
void fip_end_request(struct request *rq);
void fip_break(struct fip_disk *disk, const char *why, const char *detail);

/* redirect.c */
bool fip_redirect_is_due(const struct request *rq);
void fip_redirect(struct llist_node *list);
void fip_redirect_init(void);

/* notify.c */
extern const struct attribute_group fip_notify_group;
void fip_notify_read_parameters(struct fip_disk *disk);
void fip_notify_init(struct fip_ring *ring);
void fip_notify_start(struct fip_ring *ring);
void fip_notify_stop(struct fip_ring *ring);
bool fip_notify_published(struct fip_ring *ring, bool is_last);

/* thread.c */
int fip_thread_start(struct fip_thread *thread);
void fip_thread_stop(struct fip_thread *thread);
void fip_thread_wake(struct fip_thread *thread);

/* place.c */
void fip_place_thread(struct fip_thread *thread);
void fip_unplace_thread(struct fip_thread *thread);

/* govern.c */
extern const struct attribute_group fip_threads_group;
void fip_governor_init(struct fip_disk *disk);
void fip_governor_wake(struct fip_disk *disk);
void fip_governor_follow(struct fip_disk *disk);
int fip_threads_start(struct fip_disk *disk);
void fip_threads_stop(struct fip_disk *disk);

/* virtqueue.c */
int fip_virtqueues_find(struct fip_disk *disk);
void fip_virtqueues_delete(struct fip_disk *disk);
blk_status_t fip_virtqueue_issue(struct fip_virtqueue *virtqueue, struct request *rq);
void fip_virtqueue_kick(struct fip_virtqueue *virtqueue);
unsigned int fip_virtqueue_reap(struct fip_virtqueue *virtqueue);
void fip_virtqueue_fail_all(struct fip_virtqueue *virtqueue);

/* exchange.c */
int fip_exchange_init(struct fip_exchange *exchange, unsigned int entries);
void fip_exchange_free(struct fip_exchange *exchange);
int fip_exchange_add(struct fip_virtqueue *virtqueue, struct fip_exchange *exchange);
int fip_ask(struct fip_disk *disk, struct fip_exchange *exchange, unsigned int timeout_seconds);
int fip_ask_query(struct fip_disk *disk, struct fipsee_vm_reply *reply);
int fip_ask_attach(struct fip_disk *disk, struct fip_memory *memory, u64 features, struct fipsee_vm_reply *reply);
int fip_ask_detach(struct fip_disk *disk);
void fip_ask_serial(struct fip_disk *disk);
void fip_doorbell_wanted(struct fip_disk *disk, bool is_wanted);
void fip_doorbell_hold(struct fip_virtqueue *virtqueue);

/* supervise.c */
void fip_supervise(struct work_struct *work);
int fip_attach(struct fip_disk *disk, bool is_first);
void fip_leave_rings(struct fip_disk *disk, bool is_dead);

/* aside.c */
bool fip_set_aside(struct fip_disk *disk);
void fip_give_back(struct fip_disk *disk);

/* stats.c */
void fip_stats_create(struct fip_disk *disk);
void fip_stats_remove(struct fip_disk *disk);
void fip_stats_init(void);
void fip_stats_exit(void);

#endif
