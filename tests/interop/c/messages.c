/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Messages of the block protocol, field by field through the structures of fipsee.h. */
#include <string.h>

#include "interop.h"

static void split(uint64_t value, uint32_t *fields)
{
	fields[0] = (uint32_t)value;
	fields[1] = (uint32_t)(value >> 32);
}

static uint64_t join(const uint32_t *fields)
{
	return fields[0] | (uint64_t)fields[1] << 32;
}

int interop_describe(uint32_t kind, const union fipsee_message *message, uint32_t *fields)
{
	const struct fipsee_request *request = &message->request;
	const struct fipsee_completion *completion = &message->completion;
	const struct fipsee_event *event = &message->event;
	unsigned int index;

	memset(fields, 0, INTEROP_FIELDS * sizeof(*fields));
	switch (kind) {
	case INTEROP_REQUEST_SEGMENTS:
	case INTEROP_REQUEST_RANGE:
		fields[0] = request->operation;
		fields[1] = request->segment_count;
		fields[2] = request->flags;
		fields[3] = request->tag;
		fields[4] = request->reserved;
		split(request->sector, &fields[5]);
		fields[7] = request->aux;
		if (kind == INTEROP_REQUEST_RANGE) {
			split(request->length_sectors, &fields[8]);
			return 1;
		}
		for (index = 0; index < FIPSEE_MAX_INLINE_SEGMENTS; index++) {
			fields[8 + 3 * index] = request->segments[index].offset_sectors;
			fields[9 + 3 * index] = request->segments[index].length_sectors;
			fields[10 + 3 * index] = request->segments[index].region;
		}
		return 1;
	case INTEROP_COMPLETIONS:
		fields[0] = completion->count;
		fields[1] = completion->kind;
		fields[2] = completion->reserved;
		for (index = 0; index < FIPSEE_MAX_PACKED; index++) {
			fields[3 + 2 * index] = completion->entries[index].tag;
			fields[4 + 2 * index] = completion->entries[index].status;
		}
		return 1;
	case INTEROP_EVENT:
		fields[0] = event->count;
		fields[1] = event->kind;
		fields[2] = event->reserved;
		fields[3] = event->reserved_too;
		split(event->sector_count, &fields[4]);
		return 1;
	default:
		return 0;
	}
}

int interop_build(uint32_t kind, const uint32_t *fields, union fipsee_message *message)
{
	struct fipsee_request *request = &message->request;
	struct fipsee_completion *completion = &message->completion;
	struct fipsee_event *event = &message->event;
	unsigned int index;

	memset(message, 0, sizeof(*message)); /* Reserved fields stay 0: only correct messages are built. */
	switch (kind) {
	case INTEROP_REQUEST_SEGMENTS:
	case INTEROP_REQUEST_RANGE:
		request->operation = (uint8_t)fields[0];
		request->segment_count = (uint8_t)fields[1];
		request->flags = (uint16_t)fields[2];
		request->tag = (uint16_t)fields[3];
		request->sector = join(&fields[5]);
		request->aux = fields[7];
		if (kind == INTEROP_REQUEST_RANGE) {
			request->length_sectors = join(&fields[8]);
			return 1;
		}
		for (index = 0; index < FIPSEE_MAX_INLINE_SEGMENTS; index++) {
			request->segments[index].offset_sectors = fields[8 + 3 * index];
			request->segments[index].length_sectors = (uint16_t)fields[9 + 3 * index];
			request->segments[index].region = (uint16_t)fields[10 + 3 * index];
		}
		return 1;
	case INTEROP_COMPLETIONS:
		completion->count = (uint8_t)fields[0];
		completion->kind = (uint8_t)fields[1];
		for (index = 0; index < FIPSEE_MAX_PACKED; index++) {
			completion->entries[index].tag = (uint16_t)fields[3 + 2 * index];
			completion->entries[index].status = (uint16_t)fields[4 + 2 * index];
		}
		return 1;
	case INTEROP_EVENT:
		event->count = (uint8_t)fields[0];
		event->kind = (uint8_t)fields[1];
		event->sector_count = join(&fields[4]);
		return 1;
	default:
		return 0;
	}
}
