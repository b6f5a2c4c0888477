// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * rules.h without a kernel: threads that each do 1000 thousandths of work, rings that ask for some. place.h: CPUs with nodes, caches and
 * cores. tests/interop runs it.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;

#include "../place.h"
#include "../rules.h"

#define SAMPLE_MS 20u
#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))

struct machine {
	struct fip_rules rules;
	struct fip_load load;
	unsigned int least, most;
	u32 wanted[FIP_RULES_MOST];
	u32 now_ms;
	unsigned int added, removed, moved;
};

static uint64_t random_state = 1;

static u32 random_below(u32 bound)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (u32)((random_state >> 33) % bound);
}

static void start(struct machine *machine, unsigned int rings, unsigned int least, unsigned int most)
{
	*machine = (struct machine){ .least = least, .most = most };
	machine->load.rings = rings;
	machine->load.threads = least;
	for (unsigned int ring = 0; ring < rings; ring++)
		machine->load.thread_of[ring] = (u8)(ring % least);
}

/* What each ring gets: what it wants, or its part of a full thread. */
static void serve(struct machine *machine)
{
	u32 sums[FIP_RULES_MOST] = { 0 };

	for (unsigned int ring = 0; ring < machine->load.rings; ring++)
		sums[machine->load.thread_of[ring]] += machine->wanted[ring];
	for (unsigned int ring = 0; ring < machine->load.rings; ring++) {
		u32 sum = sums[machine->load.thread_of[ring]];

		machine->load.shares[ring] = sum > 1000 ? machine->wanted[ring] * 1000 / sum : machine->wanted[ring];
	}
}

static void run(struct machine *machine, u32 ms)
{
	u8 thread_of[FIP_RULES_MOST];

	for (u32 end_ms = machine->now_ms + ms; machine->now_ms < end_ms; machine->now_ms += SAMPLE_MS) {
		enum fip_decision decision;

		serve(machine);
		decision = fip_rules_decide(&machine->rules, &machine->load, machine->least, machine->most, SAMPLE_MS, thread_of);
		if (decision == FIP_KEEP)
			continue;
		machine->added += decision == FIP_ADD;
		machine->removed += decision == FIP_REMOVE;
		machine->moved += decision == FIP_MOVE;
		machine->load.threads += (decision == FIP_ADD) - (decision == FIP_REMOVE);
		if (machine->load.threads < machine->least || machine->load.threads > machine->most)
			FAIL("%u threads, not %u to %u", machine->load.threads, machine->least, machine->most);
		for (unsigned int ring = 0; ring < machine->load.rings; ring++) {
			if (thread_of[ring] >= machine->load.threads)
				FAIL("ring %u is given to thread %u of %u", ring, thread_of[ring], machine->load.threads);
			machine->load.thread_of[ring] = thread_of[ring];
		}
	}
}

static void want(struct machine *machine, u32 each)
{
	for (unsigned int ring = 0; ring < machine->load.rings; ring++)
		machine->wanted[ring] = each;
}

static void threads_follow_the_load(void)
{
	struct machine machine;

	start(&machine, 8, 1, 7);
	want(&machine, 400);
	run(&machine, 100);
	if (machine.load.threads < 2)
		FAIL("no second thread within 100 ms");
	run(&machine, 400);
	/* 3200 on 4 leaves no thread full. */
	if (machine.load.threads != 4)
		FAIL("%u threads for 3200", machine.load.threads);
	want(&machine, 0);
	run(&machine, 2500);
	if (machine.load.threads != 3)
		FAIL("%u threads after 2.5 s without work", machine.load.threads);
	run(&machine, 5000);
	if (machine.load.threads != 1)
		FAIL("%u threads stay without work", machine.load.threads);
}

static void one_ring_is_no_reason_for_a_second_thread(void)
{
	struct machine machine;

	start(&machine, 8, 1, 7);
	machine.wanted[3] = 5000;
	machine.wanted[4] = 40;
	run(&machine, 10000);
	if (machine.load.threads != 1 || machine.moved)
		FAIL("%u threads and %u moves for one ring", machine.load.threads, machine.moved);
}

static void rings_move_to_the_thread_that_has_time(void)
{
	struct machine machine;

	start(&machine, 4, 2, 2);
	machine.wanted[0] = machine.wanted[2] = 450;
	run(&machine, 900);
	if (machine.moved)
		FAIL("moved at once");
	run(&machine, 200);
	if (machine.moved != 1 || machine.load.thread_of[0] == machine.load.thread_of[2])
		FAIL("%u moves; both rings are on thread %u", machine.moved, machine.load.thread_of[0]);
}

/* Rings 0 and 2, then 4 and 6, are uneven again whenever they were divided. */
static void unsettle(struct machine *machine, unsigned int first)
{
	machine->load.thread_of[first] = machine->load.thread_of[first + 2] = 0;
}

static void other_rings_do_not_wait_for_those_before(void)
{
	struct machine machine;
	unsigned int moved;

	start(&machine, 8, 2, 2);
	machine.wanted[0] = machine.wanted[2] = 450;
	for (unsigned int round = 0; round < 4; round++) {
		unsettle(&machine, 0);
		run(&machine, 10000);
	}
	/* After 1, 2, 4 and 8 s. */
	if (machine.moved != 4)
		FAIL("%u moves in 40 s", machine.moved);
	unsettle(&machine, 0);
	run(&machine, 10000);
	if (machine.moved != 4)
		FAIL("the same rings moved after 10 s, not 16");
	moved = machine.moved;
	want(&machine, 0);
	machine.wanted[4] = machine.wanted[6] = 450;
	unsettle(&machine, 4);
	run(&machine, 1100);
	if (machine.moved != moved + 1)
		FAIL("%u moves of other rings in 1.1 s", machine.moved - moved);
	/* A ring that has something to do only now and then works all the time: 1, 2, 4 and 8 s, after those before are forgotten. */
	run(&machine, 6000);
	moved = machine.moved;
	for (unsigned int round = 0; round < 20; round++) {
		unsettle(&machine, 4);
		machine.wanted[1] = round % 2 ? 0 : 5;
		run(&machine, 1000);
	}
	if (machine.moved > moved + 4)
		FAIL("%u moves in 20 s because a ring paused", machine.moved - moved);
}

