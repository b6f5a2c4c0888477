/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* doorbells SOCKET: how often program and daemon woke each other, as the library counts it for a queue of a disk. */
#include "check.h"
#include <poll.h>

static struct fipsee_disk *disk;
static struct fipsee_queue *queue;
static struct fipsee_memory *memory;

static struct fipsee_doorbell_counts counts(void)
{
	struct fipsee_doorbell_counts counts = { .size_bytes = sizeof(counts) };

	EXPECT(fipsee_get_doorbell_counts(queue, &counts), 0);
	EXPECT(counts.size_bytes, sizeof(counts));
	return counts;
}

static void open_null(const char *notify)
{
	struct fipsee_options options;

	fipsee_options_init(&options);
	options.socket_path = the_socket;
	options.disk = "n";
	options.notify = notify;
	EXPECT(fipsee_open(&options, &disk), 0);
	EXPECT(fipsee_memory_create(disk, 4096, &memory), 0);
	queue = fipsee_get_queue(disk, 0);
}

/* Submit a request and arm the doorbell for its result. 0 when the result was faster. */
static int await_doorbell(void)
{
	EXPECT(fipsee_stage_read(queue, fipsee_memory_address(memory), 4096, 0, 0), 0);
	return fipsee_arm(queue) == 0;
}

/* The doorbell is rung: silence it. */
static void wake(void)
{
	struct pollfd poller = { fipsee_descriptor(queue), POLLIN, 0 };

	EXPECT(poll(&poller, 1, -1), 1);
	EXPECT(fipsee_woken(queue), 0);
}

/* A wake-up with a result, and one whose result was found before. 0 when a result was there before the doorbell was armed. */
static int both_kinds(void)
{
	struct fipsee_result result;

	if (!await_doorbell())
		return 0;
	wake();
	EXPECT(counts().wakeups, 1);
	EXPECT(counts().spurious, 0);
	EXPECT(fipsee_reap(queue, &result, 1), 1);
	if (!await_doorbell())
		return 0;
	while (fipsee_reap(queue, &result, 1) == 0)
		;
	wake();
	EXPECT(counts().wakeups, 2);
	EXPECT(counts().spurious, 1);
	EXPECT(counts().doorbells <= 2, 1);
	EXPECT(counts().suppressed, 0);
	return 1;
}

static void wakeups(void)
{
	int done;

	do {
		/* Each time anew: after a result that was faster than the arming, a doorbell may come at any time. */
		open_null(NULL);
		EXPECT(counts().doorbells + counts().suppressed + counts().wakeups + counts().spurious, 0);
		done = both_kinds();
		EXPECT(fipsee_close(disk), 0);
	} while (!done);
}

/* One request, and some time in which the daemon has nothing to do. */
static void request_and_idle(void)
{
	struct pollfd poller = { fipsee_descriptor(queue), POLLIN, 0 };
	struct fipsee_result result;

	EXPECT(fipsee_stage_read(queue, fipsee_memory_address(memory), 4096, 0, 0), 0);
	EXPECT(fipsee_wait(queue, &result, 1, -1), 1);
	EXPECT(fipsee_arm(queue), 0);
	EXPECT(poll(&poller, 1, 1) >= 0, 1);
	EXPECT(fipsee_woken(queue), 0);
}

static void doorbells(void)
{
	open_null(NULL);
	while (counts().doorbells == 0)
		request_and_idle();
	EXPECT(counts().suppressed, 0);
	EXPECT(fipsee_close(disk), 0);
	/* One request at a time never is eight, so each waits for the delay. */
	open_null("min_completions=8,max_delay_us=500");
	while (counts().suppressed == 0)
		request_and_idle();
	EXPECT(fipsee_close(disk), 0);
}

static void wrong_and_other_sizes(void)
{
	struct { struct fipsee_doorbell_counts known; uint64_t newer; } found;

	open_null(NULL);
	memset(&found, 0xff, sizeof(found));
	found.known.size_bytes = sizeof(found);
	EXPECT(fipsee_get_doorbell_counts(queue, &found.known), 0);
	EXPECT(found.known.size_bytes, sizeof(found.known));
	EXPECT(found.newer, 0);
	found.known.size_bytes = offsetof(struct fipsee_doorbell_counts, wakeups);
	found.known.wakeups = 77;
	EXPECT(fipsee_get_doorbell_counts(queue, &found.known), 0);
	EXPECT(found.known.wakeups, 77);
	found.known.size_bytes = 8;
	FAILS(fipsee_get_doorbell_counts(queue, &found.known), -EINVAL, "sizeof(struct fipsee_doorbell_counts)");
	FAILS(fipsee_get_doorbell_counts(queue, NULL), -EINVAL, "counts is a null pointer");
	FAILS(fipsee_get_doorbell_counts(NULL, &found.known), -EINVAL, "queue is a null pointer");
	EXPECT(fipsee_close(disk), 0);
}

int main(int argc, char **argv)
{
	EXPECT(argc, 2);
	the_socket = argv[1];
	wakeups();
	doorbells();
	wrong_and_other_sizes();
	puts("done");
	return 0;
}
