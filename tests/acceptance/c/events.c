/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* events SOCKET: the harness resizes disk a, then ends the daemon in order. */
#include "check.h"
#include <poll.h>

static struct fipsee_disk *disk;
static struct fipsee_queue *queue;

/* Sleep until an event comes; nothing is outstanding. */
static int wait_idle(void)
{
	struct pollfd poller = { fipsee_descriptor(queue), POLLIN, 0 };
	struct fipsee_result result;
	int event;

	for (;;) {
		EXPECT(fipsee_reap(queue, &result, 1), 0);
		event = fipsee_next_event(queue);
		EXPECT(event >= 0, 1);
		if (event != FIPSEE_EVENT_NONE)
			return event;
		if (fipsee_arm(queue) == 0)
			EXPECT(poll(&poller, 1, -1), 1);
		EXPECT(fipsee_woken(queue), 0);
	}
}

/* Keep reading until an event comes; `result` is that of the last read. */
static int wait_busy(struct fipsee_result *result, char *buffer)
{
	int event = FIPSEE_EVENT_NONE, count;

	while (event == FIPSEE_EVENT_NONE) {
		EXPECT(fipsee_stage_read(queue, buffer, 512, 0, 3), 0);
		do {
			count = fipsee_wait(queue, result, 1, -1);
			EXPECT(count == 0 || count == 1, 1);
			if (event == FIPSEE_EVENT_NONE)
				event = fipsee_next_event(queue);
		} while (count == 0);
	}
	return event;
}

/* A queue of depth 1: the acknowledgement of an event takes the only place between two parts of a transfer. */
static void events_between_parts(void)
{
	static char data[1 << 20], copy[sizeof(data)];
	struct fipsee_disk *narrow = open_disk("a", 1, 1);
	struct fipsee_queue *only = fipsee_get_queue(narrow, 0);
	uint64_t seed = 1;
	size_t i;
	int round;

	for (i = 0; i < sizeof(data); i++)
		data[i] = (char)next_random(&seed);
	EXPECT(fipsee_write(only, data, sizeof(data), 0, 0), 0);
	for (round = 0; round < 40; round++) {
		ask(round % 2 ? "resize 16M" : "resize 17M");
		do {
			memset(copy, 0, sizeof(copy));
			EXPECT(fipsee_read(only, copy, sizeof(copy), 0), 0);
			EXPECT(memcmp(data, copy, sizeof(data)), 0);
		} while (fipsee_next_event(only) != FIPSEE_EVENT_RESIZED);
		EXPECT(fipsee_flush(only), 0);
		EXPECT(fipsee_discard(only, 512, 2 << 20), 0);
	}
	EXPECT(fipsee_close(narrow), 0);
}

int main(int argc, char **argv)
{
	struct fipsee_memory *memory;
	struct fipsee_result result;
	struct pollfd poller;
	char block[512];
	int event, outcome;

	EXPECT(argc, 2);
	the_socket = argv[1];
	events_between_parts();
	disk = open_disk("a", 1, 8);
	queue = fipsee_get_queue(disk, 0);
	poller.fd = fipsee_descriptor(queue);
	poller.events = POLLIN;
	EXPECT(fipsee_memory_create(disk, 4096, &memory), 0);
	EXPECT(capacity_of(disk), 16 << 20);
	ask("resize 32M");
	EXPECT(wait_idle(), FIPSEE_EVENT_RESIZED);
	EXPECT(fipsee_next_event(queue), FIPSEE_EVENT_NONE);
	EXPECT(capacity_of(disk), 32 << 20);
	EXPECT(fipsee_read(queue, block, 512, (32 << 20) - 512), 0);
	ask("resize 8M");
	EXPECT(wait_busy(&result, fipsee_memory_address(memory)), FIPSEE_EVENT_RESIZED);
	EXPECT(result.result, 0);
	EXPECT(capacity_of(disk), 8 << 20);
	FAILS(fipsee_read(queue, block, 512, 8 << 20), -ENXIO, "end of the disk");
	/* Blocking calls are not disturbed by events, and the events are not lost. */
	ask("resize 16M");
	do {
		EXPECT(fipsee_read(queue, block, 512, 0), 0);
		event = fipsee_next_event(queue);
	} while (event == FIPSEE_EVENT_NONE);
	EXPECT(event, FIPSEE_EVENT_RESIZED);
	EXPECT(capacity_of(disk), 16 << 20);
	/* A daemon that ends in order closes the channel when it has answered everything. */
	ask("terminate");
	do {
		EXPECT(fipsee_reap(queue, &result, 1), 0);
		if (fipsee_arm(queue) == 0)
			EXPECT(poll(&poller, 1, -1), 1);
		outcome = fipsee_woken(queue);
	} while (outcome == 0);
	FAILS(outcome, -ENOTCONN, "daemon");
	FAILS(fipsee_read(queue, block, 512, 0), -ENOTCONN, "daemon");
	EXPECT(fipsee_close(disk), 0);	/* It had said goodbye. */
	puts("done");
	return 0;
}
