/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* batches SOCKET: staged requests of every kind, full queues, small arrays, timeouts, event loops, wrong arguments. */
#include "check.h"
#include <poll.h>
#include <time.h>

static struct fipsee_disk *disk;
static struct fipsee_queue *queue;
static struct fipsee_memory *memory;
static char *buffer;

/* Wait until nothing is outstanding; the results, by token, in `by_token`. */
static void finish(int *by_token, uint32_t room)
{
	struct fipsee_result results[8];
	int count, i;

	while (fipsee_outstanding(queue) > 0) {
		count = fipsee_wait(queue, results, room, -1);
		EXPECT(count >= 0 && count <= (int)room, 1);
		for (i = 0; i < count; i++) {
			EXPECT(results[i].token < 64 && by_token[results[i].token] == 1, 1);
			by_token[results[i].token] = results[i].result;
		}
	}
}

static void every_kind(void)
{
	struct iovec pieces[9];
	int outcome[64], i;

	for (i = 0; i < 64; i++)
		outcome[i] = 1;
	for (i = 0; i < 64; i++)
		memset(buffer + i * 512, 'A' + i, 512);
	EXPECT(fipsee_stage_write(queue, buffer, 32768, 0, 0, 0), 0);
	finish(outcome, 8);
	EXPECT(fipsee_stage_flush(queue, 1), 0);
	/* Nine pieces, backwards: needs a table. Two pieces: does not. */
	for (i = 0; i < 9; i++) {
		pieces[i].iov_base = buffer + 32768 + (8 - i) * 512;
		pieces[i].iov_len = 512;
	}
	EXPECT(fipsee_stage_readv(queue, pieces, 9, 512, 2), 0);
	pieces[0].iov_base = buffer + 65536;
	pieces[1].iov_base = buffer;
	EXPECT(fipsee_stage_writev(queue, pieces, 2, 1 << 20, FIPSEE_DURABLE, 3), 0);
	EXPECT(fipsee_stage_discard(queue, 512, 2 << 20, 4), 0);
	EXPECT(fipsee_stage_write_zeroes(queue, 1024, 20480, FIPSEE_UNMAP, 5), 0);
	EXPECT(fipsee_outstanding(queue), 5);
	finish(outcome, 8);
	for (i = 0; i < 6; i++)
		EXPECT(outcome[i], 0);
	for (i = 0; i < 9; i++)
		EXPECT(buffer[32768 + (8 - i) * 512], 'A' + 1 + i);
	outcome[6] = 1;
	EXPECT(fipsee_stage_read(queue, buffer + 98304, 2048, 20480 - 512, 6), 0);
	finish(outcome, 8);
	EXPECT(buffer[98304], 'A' + 39);
	EXPECT(buffer[98304 + 512], 0);
	EXPECT(buffer[98304 + 1536], 'A' + 42);
}

static void full_queues_and_small_arrays(void)
{
	struct fipsee_result result;
	int outcome[64], i, reaped = 0;

	for (i = 0; i < 64; i++)
		outcome[i] = 1;
	for (i = 0; i < 8; i++)
		EXPECT(fipsee_stage_read(queue, buffer + i * 512, 512, 0, (uint64_t)i), 0);
	FAILS(fipsee_stage_read(queue, buffer, 512, 0, 8), -EAGAIN, "reap");
	FAILS(fipsee_stage_flush(queue, 8), -EAGAIN, "reap");
	EXPECT(fipsee_submit(queue), 0);
	EXPECT(fipsee_submit(queue), 0);
	while (reaped == 0)
		reaped = fipsee_reap(queue, &result, 1);
	EXPECT(reaped, 1);
	outcome[result.token] = 0;
	/* What did not fit the array still counts, so one place is free. */
	EXPECT(fipsee_outstanding(queue), 7);
	EXPECT(fipsee_stage_read(queue, buffer, 512, 0, 8), 0);
	FAILS(fipsee_stage_read(queue, buffer, 512, 0, 9), -EAGAIN, "reap");
	finish(outcome, 1);
	for (i = 0; i < 9; i++)
		EXPECT(outcome[i], 0);
	EXPECT(fipsee_reap(queue, &result, 1), 0);
	EXPECT(fipsee_wait(queue, &result, 1, -1), 0);	/* Nothing is outstanding. */
}

