/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* ports SOCKET: every call of fipsee_port.h on the network lan, with right and wrong arguments; the harness kills the daemon. */
#include "ports.h"
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint8_t everyone[6] = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff };

static void opening(void)
{
	struct { struct fipsee_port_options known; uint64_t newer; } grown;
	struct fipsee_port_options options = options_of("lan/a");
	struct fipsee_port *port = NULL, *second = NULL, *pairs[3] = { NULL, NULL, NULL };
	struct fipsee_port_info info;
	int granted, i;

	FAILS(fipsee_port_open(NULL, NULL), -EINVAL, "null");
	FAILS(fipsee_port_open(NULL, &port), -EINVAL, "options");
	FAILS(fipsee_port_open_pairs(&options, pairs, 0), -EINVAL, "max_ports");
	options.port = NULL;
	FAILS(fipsee_port_open(&options, &port), -EINVAL, "options->port");
	options.port = "";
	FAILS(fipsee_port_open(&options, &port), -EINVAL, "options->port");
	options.port = "\xff";
	FAILS(fipsee_port_open(&options, &port), -EINVAL, "UTF-8");
	options.port = "lan/nowhere";
	FAILS(fipsee_port_open(&options, &port), -ENOENT, "lan/nowhere");
	options.port = "lan/a";
	options.wait = FIPSEE_WAIT_MONITORX + 1;
	FAILS(fipsee_port_open(&options, &port), -EINVAL, "FIPSEE_WAIT_");
	options.wait = FIPSEE_WAIT_SLEEP;
	options.offloads = 64;
	FAILS(fipsee_port_open(&options, &port), -EINVAL, "FIPSEE_PORT_OFFLOAD_");
	options.offloads = 0;
	options.least_mtu = 70000;
	FAILS(fipsee_port_open(&options, &port), -EINVAL, "options->least_mtu");
	options.least_mtu = 9001;
	FAILS(fipsee_port_open(&options, &port), -EDQUOT, "MTU of 9000");
	options.least_mtu = 0;
	options.socket_path = "/nowhere/at/all";
	FAILS(fipsee_port_open(&options, &port), -ENOENT, "options.socket_path");
	memset(&grown, 0, sizeof(grown));
	grown.known = options_of("lan/a");
	grown.known.size_bytes = sizeof(grown);
	grown.newer = 1;
	FAILS(fipsee_port_open(&grown.known, &port), -E2BIG, "newer");
	EXPECT(port == NULL, 1);
	grown.newer = 0;
	EXPECT(fipsee_port_open(&grown.known, &port), 0);
	FAILS(fipsee_port_open(&grown.known, &second), -EBUSY, "lan/a");
	info = info_of(port);
	EXPECT(info.mac[5], 0x0a);
	EXPECT(info.mtu, 9000);
	EXPECT(info.max_frame_bytes, LONGEST_BYTES);
	EXPECT(info.offloads, 0);
	EXPECT(info.vlan, 0);
	EXPECT(info.pairs, 1);
	EXPECT(info.send_depth, DEPTH);
	EXPECT(info.receive_depth, DEPTH);
	info.size_bytes = 0;
	FAILS(fipsee_port_get_info(port, &info), -EINVAL, "sizeof(struct fipsee_port_info)");
	FAILS(fipsee_port_get_info(port, NULL), -EINVAL, "info");
	FAILS(fipsee_port_get_info(NULL, &info), -EINVAL, "port");
	EXPECT(fipsee_port_close(port), 0);
	EXPECT(fipsee_port_close(NULL), 0);

	/* The port is free after the last of its pairs. */
	options = options_of("lan/a");
	granted = fipsee_port_open_pairs(&options, pairs, 3);
	EXPECT(granted, 3);
	EXPECT(info_of(pairs[2]).pairs, 3);
	for (i = 0; i < granted; i++) {
		FAILS(fipsee_port_open(&options, &second), -EBUSY, "lan/a");
		EXPECT(fipsee_port_close(pairs[i]), 0);
	}
	EXPECT(fipsee_port_open(&options, &second), 0);
	EXPECT(fipsee_port_close(second), 0);
}

