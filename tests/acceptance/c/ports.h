/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the C tests of ports share. */
#ifndef PORTS_H
#define PORTS_H

#include "check.h"
#include <fipsee_port.h>

enum { TYPE_BYTES = 14, LONGEST_BYTES = 9018, DEPTH = 16 };

static inline struct fipsee_port_options options_of(const char *name)
{
	struct fipsee_port_options options;

	fipsee_port_options_init(&options);
	options.socket_path = the_socket;
	options.port = name;
	options.depth = DEPTH;
	return options;
}

static inline struct fipsee_port *open_port(const char *name, uint32_t buffer_bytes)
{
	struct fipsee_port_options options = options_of(name);
	struct fipsee_port *port = NULL;

	options.buffer_bytes = buffer_bytes;
	EXPECT(fipsee_port_open(&options, &port), 0);
	return port;
}

static inline struct fipsee_port_info info_of(const struct fipsee_port *port)
{
	struct fipsee_port_info info = { .size_bytes = sizeof(info) };

	EXPECT(fipsee_port_get_info(port, &info), 0);
	EXPECT(info.size_bytes, sizeof(info));
	return info;
}

static inline struct fipsee_port_counters counters_of(struct fipsee_port *port)
{
	struct fipsee_port_counters counters = { .size_bytes = sizeof(counters) };

	EXPECT(fipsee_port_get_counters(port, &counters), 0);
	return counters;
}

/* A frame between two ports, whose contents the seed determines. */
static inline void make(uint8_t *frame, const uint8_t to[6], struct fipsee_port *from, size_t length, uint64_t seed)
{
	struct fipsee_port_info info = info_of(from);
	size_t i;

	memcpy(frame, to, 6);
	memcpy(frame + 6, info.mac, 6);
	memcpy(frame + 12, "\x88\xb5", 2);
	for (i = TYPE_BYTES; i < length; i++)
		frame[i] = (uint8_t)next_random(&seed);
}

#endif
