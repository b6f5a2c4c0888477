/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* death SOCKET: the harness kills and restarts the daemon, at any time. Disk f survives, disk a does not. */
#include "check.h"
#include <poll.h>

enum { BLOCK_BYTES = 4096 };

static struct fipsee_disk *open_waiting(const char *name, uint32_t wait, uint64_t reconnect_ns)
{
	struct fipsee_options options;
	struct fipsee_disk *disk;

	fipsee_options_init(&options);
	options.socket_path = the_socket;
	options.disk = name;
	options.wait = wait;
	options.depth = 8;
	options.reconnect_ns = reconnect_ns;
	EXPECT(fipsee_open(&options, &disk), 0);
	return disk;
}

/* Blocking calls fail cleanly however they wait, and work again after a reconnection. */
static void blocking_calls(uint32_t wait)
{
	struct fipsee_disk *disk = open_waiting("f", wait, 0);
	struct fipsee_queue *queue = fipsee_get_queue(disk, 0);
	char data[2 * BLOCK_BYTES] = { 0 };
	int outcome = 0;

	ask("kill");
	while (outcome == 0)
		outcome = fipsee_read(queue, data, sizeof(data), 0);
	FAILS(outcome, -ENOTCONN, "daemon");
	report("settle");
	EXPECT(fipsee_outstanding(queue), 0);
	FAILS(fipsee_flush(queue), -ENOTCONN, "daemon");
	FAILS(fipsee_write(queue, data, BLOCK_BYTES, 0, 0), -ENOTCONN, "daemon");
	FAILS(fipsee_discard(queue, BLOCK_BYTES, 0), -ENOTCONN, "daemon");
	EXPECT(fipsee_outstanding(queue), 0);
	FAILS(fipsee_reconnect(disk, 0), -ECONNREFUSED, "start fipseed");
	report("restart");
	EXPECT(fipsee_reconnect(disk, 60000000000u), 0);
	EXPECT(fipsee_read(queue, data, sizeof(data), 0), 0);
	EXPECT(fipsee_close(disk), 0);
}

/* Staged requests without a result are submitted again; memory is handed over again. */
static void batches(void)
{
	struct fipsee_disk *disk = open_waiting("f", 0, 0);
	struct fipsee_queue *queue = fipsee_get_queue(disk, 0);
	struct fipsee_result results[8];
	struct fipsee_memory *memory, *late;
	int seen[8] = { 0 }, count, i, total = 0;
	char *data, copy[BLOCK_BYTES];

	EXPECT(fipsee_memory_create(disk, 8 * BLOCK_BYTES, &memory), 0);
	data = fipsee_memory_address(memory);
	for (i = 0; i < 8; i++)
		memset(data + i * BLOCK_BYTES, 'a' + i, BLOCK_BYTES);
	for (i = 0; i < 8; i++)
		EXPECT(fipsee_stage_write(queue, data + i * BLOCK_BYTES, BLOCK_BYTES,
					  (uint64_t)(i + 8) * BLOCK_BYTES, 0, (uint64_t)i), 0);
	report("kill");
	FAILS(fipsee_wait(queue, results, 8, -1), -ENOTCONN, "daemon");
	EXPECT(fipsee_outstanding(queue), 8);
	FAILS(fipsee_memory_create(disk, 4096, &late), -ENOTCONN, "daemon");
	FAILS(fipsee_memory_free(disk, memory), -ENOTCONN, "daemon");
	report("restart");
	EXPECT(fipsee_reconnect(disk, 60000000000u), 0);
	while (total < 8) {
		count = fipsee_wait(queue, results, 8, -1);
		EXPECT(count > 0, 1);
		for (i = 0; i < count; i++) {
			EXPECT(results[i].result, 0);
			EXPECT(seen[results[i].token]++, 0);
		}
		total += count;
	}
	for (i = 0; i < 8; i++) {
		EXPECT(fipsee_read(queue, copy, BLOCK_BYTES, (uint64_t)(i + 8) * BLOCK_BYTES), 0);
		EXPECT(memcmp(copy, data + i * BLOCK_BYTES, BLOCK_BYTES), 0);
	}
	EXPECT(fipsee_memory_free(disk, memory), 0);
	EXPECT(fipsee_close(disk), 0);
}

