// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A thread reads a disk, one request at a time, and is moved from CPU to CPU meanwhile: the disk's interrupts must come on the CPU
 * that the thread is on, and on no other. LEAST: so many, at least, for a hundred reads; a driver that looks for completions itself
 * needs fewer. With CPU, that one goes offline under the thread and comes back.
 */
#define _GNU_SOURCE
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <linux/fs.h>
#include <unistd.h>

#define MOST_CPUS 256u
#define READ_BYTES 4096u
/* After a move: what was on its way, and the first request from the new CPU. */
#define SETTLE 4u
/* Looks at the number of reads, half a millisecond apart. */
#define LOOKS 200000u

struct reader {
	const char *virtio; /* "virtio3" */
	int fd;
	unsigned long least;
	uint64_t bytes;
	_Atomic pid_t id;
	atomic_ulong reads;
	atomic_bool must_end;
};

/* The disk's interrupts for requests, by CPU; `is_online` are those that the table has. */
struct interrupts {
	unsigned long counts[MOST_CPUS];
	char is_online[MOST_CPUS];
};

static void *read_on(void *argument)
{
	struct reader *reader = argument;
	char *bytes = aligned_alloc(READ_BYTES, READ_BYTES);
	uint64_t place = 0;

	prctl(PR_SET_NAME, "reader");
	reader->id = (pid_t)syscall(SYS_gettid);
	while (!reader->must_end) {
		if (pread(reader->fd, bytes, READ_BYTES, (off_t)place) != READ_BYTES)
			FAIL("%s: a read at %llu: %s", reader->virtio, (unsigned long long)place, strerror(errno));
		place = (place + READ_BYTES) % reader->bytes;
		reader->reads++;
	}
	free(bytes);
	return NULL;
}

static void await_reads(struct reader *reader, unsigned long count, const char *when)
{
	unsigned long wanted = reader->reads + count;

	for (unsigned looks = 0; reader->reads < wanted; looks++) {
		if (looks == LOOKS)
			FAIL("%s: the reads stopped %s", reader->virtio, when);
		usleep(500);
	}
}

static void interrupts_read(const struct reader *reader, struct interrupts *found)
{
	FILE *file = fopen("/proc/interrupts", "r");
	unsigned cpus[MOST_CPUS], columns = 0;
	char mark[32], *line = NULL, *at;
	size_t size = 0;
	int used;

	memset(found, 0, sizeof(*found));
	snprintf(mark, sizeof(mark), " %s-req.", reader->virtio);
	if (!file || getline(&line, &size, file) < 0)
		FAIL("/proc/interrupts cannot be read: %s", strerror(errno));
	for (at = line; columns < MOST_CPUS && sscanf(at, " CPU%u%n", &cpus[columns], &used) == 1; at += used, columns++) {
		if (cpus[columns] >= MOST_CPUS)
			FAIL("CPU %u is one too many", cpus[columns]);
		found->is_online[cpus[columns]] = 1;
	}
	while (getline(&line, &size, file) > 0) {
		if (!strstr(line, mark))
			continue;
		at = strchr(line, ':') + 1;
		for (unsigned column = 0; column < columns; column++)
			found->counts[cpus[column]] += strtoul(at, &at, 10);
	}
	free(line);
	fclose(file);
}

static void move_to(struct reader *reader, unsigned cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(reader->id, sizeof(set), &set))
		FAIL("the reader cannot be moved to CPU %u: %s", cpu, strerror(errno));
}

/* Moves the thread. How many interrupts came for `count` reads. */
static unsigned long follow(struct reader *reader, unsigned cpu, unsigned long count, const char *when)
{
	struct interrupts before, after;

	move_to(reader, cpu);
	await_reads(reader, SETTLE, when);
	interrupts_read(reader, &before);
	await_reads(reader, count, when);
	interrupts_read(reader, &after);
	for (unsigned other = 0; other < MOST_CPUS; other++)
		if (other != cpu && after.counts[other] != before.counts[other])
			FAIL("%s: %lu interrupts on CPU %u %s, with the reader on CPU %u", reader->virtio,
			     after.counts[other] - before.counts[other], other, when, cpu);
	/* One may have been counted before the first of these reads ended. */
	if (after.counts[cpu] - before.counts[cpu] + 1 < count * reader->least / 100)
		FAIL("%s: only %lu interrupts for %lu reads on CPU %u %s", reader->virtio, after.counts[cpu] - before.counts[cpu], count,
		     cpu, when);
	return after.counts[cpu] - before.counts[cpu];
}

static void set_online(unsigned cpu, const char *value)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/online", cpu);
	fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, value, 1) != 1)
		FAIL("%s cannot be set to %s: %s", path, value, strerror(errno));
	close(fd);
}

/* The thread is on the CPU when it goes. */
static void without_cpu(struct reader *reader, unsigned cpu, unsigned long count)
{
	follow(reader, cpu, count, "before the CPU goes");
	set_online(cpu, "0");
	await_reads(reader, count, "when the CPU went");
	follow(reader, 0, count, "when the CPU had gone");
	set_online(cpu, "1");
	follow(reader, cpu, count, "when the CPU was back");
}

int follow_main(int argc, char **argv)
{
	struct reader reader = { 0 };
	struct interrupts first;
	unsigned long count, sum = 0;
	unsigned cpus = 0;
	pthread_t thread;

	if (argc != 5 && argc != 6)
		FAIL("usage: fip-guest follow DEVICE VIRTIO READS LEAST [CPU]");
	reader.virtio = argv[2];
	count = strtoul(argv[3], NULL, 0);
	reader.least = strtoul(argv[4], NULL, 0);
	reader.fd = open(argv[1], O_RDONLY | O_DIRECT);
	if (reader.fd < 0 || ioctl(reader.fd, BLKGETSIZE64, &reader.bytes) || reader.bytes < READ_BYTES)
		FAIL("cannot open %s: %s", argv[1], strerror(errno));
	reader.bytes -= reader.bytes % READ_BYTES;
	if (pthread_create(&thread, NULL, read_on, &reader))
		FAIL("no thread");
	await_reads(&reader, 1, "at first");
	interrupts_read(&reader, &first);
	for (unsigned cpu = 0; cpu < MOST_CPUS; cpu++) {
		if (!first.is_online[cpu])
			continue;
		sum += follow(&reader, cpu, count, "after a move");
		cpus++;
	}
	if (sum < cpus)
		FAIL("%s: only %lu interrupts on %u CPUs", reader.virtio, sum, cpus);
	if (argc == 6)
		without_cpu(&reader, (unsigned)strtoul(argv[5], NULL, 0), count);
	reader.must_end = 1;
	pthread_join(thread, NULL);
	printf("fip-guest: %s: on each of %u CPUs %lu reads, %lu interrupts in all, none on another CPU\n", reader.virtio, cpus, count, sum);
	return 0;
}
