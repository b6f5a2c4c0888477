/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * echo SOCKET PORT COUNT: say "ready", send COUNT frames back to where they came from, then one with another port's source
 * address, and say how many were refused and why. For tests; it ends by itself if nothing comes.
 */
#include "port.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* A lost wake-up leaves us asleep; then the alarm ends us, and the test sees that. */
#define ALARM_SECONDS 240
#define DEPTH 32

static void end(const char *what, const char *why)
{
	fprintf(stderr, "echo: %s: %s\n", what, why ? why : "");
	exit(1);
}

static void check(struct net_port *port, const char *what, int outcome)
{
	if (outcome < 0)
		end(what, port->fault ? port->fault : strerror(-outcome));
}

/* Send, waiting for a buffer that is free. */
static void send_frame(struct net_port *port, const uint8_t *frame, uint32_t length_bytes)
{
	int outcome;

	while ((outcome = net_port_send(port, frame, length_bytes)) == -EAGAIN)
		check(port, "cannot wait", net_port_sleep(port, &port->transmit));
	check(port, "cannot send", outcome);
}

int main(int argc, char **argv)
{
	static struct net_port port;
	static struct channel_error error;
	static uint8_t frame[FIPSEE_NET_MAX_MTU + 18];
	unsigned long left;

	alarm(ALARM_SECONDS);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc != 4)
		end("usage", "echo SOCKET PORT COUNT");
	if (net_port_open(&port, argv[1], argv[2], DEPTH, &error) != 0)
		end("cannot attach", error.text);
	printf("ready\n");
	fflush(stdout);
	for (left = strtoul(argv[3], NULL, 10); left > 0;) {
		int length = net_port_receive(&port, frame);

		check(&port, "cannot receive", length);
		if (length == 0) {
			check(&port, "cannot wait", net_port_sleep(&port, &port.receive));
			continue;
		}
		memcpy(frame, frame + 6, 6);
		memcpy(frame + 6, port.info.mac, 6);
		send_frame(&port, frame, (uint32_t)length);
		left--;
	}
	frame[11] ^= 0x80;
	send_frame(&port, frame, 60);
	while (net_port_unsent(&port) > 0) {
		check(&port, "cannot wait", net_port_sleep(&port, &port.transmit));
		check(&port, "cannot reap", net_port_reap(&port));
	}
	printf("%llu refused, the newest with status %u\n", (unsigned long long)port.refused, port.newest_refusal);
	net_port_close(&port);
	return 0;
}
