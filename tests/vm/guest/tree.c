// SPDX-License-Identifier: MIT OR Apache-2.0
/* A tree of files with names, sizes and content from a seed: empty ones, small ones, some of megabytes, holes, links. */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_A_FOLDER 16

static uint64_t size_of_file(struct random *random)
{
	switch (random_below(random, 16)) {
	case 0:
		return 0;
	case 1:
		return random_below(random, 2u << 20);
	case 2 ... 5:
		return random_below(random, 128u << 10);
	default:
		return random_below(random, 16u << 10);
	}
}

static void write_file(const char *path, uint64_t bytes, struct random *random)
{
	uint64_t words[512];
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);

	if (fd < 0)
		FAIL("cannot create %s: %s", path, strerror(errno));
	for (uint64_t at = 0; at < bytes; at += sizeof(words)) {
		size_t count = bytes - at < sizeof(words) ? bytes - at : sizeof(words);

		/* A page in eight is a hole. */
		if (!random_below(random, 8))
			continue;
		for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
			words[i] = random_next(random);
		if (pwrite(fd, words, count, (off_t)at) != (ssize_t)count)
			FAIL("cannot write %s: %s", path, strerror(errno));
	}
	if (ftruncate(fd, (off_t)bytes) || close(fd))
		FAIL("cannot finish %s: %s", path, strerror(errno));
}

int tree_main(int argc, char **argv)
{
	char path[512];
	struct random random;
	uint64_t files, total = 0;

	if (argc != 4)
		FAIL("usage: fip-guest tree DIRECTORY FILES SEED");
	files = strtoull(argv[2], NULL, 0);
	random.state = strtoull(argv[3], NULL, 0);
	if (mkdir(argv[1], 0755))
		FAIL("cannot create %s: %s", argv[1], strerror(errno));
	for (uint64_t file = 0; file < files; file++) {
		uint64_t bytes = size_of_file(&random), folder = file / FILES_A_FOLDER;

		snprintf(path, sizeof(path), "%s/%llu", argv[1], (unsigned long long)folder);
		if (mkdir(path, 0755) && errno != EEXIST)
			FAIL("cannot create %s: %s", path, strerror(errno));
		snprintf(path, sizeof(path), "%s/%llu/file-%llu", argv[1], (unsigned long long)folder, (unsigned long long)file);
		write_file(path, bytes, &random);
		total += bytes;
	}
	snprintf(path, sizeof(path), "%s/link", argv[1]);
	if (symlink("0/file-0", path))
		FAIL("cannot link %s: %s", path, strerror(errno));
	printf("fip-guest: %llu files of %llu KiB\n", (unsigned long long)files, (unsigned long long)total / 1024);
	return 0;
}
