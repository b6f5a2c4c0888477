// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Many processes, each doing random things to files of its own and knowing what must be in them: writes of all kinds,
 * truncation, renaming, hard links, fallocate, mmap, fsync, O_DIRECT. Each read is compared, and all files at the end.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILES 24
#define MAX_SIZE (192u << 10)
#define BLOCK 4096u

struct file {
	char name[32];
	int exists;
	size_t size;
	char *shadow; /* what must be in it */
};

struct worker {
	struct random random;
	struct file files[FILES];
	char *buffer; /* aligned for O_DIRECT */
	unsigned names;
};

#define CHECK(condition, what, file)                                                                        \
	do {                                                                                                \
		if (!(condition))                                                                           \
			FAIL("%s of %s (%zu bytes): %s", what, (file)->name, (file)->size, strerror(errno)); \
	} while (0)

static int open_file(struct file *file, int flags)
{
	int fd = open(file->name, O_RDWR | O_CREAT | flags, 0644);

	CHECK(fd >= 0, "opening", file);
	file->exists = 1;
	return fd;
}

static void fill_random(struct worker *worker, char *bytes, size_t count)
{
	uint64_t word = random_next(&worker->random);

	for (size_t i = 0; i < count; i++, word = word * 6364136223846793005u + 1442695040888963407u)
		bytes[i] = (char)(word >> 56);
}

/* A random range within what a file may have; whole blocks if `block` is one. */
static size_t range(struct worker *worker, size_t block, size_t *at)
{
	size_t length;

	*at = random_below(&worker->random, MAX_SIZE / block) * block;
	length = (1 + random_below(&worker->random, random_below(&worker->random, 4) ? BLOCK * 4 / block : MAX_SIZE / block)) * block;
	return length < MAX_SIZE - *at ? length : MAX_SIZE - *at;
}

static void grow(struct file *file, size_t end)
{
	if (end > file->size)
		file->size = end;
}

static void do_write(struct worker *worker, struct file *file, int direct)
{
	size_t at, length = range(worker, direct ? BLOCK : 1, &at);
	int fd = open_file(file, direct ? O_DIRECT : 0);

	fill_random(worker, worker->buffer, length);
	CHECK(pwrite(fd, worker->buffer, length, (off_t)at) == (ssize_t)length, "writing", file);
	memcpy(file->shadow + at, worker->buffer, length);
	grow(file, at + length);
	if (!random_below(&worker->random, 4))
		CHECK(!fsync(fd), "fsync", file);
	close(fd);
}

static void do_read(struct worker *worker, struct file *file, int direct)
{
	size_t at, length = range(worker, direct ? BLOCK : 1, &at), expected;
	int fd = open_file(file, direct ? O_DIRECT : 0);
	ssize_t got = pread(fd, worker->buffer, length, (off_t)at);

	expected = at >= file->size ? 0 : file->size - at < length ? file->size - at : length;
	CHECK(got == (ssize_t)expected, "the length read", file);
	if (memcmp(worker->buffer, file->shadow + at, expected))
		FAIL("reading %zu bytes at %zu of %s: not what was written", expected, at, file->name);
	close(fd);
}

static void do_truncate(struct worker *worker, struct file *file)
{
	size_t size = random_below(&worker->random, MAX_SIZE);
	int fd = open_file(file, 0);

	CHECK(!ftruncate(fd, (off_t)size), "truncation", file);
	if (size < file->size)
		memset(file->shadow + size, 0, file->size - size);
	file->size = size;
	close(fd);
}

static void do_fallocate(struct worker *worker, struct file *file)
{
	size_t at, length = range(worker, 1, &at);
	int mode = random_below(&worker->random, 2) ? FALLOC_FL_PUNCH_HOLE : FALLOC_FL_ZERO_RANGE;
	int fd = open_file(file, 0);

	CHECK(!fallocate(fd, mode | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)length), "fallocate", file);
	/* Beyond the end there are zeroes already. */
	memset(file->shadow + at, 0, length);
	close(fd);
}

