/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Messages between two ends of a way of the kernel's, for `cargo xtask bench net`.
 *
 *   net-peers tcp|udp|packet|mmap|xdp|devices
 *
 * It prints "ready", then answers each line "EXCHANGE BYTES MILLISECONDS CPUS CPU CPU" on standard input with a line of numbers,
 * until that ends. EXCHANGE is `there` (a message one way), `back` (there, and one of the same length back), `steps` (each of the
 * two is acknowledged by 64 bytes before the next goes) or `rate` (messages one way, as many as possible). With CPUS 1 one thread
 * has both ends, on the first CPU; with 2 the far end has a thread on the second one. Neither sleeps. Answers: p50 and best in
 * nanoseconds, or messages per second.
 */
#define _GNU_SOURCE
#include "net_ways.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define ACK 64
#define SAMPLES (1 << 20)

static uint64_t now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

#define GIVE_UP_NS 2000000000ull
#define LOOKS 4096

static char send_buffer[2][MOST], receive_buffer[2][MOST];

static bool in_time(unsigned *looks, uint64_t *since)
{
	if (++*looks % LOOKS)
		return true;
	if (*since == 0)
		*since = now_ns();
	return now_ns() - *since < GIVE_UP_NS;
}

/* A message from one end to the other, by a thread that has both. */
static void pass(int from, size_t length)
{
	unsigned looks = 0;
	uint64_t since = 0;
	for (size_t sent = 0, got = 0; got < length;) {
		if (sent < length)
			sent += put_some(ends[from], send_buffer[from] + sent, length - sent);
		got += get_some(ends[!from], receive_buffer[!from] + got, length - got);
		if (!in_time(&looks, &since)) {
			fprintf(stderr, "%zu of %zu bytes came\n", got, length);
			exit(1);
		}
	}
}

static void put_all(int from, size_t length)
{
	for (size_t sent = 0; sent < length;)
		sent += put_some(ends[from], send_buffer[from] + sent, length - sent);
}

static bool get_all(int at, size_t length, _Atomic bool *over)
{
	unsigned looks = 0;
	uint64_t since = 0;
	for (size_t got = 0; got < length;) {
		got += get_some(ends[at], receive_buffer[at] + got, length - got);
		if (got == 0 && over && *over)
			return false;
		if (!over && !in_time(&looks, &since)) {
			fprintf(stderr, "%zu of %zu bytes came\n", got, length);
			exit(1);
		}
	}
	return true;
}

enum exchange { THERE, BACK, STEPS, RATE };

static void exchange_alone(enum exchange exchange, size_t length)
{
	pass(0, length);
	if (exchange == STEPS)
		pass(1, ACK);
	if (exchange != THERE)
		pass(1, length);
	if (exchange == STEPS)
		pass(0, ACK);
}

static void exchange_near(enum exchange exchange, size_t length)
{
	put_all(0, length);
	if (exchange == STEPS)
		get_all(0, ACK, NULL);
	get_all(0, length, NULL);
	if (exchange == STEPS)
		put_all(0, ACK);
}

static bool exchange_far(enum exchange exchange, size_t length, _Atomic bool *over)
{
	if (!get_all(1, length, over))
		return false;
	if (exchange == STEPS)
		put_all(1, ACK);
	put_all(1, length);
	return exchange != STEPS || get_all(1, ACK, over);
}

static void bind_to(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof set, &set);
}

struct order {
	enum exchange exchange;
	size_t length;
	int cpu;
	_Atomic bool over;
	_Atomic uint64_t received;
};

static void *far(void *argument)
{
	struct order *order = argument;
	bind_to(order->cpu);
	if (order->exchange == RATE) {
		uint64_t bytes = 0;
		while (!order->over) {
			for (int look = 0; look < BURST; look++)
				bytes += get_some(ends[1], receive_buffer[1], order->length);
			order->received = bytes;
		}
	} else {
		while (exchange_far(order->exchange, order->length, &order->over))
			;
	}
	return NULL;
}

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return (x > y) - (x < y);
}

static void measure_times(struct order *order, bool alone, uint64_t duration_ns)
{
	static uint32_t times[SAMPLES];
	size_t count = 0;
	uint64_t until = now_ns() + duration_ns, after = 0;
	/* The first tenth is not counted. */
	uint64_t counted = now_ns() + duration_ns / 10;
	while (after < until && count < SAMPLES) {
		uint64_t before = now_ns();
		if (alone)
			exchange_alone(order->exchange, order->length);
		else
			exchange_near(order->exchange, order->length);
		after = now_ns();
		if (before >= counted || after >= until)
			times[count++] = (uint32_t)(after - before);
	}
	qsort(times, count, sizeof *times, by_size);
	printf("%u %u\n", times[count / 2], times[0]);
}

static void measure_rate(struct order *order, bool alone, uint64_t duration_ns)
{
	uint64_t begun = now_ns(), received = 0;
	/* Several messages at once, each a frame of its own; of a long one as much as there is room for. */
	size_t burst = least(BURST, MOST / order->length) * order->length, offset = 0, whole = longest;
	longest = least(longest, order->length);
	while (now_ns() - begun < duration_ns) {
		for (size_t sent = 1; sent > 0 && offset < burst; offset += sent)
			sent = put_some(ends[0], send_buffer[0] + offset, burst - offset);
		offset %= burst;
		for (size_t number = 0, got = 1; alone && got > 0 && number < 4 * BURST; number++)
			received += got = get_some(ends[1], receive_buffer[1], order->length);
	}
	if (!alone)
		received = order->received;
	longest = whole;
	printf("%.1f\n", (double)received / (double)order->length / ((double)(now_ns() - begun) / 1e9));
}

static void drain(void)
{
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 2; i++)
			while (get_some(ends[i], receive_buffer[i], MOST) > 0)
				;
		usleep(2000);
	}
}

int main(int count, char **words)
{
	char name[16];
	size_t length;
	unsigned duration_ms, cpus;
	int cpu[2];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (count != 2) {
		fprintf(stderr, "usage: %s tcp|udp|packet|mmap|xdp|devices\n", words[0]);
		return 2;
	}
	open_way(words[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (scanf("%15s %zu %u %u %d %d", name, &length, &duration_ms, &cpus, &cpu[0], &cpu[1]) == 6) {
		const char *names[] = { "there", "back", "steps", "rate" };
		struct order order = { .exchange = RATE, .length = length, .cpu = cpu[1] };
		for (int i = 0; i < 4; i++)
			if (!strcmp(name, names[i]))
				order.exchange = (enum exchange)i;
		if (length < ACK || length > MOST) {
			fprintf(stderr, "%zu bytes: 64 to %d are possible\n", length, MOST);
			return 2;
		}
		bind_to(cpu[0]);
		pthread_t thread;
		bool alone = cpus == 1;
		if (!alone && pthread_create(&thread, NULL, far, &order))
			fail("a thread");
		uint64_t duration_ns = (uint64_t)duration_ms * 1000000;
		if (order.exchange == RATE)
			measure_rate(&order, alone, duration_ns);
		else
			measure_times(&order, alone, duration_ns);
		order.over = true;
		if (!alone)
			pthread_join(thread, NULL);
		drain();
	}
	return 0;
}
