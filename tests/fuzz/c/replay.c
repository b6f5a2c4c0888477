/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A corpus through the C parsers, for gcc's sanitizers: `replay PARSER FILE`. Each input is in memory of exactly its length, so
 * that one byte too many is seen.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "../../interop/c/interop.h"

#define REGION_BYTES 8192
#define LINE_BYTES 65536

static void control(const uint8_t *bytes, size_t length)
{
	static const uint16_t kinds[] = { FIPSEE_WELCOME, FIPSEE_ATTACHED, FIPSEE_REGISTERED, FIPSEE_UNREGISTERED, FIPSEE_DETACHED };
	struct interop_control out;
	uint8_t again[FIPSEE_MAX_MESSAGE_BYTES];
	char text[640];
	size_t index;

	if (length > FIPSEE_MAX_MESSAGE_BYTES)
		length = FIPSEE_MAX_MESSAGE_BYTES;
	if (interop_control_decode(bytes, length, &out))
		interop_control_encode(&out, again);
	for (index = 0; index < sizeof(kinds) / sizeof(kinds[0]); index++)
		fuzz_answer(bytes, length, kinds[index], 0, text);
}

static void region(const uint8_t *bytes, size_t length)
{
	/* Not on the stack: its end is watched better. */
	uint8_t *whole = aligned_alloc(64, REGION_BYTES);

	if (!whole)
		abort();
	memset(whole, 0, REGION_BYTES);
	memcpy(whole, bytes, length < REGION_BYTES ? length : REGION_BYTES);
	fuzz_region(whole, REGION_BYTES);
	interop_region_is_valid(whole, REGION_BYTES);
	free(whole);
}

static void info(const uint8_t *bytes, size_t length)
{
	struct fipsee_block_info info = { 0 };

	memcpy(&info, bytes, length < sizeof(info) ? length : sizeof(info));
	fuzz_info((const uint8_t *)&info);
	interop_block_info_is_valid(&info);
}

static void reap(const uint8_t *bytes, size_t length)
{
	union fipsee_message messages[6];
	uint32_t finished[FUZZ_DEPTH], count, index;
	uint64_t sector_count;
	uint8_t choice = length > 0 ? bytes[0] : 0;

	memset(messages, 0, sizeof(messages));
	for (index = 0; index < 6; index++)
		if (1 + 60 * (size_t)(index + 1) <= length)
			memcpy(&messages[index], bytes + 1 + 60 * index, 60);
	fuzz_reap(messages, 1 + (choice >> 4) % 6, 2 + choice % (FUZZ_DEPTH - 1), finished, &count, &sector_count);
}

static void request(const uint8_t *bytes, size_t length)
{
	static struct interop_parsed out;
	struct interop_view views[FIPSEE_MAX_REGIONS] = { { NULL, 0, 0 } };
	struct interop_limits limits = { 10000, 0, 2048, 4096, 31 };
	union fipsee_message message;
	uint8_t *memory = malloc(4096);

	if (!memory)
		abort();
	memset(memory, 0, 4096);
	memset(&message, 0, sizeof(message));
	if (length > 1)
		memcpy(&message, bytes + 1, length - 1 < 64 ? length - 1 : 64);
	if (length > 65)
		memcpy(memory, bytes + 65, length - 65 < 4096 ? length - 65 : 4096);
	views[0].base = memory;
	views[0].length_sectors = 8;
	views[0].access = 3;
	interop_request_parse(&message, &limits, views, &out);
	free(memory);
}

static void received_by_c(const uint8_t *bytes, size_t length)
{
	static uint32_t lengths[FUZZ_MOST_FRAMES];
	static uint8_t frames[FUZZ_MOST_FRAMES * FUZZ_FRAME_BYTES];
	struct fuzz_frames into = { .lengths = lengths, .bytes = frames };
	union fipsee_message messages[12];
	uint8_t rings[12] = { 0 };
	uint8_t choice = length > 0 ? bytes[0] : 0;
	uint32_t count = 0;
	size_t at;

	memset(messages, 0, sizeof(messages));
	for (at = 1; at < length && count < 12; at += 61, count++) {
		size_t left = length - at - 1;

		rings[count] = bytes[at];
		memcpy(&messages[count], bytes + at + 1, left < 60 ? left : 60);
	}
	if (fuzz_net(messages, rings, count, choice % (FUZZ_DEPTH + 1), &into) == FUZZ_UNSOUND)
		abort();
}

static const struct {
	const char *name;
	void (*one)(const uint8_t *bytes, size_t length);
} parsers[] = { { "control", control }, { "region", region }, { "info", info }, { "reap", reap }, { "request", request },
	      { "received_by_c", received_by_c } };

int main(int argc, char **argv)
{
	static char line[LINE_BYTES];
	unsigned int parser = 0, count = 0;
	FILE *corpus = argc == 3 ? fopen(argv[2], "r") : NULL;

	while (corpus && parser < sizeof(parsers) / sizeof(parsers[0]) && strcmp(parsers[parser].name, argv[1]) != 0)
		parser++;
	if (!corpus || parser == sizeof(parsers) / sizeof(parsers[0]))
		return 2;
	while (fgets(line, sizeof(line), corpus)) {
		size_t length = strspn(line, "0123456789abcdef") / 2, index;
		uint8_t *bytes = malloc(length);

		if (!bytes)
			abort();
		for (index = 0; index < length; index++) {
			unsigned int byte;

			if (sscanf(line + 2 * index, "%2x", &byte) != 1)
				return 2;
			bytes[index] = (uint8_t)byte;
		}
		parsers[parser].one(bytes, length);
		free(bytes);
		count++;
	}
	fclose(corpus);
	printf("%u inputs\n", count);
	return 0;
}
