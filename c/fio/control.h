/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Control messages with descriptors over the daemon's socket (docs/protocol.md section 4). */
#ifndef FIPSEE_FIO_CONTROL_H
#define FIPSEE_FIO_CONTROL_H

#include "channel.h"

/* One message of the daemon, checked as section 4 says, with the descriptors that came with it. */
struct control_answer {
	union {
		struct fipsee_control_header header;
		struct fipsee_welcome welcome;
		struct fipsee_attached attached;
		struct fipsee_refused refused;
		struct fipsee_region_id region;
		uint8_t bytes[FIPSEE_MAX_MESSAGE_BYTES + 1];	/* one more, so that a longer packet is seen */
	};
	size_t length_bytes;
	int descriptors[FIPSEE_MAX_DESCRIPTORS];
	uint32_t descriptor_count;
};

/* Connect to the daemon that listens at `path`: a descriptor, or a negative errno with `error`. */
int control_connect(const char *path, struct channel_error *error);

/* The header of a message of `length_bytes`. */
struct fipsee_control_header control_header(uint16_t kind, size_t length_bytes);

/*
 * Send `request`, which begins with its header, and await an answer of `kind`. `descriptor` goes with it unless it is
 * negative. 0, or a negative errno with `error`; on 0 the answer's descriptors are the caller's. Only ATTACHED keeps
 * any. `what` names the request in messages: "the greeting".
 */
int control_ask(int control, const void *request, uint16_t kind, int descriptor, const char *what,
		struct control_answer *answer, struct channel_error *error);

/* Close the descriptors of an answer from `first` on. */
void control_close_descriptors(struct control_answer *answer, uint32_t first);

#endif /* FIPSEE_FIO_CONTROL_H */