static void do_mmap(struct worker *worker, struct file *file)
{
	size_t at, length;
	char *memory;
	int fd;

	if (!file->size)
		return;
	fd = open_file(file, 0);
	memory = mmap(NULL, file->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(memory != MAP_FAILED, "mmap", file);
	if (memcmp(memory, file->shadow, file->size))
		FAIL("%s in mapped memory: not what was written", file->name);
	at = random_below(&worker->random, file->size);
	length = 1 + random_below(&worker->random, file->size - at);
	fill_random(worker, file->shadow + at, length);
	memcpy(memory + at, file->shadow + at, length);
	if (random_below(&worker->random, 2))
		CHECK(!msync(memory, file->size, MS_SYNC), "msync", file);
	munmap(memory, file->size);
	close(fd);
}

static void do_rename(struct worker *worker, struct file *file)
{
	char name[sizeof(file->name)];

	if (!file->exists)
		return;
	snprintf(name, sizeof(name), "file-%u", worker->names++);
	if (random_below(&worker->random, 2)) {
		CHECK(!rename(file->name, name), "renaming", file);
	} else {
		CHECK(!link(file->name, name), "linking", file);
		CHECK(!unlink(file->name), "removing", file);
	}
	snprintf(file->name, sizeof(file->name), "%s", name);
}

static void do_remove(struct file *file)
{
	if (!file->exists)
		return;
	CHECK(!unlink(file->name), "removing", file);
	memset(file->shadow, 0, MAX_SIZE);
	file->exists = 0;
	file->size = 0;
}

static void one_operation(struct worker *worker, struct file *file)
{
	switch (random_below(&worker->random, 16)) {
	case 0 ... 3:
		return do_write(worker, file, 0);
	case 4 ... 5:
		return do_write(worker, file, 1);
	case 6 ... 7:
		return do_read(worker, file, 0);
	case 8 ... 9:
		return do_read(worker, file, 1);
	case 10:
		return do_truncate(worker, file);
	case 11:
		return do_fallocate(worker, file);
	case 12:
		return do_mmap(worker, file);
	case 13:
		return do_rename(worker, file);
	case 14:
		return do_remove(file);
	default:
		sync();
	}
}

static void check_file(struct worker *worker, struct file *file)
{
	struct stat stat;
	int fd;

	if (!file->exists)
		return;
	fd = open(file->name, O_RDONLY | O_DIRECT);
	CHECK(fd >= 0 && !fstat(fd, &stat), "opening at the end", file);
	CHECK((size_t)stat.st_size == file->size, "the size at the end", file);
	CHECK(pread(fd, worker->buffer, MAX_SIZE, 0) == (ssize_t)file->size, "reading at the end", file);
	if (memcmp(worker->buffer, file->shadow, file->size))
		FAIL("%s at the end: not what was written", file->name);
	close(fd);
}

static void work(const char *directory, unsigned number, unsigned long operations, uint64_t seed)
{
	struct worker *worker = calloc(1, sizeof(*worker));
	char name[32];

	snprintf(name, sizeof(name), "process-%u", number);
	if (!worker || chdir(directory) || mkdir(name, 0755) || chdir(name))
		FAIL("cannot make %s/%s: %s", directory, name, strerror(errno));
	worker->random.state = mixed(seed + number);
	worker->buffer = aligned_alloc(BLOCK, MAX_SIZE);
	for (int i = 0; i < FILES; i++) {
		struct file *file = &worker->files[i];

		snprintf(file->name, sizeof(file->name), "file-%u", worker->names++);
		file->shadow = calloc(1, MAX_SIZE);
		if (!worker->buffer || !file->shadow)
			FAIL("no memory");
	}
	for (unsigned long i = 0; i < operations; i++)
		one_operation(worker, &worker->files[random_below(&worker->random, FILES)]);
	sync();
	for (int i = 0; i < FILES; i++)
		check_file(worker, &worker->files[i]);
}

int stress_main(int argc, char **argv)
{
	unsigned processes;
	int status, failed = 0;

	if (argc != 5)
		FAIL("usage: fip-guest stress DIRECTORY PROCESSES OPERATIONS SEED");
	processes = (unsigned)strtoul(argv[2], NULL, 0);
	for (unsigned i = 0; i < processes; i++) {
		pid_t child = fork();

		if (child < 0)
			FAIL("cannot fork: %s", strerror(errno));
		if (!child) {
			work(argv[1], i, strtoul(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
			exit(0);
		}
	}
	for (unsigned i = 0; i < processes; i++)
		failed |= wait(&status) < 0 || status;
	if (failed)
		FAIL("a process failed, as said above");
	printf("fip-guest: %u processes, %s operations each\n", processes, argv[3]);
	return 0;
}
