/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* offloads SOCKET: frames that leave something to be done, and what a daemon reports of a port; the harness sets it down and up. */
#include "ports.h"

/* The sum of 16-bit words that a right checksum completes to 0xffff. */
static unsigned sum(const uint8_t *bytes, size_t length)
{
	unsigned total = 0;
	size_t i;

	for (i = 0; i < length; i++)
		total += i % 2 ? bytes[i] : (unsigned)bytes[i] << 8;
	while (total >> 16)
		total = (total & 0xffff) + (total >> 16);
	return total;
}

static struct fipsee_port *open_with(const char *name, uint32_t offloads)
{
	struct fipsee_port_options options = options_of(name);
	struct fipsee_port *port = NULL;

	options.offloads = offloads;
	options.least_mtu = 9000;
	EXPECT(fipsee_port_open(&options, &port), 0);
	EXPECT(info_of(port).offloads, offloads);
	return port;
}

/* Carried to a port that takes them, done for one that does not, refused if they are not true. */
static void offloads(void)
{
	enum { CHECKSUM = FIPSEE_PORT_OFFLOAD_CHECKSUM, BOTH = CHECKSUM | FIPSEE_PORT_OFFLOAD_TSO4, HEADERS = 54, SEGMENT = 1448,
	       LONG = HEADERS + 28 * SEGMENT };
	const struct fipsee_port_offload checksum = { FIPSEE_PORT_CHECKSUM_NEEDED, 0, 0, 0, 34, 16 };
	const struct fipsee_port_offload segments = { FIPSEE_PORT_CHECKSUM_NEEDED, FIPSEE_PORT_SEGMENT_TCP4, 0, SEGMENT, 34, 16 };
	const struct fipsee_port_offload valid = { .flags = FIPSEE_PORT_CHECKSUM_VALID };
	struct fipsee_port *a = open_with("lan/a", BOTH), *b = open_with("lan/b", BOTH);
	struct fipsee_port_info mac_b = info_of(b);
	static uint8_t sent[65553], found[65553];
	struct fipsee_port_offload offload;
	struct fipsee_port_buffer buffer;
	struct fipsee_port_frame frame;
	struct iovec pieces[20];
	int i, length;

	EXPECT(mac_b.max_frame_bytes, sizeof(sent));
	make(sent, mac_b.mac, a, 200, 1);
	EXPECT(fipsee_port_stage_offloaded(a, sent, 200, &checksum), 0);
	EXPECT(fipsee_port_stage_offloaded(a, sent, 200, NULL), 0);
	EXPECT(fipsee_port_get_buffer(a, &buffer), 0);
	memcpy(buffer.data, sent, 200);
	EXPECT(fipsee_port_stage_buffer_offloaded(a, &buffer, 200, &valid), 0);
	EXPECT(fipsee_port_submit(a), 0);
	EXPECT(fipsee_port_wait(b, found, sizeof(found), -1), 200);
	EXPECT(fipsee_port_received_offload(b, &offload), 0);
	EXPECT(memcmp(found, sent, 200), 0);
	EXPECT(memcmp(&offload, &checksum, sizeof(offload)), 0);
	EXPECT(fipsee_port_wait(b, found, sizeof(found), -1), 200);
	EXPECT(fipsee_port_received_offload(b, &offload), 0);
	EXPECT(offload.flags, 0);
	EXPECT(fipsee_port_wait_take(b, &frame, 1, -1), 1);
	EXPECT(fipsee_port_frame_offload(b, &frame, &offload), 0);
	EXPECT(offload.flags, FIPSEE_PORT_CHECKSUM_VALID);
	EXPECT(fipsee_port_release(b, &frame, 1), 0);
	FAILS(fipsee_port_frame_offload(b, &frame, &offload), -EINVAL, "once");
	FAILS(fipsee_port_frame_offload(b, NULL, &offload), -EINVAL, "frame");
	FAILS(fipsee_port_received_offload(b, NULL), -EINVAL, "offload");

	/* TCP of 28 segments in one frame. */
	make(sent, mac_b.mac, a, LONG, 2);
	memcpy(sent + 12, "\x08\0\x45\0", 4);
	sent[16] = (LONG - 14) >> 8;
	sent[17] = (LONG - 14) & 0xff;
	memcpy(sent + 20, "\0\0\x40\x06", 4);	/* No fragment, TCP. */
	sent[46] = 0x50;
	sent[47] = 0x10;				/* ACK. */
	EXPECT(fipsee_port_stage_offloaded(a, sent, LONG, &segments), 0);
	EXPECT(fipsee_port_submit(a), 0);
	EXPECT(fipsee_port_wait_take(b, &frame, 1, -1), 1);
	EXPECT(frame.length_bytes, LONG);
	EXPECT(fipsee_port_frame_pieces(b, &frame, pieces, 20), (LONG + 4095) / 4096);
	EXPECT(memcmp(frame.data, sent, frame.piece_bytes), 0);
	EXPECT(fipsee_port_frame_offload(b, &frame, &offload), 0);
	EXPECT(offload.segmentation, FIPSEE_PORT_SEGMENT_TCP4);
	EXPECT(offload.header_bytes, HEADERS);
	EXPECT(offload.segment_bytes, SEGMENT);
	EXPECT(fipsee_port_release(b, &frame, 1), 0);
	EXPECT(fipsee_port_close(b), 0);

	/* A port that takes none gets whole frames. */
	b = open_port("lan/b", 0);
	EXPECT(fipsee_port_stage_offloaded(a, sent, LONG, &segments), 0);
	EXPECT(fipsee_port_submit(a), 0);
	for (i = 0; i < DEPTH; i++) {
		length = fipsee_port_wait(b, found, sizeof(found), -1);
		EXPECT(length, HEADERS + SEGMENT);
		EXPECT(memcmp(found + HEADERS, sent + HEADERS + i * SEGMENT, SEGMENT), 0);
		EXPECT(sum(found + 14, 20), 0xffff);
	}
	EXPECT(fipsee_port_close(b), 0);
	b = open_port("lan/b", 0);
	make(sent, mac_b.mac, a, 200, 3);
	EXPECT(fipsee_port_stage_offloaded(a, sent, 200, &checksum), 0);
	EXPECT(fipsee_port_submit(a), 0);
	EXPECT(fipsee_port_wait(b, found, sizeof(found), -1), 200);
	EXPECT(memcmp(found, sent, 50), 0);
	EXPECT(memcmp(found + 52, sent + 52, 148), 0);
	/* The place held a word that belongs to the sum, as that of a pseudo header. */
	EXPECT((sum(found + 34, 166) + (unsigned)(sent[50] << 8 | sent[51])) % 0xffff, 0);

	EXPECT(fipsee_port_wait_sent(a, -1), 1);
	EXPECT(counters_of(a).refused, 0);
	offload = checksum;
	offload.checksum_start = 300;
	EXPECT(fipsee_port_stage_offloaded(a, sent, 200, &offload), 0);
	EXPECT(fipsee_port_wait_sent(a, -1), 1);
	EXPECT(counters_of(a).newest_refusal, FIPSEE_PORT_REFUSED_BAD_OFFLOAD);
	EXPECT(fipsee_port_stage_offloaded(b, sent, 200, &checksum), 0);
	EXPECT(fipsee_port_wait_sent(b, -1), 1);
	EXPECT(counters_of(b).newest_refusal, FIPSEE_PORT_REFUSED_UNSUPPORTED);
	EXPECT(fipsee_port_close(a), 0);
	EXPECT(fipsee_port_close(b), 0);
}