static void listing(void)
{
	struct fipsee_listed_port port = { .size_bytes = sizeof(port) };
	struct fipsee_port *open = open_port("lan/b", 0);
	struct fipsee_port_list *list = NULL;

	FAILS(fipsee_port_list_open(the_socket, NULL), -EINVAL, "list");
	FAILS(fipsee_port_list_open("/nowhere/at/all", &list), -ENOENT, "start fipseed");
	EXPECT(fipsee_port_list_open(the_socket, &list), 0);
	FAILS(fipsee_port_list_next(NULL, &port), -EINVAL, "list");
	FAILS(fipsee_port_list_next(list, NULL), -EINVAL, "port");
	EXPECT(fipsee_port_list_next(list, &port), 1);
	EXPECT(strcmp(port.name, "lan/a"), 0);
	EXPECT(port.flags, 0);
	EXPECT(port.mtu, 9000);
	EXPECT(port.mac[5], 0x0a);
	EXPECT(fipsee_port_list_next(list, &port), 1);
	EXPECT(strcmp(port.name, "lan/b"), 0);
	EXPECT(port.flags, FIPSEE_PORT_IN_USE);
	EXPECT(fipsee_port_list_next(list, &port), 0);
	fipsee_port_list_close(list);
	fipsee_port_list_close(NULL);
	EXPECT(fipsee_port_close(open), 0);
}

/* There by copy and in place, back in frames that are not copied. */
static void exchanging(uint32_t buffer_bytes)
{
	static const size_t lengths[] = { 14, 56, 57, 64, 1024, 1025, 1514, 9014 };
	struct fipsee_port *a = open_port("lan/a", buffer_bytes), *b = open_port("lan/b", buffer_bytes);
	struct fipsee_port_info mac_a = info_of(a), mac_b = info_of(b);
	static uint8_t sent[LONGEST_BYTES], found[LONGEST_BYTES];
	struct fipsee_port_buffer buffer;
	struct fipsee_port_frame frame;
	struct iovec pieces[20];
	uint32_t round;
	size_t i;

	for (round = 0; round < 3 * DEPTH; round++) {
		for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
			size_t length = lengths[i], at = 0;
			int count, piece;

			make(sent, mac_b.mac, a, length, round + i);
			EXPECT(fipsee_port_send(a, sent, length), 0);
			EXPECT(fipsee_port_wait(b, found, sizeof(found), -1), length);
			EXPECT(memcmp(sent, found, length), 0);
			make(sent, mac_a.mac, b, length, round + i + 99);
			EXPECT(fipsee_port_get_buffer(b, &buffer), 0);
			EXPECT(buffer.capacity_bytes, LONGEST_BYTES);
			memcpy(buffer.data, sent, length);
			EXPECT(fipsee_port_stage_buffer(b, &buffer, (uint32_t)length), 0);
			EXPECT(fipsee_port_submit(b), 0);
			EXPECT(fipsee_port_wait_take(a, &frame, 1, -1), 1);
			EXPECT(frame.length_bytes, length);
			count = fipsee_port_frame_pieces(a, &frame, pieces, 20);
			EXPECT(count, buffer_bytes ? (length + buffer_bytes - 1) / buffer_bytes : 1);
			EXPECT(pieces[0].iov_base == frame.data && pieces[0].iov_len == frame.piece_bytes, 1);
			for (piece = 0; piece < count; at += pieces[piece++].iov_len)
				EXPECT(memcmp(pieces[piece].iov_base, sent + at, pieces[piece].iov_len), 0);
			EXPECT(at, length);
			if (count > 1)
				FAILS(fipsee_port_frame_pieces(a, &frame, pieces, 1), -EMSGSIZE, "pieces");
			EXPECT(fipsee_port_release(a, &frame, 1), 0);
			FAILS(fipsee_port_release(a, &frame, 1), -EINVAL, "once");
		}
	}
	/* What does not fit is cut; the length is that of the frame. */
	make(sent, mac_b.mac, a, 100, 1);
	EXPECT(fipsee_port_send(a, sent, 100), 0);
	EXPECT(fipsee_port_wait(b, found, 60, -1), 100);
	EXPECT(memcmp(sent, found, 60), 0);
	EXPECT(fipsee_port_receive(b, found, sizeof(found)), 0);
	EXPECT(fipsee_port_wait(b, found, sizeof(found), 1000), 0);
	EXPECT(fipsee_port_wait_take(b, &frame, 1, 1000), 0);
	EXPECT(fipsee_port_close(a), 0);
	EXPECT(fipsee_port_close(b), 0);
}

