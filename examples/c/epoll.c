/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* epoll DISK: read a whole disk, 32 requests at a time, in an event loop. The daemon's socket: $FIPSEE_SOCKET. */
#include <fipsee_client.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

enum { DEPTH = 32, BLOCK_BYTES = 65536 };

static int check(int outcome, const char *what)
{
	if (outcome < 0) {
		fprintf(stderr, "epoll: %s: %s\n", what, fipsee_error_message());
		exit(1);
	}
	return outcome;
}

int main(int argc, char **argv)
{
	struct fipsee_result results[DEPTH];
	struct fipsee_options options;
	struct fipsee_info info = { .size_bytes = sizeof(info) };
	struct epoll_event event = { .events = EPOLLIN };
	struct fipsee_disk *disk;
	struct fipsee_memory *memory;
	struct fipsee_queue *queue;
	uint64_t next = 0, done = 0, blocks, slot;
	int loop = epoll_create1(EPOLL_CLOEXEC), count, i;
	char *buffers;

	fipsee_options_init(&options);
	options.disk = argc == 2 ? argv[1] : "a";
	check(fipsee_open(&options, &disk), options.disk);
	check(fipsee_get_info(disk, &info), "info");
	check(fipsee_memory_create(disk, DEPTH * BLOCK_BYTES, &memory), "memory");
	queue = fipsee_get_queue(disk, 0);
	buffers = fipsee_memory_address(memory);
	blocks = info.capacity_bytes / BLOCK_BYTES;
	epoll_ctl(loop, EPOLL_CTL_ADD, fipsee_descriptor(queue), &event);
	for (slot = 0; slot < DEPTH && next < blocks; slot++, next++)
		check(fipsee_stage_read(queue, buffers + slot * BLOCK_BYTES, BLOCK_BYTES, next * BLOCK_BYTES, slot), "read");
	while (done < blocks) {
		count = check(fipsee_reap(queue, results, DEPTH), "reap");
		for (i = 0; i < count; i++, done++) {
			if (results[i].result < 0)
				return fprintf(stderr, "epoll: %s\n", fipsee_result_message(&results[i])), 1;
			slot = results[i].token;	/* Its buffer holds a block now, and then the next one. */
			if (next < blocks)
				check(fipsee_stage_read(queue, buffers + slot * BLOCK_BYTES, BLOCK_BYTES,
							next++ * BLOCK_BYTES, slot), "read");
		}
		if (count > 0 || check(fipsee_arm(queue), "arm") == 1)
			continue;	/* There may be more: sleep only when armed and nothing came meanwhile. */
		epoll_wait(loop, &event, 1, -1);
		check(fipsee_woken(queue), "wait");
	}
	printf("%llu blocks read\n", (unsigned long long)done);
	return -check(fipsee_close(disk), "close");
}