/* Whatever the load: once it is constant, the number of threads is, and few rings move. */
static void a_constant_load_changes_nothing(void)
{
	for (unsigned int round = 0; round < 1000; round++) {
		unsigned int rings = 1 + random_below(16), added, removed, moved, most;
		struct machine machine;

		most = 1 + random_below(rings);
		start(&machine, rings, 1, most);
		for (unsigned int ring = 0; ring < rings; ring++)
			machine.wanted[ring] = random_below(3) ? random_below(random_below(4) ? 300 : 1500) : 0;
		run(&machine, 15000);
		added = machine.added;
		removed = machine.removed;
		moved = machine.moved;
		run(&machine, 20000);
		if (machine.added != added || machine.removed != removed || machine.moved > moved + 6)
			FAIL("round %u: in 20 s of constant load %u threads are added, %u removed, and rings moved %u times", round,
			     machine.added - added, machine.removed - removed, machine.moved - moved);
	}
}

/* Two nodes, each of two last-level caches with two cores of two CPUs. */
#define CPUS 16u

struct cpu {
	unsigned int node, cache, core, threads;
};

/* Siblings have numbers beside each other, or eight apart. */
static void make_cpus(struct cpu *cpus, bool is_adjacent)
{
	for (unsigned int cpu = 0; cpu < CPUS; cpu++) {
		unsigned int core = is_adjacent ? cpu / 2 : cpu % 8;

		cpus[cpu] = (struct cpu){ .node = core / 4, .cache = core / 2, .core = core };
	}
}

/* As place.c: `first` is where the disk's first thread runs, CPUS if this is it. */
static unsigned int place(struct cpu *cpus, unsigned int node, unsigned int first)
{
	struct fip_place best = { .threads = UINT32_MAX };

	for (unsigned int cpu = 0; cpu < CPUS; cpu++) {
		struct fip_place here = { .cpu = cpu, .threads = cpus[cpu].threads, .is_far = cpus[cpu].node != node };

		here.is_cold = first < CPUS && cpus[cpu].cache != cpus[first].cache;
		for (unsigned int other = 0; other < CPUS; other++)
			here.beside += other != cpu && cpus[other].core == cpus[cpu].core ? cpus[other].threads : 0;
		if (fip_place_is_better(&here, &best))
			best = here;
	}
	cpus[best.cpu].threads++;
	return best.cpu;
}

static void threads_get_cores_near_their_memory_then_siblings_then_other_nodes(void)
{
	/* Of memory on the second node: its cores, those of the first thread's cache first; their siblings; the other node likewise. */
	static const unsigned int expected[] = { 4, 5, 6, 7, 12, 13, 14, 15, 0, 1, 2, 3, 8, 9, 10, 11 };
	struct cpu cpus[CPUS];
	unsigned int first = CPUS;

	make_cpus(cpus, false);
	for (unsigned int thread = 0; thread < 2 * CPUS; thread++) {
		unsigned int cpu = place(cpus, 1, first);

		if (cpu != expected[thread % CPUS])
			FAIL("thread %u is on CPU %u, not %u", thread, cpu, expected[thread % CPUS]);
		first = thread ? first : cpu;
	}
}

static void threads_of_another_disk_avoid_those_that_are_there(void)
{
	struct cpu cpus[CPUS];
	unsigned int first, second;

	make_cpus(cpus, true);
	first = place(cpus, 0, CPUS);
	second = place(cpus, 0, CPUS);
	if (cpus[first].core == cpus[second].core || cpus[second].node != 0)
		FAIL("the disks' threads are on CPUs %u and %u", first, second);
	/* The cache of its first thread has no free core any more, so its second gets one elsewhere on the node. */
	second = place(cpus, 0, second);
	if (cpus[second].node != 0 || cpus[second].core < 2)
		FAIL("the other disk's second thread is on CPU %u", second);
	cpus[first].threads--;
	if (place(cpus, 0, CPUS) != first)
		FAIL("a CPU that is free again is not used");
}

static void second_thread_shares_the_cache_of_the_first(void)
{
	struct cpu cpus[CPUS];
	unsigned int first, second;

	make_cpus(cpus, true);
	cpus[0].threads = cpus[2].threads = 1;
	first = place(cpus, 0, CPUS);
	cpus[0].threads = 0;
	second = place(cpus, 0, first);
	if (first != 4 || second != 6)
		FAIL("the threads are on CPUs %u and %u", first, second);
}

int main(void)
{
	second_thread_shares_the_cache_of_the_first();
	threads_get_cores_near_their_memory_then_siblings_then_other_nodes();
	threads_of_another_disk_avoid_those_that_are_there();
	threads_follow_the_load();
	one_ring_is_no_reason_for_a_second_thread();
	rings_move_to_the_thread_that_has_time();
	other_rings_do_not_wait_for_those_before();
	a_constant_load_changes_nothing();
	return 0;
}
