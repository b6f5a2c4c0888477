/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the guest's test programs share: one binary, a subcommand each. */
#ifndef FIPSEE_GUEST_H
#define FIPSEE_GUEST_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define SECTOR 512u

#define FAIL(...)                                       \
	do {                                            \
		fprintf(stderr, "fip-guest: " __VA_ARGS__); \
		fputc('\n', stderr);                    \
		exit(1);                                \
	} while (0)

/* A number that differs from its neighbours' in every bit (splitmix64). */
static inline uint64_t mixed(uint64_t value)
{
	value += 0x9e3779b97f4a7c15u;
	value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
	value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
	return value ^ (value >> 31);
}

struct random {
	uint64_t state;
};

static inline uint64_t random_next(struct random *random)
{
	return mixed(random->state++);
}

static inline uint64_t random_below(struct random *random, uint64_t bound)
{
	return random_next(random) % bound;
}

int sizes_main(int argc, char **argv);
int zeroes_main(int argc, char **argv);
int stress_main(int argc, char **argv);
int tree_main(int argc, char **argv);
int kills_main(int argc, char **argv);
int follow_main(int argc, char **argv);

/* A disk with sectors filled by their number, a round and a seed (disk.c). */
struct disk {
	int fd;
	uint64_t sectors;
	uint64_t seed;
	uint32_t *rounds; /* the round in which a sector was written; 0: not by us; ZEROED: reads as zeroes */
};

#define NOT_OURS 0u
#define ZEROED UINT32_MAX

void disk_open(struct disk *disk, const char *path, uint64_t seed);
void sector_fill(const struct disk *disk, uint64_t sector, uint32_t round, void *bytes);
/* Fails, and says what was found, when the bytes are not those of this sector in the round it was written in. */
void sector_check(const struct disk *disk, uint64_t sector, const void *bytes, const char *when);
/* Read all that was written and compare. */
void disk_check(const struct disk *disk, const char *when);

#endif
