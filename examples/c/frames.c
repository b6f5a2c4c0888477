/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * frames PORT COUNT: send COUNT frames back to where they came from, in an event loop and without copying what came. The
 * daemon's socket: $FIPSEE_SOCKET. Send it frames with: fipsee net ping OTHER-PORT --to PORT
 */
#include <fipsee_port.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 32 };

static int check(int outcome, const char *what)
{
	if (outcome < 0) {
		fprintf(stderr, "frames: %s: %s\n", what, fipsee_error_message());
		exit(1);
	}
	return outcome;
}

int main(int argc, char **argv)
{
	struct fipsee_port_info info = { .size_bytes = sizeof(info) };
	struct fipsee_port_frame frames[BATCH];
	struct fipsee_port_options options;
	struct fipsee_port_buffer buffer;
	struct pollfd ready = { .events = POLLIN };
	struct fipsee_port *port;
	long left = argc == 3 ? atol(argv[2]) : 1;
	int count, i;

	fipsee_port_options_init(&options);
	options.port = argc == 3 ? argv[1] : "lan/b";
	check(fipsee_port_open(&options, &port), options.port);
	check(fipsee_port_get_info(port, &info), "info");
	ready.fd = check(fipsee_port_descriptor(port), "descriptor");
	while (left > 0) {
		count = check(fipsee_port_take(port, frames, BATCH), "take");
		for (i = 0; i < count; i++) {
			if (fipsee_port_get_buffer(port, &buffer) != 0)
				break;	/* They come faster than they go: as on any network, some are lost. */
			memcpy(buffer.data, frames[i].data, frames[i].length_bytes);
			memcpy(buffer.data, (const char *)frames[i].data + 6, 6);
			memcpy((char *)buffer.data + 6, info.mac, 6);
			check(fipsee_port_stage_buffer(port, &buffer, frames[i].length_bytes), "stage");
			left--;
		}
		check(fipsee_port_release(port, frames, count), "release");
		if (check(fipsee_port_arm(port), "arm") == 0 && count == 0)	/* It sends what is staged. */
			poll(&ready, 1, -1);
		check(fipsee_port_woken(port), "wait");
	}
	printf("%s sent all back\n", options.port);
	return -check(fipsee_port_close(port), "close");
}
