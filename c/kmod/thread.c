// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Threads that reap what submitters left. Each has some of a disk's rings, which move between threads as load requires (govern.c).
 * It polls while answers are due soon, then arms the rings and sleeps until the daemon rings or a submitter wakes it.
 */
#include <linux/kthread.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>

#include "fip_blk.h"

/* Looks without an answer between two at the clock and the scheduler. */
#define FIP_LOOKS_PER_CLOCK 16

/* Those that it has when the loop begins. */
#define for_each_ring_of(thread, ring)									\
	for (unsigned long left = READ_ONCE((thread)->rings);						\
	     left && ((ring) = &(thread)->disk->rings[__ffs(left)], true); left &= left - 1)

static unsigned int fip_thread_reap(struct fip_thread *thread)
{
	struct fip_ring *ring;
	unsigned int count = 0;

	for_each_ring_of(thread, ring) {
		unsigned int found;

		if (!fip_ring_outstanding(ring) && !READ_ONCE(ring->was_rung))
			continue;
		found = fip_reap_for_others(ring);
		ring->reap_stats.by_thread += found;
		count += found;
	}
	thread->reaped += count;
	return count;
}

static bool fip_thread_has_work(struct fip_thread *thread)
{
	struct fip_ring *ring;

	for_each_ring_of(thread, ring) {
		if (READ_ONCE(ring->is_live) &&
		    (READ_ONCE(ring->was_rung) || (fip_ring_outstanding(ring) && !READ_ONCE(ring->is_armed))))
			return true;
	}
	return false;
}

/* The slot that the next answer will be written to, if only one ring awaits any. */
static const u32 *fip_thread_word(struct fip_thread *thread, u32 *value)
{
	struct fip_ring *ring, *only = NULL;
	const u32 *word = NULL;

	for_each_ring_of(thread, ring) {
		if (!fip_ring_outstanding(ring))
			continue;
		if (only)
			return NULL;
		only = ring;
	}
	if (!only || !fip_reap_trylock(only))
		return NULL;
	if (only->is_live) {
		word = &only->completions.ring.slots[only->completions.cursor.index].stamp;
		*value = READ_ONCE(*word);
		if (*value == only->completions.cursor.stamp)
			word = NULL;
	}
	fip_reap_unlock(only);
	return word;
}

/* The pause after one look. The word waited on stays mapped: fip_stop_rings() awaits the end of the read-side section. */
static void fip_thread_pause(struct fip_thread *thread)
{
	const u32 *word = NULL;
	u32 value;

	rcu_read_lock();
	if (fip_mwait_wanted && fip_can_mwait() && num_online_cpus() > 1)
		word = fip_thread_word(thread, &value);
	if (word) {
		thread->mwaits++;
		fip_mwait(word, value, fip_ticks_per_us * 20);
	} else {
		cpu_relax();
	}
	rcu_read_unlock();
}

/*
 * Lets waiting tasks run first. On one CPU that takes yield(): cond_resched() would leave us on it for some microseconds, as long
 * as we have not used up our share.
 */
static void fip_thread_relinquish(void)
{
	if (num_online_cpus() == 1)
		yield();
	else
		cond_resched();
}

/* For how long we could have run and others did, in ns, as of when we ran again. 0 where the kernel does not count it. */
static u64 fip_thread_waited(void)
{
#ifdef CONFIG_SCHED_INFO
	return current->sched_info.run_delay;
#else
	return 0;
#endif
}

/* Since `began`, less what others had of our CPU. */
static void fip_thread_was_busy(struct fip_thread *thread, u64 began, u64 waited)
{
	u64 busy = fip_ticks() - began;

	waited = fip_thread_waited() - waited;
	if (unlikely(waited))
		busy -= min(busy, mul_u64_u64_div_u64(waited, fip_ticks_per_us, 1000));
	WRITE_ONCE(thread->busy_ticks, thread->busy_ticks + busy);
}

/* Polls until nothing came for a while. Busy are looks that find something, not pauses, nor what others run between two looks. */
static void fip_thread_poll(struct fip_thread *thread)
{
	u64 idle_since = fip_ticks(), began = idle_since, waited = fip_thread_waited();
	u32 looks = 0;

	while (!kthread_should_stop()) {
		if (fip_thread_reap(thread)) {
			fip_thread_was_busy(thread, began, waited);
			fip_thread_relinquish();
			waited = fip_thread_waited();
			idle_since = began = fip_ticks();
			looks = 0;
			continue;
		}
		fip_thread_pause(thread);
		waited = fip_thread_waited();
		began = fip_ticks();
		if (++looks % FIP_LOOKS_PER_CLOCK)
			continue;
		/* Our CPU went, and we may run on any. */
		if (unlikely(current->nr_cpus_allowed > 1))
			fip_governor_follow(thread->disk);
		if (fip_ticks() - idle_since > fip_thread_us * fip_ticks_per_us || !fip_thread_has_work(thread))
			return;
		fip_thread_relinquish();
	}
}

/* False if there is work after all. */
static bool fip_thread_arm(struct fip_thread *thread)
{
	struct fip_ring *ring;
	bool is_armed = true;

	for_each_ring_of(thread, ring) {
		if (READ_ONCE(ring->is_live) && !READ_ONCE(ring->is_armed) && !fip_reap_or_arm(ring))
			is_armed = false;
	}
	return is_armed;
}

static int fip_thread_run(void *data)
{
	struct fip_thread *thread = data;

	set_user_nice(current, MAX_NICE);
	while (!kthread_should_stop()) {
		fip_thread_poll(thread);
		if (!fip_thread_arm(thread)) {
			cond_resched();
			continue;
		}
		set_current_state(TASK_INTERRUPTIBLE);
		WRITE_ONCE(thread->is_polling, false);
		/* A submitter publishes, then looks whether we poll; we say that we do not, then look at what it published. */
		mb();
		if (!fip_thread_has_work(thread) && !kthread_should_stop()) {
			thread->sleeps++;
			schedule();
		}
		__set_current_state(TASK_RUNNING);
		WRITE_ONCE(thread->is_polling, true);
		fip_governor_wake(thread->disk);
	}
	return 0;
}

/* From anywhere, after a full fence: it, or the one within wake_up_process(), pairs with the thread's. */
void fip_thread_wake(struct fip_thread *thread)
{
	if (thread && thread->task && !READ_ONCE(thread->is_polling))
		wake_up_process(thread->task);
}

/* With the CPUs locked. On the first call of a disk, or when load asks for another thread. */
int fip_thread_start(struct fip_thread *thread)
{
	struct task_struct *task;

	thread->is_polling = true;
	fip_place_thread(thread);
	task = kthread_create_on_node(fip_thread_run, thread, cpu_to_node(thread->cpu), "fip%d/%u", thread->disk->minor, thread->index);
	if (IS_ERR(task)) {
		fip_unplace_thread(thread);
		return PTR_ERR(task);
	}
	kthread_bind(task, thread->cpu);
	thread->task = task;
	wake_up_process(task);
	return 0;
}

void fip_thread_stop(struct fip_thread *thread)
{
	if (thread->task)
		kthread_stop(thread->task);
	thread->task = NULL;
	fip_unplace_thread(thread);
}