static void failures_of_requests(void)
{
	struct fipsee_result result;

	EXPECT(fipsee_stage_read(queue, buffer, 512, capacity_of(disk), 77), 0);
	EXPECT(fipsee_wait(queue, &result, 1, -1), 1);
	EXPECT(result.token, 77);
	EXPECT(result.result, -ENXIO);
	EXPECT(strstr(fipsee_result_message(&result), "end of the disk") != NULL, 1);
	result.status = 0;
	EXPECT(strcmp(fipsee_result_message(&result), "done"), 0);
	result.status = 1000;
	EXPECT(strstr(fipsee_result_message(&result), "not a result") != NULL, 1);
	EXPECT(strstr(fipsee_result_message(NULL), "not a result") != NULL, 1);
}

static void wrong_arguments(void)
{
	static char elsewhere[1024] __attribute__((aligned(512)));
	struct iovec pieces[257] = { { buffer, 512 }, { buffer + 100, 512 } };
	struct fipsee_result result;
	struct fipsee_info info = { .size_bytes = sizeof(info) };

	EXPECT(fipsee_get_info(disk, &info), 0);
	FAILS(fipsee_stage_read(NULL, buffer, 512, 0, 0), -EINVAL, "queue");
	FAILS(fipsee_stage_read(queue, NULL, 512, 0, 0), -EFAULT, "fipsee_memory_create");
	FAILS(fipsee_stage_read(queue, elsewhere, 512, 0, 0), -EFAULT, "blocking calls");
	FAILS(fipsee_stage_read(queue, buffer + fipsee_memory_length(memory), 512, 0, 0), -EFAULT, "are not in memory");
	FAILS(fipsee_stage_read(queue, buffer + fipsee_memory_length(memory) - 512, 1024, 0, 0), -EFAULT, "are not in memory");
	FAILS(fipsee_stage_read(queue, buffer + 4, 512, 0, 0), -EINVAL, "multiple of 512");
	FAILS(fipsee_stage_read(queue, buffer, 0, 0, 0), -EINVAL, "length is 0");
	FAILS(fipsee_stage_read(queue, buffer, 511, 0, 0), -EINVAL, "multiples");
	FAILS(fipsee_stage_read(queue, buffer, 512, 1, 0), -EINVAL, "multiples");
	FAILS(fipsee_stage_read(queue, buffer, (size_t)info.max_transfer_bytes + 512, 0, 0), -EMSGSIZE, "split");
	FAILS(fipsee_stage_read(queue, buffer, (size_t)1 << 62, 0, 0), -EMSGSIZE, "split");
	FAILS(fipsee_stage_write(queue, buffer, 512, 0, FIPSEE_UNMAP, 0), -EINVAL, "FIPSEE_DURABLE");
	FAILS(fipsee_stage_write_zeroes(queue, 512, 0, 8, 0), -EINVAL, "flags");
	FAILS(fipsee_stage_write_zeroes(queue, 0, 0, 0, 0), -EINVAL, "length is 0");
	FAILS(fipsee_stage_discard(queue, 100, 0, 0), -EINVAL, "multiples");
	FAILS(fipsee_stage_readv(queue, NULL, 1, 0, 0), -EINVAL, "pieces");
	FAILS(fipsee_stage_readv(queue, pieces, 0, 0, 0), -EINVAL, "1 to 256");
	FAILS(fipsee_stage_readv(queue, pieces, 257, 0, 0), -EINVAL, "1 to 256");
	FAILS(fipsee_stage_readv(queue, pieces, 2, 0, 0), -EINVAL, "multiple of 512");
	pieces[1].iov_base = elsewhere;
	FAILS(fipsee_stage_writev(queue, pieces, 2, 0, 0, 0), -EFAULT, "are not in memory");
	pieces[1].iov_len = 0;
	FAILS(fipsee_stage_writev(queue, pieces, 2, 0, 0, 0), -EINVAL, "multiple of 512");
	FAILS(fipsee_reap(queue, NULL, 1), -EINVAL, "results");
	FAILS(fipsee_reap(queue, &result, 0), -EINVAL, "max_results");
	FAILS(fipsee_reap(NULL, &result, 1), -EINVAL, "queue");
	FAILS(fipsee_wait(queue, NULL, 1, 0), -EINVAL, "results");
	FAILS(fipsee_submit(NULL), -EINVAL, "queue");
	FAILS(fipsee_arm(NULL), -EINVAL, "queue");
	FAILS(fipsee_woken(NULL), -EINVAL, "queue");
	FAILS(fipsee_descriptor(NULL), -EINVAL, "queue");
	FAILS(fipsee_next_event(NULL), -EINVAL, "queue");
	EXPECT(fipsee_outstanding(queue), 0);
	EXPECT(fipsee_next_event(queue), FIPSEE_EVENT_NONE);
}

