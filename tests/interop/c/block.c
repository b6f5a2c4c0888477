/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The block protocol and the region's table, checked from docs/protocol.md sections 3 and 5. */
#include <string.h>

#include "interop.h"

static int in_region(uint64_t offset_bytes, uint64_t length_bytes, uint64_t region_bytes)
{
	return offset_bytes <= region_bytes && length_bytes <= region_bytes - offset_bytes;
}

static int slots_are_valid(uint32_t slots)
{
	return slots >= FIPSEE_MIN_SLOTS && slots <= FIPSEE_MAX_SLOTS && (slots & (slots - 1)) == 0;
}

static int entry_is_valid(const struct fipsee_queue_entry *entry, uint64_t features)
{
	unsigned int index;

	if (!slots_are_valid(entry->request_slots) || !slots_are_valid(entry->completion_slots))
		return 0;
	if (entry->request_start >= entry->request_slots || entry->completion_start >= entry->completion_slots)
		return 0;
	if (entry->depth < 1 || entry->depth > FIPSEE_MAX_DEPTH || entry->depth > entry->request_slots ||
	    entry->depth + FIPSEE_EVENT_CREDITS > entry->completion_slots)
		return 0;
	if (entry->worker_cpu_plus_1 != 0 && !(features & FIPSEE_FEATURE_WORKER_CPU))
		return 0;
	if (entry->choices != 0 && !(features & FIPSEE_FEATURE_CHOICES))
		return 0;
	for (index = 0; index < 3; index++)
		if (entry->reserved[index] != 0)
			return 0;
	return 1;
}

int interop_region_is_valid(const uint8_t *bytes, uint64_t region_bytes)
{
	struct fipsee_region_header header;
	struct fipsee_queue_entry entry;
	uint32_t queue;

	memcpy(&header, bytes, sizeof(header));
	if (header.magic != FIPSEE_REGION_MAGIC || header.version != FIPSEE_REGION_VERSION ||
	    header.queue_count < 1 || header.queue_count > FIPSEE_MAX_QUEUES)
		return 0;
	if (header.region_bytes != region_bytes || region_bytes > FIPSEE_MAX_REGION_BYTES)
		return 0;
	if ((header.features & ~FIPSEE_FEATURES) != 0 || header.reserved[0] != 0 || header.reserved[1] != 0)
		return 0;
	if (header.pool_offset_bytes % FIPSEE_REGION_PAGE_BYTES != 0 ||
	    header.pool_bytes % FIPSEE_REGION_PAGE_BYTES != 0 || header.pool_bytes > FIPSEE_MAX_POOL_BYTES ||
	    !in_region(header.pool_offset_bytes, header.pool_bytes, region_bytes))
		return 0;
	for (queue = 0; queue < header.queue_count; queue++) {
		uint64_t at = FIPSEE_REGION_HEADER_BYTES + (uint64_t)queue * FIPSEE_QUEUE_ENTRY_BYTES;

		if (!in_region(at, sizeof(entry), region_bytes))
			return 0;
		memcpy(&entry, bytes + at, sizeof(entry));
		if (!entry_is_valid(&entry, header.features))
			return 0;
	}
	return 1;
}

int interop_block_info_is_valid(const struct fipsee_block_info *info)
{
	uint64_t value;

	return fipsee_block_info_fault(info, &value) == NULL;
}

int interop_completion_read(const uint8_t *bytes, uint32_t unacknowledged, struct fipsee_completion_entry *entries, uint32_t *count)
{
	union fipsee_message message;
	struct fipsee_completions reader;
	const struct fipsee_completion_entry *entry;
	int is_event;

	memcpy(&message, bytes, sizeof(message));
	*count = 0;
	fipsee_completions_begin(&reader, &message);
	while ((entry = fipsee_completions_next(&reader)))
		entries[(*count)++] = *entry;
	is_event = fipsee_completions_event(&reader, unacknowledged) != NULL;
	return reader.fault ? -1 : is_event;
}

struct parse {
	const struct interop_limits *limits;
	const struct interop_view *views;
	struct interop_parsed *out;
};

