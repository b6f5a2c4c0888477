/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * probe SOCKET PORT PAIRS OFFLOADS LEAST_MTU: attach with events, say "ready PAIRS OFFLOADS MAX_FRAME_BYTES", then carry out a command
 * in each line of the input, and answer it with a line. For tests; it ends with its input, or by itself if nothing comes.
 *
 *   send PAIR OFFLOAD FRAME	"given REFUSED STATUS" once it was given back
 *   join ADDRESS, leave ADDRESS, all, none	likewise
 *   receive	wait for a frame or an event: "frame PAIR OFFLOAD FRAME" or "changed PAIR CHANGES LINK MTU ADDRESS"
 *   look	likewise, without waiting: "nothing" if there is none
 *
 * OFFLOAD is the 10 bytes of the protocol; bytes are digits.
 */
#define _GNU_SOURCE
#include "port.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* A lost wake-up leaves us asleep; then the alarm ends us, and the test sees that. */
#define ALARM_SECONDS 240
#define DEPTH 32

static struct net_port ports[FIPSEE_NET_MAX_PAIRS];
/* Events of each pair that were said. */
static uint64_t said_changes[FIPSEE_NET_MAX_PAIRS];
static uint8_t frame[FIPSEE_NET_MAX_SEGMENTED_BYTES + 18];

static void end(const char *what, const char *why)
{
	fprintf(stderr, "probe: %s: %s\n", what, why ? why : "");
	exit(1);
}

static void check(const struct net_port *port, const char *what, int outcome)
{
	if (outcome < 0)
		end(what, port->fault ? port->fault : strerror(-outcome));
}

static int value_of(char digit)
{
	return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* The bytes that digits name: how many. */
static uint32_t parse(const char *digits, uint8_t *bytes, uint32_t most)
{
	uint32_t count = 0;

	while (digits && count < most && value_of(digits[0]) >= 0 && value_of(digits[1]) >= 0) {
		bytes[count++] = (uint8_t)(value_of(digits[0]) << 4 | value_of(digits[1]));
		digits += 2;
	}
	return count;
}

static void print(const void *bytes, size_t count)
{
	size_t index;

	for (index = 0; index < count; index++)
		printf("%02x", ((const uint8_t *)bytes)[index]);
}

static void answer_given(struct net_port *port)
{
	while (net_port_unsent(port) > 0) {
		check(port, "cannot wait", net_port_sleep(port, &port->transmit));
		check(port, "cannot reap", net_port_reap(port));
	}
	printf("given %llu %u\n", (unsigned long long)port->refused, port->newest_refusal);
}

static void send_one(void)
{
	struct fipsee_net_offload offload;
	unsigned long pair = strtoul(strtok(NULL, " "), NULL, 10);
	uint32_t length_bytes;

	if (pair >= ports[0].info.pairs || parse(strtok(NULL, " "), (uint8_t *)&offload, sizeof(offload)) != sizeof(offload))
		end("usage", "send PAIR OFFLOAD FRAME");
	length_bytes = parse(strtok(NULL, " "), frame, sizeof(frame));
	check(&ports[pair], "cannot send", net_port_send_offloaded(&ports[pair], frame, length_bytes, &offload));
	answer_given(&ports[pair]);
}

static void ask(const char *command)
{
	uint8_t group[6] = { 0 };

	(void)parse(strtok(NULL, " "), group, sizeof(group));
	if (strcmp(command, "join") == 0)
		check(ports, "cannot join", net_port_join(ports, group));
	else if (strcmp(command, "leave") == 0)
		check(ports, "cannot leave", net_port_leave(ports, group));
	else if (strcmp(command, "all") == 0 || strcmp(command, "none") == 0)
		check(ports, "cannot ask", net_port_all_groups(ports, command[0] == 'a'));
	else
		end("no such command", command);
	answer_given(ports);
}

/* Answer with a frame or an event if there is one. */
static bool look(void)
{
	uint32_t pair;

	for (pair = 0; pair < ports[0].info.pairs; pair++) {
		struct net_port *port = &ports[pair];
		int length = net_port_receive(port, frame);

		check(port, "cannot receive", length);
		if (length > 0) {
			printf("frame %u ", pair);
			print(&port->offload, sizeof(port->offload));
			printf(" ");
			print(frame, (size_t)length);
			printf("\n");
			return true;
		}
		if (port->changes != said_changes[pair]) {
			said_changes[pair] = port->changes;
			printf("changed %u %llu %s %u ", pair, (unsigned long long)port->changes, port->is_down ? "down" : "up", port->mtu);
			print(port->info.mac, sizeof(port->info.mac));
			printf("\n");
			return true;
		}
	}
	return false;
}

int main(int argc, char **argv)
{
	struct net_options options = { .depth = DEPTH, .takes_events = true };
	static struct channel_error error;
	char *line = NULL, *command;
	size_t room = 0;
	int pairs;

	alarm(ALARM_SECONDS);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc != 6)
		end("usage", "probe SOCKET PORT PAIRS OFFLOADS LEAST_MTU");
	options.pairs = (uint16_t)strtoul(argv[3], NULL, 10);
	options.offloads = (uint32_t)strtoul(argv[4], NULL, 10);
	options.least_mtu = (uint16_t)strtoul(argv[5], NULL, 10);
	pairs = net_port_open_pairs(ports, argv[1], argv[2], &options, &error);
	if (pairs < 0)
		end("cannot attach", error.text);
	printf("ready %d %u %u\n", pairs, ports[0].info.offloads, ports[0].info.max_frame_bytes);
	fflush(stdout);
	while (getline(&line, &room, stdin) > 0) {
		command = strtok(line, " \n");
		if (strcmp(command, "send") == 0) {
			send_one();
		} else if (strcmp(command, "receive") == 0) {
			while (!look())
				check(ports, "cannot wait", net_port_sleep_pairs(ports, (uint32_t)pairs));
		} else if (strcmp(command, "look") != 0) {
			ask(command);
		} else if (!look()) {
			printf("nothing\n");
		}
		fflush(stdout);
	}
	free(line);
	net_port_close(ports);
	return 0;
}
