/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* In one translation unit with what it looks into. */
#include "../../../c/fio/control.c"

#include "fuzz.h"

int fuzz_answer(const uint8_t *bytes, size_t length_bytes, uint16_t kind, uint32_t descriptor_count, char *text)
{
	struct control_answer answer;
	struct channel_error error = { .number = 0 };

	/* Not zeroed in the engine either: behind the packet are the bytes that were there. */
	memset(&answer, 0xa5, sizeof(answer));
	memcpy(answer.bytes, bytes, length_bytes);
	answer.length_bytes = length_bytes;
	answer.descriptor_count = descriptor_count;
	if (check(&answer, kind, &error) == 0)
		return 0;
	memcpy(text, error.text, sizeof(error.text));
	return error.number;
}
