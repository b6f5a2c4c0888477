// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Threads that write, flush and read a disk while the back end, or this machine, is killed again and again. Requests and their
 * ends are reported to the host, which compares them with the disk after each kill (xtask/src/vm/kills.rs). Nothing may fail;
 * what was written, here or by the machine before this one, is read back here, too.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define BLOCK_SECTORS 8u
#define BLOCK (BLOCK_SECTORS * SECTOR)
#define BLOCKS 1024u
#define MOST_BLOCKS 4u
/* Completions between two kills, at least and so many more. */
#define SOME 40u
#define MORE 160u

struct campaign {
	pthread_mutex_t lock;
	struct disk disk;
	struct random random;
	int reports;
	unsigned kills, asked, until_next;
	uint32_t sequence; /* of the newest write */
	uint64_t token;
	char is_busy[BLOCKS];
};

/* One line, whole. */
static void report(const struct campaign *campaign, const char *format, uint64_t token, uint64_t block, uint64_t count, uint64_t sequence)
{
	char line[128];
	int length = snprintf(line, sizeof(line), format, (unsigned long long)token, (unsigned long long)block,
			      (unsigned long long)count, (unsigned long long)sequence);

	if (write(campaign->reports, line, (size_t)length) != length)
		FAIL("cannot report to the host: %s", strerror(errno));
}

static void must_be(const struct campaign *campaign, ssize_t done, ssize_t wanted, const char *what, uint64_t block)
{
	if (done == wanted)
		return;
	dprintf(campaign->reports, "fipsee-vm: error: %s of block %llu gives %zd, not %zd: %s\n", what, (unsigned long long)block, done,
		wanted, done < 0 ? strerror(errno) : "short");
	exit(1);
}

/* What the disk holds when this machine starts: each sector as one write or another has made it. */
static void learn(struct campaign *campaign)
{
	char *bytes = aligned_alloc(BLOCK, BLOCK);
	struct disk *disk = &campaign->disk;

	if (!bytes)
		FAIL("no memory");
	for (uint64_t sector = 0; sector < BLOCKS * BLOCK_SECTORS; sector++) {
		const char *found = bytes + sector % BLOCK_SECTORS * SECTOR;
		uint64_t round;

		if (sector % BLOCK_SECTORS == 0)
			must_be(campaign, pread(disk->fd, bytes, BLOCK, (off_t)(sector * SECTOR)), BLOCK, "a read", sector / BLOCK_SECTORS);
		memcpy(&round, found + sizeof(round), sizeof(round));
		disk->rounds[sector] = round ? (uint32_t)round : ZEROED;
		sector_check(disk, sector, found, "at the start");
	}
	free(bytes);
}

static uint64_t choose(struct campaign *campaign, uint64_t count)
{
	for (;;) {
		uint64_t block = random_below(&campaign->random, BLOCKS - count + 1);

		if (!memchr(campaign->is_busy + block, 1, count))
			return block;
	}
}

/* With the lock: another kill is due after so many completions. */
static void count_completion(struct campaign *campaign)
{
	if (--campaign->until_next > 0)
		return;
	campaign->until_next = SOME + (unsigned)random_below(&campaign->random, MORE);
	campaign->asked++;
	if (campaign->asked <= campaign->kills)
		report(campaign, "fipsee-vm: event kill\n", 0, 0, 0, 0);
}

static void write_blocks(struct campaign *campaign, char *bytes)
{
	uint64_t count = 1 + random_below(&campaign->random, MOST_BLOCKS), block = choose(campaign, count), token = ++campaign->token;
	uint32_t sequence = ++campaign->sequence;
	int flags = random_below(&campaign->random, 5) ? 0 : RWF_DSYNC;
	struct iovec vector = { bytes, count * BLOCK };
	ssize_t done;

	memset(campaign->is_busy + block, 1, count);
	report(campaign, "fipsee-vm: event write %llu %llu %llu %llu\n", token, block, count, sequence);
	pthread_mutex_unlock(&campaign->lock);
	for (uint64_t at = 0; at < count * BLOCK_SECTORS; at++)
		sector_fill(&campaign->disk, block * BLOCK_SECTORS + at, sequence, bytes + at * SECTOR);
	done = pwritev2(campaign->disk.fd, &vector, 1, (off_t)(block * BLOCK), flags);
	pthread_mutex_lock(&campaign->lock);
	must_be(campaign, done, (ssize_t)(count * BLOCK), "a write", block);
	for (uint64_t at = 0; at < count * BLOCK_SECTORS; at++)
		campaign->disk.rounds[block * BLOCK_SECTORS + at] = sequence;
	memset(campaign->is_busy + block, 0, count);
	report(campaign, "fipsee-vm: event done %llu\n", token, 0, 0, 0);
}