static void batches(void)
{
	struct fipsee_port *a = open_port("lan/a", 0), *b = open_port("lan/b", 0);
	struct fipsee_port_buffer buffers[DEPTH], more;
	struct fipsee_port_frame frames[2 * DEPTH];
	struct fipsee_port_info mac_b = info_of(b);
	uint8_t sent[200];
	int i, taken = 0;

	for (i = 0; i < DEPTH; i++) {
		make(sent, mac_b.mac, a, sizeof(sent), (uint64_t)i);
		EXPECT(fipsee_port_stage(a, sent, sizeof(sent)), 0);
		/* One frame stays; of several, a full message is published at once. */
		if (i == 0)
			EXPECT(fipsee_port_receive(b, sent, sizeof(sent)), 0);
	}
	EXPECT(fipsee_port_wait_sent(a, -1), 1);
	EXPECT(counters_of(a).sent_back, DEPTH);
	/* They were in one burst, and the receiver has as many buffers. */
	while (taken < DEPTH) {
		int count = fipsee_port_wait_take(b, frames + taken, DEPTH, -1);

		EXPECT(count > 0, 1);
		taken += count;
	}
	for (i = 0; i < DEPTH; i++) {
		make(sent, mac_b.mac, a, sizeof(sent), (uint64_t)i);
		EXPECT(memcmp(frames[i].data, sent, sizeof(sent)), 0);
	}
	FAILS(fipsee_port_take(b, frames, 1), -EAGAIN, "release");
	FAILS(fipsee_port_wait_take(b, frames, 1, -1), -EAGAIN, "release");
	EXPECT(fipsee_port_release(b, frames, DEPTH), 0);
	EXPECT(fipsee_port_take(b, frames, 1), 0);
	/* All transmit buffers. */
	for (i = 0; i < DEPTH; i++)
		EXPECT(fipsee_port_get_buffer(a, &buffers[i]), 0);
	FAILS(fipsee_port_get_buffer(a, &more), -EAGAIN, "buffers");
	FAILS(fipsee_port_send(a, sent, sizeof(sent)), -EAGAIN, "transmit buffers");
	for (i = 0; i < DEPTH - 1; i++)
		EXPECT(fipsee_port_put_back(a, &buffers[i]), 0);
	FAILS(fipsee_port_put_back(a, &buffers[0]), -EINVAL, "before");
	FAILS(fipsee_port_stage_buffer(a, &buffers[DEPTH - 1], LONGEST_BYTES + 1), -EMSGSIZE, "9019");
	FAILS(fipsee_port_stage_buffer(a, &buffers[DEPTH - 1], 60), -EINVAL, "before");
	for (i = 0; i < DEPTH; i++)
		EXPECT(fipsee_port_get_buffer(a, &buffers[i]), 0);
	EXPECT(fipsee_port_close(a), 0);
	EXPECT(fipsee_port_close(b), 0);
}