static uint16_t add_span(struct parse *parse, struct fipsee_segment segment, uint16_t access, struct interop_span *span)
{
	const struct interop_view *view;

	if (segment.region >= FIPSEE_MAX_REGIONS)
		return FIPSEE_STATUS_BAD_MEMORY;
	view = &parse->views[segment.region];
	if (segment.length_sectors == 0)
		return FIPSEE_STATUS_NO_SEGMENTS;
	if ((view->access & access) != access ||
	    (uint64_t)segment.offset_sectors + segment.length_sectors > view->length_sectors)
		return FIPSEE_STATUS_BAD_MEMORY;
	span->address = (uint64_t)(uintptr_t)view->base + ((uint64_t)segment.offset_sectors << FIPSEE_SECTOR_SHIFT);
	span->length_bytes = (uint64_t)segment.length_sectors << FIPSEE_SECTOR_SHIFT;
	parse->out->length_sectors += segment.length_sectors;
	return FIPSEE_STATUS_OK;
}

static uint16_t gather(struct parse *parse, const struct fipsee_request *request, uint16_t access)
{
	struct fipsee_segment table[FIPSEE_MAX_INDIRECT_ENTRIES];
	const struct fipsee_segment *segments = request->segments;
	uint32_t count = request->segment_count, index;
	uint16_t status;

	if (count == 0)
		return FIPSEE_STATUS_NO_SEGMENTS;
	if (count == FIPSEE_SEGMENTS_INDIRECT) {
		struct interop_span where;

		count = request->aux;
		if (count == 0)
			return FIPSEE_STATUS_NO_SEGMENTS;
		if (count > FIPSEE_MAX_INDIRECT_ENTRIES)
			return FIPSEE_STATUS_TOO_LONG;
		status = add_span(parse, request->segments[0], FIPSEE_ACCESS_READ, &where);
		if (status != FIPSEE_STATUS_OK)
			return status;
		parse->out->length_sectors = 0;
		if (where.length_bytes < count * sizeof(table[0]))
			return FIPSEE_STATUS_BAD_MEMORY;
		memcpy(table, (const void *)(uintptr_t)where.address, count * sizeof(table[0]));
		segments = table;
	} else if (count > FIPSEE_MAX_INLINE_SEGMENTS) {
		return FIPSEE_STATUS_INVALID;
	}
	for (index = 0; index < count; index++) {
		status = add_span(parse, segments[index], access, &parse->out->spans[index]);
		if (status != FIPSEE_STATUS_OK)
			return status;
	}
	parse->out->span_count = count;
	return FIPSEE_STATUS_OK;
}

static uint16_t check_range(const struct interop_limits *limits, uint64_t sector, uint64_t length_sectors)
{
	if ((sector & limits->block_mask) != 0 || (length_sectors & limits->block_mask) != 0)
		return FIPSEE_STATUS_MISALIGNED;
	if (sector > limits->sector_count || length_sectors > limits->sector_count - sector)
		return FIPSEE_STATUS_OUT_OF_RANGE;
	return FIPSEE_STATUS_OK;
}

static uint16_t parse_data(struct parse *parse, const struct fipsee_request *request)
{
	const struct interop_limits *limits = parse->limits;
	int is_write = request->operation == FIPSEE_WRITE;
	uint16_t status;

	if ((request->flags & ~FIPSEE_FLAG_FUA) != 0)
		return FIPSEE_STATUS_INVALID;
	if (request->flags != 0 && !(is_write && (limits->capabilities & FIPSEE_CAPABILITY_FUA)))
		return FIPSEE_STATUS_INVALID;
	if (is_write && !(limits->capabilities & FIPSEE_CAPABILITY_WRITE))
		return FIPSEE_STATUS_READ_ONLY;
	status = gather(parse, request, is_write ? FIPSEE_ACCESS_READ : FIPSEE_ACCESS_WRITE);
	if (status != FIPSEE_STATUS_OK)
		return status;
	if (parse->out->length_sectors > limits->max_transfer_sectors)
		return FIPSEE_STATUS_TOO_LONG;
	return check_range(limits, request->sector, parse->out->length_sectors);
}

