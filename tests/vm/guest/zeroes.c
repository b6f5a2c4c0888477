// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Discard and write-zeroes in ranges of many sizes, each surrounded by data that must stay. What was zeroed must read
 * as zeroes; what was discarded may read as anything, and must take new data.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ROUNDS 96
#define CHUNK 128u /* sectors */

static void write_all(struct disk *disk, uint32_t round)
{
	char *bytes = aligned_alloc(4096, CHUNK * SECTOR);

	if (!bytes)
		FAIL("no memory to write the disk with");
	for (uint64_t sector = 0; sector + CHUNK <= disk->sectors; sector += CHUNK) {
		for (uint64_t i = 0; i < CHUNK; i++) {
			disk->rounds[sector + i] = round;
			sector_fill(disk, sector + i, round, bytes + i * SECTOR);
		}
		if (pwrite(disk->fd, bytes, CHUNK * SECTOR, (off_t)(sector * SECTOR)) != CHUNK * SECTOR)
			FAIL("cannot write at sector %llu: %s", (unsigned long long)sector, strerror(errno));
	}
	free(bytes);
}

static void in_ranges(struct disk *disk, unsigned long request, const char *name, uint32_t after, struct random *random)
{
	for (int round = 0; round < ROUNDS; round++) {
		/* Sizes that double, so that small and large ones are equally many; 4 KiB is what every disk can do. */
		uint64_t count = (8u << random_below(random, 12)) + 8 * random_below(random, 8);
		uint64_t first = random_below(random, (disk->sectors - count) / 8) * 8;
		uint64_t range[2] = { first * SECTOR, count * SECTOR };

		if (ioctl(disk->fd, request, range))
			FAIL("%s of %llu sectors at %llu: %s", name, (unsigned long long)count, (unsigned long long)first,
			     strerror(errno));
		for (uint64_t i = 0; i < count; i++)
			disk->rounds[first + i] = after;
	}
	disk_check(disk, name);
}

int zeroes_main(int argc, char **argv)
{
	struct disk disk;
	struct random random;

	if (argc != 3)
		FAIL("usage: fip-guest zeroes DEVICE SEED");
	random.state = strtoull(argv[2], NULL, 0);
	disk_open(&disk, argv[1], random.state);
	if (disk.sectors < 1u << 16)
		FAIL("the disk must have 32 MiB");
	write_all(&disk, 1);
	in_ranges(&disk, BLKZEROOUT, "write-zeroes", ZEROED, &random);
	write_all(&disk, 2);
	in_ranges(&disk, BLKDISCARD, "discard", NOT_OURS, &random);
	write_all(&disk, 3);
	disk_check(&disk, "writing after discard");
	printf("fip-guest: %d ranges zeroed and %d discarded\n", ROUNDS, ROUNDS);
	return 0;
}