static void mistakes(void)
{
	static struct fipsee_port *a;	/* Where leak checkers find it in the child, which cannot free it. */
	struct fipsee_port_buffer buffer = { .handle = 77 };
	struct fipsee_port_frame frame = { .handle = 77 };
	struct fipsee_port_counters counters;
	struct iovec piece;
	uint8_t sent[64];
	pid_t child;
	int status;

	a = open_port("lan/a", 0);
	make(sent, everyone, a, sizeof(sent), 1);
	FAILS(fipsee_port_send(NULL, sent, sizeof(sent)), -EINVAL, "port");
	FAILS(fipsee_port_send(a, NULL, sizeof(sent)), -EINVAL, "frame");
	FAILS(fipsee_port_send(a, sent, 13), -EMSGSIZE, "13 bytes");
	FAILS(fipsee_port_stage(a, sent, LONGEST_BYTES + 1), -EMSGSIZE, "9018");
	FAILS(fipsee_port_get_buffer(a, NULL), -EINVAL, "buffer");
	FAILS(fipsee_port_stage_buffer(a, NULL, 60), -EINVAL, "buffer");
	FAILS(fipsee_port_put_back(a, &buffer), -EINVAL, "not of this port");
	FAILS(fipsee_port_receive(a, NULL, 1), -EINVAL, "buffer");
	FAILS(fipsee_port_take(a, NULL, 1), -EINVAL, "frames");
	FAILS(fipsee_port_take(a, &frame, 0), -EINVAL, "max_frames");
	FAILS(fipsee_port_release(a, NULL, 1), -EINVAL, "frames");
	FAILS(fipsee_port_release(a, &frame, 1), -EINVAL, "not of this port");
	FAILS(fipsee_port_frame_pieces(a, NULL, &piece, 1), -EINVAL, "frame");
	FAILS(fipsee_port_frame_pieces(a, &frame, &piece, 1), -EINVAL, "not of this port");
	FAILS(fipsee_port_get_counters(a, NULL), -EINVAL, "counters");
	FAILS(fipsee_port_reconnect(NULL, 1, 0), -EINVAL, "ports");
	EXPECT(counters_of(a).refused, 0);
	/* Refused frames are counted, with the reason. */
	sent[11]++;
	EXPECT(fipsee_port_send(a, sent, sizeof(sent)), 0);
	EXPECT(fipsee_port_wait_sent(a, -1), 1);
	counters = counters_of(a);
	EXPECT(counters.refused, 1);
	EXPECT(counters.newest_refusal, FIPSEE_PORT_REFUSED_WRONG_SOURCE);
	EXPECT(counters.unsent, 0);
	EXPECT(strstr(fipsee_port_refusal_message(counters.newest_refusal), "any_source") != NULL, 1);
	EXPECT(strstr(fipsee_port_refusal_message(77), "not a refusal") != NULL, 1);
	child = fork();
	if (child == 0)
		_exit(fipsee_port_send(a, sent, sizeof(sent)) == -EPERM && fipsee_port_close(a) == -EPERM ? 0 : 1);
	EXPECT(waitpid(child, &status, 0), child);
	EXPECT(status, 0);
	EXPECT(fipsee_port_close(a), 0);
}

/* Send a frame to `group`; the seed determines its contents. */
static void send_to(struct fipsee_port *a, const uint8_t group[6], uint64_t seed)
{
	uint8_t sent[60];

	make(sent, group, a, sizeof(sent), seed);
	EXPECT(fipsee_port_send(a, sent, sizeof(sent)), 0);
	EXPECT(fipsee_port_wait_sent(a, -1), 1);
}

/* That frame is there, and no other. */
static void receives_of(struct fipsee_port *b, struct fipsee_port *a, const uint8_t group[6], uint64_t seed)
{
	uint8_t sent[60], found[60];

	make(sent, group, a, sizeof(sent), seed);
	EXPECT(fipsee_port_receive(b, found, sizeof(found)), sizeof(found));
	EXPECT(memcmp(sent, found, sizeof(found)), 0);
	EXPECT(fipsee_port_receive(b, found, sizeof(found)), 0);
}

