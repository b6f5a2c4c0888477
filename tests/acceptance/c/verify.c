/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * verify SOCKET DISK ROUNDS: four threads, each with its own queue and part of the disk, do everything at random and compare
 * what they read with what they wrote; meanwhile they make and free memory of the one disk.
 */
#include "check.h"
#include <pthread.h>

enum { THREADS = 4, BLOCK_BYTES = 4096, BLOCKS = 256, DEPTH = 16, PART_BYTES = BLOCKS * BLOCK_BYTES };

struct worker {
	struct fipsee_disk *disk;
	struct fipsee_queue *queue;
	uint64_t start_bytes, random;
	int rounds;
	unsigned char *expected;	/* What this part of the disk must hold. */
	unsigned char *scratch;		/* Of any alignment; one byte longer. */
	pthread_t thread;
};

static uint64_t below(struct worker *worker, uint64_t limit)
{
	return next_random(&worker->random) % limit;
}

static void fill(struct worker *worker, unsigned char *to, size_t length_bytes)
{
	size_t i;

	for (i = 0; i < length_bytes; i += 8) {
		uint64_t word = next_random(&worker->random) << 32 | next_random(&worker->random);

		memcpy(to + i, &word, 8);
	}
}

static void compare(const struct worker *worker, const unsigned char *data, size_t at, size_t length_bytes)
{
	EXPECT(memcmp(data, worker->expected + at, length_bytes), 0);
}

static void blocking(struct worker *worker)
{
	size_t at = below(worker, BLOCKS) * BLOCK_BYTES;
	size_t length_bytes = (1 + below(worker, BLOCKS - at / BLOCK_BYTES)) * BLOCK_BYTES;
	unsigned char *buffer = worker->scratch + below(worker, 2);
	uint64_t offset_bytes = worker->start_bytes + at;

	switch (below(worker, 4)) {
	case 0:
		fill(worker, buffer, length_bytes);
		memcpy(worker->expected + at, buffer, length_bytes);
		EXPECT(fipsee_write(worker->queue, buffer, length_bytes, offset_bytes, (uint32_t)below(worker, 2)), 0);
		break;
	case 1:
		memset(worker->expected + at, 0, length_bytes);
		EXPECT(fipsee_write_zeroes(worker->queue, length_bytes, offset_bytes, (uint32_t)below(worker, 4)), 0);
		break;
	default:
		EXPECT(fipsee_read(worker->queue, buffer, length_bytes, offset_bytes), 0);
		compare(worker, buffer, at, length_bytes);
	}
}

/* Reap all; what fails, fails the test. */
static void finish(struct worker *worker)
{
	struct fipsee_result results[DEPTH];
	int count, i;

	while (fipsee_outstanding(worker->queue) > 0) {
		count = fipsee_wait(worker->queue, results, (uint32_t)(1 + below(worker, DEPTH)), below(worker, 2) ? -1 : 1000);
		EXPECT(count >= 0, 1);
		for (i = 0; i < count; i++)
			EXPECT(results[i].result, 0);
	}
}

/* A batch of writes or reads of distinct blocks, in whole or in pieces. */
static void batch(struct worker *worker, unsigned char *memory)
{
	uint64_t first = below(worker, BLOCKS), step = 1 + 2 * below(worker, 8), i, piece;
	int write = (int)below(worker, 2), pieced = (int)below(worker, 2);
	struct iovec pieces[8];

	if (write)
		fill(worker, memory, DEPTH * BLOCK_BYTES);
	for (i = 0; i < DEPTH; i++) {
		size_t at = (first + i * step) % BLOCKS * BLOCK_BYTES;
		unsigned char *data = memory + i * BLOCK_BYTES;
		uint64_t offset_bytes = worker->start_bytes + at;

		for (piece = 0; piece < 8; piece++) {
			pieces[piece].iov_base = data + piece * 512;
			pieces[piece].iov_len = 512;
		}
		if (write) {
			memcpy(worker->expected + at, data, BLOCK_BYTES);
			EXPECT(pieced ? fipsee_stage_writev(worker->queue, pieces, 8, offset_bytes, 0, i)
			       : fipsee_stage_write(worker->queue, data, BLOCK_BYTES, offset_bytes, 0, i), 0);
		} else {
			EXPECT(pieced ? fipsee_stage_readv(worker->queue, pieces, 8, offset_bytes, i)
			       : fipsee_stage_read(worker->queue, data, BLOCK_BYTES, offset_bytes, i), 0);
		}
	}
	EXPECT(fipsee_submit(worker->queue), 0);
	finish(worker);
	for (i = 0; i < DEPTH && !write; i++)
		compare(worker, memory + i * BLOCK_BYTES, (first + i * step) % BLOCKS * BLOCK_BYTES, BLOCK_BYTES);
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	struct fipsee_memory *memory = NULL;
	int round;

	EXPECT(fipsee_write_zeroes(worker->queue, PART_BYTES, worker->start_bytes, 0), 0);
	for (round = 0; round < worker->rounds; round++) {
		if (memory == NULL)
			EXPECT(fipsee_memory_create(worker->disk, DEPTH * BLOCK_BYTES, &memory), 0);
		if (below(worker, 2) == 0)
			blocking(worker);
		else
			batch(worker, fipsee_memory_address(memory));
		if (below(worker, 16) == 0) {
			EXPECT(fipsee_memory_free(worker->disk, memory), 0);
			memory = NULL;
		}
	}
	EXPECT(fipsee_read(worker->queue, worker->scratch, PART_BYTES, worker->start_bytes), 0);
	compare(worker, worker->scratch, 0, PART_BYTES);
	return NULL;
}

int main(int argc, char **argv)
{
	struct worker workers[THREADS];
	struct fipsee_disk *disk;
	uint32_t i;

	EXPECT(argc, 4);
	the_socket = argv[1];
	disk = open_disk(argv[2], THREADS, DEPTH);
	for (i = 0; i < THREADS; i++) {
		workers[i].disk = disk;
		workers[i].queue = fipsee_get_queue(disk, i);
		workers[i].start_bytes = (uint64_t)i * PART_BYTES;
		workers[i].random = i + 1;
		workers[i].rounds = atoi(argv[3]);
		workers[i].expected = calloc(1, PART_BYTES);
		workers[i].scratch = malloc(PART_BYTES + 1);
		EXPECT(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (i = 0; i < THREADS; i++) {
		EXPECT(pthread_join(workers[i].thread, NULL), 0);
		free(workers[i].expected);
		free(workers[i].scratch);
	}
	EXPECT(fipsee_close(disk), 0);
	puts("done");
	return 0;
}
