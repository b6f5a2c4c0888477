/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* In one translation unit with what it looks into. */
#include "../../../c/fio/channel.c"

#include "fuzz.h"

int fuzz_region(uint8_t *region, uint64_t region_bytes)
{
	struct fipsee_region_header header;
	struct fipsee_queue_entry entry;
	struct channel_error error;
	uint64_t features;

	memcpy(&header, region, sizeof(header));
	memcpy(&entry, region + sizeof(header), sizeof(entry));
	features = header.features & FIPSEE_FEATURE_CHOICES;
	return region_check_header(&header, region_bytes, features, 1, &error) == 0 &&
	       region_check_entry(&entry, region_bytes, features, FIPSEE_EVENT_CREDITS, &error) == 0;
}

int fuzz_info(const uint8_t *bytes)
{
	struct fipsee_block_info info;
	struct channel_error error;

	memcpy(&info, bytes, sizeof(info));
	return check_info(&info, &error) == 0;
}