static void groups(void)
{
	static const uint8_t one[6] = { 1, 0, 0x5e, 0, 0, 1 }, two[6] = { 1, 0, 0x5e, 0, 0, 2 };
	struct fipsee_port *a = open_port("lan/a", 0), *b = open_port("lan/b", 0);
	struct fipsee_port_info mac_b = info_of(b);
	uint8_t many[6] = { 1, 0, 0x5e, 0, 1, 0 }, found[60];
	int i;

	FAILS(fipsee_port_join(NULL, one), -EINVAL, "port");
	FAILS(fipsee_port_join(b, NULL), -EINVAL, "group");
	FAILS(fipsee_port_leave(b, NULL), -EINVAL, "group");
	FAILS(fipsee_port_all_groups(NULL, 1), -EINVAL, "port");
	FAILS(fipsee_port_join(b, mac_b.mac), -EINVAL, "odd first byte");
	FAILS(fipsee_port_leave(b, everyone), -EINVAL, "in any case");
	send_to(a, two, 1);
	receives_of(b, a, two, 1);
	EXPECT(fipsee_port_join(b, one), 0);
	EXPECT(fipsee_port_wait_sent(b, -1), 1);
	send_to(a, two, 2);
	send_to(a, one, 3);
	receives_of(b, a, one, 3);
	send_to(a, everyone, 4);
	receives_of(b, a, everyone, 4);
	EXPECT(fipsee_port_leave(b, one), 0);
	EXPECT(fipsee_port_wait_sent(b, -1), 1);
	send_to(a, one, 5);
	EXPECT(fipsee_port_receive(b, found, sizeof(found)), 0);
	EXPECT(fipsee_port_all_groups(b, 1), 0);
	EXPECT(fipsee_port_wait_sent(b, -1), 1);
	send_to(a, one, 6);
	receives_of(b, a, one, 6);
	EXPECT(fipsee_port_all_groups(b, 0), 0);
	EXPECT(fipsee_port_wait_sent(b, -1), 1);
	send_to(a, one, 7);
	EXPECT(fipsee_port_receive(b, found, sizeof(found)), 0);
	EXPECT(counters_of(b).refused, 0);
	for (i = 0; i < 65; i++) {
		many[5] = (uint8_t)i;
		EXPECT(fipsee_port_join(b, many), 0);
		EXPECT(fipsee_port_wait_sent(b, -1), 1);
	}
	EXPECT(counters_of(b).refused, 1);
	EXPECT(counters_of(b).newest_refusal, FIPSEE_PORT_REFUSED_LIMITED);
	EXPECT(fipsee_port_close(a), 0);
	EXPECT(fipsee_port_close(b), 0);
}

/* Wait for a frame as an event loop does; what fipsee_port_woken said in the end. */
static int loop(struct fipsee_port *port, uint8_t *frame, size_t frame_bytes, int *length)
{
	for (;;) {
		struct pollfd ready = { .events = POLLIN };
		int armed, woken;

		*length = fipsee_port_receive(port, frame, frame_bytes);
		if (*length != 0)
			return 0;
		armed = fipsee_port_arm(port);
		EXPECT(armed >= 0, 1);
		ready.fd = fipsee_port_descriptor(port);
		EXPECT(ready.fd >= 0, 1);
		if (armed == 0)
			poll(&ready, 1, -1);
		woken = fipsee_port_woken(port);
		if (woken != 0)
			return woken;
	}
}

static struct fipsee_doorbell_counts doorbells_of(const struct fipsee_port *port)
{
	struct fipsee_doorbell_counts counts = { .size_bytes = sizeof(counts) };

	EXPECT(fipsee_port_get_doorbell_counts(port, &counts), 0);
	return counts;
}

/* A wake-up of b with a frame of a, and one whose frame was received before. */
static void doorbells(void)
{
	struct fipsee_port *a = open_port("lan/a", 0), *b = open_port("lan/b", 0);
	struct pollfd doorbell = { fipsee_port_descriptor(b), POLLIN, 0 };
	struct fipsee_port_info info = info_of(b);
	struct fipsee_doorbell_counts counts;
	uint8_t sent[64], found[64];
	int early, length;

	make(sent, info.mac, a, sizeof(sent), 1);
	for (early = 0; early < 2; early++) {
		EXPECT(fipsee_port_arm(b), 0);
		EXPECT(fipsee_port_send(a, sent, sizeof(sent)), 0);
		for (length = 0; early && length == 0;)
			length = fipsee_port_receive(b, found, sizeof(found));
		EXPECT(poll(&doorbell, 1, -1), 1);
		EXPECT(fipsee_port_woken(b), 0);
		EXPECT(doorbells_of(b).wakeups, 1 + early);
		EXPECT(doorbells_of(b).spurious, early);
		if (!early)
			length = fipsee_port_receive(b, found, sizeof(found));
		EXPECT(length, sizeof(sent));
	}
	EXPECT(doorbells_of(b).suppressed, 0);
	FAILS(fipsee_port_get_doorbell_counts(NULL, &counts), -EINVAL, "port is a null pointer");
	FAILS(fipsee_port_get_doorbell_counts(a, NULL), -EINVAL, "counts is a null pointer");
	EXPECT(fipsee_port_close(a), 0);
	EXPECT(fipsee_port_close(b), 0);
}

