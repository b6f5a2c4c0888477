/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One end of a pair of rings in memory shared with the Rust test, over fipsee_ring.h alone.
 *
 * Memory: cold words of the ring that comes in at 0, of the ring that goes out at 128; slots of the one at 4096 and of
 * the other behind it. Exit status: 0 all as expected, 1 wrong data, 2 wrong use, 3 the peer is faulty.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

/* The fio engine's stores. */
#include "stores.h"

#include "fipsee_ring.h"

/* A lost wake-up leaves us asleep; then the alarm ends us, and the test sees that. */
#define ALARM_SECONDS 240
#define SLOTS_OFFSET_BYTES 4096
#define MAX_BURST 64
#define LOOKS_BEFORE_SLEEP 300

enum wait_mode { WAIT_POLL, WAIT_ADAPTIVE, WAIT_SLEEP };

struct peer {
	struct fipsee_ring in_ring, out_ring;
	struct fipsee_cursor in_start, out_start;
	struct fipsee_reader reader;
	int our_doorbell, their_doorbell;
	enum wait_mode wait;
	uint32_t count, burst, choices;
	union fipsee_message batch[MAX_BURST];
};

static void fail(int status, const char *what, uint32_t sequence)
{
	fprintf(stderr, "C peer: %s at message %u\n", what, sequence);
	exit(status);
}

/* Word `index` of message `sequence`; src/peer.rs computes the same. */
static uint32_t pattern(uint32_t sequence, uint32_t salt, uint32_t index)
{
	uint32_t mixed = sequence * 0x9e3779b1U + index * 0x85ebca6bU + salt;

	mixed ^= mixed >> 15;
	mixed *= 0x2c1b3c6dU;
	return mixed ^ mixed >> 13;
}

static void fill(union fipsee_message *message, uint32_t sequence, uint32_t salt)
{
	uint32_t index, word;

	for (index = 0; index < FIPSEE_PAYLOAD_BYTES / 4; index++) {
		word = pattern(sequence, salt, index);
		memcpy(&message->slot.payload[4 * index], &word, 4);
	}
}

static void check(const union fipsee_message *message, uint32_t sequence, uint32_t salt)
{
	union fipsee_message expected;

	fill(&expected, sequence, salt);
	if (memcmp(message->slot.payload, expected.slot.payload, FIPSEE_PAYLOAD_BYTES) != 0)
		fail(1, "wrong payload", sequence);
}

static void ring_if_asleep(struct peer *peer, struct fipsee_writer *writer)
{
	const uint64_t one = 1;

	if (fipsee_writer_needs_doorbell(writer) && write(peer->their_doorbell, &one, sizeof(one)) != sizeof(one))
		fail(2, "cannot ring", 0);
}

static void sleep_on_doorbell(struct peer *peer)
{
	struct pollfd doorbell = { .fd = peer->our_doorbell, .events = POLLIN };
	uint64_t rings;

	if (poll(&doorbell, 1, -1) != 1 || read(peer->our_doorbell, &rings, sizeof(rings)) != sizeof(rings))
		fail(2, "cannot wait", 0);
}

static void wait_for_message(struct peer *peer)
{
	uint32_t looks = 0;

	while (!fipsee_reader_has_message(&peer->reader)) {
		looks++;
		if (peer->wait == WAIT_POLL || (peer->wait == WAIT_ADAPTIVE && looks < LOOKS_BEFORE_SLEEP)) {
			if (looks % 64 == 0)
				sched_yield();
			continue;
		}
		fipsee_reader_release_all(&peer->reader);
		if (!fipsee_reader_arm_and_work_remains(&peer->reader))
			sleep_on_doorbell(peer);
		fipsee_reader_disarm(&peer->reader);
		looks = 0;
	}
}

static void stream_read(struct peer *peer)
{
	uint32_t sequence = 0, taken;
	union fipsee_message message;

	while (sequence < peer->count) {
		wait_for_message(peer);
		for (taken = 0; taken < peer->burst && fipsee_reader_receive_streamed(&peer->reader, &message); taken++)
			check(&message, sequence++, 0);
		fipsee_reader_release_some(&peer->reader);
	}
}

static void stream_write(struct peer *peer)
{
	struct fipsee_stream_writer stream;
	uint32_t sequence = 0, index, published;

	if (fipsee_stream_init(&stream, peer->out_ring, peer->out_start) != FIPSEE_RING_OK)
		fail(2, "geometry refused", 0);
	fipsee_writer_choose(&stream.writer, peer->choices);
	while (sequence < peer->count) {
		uint32_t wanted = peer->count - sequence < peer->burst ? peer->count - sequence : peer->burst;

		for (index = 0; index < wanted; index++)
			fill(&peer->batch[index], sequence + index, 0);
		if (fipsee_stream_publish_burst(&stream, peer->batch, wanted, &published) != FIPSEE_RING_OK)
			fail(3, "the release counter is wrong", sequence);
		sequence += published;
		ring_if_asleep(peer, &stream.writer);
		if (published == 0)
			sched_yield();
	}
}

