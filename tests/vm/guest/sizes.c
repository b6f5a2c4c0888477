// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Requests of every size from one sector to 1 MiB, each from memory that is contiguous for the device (as far as the
 * kernel gave us such) and from memory scattered over pages. Every write is read back in the other way, bytes around
 * what was read must stay as they were, and at the end the whole disk is compared.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_BYTES (1u << 20)
#define PAGE 4096u
#define ARENA_BYTES (32u << 20)
#define HUGE_BYTES (2u << 20)
#define POISON 0xa5
#define MAX_PIECES (MAX_BYTES / SECTOR)

struct way {
	const char *name;
	struct iovec pieces[MAX_PIECES];
	int count;
};

/* A piece of memory the kernel has backed with pages of its choice; big pages if it likes. */
static char *arena_new(void)
{
	char *arena = mmap(NULL, ARENA_BYTES + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (arena == MAP_FAILED)
		FAIL("no memory: %s", strerror(errno));
	arena = (char *)(((uintptr_t)arena + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1));
	/* Not every kernel has them; then the pages are small. */
	(void)madvise(arena, ARENA_BYTES, MADV_HUGEPAGE);
	memset(arena, POISON, ARENA_BYTES);
	return arena;
}

/* The longest run of pages that follow each other in the machine's memory, up to what the largest request needs. */
static char *contiguous(char *arena, size_t *run_bytes)
{
	size_t pages = ARENA_BYTES / PAGE, best = 0, best_at = 0, start = 0;
	uint64_t *entries = calloc(pages, sizeof(*entries));
	int fd = open("/proc/self/pagemap", O_RDONLY);
	ssize_t wanted = (ssize_t)(pages * sizeof(*entries));

	if (!entries || fd < 0 || pread(fd, entries, wanted, (off_t)((uintptr_t)arena / PAGE * sizeof(*entries))) != wanted)
		FAIL("cannot read the place of memory from /proc/self/pagemap: %s", strerror(errno));
	for (size_t page = 1; page <= pages; page++) {
		uint64_t frame_bits = (1ull << 55) - 1;

		if (page < pages && (entries[page] & frame_bits) == (entries[page - 1] & frame_bits) + 1)
			continue;
		if (page - start > best) {
			best = page - start;
			best_at = start;
		}
		start = page;
	}
	close(fd);
	free(entries);
	*run_bytes = best * PAGE;
	return arena + best_at * PAGE;
}

static void one_piece(struct way *way, char *memory, size_t bytes)
{
	way->name = "contiguous";
	way->pieces[0] = (struct iovec){ memory, bytes };
	way->count = 1;
}

/* Each piece in a page of its own, from one sector to a page, beginning somewhere in it; pages in random order. */
static void many_pieces(struct way *way, char *arena, size_t bytes, struct random *random)
{
	size_t page = random_below(random, ARENA_BYTES / PAGE), stride = 2 * random_below(random, 1000) + 1;

	way->name = "scattered";
	for (way->count = 0; bytes; way->count++) {
		size_t at = random_below(random, PAGE / SECTOR) * SECTOR;
		size_t length = (1 + random_below(random, (PAGE - at) / SECTOR)) * SECTOR;

		/* The kernel takes 1024 pieces a call: long requests get long ones. */
		if (bytes > (size_t)(900 - (way->count < 900 ? way->count : 899)) * SECTOR || way->count > 400) {
			at = 0;
			length = PAGE;
		}
		length = length < bytes ? length : bytes;
		way->pieces[way->count] = (struct iovec){ arena + page * PAGE + at, length };
		bytes -= length;
		page = (page + stride) % (ARENA_BYTES / PAGE);
	}
}

static void poison(const struct way *way)
{
	for (int i = 0; i < way->count; i++) {
		char *begin = (char *)((uintptr_t)way->pieces[i].iov_base & ~(uintptr_t)(PAGE - 1));
		char *end = (char *)way->pieces[i].iov_base + way->pieces[i].iov_len;

		memset(begin, POISON, (size_t)(end - begin + PAGE - 1) & ~(size_t)(PAGE - 1));
	}
}

static void check_poison(const char *from, const char *to, const char *where, size_t bytes)
{
	for (; from < to; from++)
		if ((unsigned char)*from != POISON)
			FAIL("reading %zu bytes wrote to memory %s what was asked for", bytes, where);
}

static void check_around(const struct way *way, size_t bytes)
{
	for (int i = 0; i < way->count; i++) {
		const char *begin = way->pieces[i].iov_base, *end = begin + way->pieces[i].iov_len;

		check_poison((const char *)((uintptr_t)begin & ~(uintptr_t)(PAGE - 1)), begin, "before", bytes);
		check_poison(end, (const char *)(((uintptr_t)end + PAGE - 1) & ~(uintptr_t)(PAGE - 1)), "after", bytes);
	}
}

static void fill(const struct disk *disk, const struct way *way, uint64_t sector)
{
	for (int i = 0; i < way->count; i++)
		for (size_t at = 0; at < way->pieces[i].iov_len; at += SECTOR, sector++)
			sector_fill(disk, sector, disk->rounds[sector], (char *)way->pieces[i].iov_base + at);
}

static void check(const struct disk *disk, const struct way *way, uint64_t sector)
{
	for (int i = 0; i < way->count; i++)
		for (size_t at = 0; at < way->pieces[i].iov_len; at += SECTOR, sector++)
			sector_check(disk, sector, (char *)way->pieces[i].iov_base + at, way->name);
}

static void must_be(ssize_t got, size_t bytes, const char *what, const struct way *way)
{
	if (got != (ssize_t)bytes)
		FAIL("%s %zu bytes, %s, gives %zd: %s", what, bytes, way->name, got, got < 0 ? strerror(errno) : "short");
}

static void one_size(struct disk *disk, size_t bytes, uint32_t round, struct way *from, struct way *to, struct random *random)
{
	uint64_t count = bytes / SECTOR, sector = random_below(random, disk->sectors - count + 1);

	for (uint64_t i = 0; i < count; i++)
		disk->rounds[sector + i] = round;
	fill(disk, from, sector);
	must_be(pwritev(disk->fd, from->pieces, from->count, (off_t)(sector * SECTOR)), bytes, "writing", from);
	poison(to);
	must_be(preadv(disk->fd, to->pieces, to->count, (off_t)(sector * SECTOR)), bytes, "reading", to);
	check(disk, to, sector);
	check_around(to, bytes);
}

int sizes_main(int argc, char **argv)
{
	static struct way flat, pieces;
	struct disk disk;
	struct random random;
	size_t step, run, sizes = 0;
	uint32_t round = 0;
	char *memory;

	if (argc != 4)
		FAIL("usage: fip-guest sizes DEVICE STEP_BYTES SEED");
	step = strtoul(argv[2], NULL, 0);
	random.state = strtoull(argv[3], NULL, 0);
	disk_open(&disk, argv[1], random.state);
	if (!step || step % SECTOR || disk.sectors * SECTOR < 2 * MAX_BYTES)
		FAIL("STEP_BYTES must be a multiple of 512, and the disk have 2 MiB");
	memory = contiguous(arena_new(), &run);
	char *scatter = arena_new();
	/* Sizes below 16 KiB are all tried whatever the step: there drivers treat them differently. */
	for (size_t bytes = SECTOR; bytes <= MAX_BYTES; bytes += bytes < 16384 ? SECTOR : step, sizes++) {
		one_piece(&flat, memory, bytes);
		many_pieces(&pieces, scatter, bytes, &random);
		one_size(&disk, bytes, ++round, &flat, &pieces, &random);
		one_size(&disk, bytes, ++round, &pieces, &flat, &random);
	}
	disk_check(&disk, "at the end");
	printf("fip-guest: %zu sizes; memory contiguous for %zu KiB\n", sizes, run / 1024);
	return 0;
}