static void event_loops_and_reconnection(void)
{
	struct fipsee_doorbell_counts before;
	struct pollfd doorbell = { .events = POLLIN };
	struct fipsee_port *ports[2] = { open_port("lan/a", 0), open_port("lan/b", 0) };
	struct fipsee_port_info mac_b = info_of(ports[1]);
	struct fipsee_port_buffer stale;
	struct fipsee_port_frame kept;
	uint8_t sent[64], found[64];
	int length, i;

	for (i = 0; i < 100; i++) {
		make(sent, mac_b.mac, ports[0], sizeof(sent), (uint64_t)i);
		EXPECT(fipsee_port_send(ports[0], sent, sizeof(sent)), 0);
		EXPECT(loop(ports[1], found, sizeof(found), &length), 0);
		EXPECT(length, sizeof(sent));
		EXPECT(memcmp(sent, found, sizeof(sent)), 0);
	}
	EXPECT(fipsee_port_arm(ports[1]), 0);
	EXPECT(fipsee_port_send(ports[0], sent, sizeof(sent)), 0);
	doorbell.fd = fipsee_port_descriptor(ports[1]);
	EXPECT(poll(&doorbell, 1, -1), 1);
	EXPECT(fipsee_port_woken(ports[1]), 0);
	EXPECT(fipsee_port_wait_take(ports[1], &kept, 1, -1), 1);
	EXPECT(fipsee_port_get_buffer(ports[0], &stale), 0);
	report("kill");
	EXPECT(fipsee_port_send(ports[0], sent, sizeof(sent)), 0);
	FAILS(loop(ports[1], found, sizeof(found), &length), -ENOTCONN, "daemon closed the connection");
	FAILS(fipsee_port_wait(ports[0], found, sizeof(found), -1), -ENOTCONN, "daemon");
	FAILS(fipsee_port_wait_sent(ports[0], -1), -ENOTCONN, "daemon");
	FAILS(fipsee_port_reconnect(&ports[0], 1, 0), -ECONNREFUSED, "start fipseed");
	report("restart");
	before = doorbells_of(ports[1]);
	EXPECT(before.wakeups > 0, 1);
	for (i = 0; i < 2; i++)
		EXPECT(fipsee_port_reconnect(&ports[i], 1, 60000000000u), 0);
	EXPECT(doorbells_of(ports[1]).wakeups, before.wakeups);
	EXPECT(doorbells_of(ports[1]).doorbells >= before.doorbells, 1);
	EXPECT(counters_of(ports[0]).lost, 1);
	EXPECT(memcmp(kept.data, sent, sizeof(sent)), 0);
	EXPECT(fipsee_port_release(ports[1], &kept, 1), 0);
	FAILS(fipsee_port_stage_buffer(ports[0], &stale, 60), -ESTALE, "another attachment");
	for (i = 0; i < 100; i++) {
		EXPECT(fipsee_port_send(ports[0], sent, sizeof(sent)), 0);
		EXPECT(loop(ports[1], found, sizeof(found), &length), 0);
		EXPECT(memcmp(sent, found, sizeof(sent)), 0);
	}
	EXPECT(fipsee_port_close(ports[0]), 0);
	report("kill");
	FAILS(fipsee_port_close(ports[1]), -ENOTCONN, "daemon");
	report("restart");
}

int main(int argc, char **argv)
{
	EXPECT(argc, 2);
	the_socket = argv[1];
	opening();
	listing();
	exchanging(0);
	exchanging(1024);	/* The longest frame fills nine of the sixteen. */
	batches();
	mistakes();
	groups();
	doorbells();
	event_loops_and_reconnection();
	printf("done\n");
	return 0;
}
