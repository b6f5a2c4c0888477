/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* In one translation unit with what it looks into. */
#include "../../../c/fio/channel.c"

#include "fuzz.h"

int fuzz_region(uint8_t *region, uint64_t region_bytes)
{
	struct channel channel = { .region = region, .region_bytes = region_bytes };
	struct fipsee_region_header header;
	struct fipsee_queue_entry entry;
	struct channel_error error;

	memcpy(&header, region, sizeof(header));
	memcpy(&entry, region + sizeof(header), sizeof(entry));
	channel.features = header.features & FIPSEE_FEATURE_CHOICES;
	return check_header(&channel, &header, &error) == 0 && check_entry(&channel, &entry, &error) == 0;
}

int fuzz_info(const uint8_t *bytes)
{
	struct fipsee_block_info info;
	struct channel_error error;

	memcpy(&info, bytes, sizeof(info));
	return check_info(&info, &error) == 0;
}