/* Look until the daemon has reported so many changes; the flags then. */
static uint32_t flags_after(struct fipsee_port *port, uint64_t changes)
{
	struct fipsee_port_status status = { .size_bytes = sizeof(status) };
	uint8_t frame[64];

	do {
		EXPECT(fipsee_port_wait(port, frame, sizeof(frame), 1000000), 0);
		EXPECT(fipsee_port_get_status(port, &status), 0);
		EXPECT(status.mtu, 9000);
		EXPECT(status.mac[5], 0x0b);
	} while (status.changes < changes);
	EXPECT(status.changes, changes);
	return status.flags;
}

static void changes(void)
{
	struct fipsee_port *b = open_port("lan/b", 0);
	struct fipsee_port_status status = { .size_bytes = 1 };

	FAILS(fipsee_port_get_status(b, &status), -EINVAL, "sizeof(struct fipsee_port_status)");
	FAILS(fipsee_port_get_status(b, NULL), -EINVAL, "status");
	EXPECT(flags_after(b, 0), FIPSEE_PORT_UP);
	report("link --down");
	EXPECT(flags_after(b, 1), 0);
	report("link --up");
	EXPECT(flags_after(b, 2), FIPSEE_PORT_UP);
	EXPECT(fipsee_port_close(b), 0);
}

int main(int argc, char **argv)
{
	EXPECT(argc, 2);
	the_socket = argv[1];
	offloads();
	changes();
	printf("done\n");
	return 0;
}