/* An idle event loop learns of the end of the daemon through its descriptor. */
static void event_loop(void)
{
	struct fipsee_disk *disk = open_waiting("f", 0, 0);
	struct fipsee_queue *queue = fipsee_get_queue(disk, 0);
	struct pollfd poller = { fipsee_descriptor(queue), POLLIN, 0 };

	EXPECT(fipsee_arm(queue), 0);
	ask("kill");
	EXPECT(poll(&poller, 1, -1), 1);
	FAILS(fipsee_woken(queue), -ENOTCONN, "daemon");
	report("restart");
	EXPECT(fipsee_reconnect(disk, 60000000000u), 0);
	EXPECT(fipsee_descriptor(queue) >= 0, 1);
	ask("kill");
	poller.fd = fipsee_descriptor(queue);
	EXPECT(fipsee_arm(queue), 0);
	EXPECT(poll(&poller, 1, -1), 1);
	FAILS(fipsee_close(disk), -ENOTCONN, "daemon");
	report("restart");
}

/* A disk of memory is another one after a restart: no client may take it for the same. */
static void another_disk(void)
{
	struct fipsee_disk *disk = open_waiting("a", 0, 0);
	char data[512];

	report("kill");
	FAILS(fipsee_read(fipsee_get_queue(disk, 0), data, 512, 0), -ENOTCONN, "daemon");
	report("restart");
	FAILS(fipsee_reconnect(disk, 1000000000), -ESTALE, "identity");
	FAILS(fipsee_close(disk), -ENOTCONN, "daemon");
}

/* With reconnect_ns the program does not notice. */
static void outliving(void)
{
	struct fipsee_disk *disk = open_waiting("f", 0, 60000000000u);
	struct fipsee_queue *queue = fipsee_get_queue(disk, 0);
	struct fipsee_memory *memory;
	struct fipsee_result result;
	uint32_t data[2 * BLOCK_BYTES], copy[2 * BLOCK_BYTES], round, i;

	EXPECT(fipsee_memory_create(disk, BLOCK_BYTES, &memory), 0);
	for (round = 0; round < 200; round++) {
		if (round == 50 || round == 100 || round == 150)
			ask("bounce");
		for (i = 0; i < 2 * BLOCK_BYTES; i++)
			data[i] = round * i;
		EXPECT(fipsee_write(queue, data, sizeof(data), 65536, 0), 0);
		EXPECT(fipsee_read(queue, copy, sizeof(copy), 65536), 0);
		EXPECT(memcmp(data, copy, sizeof(data)), 0);
		EXPECT(fipsee_stage_read(queue, fipsee_memory_address(memory), BLOCK_BYTES, 65536, round), 0);
		EXPECT(fipsee_wait(queue, &result, 1, -1), 1);
		EXPECT(result.token, round);
		EXPECT(result.result, 0);
		EXPECT(memcmp(data, fipsee_memory_address(memory), BLOCK_BYTES), 0);
	}
	report("settle");
	EXPECT(fipsee_flush(queue), 0);
	EXPECT(fipsee_close(disk), 0);
}

int main(int argc, char **argv)
{
	struct fipsee_options options;
	struct fipsee_disk *disk;

	EXPECT(argc, 2);
	the_socket = argv[1];
	blocking_calls(FIPSEE_WAIT_ADAPTIVE);
	blocking_calls(FIPSEE_WAIT_POLL);
	blocking_calls(FIPSEE_WAIT_SPIN);
	blocking_calls(FIPSEE_WAIT_YIELD);
	blocking_calls(FIPSEE_WAIT_SLEEP);
	batches();
	event_loop();
	another_disk();
	outliving();
	report("kill");
	fipsee_options_init(&options);
	options.socket_path = the_socket;
	options.disk = "a";
	FAILS(fipsee_open(&options, &disk), -ECONNREFUSED, "start fipseed");
	puts("done");
	return 0;
}