static void flush(struct campaign *campaign)
{
	uint64_t token = ++campaign->token;
	int done;

	report(campaign, "fipsee-vm: event other %llu\n", token, 0, 0, 0);
	pthread_mutex_unlock(&campaign->lock);
	done = fdatasync(campaign->disk.fd);
	pthread_mutex_lock(&campaign->lock);
	must_be(campaign, done, 0, "a flush", 0);
	report(campaign, "fipsee-vm: event done %llu\n", token, 0, 0, 0);
}

static void read_block(struct campaign *campaign, char *bytes)
{
	uint64_t block = choose(campaign, 1), token = ++campaign->token;
	ssize_t done;

	campaign->is_busy[block] = 1;
	report(campaign, "fipsee-vm: event other %llu\n", token, 0, 0, 0);
	pthread_mutex_unlock(&campaign->lock);
	done = pread(campaign->disk.fd, bytes, BLOCK, (off_t)(block * BLOCK));
	pthread_mutex_lock(&campaign->lock);
	must_be(campaign, done, BLOCK, "a read", block);
	for (uint64_t at = 0; at < BLOCK_SECTORS; at++)
		sector_check(&campaign->disk, block * BLOCK_SECTORS + at, bytes + at * SECTOR, "a read between two kills");
	campaign->is_busy[block] = 0;
	report(campaign, "fipsee-vm: event done %llu\n", token, 0, 0, 0);
}

static void *work(void *context)
{
	struct campaign *campaign = context;
	char *bytes = aligned_alloc(BLOCK, MOST_BLOCKS * BLOCK);

	if (!bytes)
		FAIL("no memory");
	pthread_mutex_lock(&campaign->lock);
	/* The last kill is followed by some more requests. */
	while (campaign->asked <= campaign->kills) {
		uint64_t choice = random_below(&campaign->random, 10);

		if (choice == 0)
			flush(campaign);
		else if (choice < 3)
			read_block(campaign, bytes);
		else
			write_blocks(campaign, bytes);
		count_completion(campaign);
	}
	pthread_mutex_unlock(&campaign->lock);
	free(bytes);
	return NULL;
}

int kills_main(int argc, char **argv)
{
	static struct campaign campaign = { .lock = PTHREAD_MUTEX_INITIALIZER };
	pthread_t threads[64];
	unsigned count;

	if (argc != 7)
		FAIL("usage: fip-guest kills DEVICE KILLS THREADS SEED REPORTS FIRST");
	disk_open(&campaign.disk, argv[1], strtoull(argv[4], NULL, 0));
	campaign.kills = (unsigned)strtoul(argv[2], NULL, 0);
	count = (unsigned)strtoul(argv[3], NULL, 0);
	campaign.random.state = mixed(campaign.disk.seed);
	campaign.reports = (int)strtol(argv[5], NULL, 0);
	/* A machine's writes have numbers that no other machine's have. */
	campaign.sequence = (uint32_t)strtoul(argv[6], NULL, 0);
	campaign.random.state ^= mixed(campaign.sequence);
	campaign.until_next = SOME + (unsigned)random_below(&campaign.random, MORE);
	if (count < 1 || count > sizeof(threads) / sizeof(threads[0]) || campaign.disk.sectors < BLOCKS * BLOCK_SECTORS)
		FAIL("1 to 64 threads, and a disk of at least 4 MiB");
	learn(&campaign);
	for (unsigned i = 0; i < count; i++)
		if (pthread_create(&threads[i], NULL, work, &campaign))
			FAIL("cannot start a thread");
	for (unsigned i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	disk_check(&campaign.disk, "at the end");
	printf("fip-guest: %llu requests, %u kills\n", (unsigned long long)campaign.token, campaign.kills);
	return 0;
}
