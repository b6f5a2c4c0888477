// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WORDS (SECTOR / 8)

void disk_open(struct disk *disk, const char *path, uint64_t seed)
{
	uint64_t bytes;

	disk->fd = open(path, O_RDWR | O_DIRECT | O_EXCL);
	if (disk->fd < 0)
		FAIL("cannot open %s: %s", path, strerror(errno));
	if (ioctl(disk->fd, BLKGETSIZE64, &bytes))
		FAIL("%s does not report its size: %s", path, strerror(errno));
	disk->sectors = bytes / SECTOR;
	disk->seed = seed;
	disk->rounds = calloc(disk->sectors, sizeof(*disk->rounds));
	if (!disk->rounds)
		FAIL("no memory for the rounds of %llu sectors", (unsigned long long)disk->sectors);
}

static uint64_t first_word(const struct disk *disk, uint64_t sector, uint32_t round)
{
	return mixed(disk->seed ^ mixed(sector ^ ((uint64_t)round << 40)));
}

void sector_fill(const struct disk *disk, uint64_t sector, uint32_t round, void *bytes)
{
	uint64_t *words = bytes, first = first_word(disk, sector, round);

	/* The number of the sector and the round in clear, so that a mistake can be understood. */
	words[0] = sector;
	words[1] = round;
	for (size_t i = 2; i < WORDS; i++)
		words[i] = first + i * 0x9e3779b97f4a7c15u;
}

void sector_check(const struct disk *disk, uint64_t sector, const void *bytes, const char *when)
{
	uint64_t expected[WORDS];
	const uint64_t *found = bytes;
	uint32_t round = disk->rounds[sector];

	if (round == NOT_OURS)
		return;
	if (round == ZEROED)
		memset(expected, 0, sizeof(expected));
	else
		sector_fill(disk, sector, round, expected);
	for (size_t i = 0; i < WORDS; i++)
		if (found[i] != expected[i])
			FAIL("%s: sector %llu, written in round %u, is wrong at byte %zu: found %016llx, expected %016llx; "
			     "the sector begins as sector %llu of round %llu would",
			     when, (unsigned long long)sector, round, i * 8, (unsigned long long)found[i],
			     (unsigned long long)expected[i], (unsigned long long)found[0], (unsigned long long)found[1]);
}

void disk_check(const struct disk *disk, const char *when)
{
	size_t chunk = 256;
	char *bytes = aligned_alloc(4096, chunk * SECTOR);

	if (!bytes)
		FAIL("no memory to read the disk with");
	for (uint64_t sector = 0; sector < disk->sectors; sector += chunk) {
		uint64_t count = disk->sectors - sector < chunk ? disk->sectors - sector : chunk;
		ssize_t got = pread(disk->fd, bytes, count * SECTOR, (off_t)(sector * SECTOR));

		if (got != (ssize_t)(count * SECTOR))
			FAIL("%s: reading %llu sectors from %llu gives %zd: %s", when, (unsigned long long)count,
			     (unsigned long long)sector, got, got < 0 ? strerror(errno) : "short");
		for (uint64_t i = 0; i < count; i++)
			sector_check(disk, sector + i, bytes + i * SECTOR, when);
	}
	free(bytes);
}