static void call(struct peer *peer)
{
	struct fipsee_call_writer calls;
	union fipsee_message reply;
	uint32_t sent = 0, answered = 0, index;

	if (fipsee_call_init(&calls, peer->out_ring, peer->out_start, peer->out_ring.slot_count) != FIPSEE_RING_OK)
		fail(2, "geometry refused", 0);
	fipsee_writer_choose(&calls.writer, peer->choices);
	while (answered < peer->count) {
		uint32_t wanted = peer->count - sent < peer->burst ? peer->count - sent : peer->burst;

		if (wanted > fipsee_call_free(&calls))
			wanted = fipsee_call_free(&calls);
		for (index = 0; index < wanted; index++)
			fill(&peer->batch[index], sent + index, 1);
		if (fipsee_call_publish_all(&calls, peer->batch, wanted) != FIPSEE_RING_OK)
			fail(2, "full although free", sent);
		sent += wanted;
		ring_if_asleep(peer, &calls.writer);
		wait_for_message(peer);
		while (fipsee_reader_receive(&peer->reader, &reply)) {
			check(&reply, answered++, 2);
			if (fipsee_call_answered(&calls) != FIPSEE_RING_OK)
				fail(3, "an answer without a call", answered);
		}
	}
}

static void serve(struct peer *peer)
{
	struct fipsee_writer replies;
	union fipsee_message message;
	uint32_t sequence = 0, taken;

	if (fipsee_writer_init(&replies, peer->out_ring, peer->out_start) != FIPSEE_RING_OK)
		fail(2, "geometry refused", 0);
	fipsee_writer_choose(&replies, peer->choices);
	while (sequence < peer->count) {
		wait_for_message(peer);
		for (taken = 0; taken < peer->burst && fipsee_reader_receive(&peer->reader, &message); taken++) {
			check(&message, sequence + taken, 1);
			fill(&peer->batch[taken], sequence + taken, 2);
		}
		fipsee_writer_publish_all(&replies, peer->batch, taken);
		sequence += taken;
		ring_if_asleep(peer, &replies);
	}
}

static uint32_t number(const char *text)
{
	return (uint32_t)strtoul(text, NULL, 10);
}

int main(int argc, char **argv)
{
	static struct peer peer;
	uint32_t slots;
	size_t bytes;
	uint8_t *base;

	alarm(ALARM_SECONDS);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc != 14)
		fail(2, "wrong number of arguments", (uint32_t)argc);
	peer.our_doorbell = (int)number(argv[3]);
	peer.their_doorbell = (int)number(argv[4]);
	slots = number(argv[5]);
	peer.in_start.index = number(argv[6]);
	peer.in_start.stamp = number(argv[7]);
	peer.out_start.index = number(argv[8]);
	peer.out_start.stamp = number(argv[9]);
	peer.count = number(argv[10]);
	peer.wait = (enum wait_mode)number(argv[11]);
	peer.burst = number(argv[12]) < MAX_BURST ? number(argv[12]) : MAX_BURST;
	peer.choices = stores_possible_choices(number(argv[13]));
	bytes = SLOTS_OFFSET_BYTES + 2 * (size_t)slots * FIPSEE_SLOT_BYTES;
	base = (uint8_t *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, (int)number(argv[2]), 0);
	if (base == MAP_FAILED)
		fail(2, "cannot map", 0);
	peer.in_ring.slots = (struct fipsee_slot *)(base + SLOTS_OFFSET_BYTES);
	peer.out_ring.slots = peer.in_ring.slots + slots;
	peer.in_ring.cold = (struct fipsee_cold *)base;
	peer.out_ring.cold = (struct fipsee_cold *)(base + FIPSEE_COLD_BYTES);
	peer.in_ring.slot_count = slots;
	peer.out_ring.slot_count = slots;
	if (fipsee_reader_init(&peer.reader, peer.in_ring, peer.in_start) != FIPSEE_RING_OK)
		fail(2, "geometry refused", 0);
	fipsee_reader_choose(&peer.reader, peer.choices);
	if (strcmp(argv[1], "stream-read") == 0)
		stream_read(&peer);
	else if (strcmp(argv[1], "stream-write") == 0)
		stream_write(&peer);
	else if (strcmp(argv[1], "call") == 0)
		call(&peer);
	else if (strcmp(argv[1], "serve") == 0)
		serve(&peer);
	else
		fail(2, "unknown role", 0);
	return 0;
}