/* Requests of another queue's memory, memory that was freed, and memory made later at the same address. */
static void memory_that_changes(void)
{
	struct fipsee_memory *first, *second;
	int outcome[64], round;

	for (round = 0; round < 8; round++) {
		outcome[0] = outcome[1] = 1;
		EXPECT(fipsee_memory_create(disk, 4096, &first), 0);
		EXPECT(fipsee_memory_create(disk, 8192, &second), 0);
		memset(fipsee_memory_address(first), round + 1, 512);
		EXPECT(fipsee_stage_write(queue, fipsee_memory_address(first), 512, 0, 0, 0), 0);
		finish(outcome, 8);
		EXPECT(fipsee_stage_read(queue, (char *)fipsee_memory_address(second) + 4096, 512, 0, 1), 0);
		finish(outcome, 8);
		EXPECT(((char *)fipsee_memory_address(second))[4096], round + 1);
		EXPECT(outcome[0], 0);
		EXPECT(outcome[1], 0);
		EXPECT(fipsee_memory_free(disk, round % 2 ? first : second), 0);
		EXPECT(fipsee_memory_free(disk, round % 2 ? second : first), 0);
	}
}

static void event_loop(void)
{
	struct pollfd poller = { fipsee_descriptor(queue), POLLIN, 0 };
	struct fipsee_result results[8];
	int left = 10000, staged = 0, count;

	while (left > 0) {
		while (staged < 3 && staged < left) {
			EXPECT(fipsee_stage_read(queue, buffer, 512, 0, 0), 0);
			staged++;
		}
		count = fipsee_reap(queue, results, 8);
		EXPECT(count >= 0, 1);
		left -= count;
		staged -= count;
		if (count > 0)
			continue;
		count = fipsee_arm(queue);
		EXPECT(count == 0 || count == 1, 1);
		if (count == 0)
			EXPECT(poll(&poller, 1, -1), 1);
		EXPECT(fipsee_woken(queue), 0);
	}
	/* What did not fit is work that remains. */
	EXPECT(fipsee_stage_flush(queue, 1), 0);
	EXPECT(fipsee_stage_flush(queue, 2), 0);
	EXPECT(fipsee_wait(queue, results, 1, -1), 1);
	while (fipsee_outstanding(queue) > 0) {
		if (fipsee_arm(queue) == 0)
			EXPECT(poll(&poller, 1, -1), 1);
		EXPECT(fipsee_woken(queue), 0);
		EXPECT(fipsee_reap(queue, results, 1) >= 0, 1);
	}
	/* Silent when nothing is to come; the last doorbell may be late. */
	staged = 0;
	do {
		EXPECT(fipsee_arm(queue), 0);
		count = poll(&poller, 1, 0);
		EXPECT(fipsee_woken(queue), 0);
	} while (count != 0 && ++staged < 10);
	EXPECT(count, 0);
}

static void timeouts(void)
{
	struct fipsee_result result;
	int rounds = 0, count = 0;

	/* The daemon may or may not have answered by then: the call returns either way. */
	EXPECT(fipsee_stage_read(queue, buffer, 512, 0, 5), 0);
	while (count == 0) {
		count = fipsee_wait(queue, &result, 1, rounds++ * 1000);
		EXPECT(count == 0 || count == 1, 1);
	}
	EXPECT(result.token, 5);
	EXPECT(fipsee_wait(queue, &result, 1, 1000000), 0);
}

int main(int argc, char **argv)
{
	EXPECT(argc, 2);
	the_socket = argv[1];
	disk = open_disk("a", 1, 8);
	queue = fipsee_get_queue(disk, 0);
	EXPECT(fipsee_memory_create(disk, 1 << 20, &memory), 0);
	buffer = fipsee_memory_address(memory);
	every_kind();
	full_queues_and_small_arrays();
	failures_of_requests();
	wrong_arguments();
	memory_that_changes();
	event_loop();
	timeouts();
	EXPECT(fipsee_close(disk), 0);
	puts("done");
	return 0;
}
