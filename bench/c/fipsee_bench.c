/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fipsee-bench-c SOCKET DISK DEPTH SECONDS BLOCK_BYTES read|write: what `fipsee bench` does with one queue, through the C
 * library: random requests, memory of the disk, adaptive waiting, one request in flight sampled at a time. One line of JSON.
 */
#define _GNU_SOURCE
#include <fipsee_client.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_DEPTH 4096
/* Samples of one tick each up to here, then 1 in 64 of them: a percent and better. */
#define FINE 65536
#define COARSE 65536
#define COARSE_SHIFT 6

struct load {
	struct fipsee_queue *queue;
	char *memory;
	uint64_t block_bytes, block_count, random;
	int depth, is_write;
	uint64_t started_ticks[MAX_DEPTH];
	uint64_t samples, sum_ticks, finished;
	uint32_t histogram[FINE + COARSE];
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t ticks(void)
{
#ifdef __x86_64__
	__builtin_ia32_lfence();	/* an unfenced stamp is read past the spin that it ends */
	return __builtin_ia32_rdtsc();
#else
	return now_ns();
#endif
}

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "fipsee-bench-c: %s: %s\n", what, fipsee_error_message());
	exit(1);
}

static inline void start(struct load *load, uint64_t slot, uint64_t now_ticks)
{
	char *buffer = load->memory + slot * load->block_bytes;
	uint64_t block, offset_bytes;
	int staged;

	load->random = load->random * 6364136223846793005u + 1442695040888963407u;
	block = ((load->random >> 32) * load->block_count) >> 32;
	offset_bytes = block * load->block_bytes;
	if (load->is_write)
		staged = fipsee_stage_write(load->queue, buffer, load->block_bytes, offset_bytes, 0, slot);
	else
		staged = fipsee_stage_read(load->queue, buffer, load->block_bytes, offset_bytes, slot);
	if (staged != 0)
		fail("stage");
	load->started_ticks[slot] = now_ticks;
}

static void sample(struct load *load, uint64_t spent_ticks)
{
	uint64_t place = spent_ticks < FINE ? spent_ticks : FINE + ((spent_ticks - FINE) >> COARSE_SHIFT);

	load->histogram[place < FINE + COARSE ? place : FINE + COARSE - 1]++;
	load->sum_ticks += spent_ticks;
	load->samples++;
}

static void run(struct load *load, uint64_t end_ticks)
{
	struct fipsee_result results[MAX_DEPTH];
	uint64_t slot, probe = 0, now_ticks = ticks();
	int count, i;

	for (slot = 0; slot < (uint64_t)load->depth; slot++)
		start(load, slot, now_ticks);
	while (now_ticks < end_ticks) {
		count = fipsee_wait(load->queue, results, (uint32_t)load->depth, -1);
		if (count < 0)
			fail("wait");
		load->finished += (uint64_t)count;
		for (i = 0; i < count; i++) {
			if (results[i].result != 0) {
				fprintf(stderr, "fipsee-bench-c: %s\n", fipsee_result_message(&results[i]));
				exit(1);
			}
			if (results[i].token == probe) {
				sample(load, ticks() - load->started_ticks[probe]);
				probe = (probe + 7) % (uint64_t)load->depth;
			}
		}
		now_ticks = ticks();
		for (i = 0; i < count; i++)
			start(load, results[i].token, now_ticks);
	}
}

static double quantile_ns(const struct load *load, double quantile, double ns_per_tick)
{
	double wanted = quantile * (double)load->samples, seen = 0;
	size_t place;

	for (place = 0; place < FINE + COARSE; place++) {
		seen += load->histogram[place];
		if (seen >= wanted && seen > 0)
			break;
	}
	if (place >= FINE)
		place = FINE + ((place - FINE) << COARSE_SHIFT);
	return (double)place * ns_per_tick;
}

/* The first CPU, as `fipsee bench` does: the daemon's workers take the last ones. */
static void bind(void)
{
	cpu_set_t all, one;
	int cpu = 0;

	if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) < 2)
		return;
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	(void)sched_setaffinity(0, sizeof(one), &one);
}

static double measure_ns_per_tick(void)
{
	uint64_t from_ns = now_ns(), from_ticks = ticks();

	while (now_ns() - from_ns < 20000000)
		continue;
	return (double)(now_ns() - from_ns) / (double)(ticks() - from_ticks);
}

int main(int argc, char **argv)
{
	static struct load load;
	struct fipsee_options options;
	struct fipsee_info info = { .size_bytes = sizeof(info) };
	struct fipsee_disk *disk;
	struct fipsee_memory *memory;
	uint64_t from_ns, from_ticks;
	double seconds, ns_per_tick;

	if (argc != 7 || (strcmp(argv[6], "read") != 0 && strcmp(argv[6], "write") != 0)) {
		fprintf(stderr, "usage: fipsee-bench-c SOCKET DISK DEPTH SECONDS BLOCK_BYTES read|write\n");
		return 2;
	}
	load.random = 0x9e3779b97f4a7c15;
	load.depth = atoi(argv[3]);
	seconds = atof(argv[4]);
	load.block_bytes = strtoull(argv[5], NULL, 10);
	load.is_write = strcmp(argv[6], "write") == 0;
	if (load.depth < 1 || load.depth > MAX_DEPTH || !(seconds > 0) || load.block_bytes == 0) {
		fprintf(stderr, "fipsee-bench-c: DEPTH is 1 to %d, SECONDS and BLOCK_BYTES are more than 0\n", MAX_DEPTH);
		return 2;
	}
	fipsee_options_init(&options);
	options.socket_path = argv[1];
	options.disk = argv[2];
	options.depth = (uint32_t)load.depth;
	if (fipsee_open(&options, &disk) != 0 || fipsee_get_info(disk, &info) != 0)
		fail("open");
	load.block_count = info.capacity_bytes / load.block_bytes;
	load.queue = fipsee_get_queue(disk, 0);
	if (fipsee_depth(load.queue) < load.depth)
		load.depth = fipsee_depth(load.queue);
	if (fipsee_memory_create(disk, (uint64_t)load.depth * load.block_bytes, &memory) != 0)
		fail("memory");
	load.memory = fipsee_memory_address(memory);
	bind();
	ns_per_tick = measure_ns_per_tick();
	from_ns = now_ns();
	from_ticks = ticks();
	run(&load, from_ticks + (uint64_t)(seconds * 1e9 / ns_per_tick));
	seconds = (double)(now_ns() - from_ns) / 1e9;
	printf("{\"iops\":%.0f,\"p50_ns\":%.0f,\"p99_ns\":%.0f,\"mean_ns\":%.0f,\"samples\":%" PRIu64 "}\n",
	       (double)load.finished / seconds, quantile_ns(&load, 0.5, ns_per_tick),
	       quantile_ns(&load, 0.99, ns_per_tick),
	       (double)load.sum_ticks * ns_per_tick / (double)(load.samples ? load.samples : 1), load.samples);
	if (fipsee_close(disk) != 0)
		fail("close");
	return 0;
}
