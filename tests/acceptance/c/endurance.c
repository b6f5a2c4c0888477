/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * endurance SOCKET: ten million requests of every kind. Neither this process nor, as the harness checks, the daemon grows
 * between the first million and the last.
 */
#include "check.h"
#include <dirent.h>
#include <unistd.h>

enum { DEPTH = 64, BLOCK_BYTES = 4096 };

static int descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;

	while (readdir(directory) != NULL)
		count++;
	closedir(directory);
	return count;
}

static long resident_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long all, resident;

	EXPECT(fscanf(file, "%ld %ld", &all, &resident), 2);
	fclose(file);
	return resident * sysconf(_SC_PAGESIZE);
}

/* What is rare: calls that copy, tables, memory that comes and goes, failures, whole connections. Returns requests done. */
static long rarities(struct fipsee_disk *disk, char *buffer)
{
	static char own[3 * BLOCK_BYTES];
	struct fipsee_queue *queue = fipsee_get_queue(disk, 0);
	struct fipsee_disk *another = open_disk("n", 2, 4);
	struct iovec pieces[8];
	struct fipsee_memory *memory;
	struct fipsee_result result;
	int i;

	for (i = 0; i < 8; i++) {
		pieces[i].iov_base = buffer + i * 512;
		pieces[i].iov_len = 512;
	}
	EXPECT(fipsee_stage_readv(queue, pieces, 8, 0, 0), 0);
	EXPECT(fipsee_wait(queue, &result, 1, -1), 1);
	EXPECT(fipsee_read(queue, own, sizeof(own), 0), 0);
	EXPECT(fipsee_write(queue, own, sizeof(own), 0, 0), 0);
	EXPECT(fipsee_flush(queue), 0);
	EXPECT(fipsee_memory_create(disk, 8 * BLOCK_BYTES, &memory), 0);
	EXPECT(fipsee_read(queue, fipsee_memory_address(memory), BLOCK_BYTES, 0), 0);
	EXPECT(fipsee_memory_free(disk, memory), 0);
	EXPECT(fipsee_read(queue, own, 1, 0), -EINVAL);
	EXPECT(fipsee_error_message()[0] != 0, 1);
	EXPECT(fipsee_read(fipsee_get_queue(another, 1), own, BLOCK_BYTES, 0), 0);
	EXPECT(fipsee_close(another), 0);
	return 6;
}

static void run(struct fipsee_disk *disk, char *buffer, long requests)
{
	struct fipsee_queue *queue = fipsee_get_queue(disk, 0);
	struct fipsee_result results[DEPTH];
	long staged, done = 0, next_rarity = 0;
	int count, i;

	while (done < requests) {
		if (done >= next_rarity) {
			done += rarities(disk, buffer);
			next_rarity += 50000;
		}
		for (staged = 0; staged < DEPTH; staged++)
			EXPECT(fipsee_stage_read(queue, buffer + staged * BLOCK_BYTES, BLOCK_BYTES,
						 (uint64_t)staged * BLOCK_BYTES, (uint64_t)staged), 0);
		EXPECT(fipsee_stage_read(queue, buffer, BLOCK_BYTES, 0, 0), -EAGAIN);
		while (staged > 0) {
			count = fipsee_wait(queue, results, DEPTH, -1);
			EXPECT(count > 0, 1);
			for (i = 0; i < count; i++)
				EXPECT(results[i].result, 0);
			staged -= count;
			done += count;
		}
	}
}

int main(int argc, char **argv)
{
	struct fipsee_disk *disk;
	struct fipsee_memory *memory;
	int descriptors_before;
	long bytes_before, bytes_after;

	EXPECT(argc, 2);
	the_socket = argv[1];
	disk = open_disk("n", 1, DEPTH);
	EXPECT(fipsee_memory_create(disk, DEPTH * BLOCK_BYTES, &memory), 0);
	run(disk, fipsee_memory_address(memory), 1000000);
	report("measure");
	descriptors_before = descriptors();
	bytes_before = resident_bytes();
	run(disk, fipsee_memory_address(memory), 9000000);
	bytes_after = resident_bytes();
	EXPECT(descriptors(), descriptors_before);
	/* A byte a request would be 9 MB. */
	if (bytes_after > bytes_before + 256 * 1024) {
		fprintf(stderr, "grew from %ld to %ld bytes\n", bytes_before, bytes_after);
		return 1;
	}
	report("compare");
	EXPECT(fipsee_close(disk), 0);
	puts("done");
	return 0;
}