static uint16_t parse_range(struct parse *parse, const struct fipsee_request *request, uint32_t capability)
{
	const struct interop_limits *limits = parse->limits;

	if (!(limits->capabilities & FIPSEE_CAPABILITY_WRITE))
		return FIPSEE_STATUS_READ_ONLY;
	if (!(limits->capabilities & capability))
		return FIPSEE_STATUS_UNSUPPORTED;
	parse->out->length_sectors = request->length_sectors;
	if (request->length_sectors == 0)
		return FIPSEE_STATUS_NO_SEGMENTS;
	if (request->length_sectors > limits->max_range_sectors)
		return FIPSEE_STATUS_TOO_LONG;
	return check_range(limits, request->sector, request->length_sectors);
}

/* Flags, segment count, unused words and aux of everything but read and write. */
static int rare_is_canonical(const union fipsee_message *message)
{
	const struct fipsee_request *request = &message->request;
	int flags = 0, words_used = 1, segment_count = 0, index;

	if (request->operation == FIPSEE_WRITE_ZEROES)
		flags = FIPSEE_FLAG_FUA | FIPSEE_FLAG_UNMAP;
	if (request->operation >= FIPSEE_DISCARD && request->operation <= FIPSEE_GET_INFO)
		words_used = 3;
	if (request->operation == FIPSEE_GET_INFO) {
		segment_count = 1;
		if (request->sector != 0)
			return 0;
	}
	for (index = words_used; index < 7; index++)
		if (message->words[index] != 0)
			return 0;
	return (request->flags & ~flags) == 0 && request->segment_count == segment_count &&
	       (request->aux == 0 || request->operation == FIPSEE_ACK_EVENT);
}

static uint16_t parse_rare(struct parse *parse, const union fipsee_message *message)
{
	const struct fipsee_request *request = &message->request;
	uint16_t status;

	if (!rare_is_canonical(message))
		return FIPSEE_STATUS_INVALID;
	if ((request->flags & FIPSEE_FLAG_FUA) && !(parse->limits->capabilities & FIPSEE_CAPABILITY_FUA))
		return FIPSEE_STATUS_INVALID;
	switch (request->operation) {
	case FIPSEE_FLUSH:
		return parse->limits->capabilities & FIPSEE_CAPABILITY_FLUSH ? FIPSEE_STATUS_OK : FIPSEE_STATUS_UNSUPPORTED;
	case FIPSEE_DISCARD:
		return parse_range(parse, request, FIPSEE_CAPABILITY_DISCARD);
	case FIPSEE_WRITE_ZEROES:
		return parse_range(parse, request, FIPSEE_CAPABILITY_WRITE_ZEROES);
	case FIPSEE_GET_INFO:
		status = add_span(parse, request->segments[0], FIPSEE_ACCESS_WRITE, &parse->out->spans[0]);
		parse->out->span_count = 1;
		parse->out->length_sectors = 0;
		return status;
	default:
		return FIPSEE_STATUS_OK;
	}
}

uint16_t interop_request_parse(const union fipsee_message *message, const struct interop_limits *limits,
			       const struct interop_view *views, struct interop_parsed *out)
{
	const struct fipsee_request *request = &message->request;
	struct parse parse = { limits, views, out };

	if (request->operation < FIPSEE_READ || request->operation > FIPSEE_ACK_EVENT)
		return FIPSEE_STATUS_UNSUPPORTED;
	if (request->reserved != 0)
		return FIPSEE_STATUS_INVALID;
	out->operation = request->operation;
	out->tag = request->tag;
	out->fua = (request->flags & FIPSEE_FLAG_FUA) != 0;
	out->unmap = (request->flags & FIPSEE_FLAG_UNMAP) != 0;
	out->sector = request->sector;
	out->length_sectors = 0;
	out->aux = request->aux;
	out->span_count = 0;
	if (request->operation == FIPSEE_READ || request->operation == FIPSEE_WRITE)
		return parse_data(&parse, request);
	return parse_rare(&parse, message);
}
