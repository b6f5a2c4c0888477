/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the C tests share: a check that says where and what, and opening a disk. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fipsee_client.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `actual` is computed once; the last message of the library is printed beside it. */
#define EXPECT(actual, wanted) expect(__FILE__, __LINE__, #actual, (long long)(actual), (long long)(wanted))
/* It fails with `wanted`, and the message names what was wrong. */
#define FAILS(actual, wanted, words) fails(__FILE__, __LINE__, #actual, (long long)(actual), (long long)(wanted), words)

static inline void expect(const char *file, int line, const char *what, long long actual, long long wanted)
{
	if (actual == wanted)
		return;
	fprintf(stderr, "%s:%d: %s is %lld, not %lld (%s)\n", file, line, what, actual, wanted, fipsee_error_message());
	exit(1);
}

static inline void fails(const char *file, int line, const char *what, long long actual, long long wanted,
			 const char *words)
{
	expect(file, line, what, actual, wanted);
	if (strstr(fipsee_error_message(), words) != NULL)
		return;
	fprintf(stderr, "%s:%d: %s: the message lacks '%s': %s\n", file, line, what, words, fipsee_error_message());
	exit(1);
}

/* Where the test's daemon listens. */
static const char *the_socket;

static inline struct fipsee_disk *open_disk(const char *name, uint32_t queue_count, uint32_t depth)
{
	struct fipsee_options options;
	struct fipsee_disk *disk = NULL;

	fipsee_options_init(&options);
	options.socket_path = the_socket;
	options.disk = name;
	options.queue_count = queue_count;
	options.depth = depth;
	EXPECT(fipsee_open(&options, &disk), 0);
	return disk;
}

static inline uint64_t capacity_of(const struct fipsee_disk *disk)
{
	struct fipsee_info info;

	info.size_bytes = sizeof(info);
	EXPECT(fipsee_get_info(disk, &info), 0);
	return info.capacity_bytes;
}

static inline uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 32;
}

/* Ask the harness (tests/acceptance/tests/libraries/c_library.rs) for something, without waiting for it. It answers lines with a '?'. */
static inline void ask(const char *line)
{
	printf("%s\n", line);
	fflush(stdout);
}

/* Ask, and wait until it is done. */
static inline void report(const char *line)
{
	char answer[16];

	printf("%s?\n", line);
	fflush(stdout);
	if (fgets(answer, sizeof(answer), stdin) == NULL) {
		fprintf(stderr, "the harness went away after '%s'\n", line);
		exit(1);
	}
}

#endif
