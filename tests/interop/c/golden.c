/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The examples of docs/protocol.md section 7, built through the C structures. src/golden.rs builds the same in Rust. */
#include <string.h>

#include "fipsee_ring.h"
#include "fipsee_net.h"
#include "fipsee_vm.h"
#include "interop.h"

#define HEADER(structure, number) \
	{ FIPSEE_CONTROL_MAGIC, FIPSEE_##number, FIPSEE_VERSION, sizeof(struct fipsee_##structure) }

/* One choice as a word. */
#define CHOICE(field, name) (FIPSEE_##field##_##name << FIPSEE_CHOICES_##field##_SHIFT)

static const struct fipsee_block_info info = {
	.first_sector = 0, .sector_count = 2097152, .block_bytes = 4096, .optimal_bytes = 131072,
	.max_transfer_bytes = 16777216, .max_range_sectors = 8388608, .max_segments = 256, .capabilities = 31,
	.identity = { 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f },
	.reserved = 0,
};

static const struct fipsee_hello hello = { HEADER(hello, HELLO), 1, 1, FIPSEE_FEATURE_WORKER_CPU };
static const struct fipsee_welcome welcome = { HEADER(welcome, WELCOME), 1, 64, 4096, 0, FIPSEE_FEATURE_WORKER_CPU, 1 << 30 };
static const struct fipsee_attach attach = {
	HEADER(attach, ATTACH), FIPSEE_SERVICE_BLOCK, 2, 64, FIPSEE_ATTACH_READ_ONLY, 1 << 20, { 'd', 'i', 's', 'k', '0' },
};
static const struct fipsee_attach attach_calls = {
	HEADER(attach, ATTACH), FIPSEE_SERVICE_CALLS, 1, 64, 0, 0,
	{ 'o', 'r', 'g', '.', 'e', 'x', 'a', 'm', 'p', 'l', 'e', '.', 'c', 'o', 'u', 'n', 't', 'e', 'r', '/', '1' },
};
static const struct fipsee_call_info calls = {
	.request_bytes = 16, .reply_bytes = 60, .request_payload_bytes = 4096, .reply_payload_bytes = 64,
};
static const struct fipsee_refused refused = {
	HEADER(refused, REFUSED), FIPSEE_REFUSAL_UNKNOWN_NAME, 13, "no export 'a'",
};
static const struct fipsee_register reg = {
	HEADER(register, REGISTER), 1, FIPSEE_ACCESS_READ | FIPSEE_ACCESS_WRITE, 1 << 21,
};
static const struct fipsee_region_id registered = { HEADER(region_id, REGISTERED), 1, 0 };
static const struct fipsee_region_id unregister = { HEADER(region_id, UNREGISTER), 1, 0 };
static const struct fipsee_region_id unregistered = { HEADER(region_id, UNREGISTERED), 1, 0 };
static const struct fipsee_control_header detach = HEADER(control_header, DETACH);
static const struct fipsee_control_header detached = HEADER(control_header, DETACHED);

static const struct fipsee_list list = { HEADER(list, LIST), FIPSEE_SERVICE_BLOCK, 0, { 'd', 'i', 's', 'k', '0' } };

static const struct fipsee_region_header region_header = {
	FIPSEE_REGION_MAGIC, FIPSEE_REGION_VERSION, 1, 1064960, FIPSEE_FEATURE_WORKER_CPU | FIPSEE_FEATURE_CHOICES, 16384,
	1048576, { 0, 0 },
};
static const struct fipsee_queue_entry queue_entry = {
	384, 4480, 128, 64, 128, 5, 9, 64, 4,
	CHOICE(OWNERSHIP, LOCKED_AHEAD) | CHOICE(TOUCH, ALWAYS) | CHOICE(STORES, SPLIT32) | CHOICE(BURST_PREFETCH, OFF) |
		CHOICE(TAKE, SINGLY) | FIPSEE_CHOICES_MEASURED,
	{ 0, 0, 0 },
};

static const struct fipsee_request read_one = {
	.operation = FIPSEE_READ, .segment_count = 1, .tag = 7, .sector = 8, .segments = { { 16, 8, 0 } },
};
static const struct fipsee_request write_five = {
	.operation = FIPSEE_WRITE, .segment_count = 5, .flags = FIPSEE_FLAG_FUA, .tag = 0x1234, .sector = 0x123456789aULL,
	.segments = { { 0, 1, 0 }, { 2, 1, 0 }, { 8, 8, 1 }, { 0xfffffff0U, 8, 2 }, { 64, 0xffff, 63 } },
};
static const struct fipsee_request read_indirect = {
	.operation = FIPSEE_READ, .segment_count = FIPSEE_SEGMENTS_INDIRECT, .tag = 8, .sector = 4096,
	.segments = { { 32, 1, 0 } }, .aux = 3,
};
static const struct fipsee_segment table[3] = { { 40, 8, 0 }, { 0, 256, 1 }, { 512, 8, 1 } };
static const struct fipsee_request flush = { .operation = FIPSEE_FLUSH, .tag = 9 };
static const struct fipsee_request discard = {
	.operation = FIPSEE_DISCARD, .tag = 10, .sector = 2048, .length_sectors = 65536,
};
static const struct fipsee_request write_zeroes = {
	.operation = FIPSEE_WRITE_ZEROES, .flags = FIPSEE_FLAG_FUA | FIPSEE_FLAG_UNMAP, .tag = 11, .sector = 2048,
	.length_sectors = 16,
};
static const struct fipsee_request get_info = {
	.operation = FIPSEE_GET_INFO, .segment_count = 1, .tag = 12, .segments = { { 48, 1, 0 } },
};
static const struct fipsee_request ack_event = {
	.operation = FIPSEE_ACK_EVENT, .tag = 13, .aux = FIPSEE_KIND_RESIZE,
};
/* Requests of 8 sectors, one after the other on the disk and in memory. */
#define PACKED(index) { 2048 + 8 * (index), { 16 + 8 * (index), 8, 1 } }
static const struct fipsee_packed packed_two = {
	.operation = FIPSEE_PACKED, .count = 2, .writes = 2, .tags = { 14, 15 }, .requests = { PACKED(0), PACKED(1) },
};
static const struct fipsee_packed packed_three = {
	.operation = FIPSEE_PACKED, .count = 3, .writes = 3, .tags = { 0x1234, 0xffff },
	.requests = { PACKED(0), PACKED(1), PACKED(2) }, .last_tag = 16,
};

static const struct fipsee_completion one = { .count = 1, .entries = { { 7, FIPSEE_STATUS_OK } } };
static const struct fipsee_completion fourteen = {
	.count = 14,
	.entries = {
		{ 0, FIPSEE_STATUS_OK }, { 1, FIPSEE_STATUS_IO_ERROR }, { 2, FIPSEE_STATUS_INVALID },
		{ 3, FIPSEE_STATUS_UNSUPPORTED }, { 4, FIPSEE_STATUS_BAD_MEMORY }, { 5, FIPSEE_STATUS_READ_ONLY },
		{ 6, FIPSEE_STATUS_OUT_OF_RANGE }, { 7, FIPSEE_STATUS_NO_SPACE }, { 8, FIPSEE_STATUS_DETACHED },
		{ 9, FIPSEE_STATUS_MISALIGNED }, { 10, FIPSEE_STATUS_TOO_LONG }, { 11, FIPSEE_STATUS_NO_SEGMENTS },
		{ 0x1234, FIPSEE_STATUS_OK }, { 0xffff, FIPSEE_STATUS_OK },
	},
};
static const struct fipsee_event resize = { .count = 1, .kind = FIPSEE_KIND_RESIZE, .sector_count = 4194304 };
static const struct fipsee_event detach_event = { .count = 1, .kind = FIPSEE_KIND_DETACH };

#define UPGRADE_REQUEST(asked) .magic = FIPSEE_VM_MAGIC, .version = FIPSEE_VM_VERSION, .operation = FIPSEE_VM_##asked

static const struct fipsee_vm_question vm_query = { UPGRADE_REQUEST(QUERY) };
static const struct {
	struct fipsee_vm_question upgrade_request;
	struct fipsee_vm_queue queue;
} vm_attach = {
	{ UPGRADE_REQUEST(ATTACH), .features = FIPSEE_VM_FEATURE_CHOICES, .queue_count = 1 },
	{
		.request_address = 0x100004000, .completion_address = 0x100005000, .cold_address = 0x100003f00,
		.request_slots = 64, .completion_slots = 128, .request_start = 5, .completion_start = 9, .depth = 64,
		.virtqueue = 1,
	},
};
static const struct fipsee_vm_question vm_bell = { UPGRADE_REQUEST(DOORBELL), .attachment = 0x123456789abcdef0, .queue = 3 };
static const struct fipsee_vm_question vm_detach = { UPGRADE_REQUEST(DETACH), .attachment = 0x123456789abcdef0 };
static const struct fipsee_vm_reply vm_offer = {
	.result = FIPSEE_VM_DONE, .version = FIPSEE_VM_VERSION, .max_queues = 2, .features = FIPSEE_VM_FEATURE_CHOICES,
	.max_depth = 4096,
};
static const struct fipsee_vm_reply vm_attached = {
	.result = FIPSEE_VM_DONE, .version = FIPSEE_VM_VERSION, .max_queues = 2, .attachment = 0x123456789abcdef0,
	.features = FIPSEE_VM_FEATURE_CHOICES, .choices = CHOICE(OWNERSHIP, NOT_ASKED) | CHOICE(TOUCH, RUNS),
};
static const struct fipsee_vm_reply vm_invalid = {
	.result = FIPSEE_VM_INVALID, .version = FIPSEE_VM_VERSION, .max_queues = 2, .queue = 1,
};
static const struct fipsee_vm_reply vm_rung = { .result = FIPSEE_VM_RUNG, .version = FIPSEE_VM_VERSION };

#define MAC_A 2, 0, 0, 0, 0, 1
#define MAC_B 2, 0, 0, 0, 0, 2

static const struct fipsee_attach attach_port = {
	HEADER(attach, ATTACH), FIPSEE_SERVICE_NET, 2, 256, 0, 1 << 20, { 'l', 'a', 'n', '/', 'a' },
};
static const struct fipsee_net_port_info port_info = {
	.mac = { MAC_A }, .mtu = 1500, .max_frame_bytes = 1518, .vlan = 10, .pairs = 1,
};
static const struct fipsee_net_send frame_send = {
	.operation = FIPSEE_NET_SEND, .first_bytes = 36, .tag = 7, .offset_bytes = 0x824, .rest_bytes = 1478,
	.first = {
		MAC_B, MAC_A, 8, 0, 0x45, 0, 5, 0xdc, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0xd4, 0x31,
	},
};
static const struct fipsee_net_small frame_small = {
	.operation = FIPSEE_NET_SEND_SMALL, .length_bytes = 15, .tag = 8,
	.bytes = { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, MAC_A, 0x88, 0xb5, 42 },
};
static const struct fipsee_net_small frame_compressed = {
	.operation = FIPSEE_NET_SEND_COMPRESSED, .length_bytes = 64, .tag = 9,
	.bytes = { 8, 0, 0x45, 0, 0, 0x32, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2 },
};
static const struct fipsee_net_send_packed frame_send_packed = {
	.operation = FIPSEE_NET_SEND_PACKED, .count = 2, .frames = { { 7, 64, 0x1000 }, { 6, 1514, 0x1800 } },
};
static const struct fipsee_net_post frame_post = {
	.operation = FIPSEE_NET_POST, .count = 2, .buffers = { { 0, 0, 4096, 1536 }, { 1, 0, 5632, 1536 } },
};
static const struct fipsee_net_filled frame_filled = {
	.kind = FIPSEE_NET_RECEIVED, .count = 2, .length_bytes = 1514, .tags = { 0, 1 },
};
static const struct fipsee_net_filled_packed frame_filled_packed = {
	.kind = FIPSEE_NET_RECEIVED_PACKED, .count = 3, .frames = { { 0, 64 }, { 1, 1514 }, { 2, 42 } },
};
static const struct fipsee_net_filled frame_segmented = {
	.kind = FIPSEE_NET_RECEIVED, .count = 2, .length_bytes = 2962,
	.offload = { FIPSEE_NET_CHECKSUM_NEEDED, FIPSEE_NET_SEGMENT_TCP4, 66, 1448, 34, 16 }, .tags = { 0, 1 },
};
static const struct fipsee_net_event frame_event = { .kind = FIPSEE_NET_EVENT, .mtu = 1500, .mac = { MAC_A } };
static const struct fipsee_net_request frame_join = {
	.operation = FIPSEE_NET_JOIN, .tag = 9, .group = { 0x33, 0x33, 0, 0, 0, 1 },
};
static const struct fipsee_net_returned frame_returned = {
	.kind = FIPSEE_NET_RETURNED, .count = 2,
	.entries = { { 7, FIPSEE_NET_STATUS_OK }, { 8, FIPSEE_NET_STATUS_WRONG_SOURCE } },
};

static const char *put(const char *name, const void *bytes, size_t count, uint8_t *into, size_t *length_bytes)
{
	memcpy(into, bytes, count);
	*length_bytes = count;
	return name;
}

static const char *put_attached(uint8_t *into, size_t *length_bytes)
{
	struct fipsee_attached attached = { HEADER(attached, ATTACHED), 1, 0, 1064960, { 0 } };

	memcpy(attached.service_info, &info, sizeof(info));
	return put("attached", &attached, sizeof(attached), into, length_bytes);
}

static const char *put_listed(uint8_t *into, size_t *length_bytes)
{
	static const struct fipsee_listed_info disk1 = { 2097152, 4096, 0 }, disk2 = { 2048, 512, FIPSEE_LISTED_READ_ONLY };
	struct fipsee_listed listed = {
		HEADER(listed, LISTED), 2, 0, { { { 'd', 'i', 's', 'k', '1' }, { 0 } }, { { 'd', 'i', 's', 'k', '2' }, { 0 } } },
	};

	memcpy(listed.entries[0].service_info, &disk1, sizeof(disk1));
	memcpy(listed.entries[1].service_info, &disk2, sizeof(disk2));
	return put("listed", &listed, sizeof(listed), into, length_bytes);
}

/* The read-one request in slot 1 of a ring of 2, with the writer in its second lap. */
static const char *put_slot(uint8_t *into, size_t *length_bytes)
{
	static struct fipsee_slot slots[2];
	static struct fipsee_cold cold __attribute__((aligned(FIPSEE_SLOT_BYTES)));
	const struct fipsee_ring ring = { slots, &cold, 2 };
	const struct fipsee_cursor cursor = { 1, 2 };
	union fipsee_message message;
	struct fipsee_writer writer;

	message.request = read_one;
	if (fipsee_writer_init(&writer, ring, cursor) != FIPSEE_RING_OK)
		return "slot of a refused ring";
	fipsee_writer_publish(&writer, &message);
	return put("slot", &slots[1], sizeof(slots[1]), into, length_bytes);
}

/* Two messages on either side of the last stamp, in a ring of 2. */
static const char *put_lap(uint8_t *into, size_t *length_bytes)
{
	static struct fipsee_slot slots[2];
	static struct fipsee_cold cold __attribute__((aligned(FIPSEE_SLOT_BYTES)));
	const struct fipsee_ring ring = { slots, &cold, 2 };
	const struct fipsee_cursor cursor = { 1, 0xffffffffU };
	union fipsee_message messages[2], found;
	struct fipsee_writer writer;
	struct fipsee_reader reader;
	int index;

	messages[0].request = read_one;
	messages[1].request = flush;
	if (fipsee_writer_init(&writer, ring, cursor) != FIPSEE_RING_OK ||
	    fipsee_reader_init(&reader, ring, cursor) != FIPSEE_RING_OK)
		return "lap of a refused ring";
	fipsee_writer_publish_all(&writer, messages, 2);
	for (index = 0; index < 2; index++)
		if (!fipsee_reader_receive(&reader, &found) || memcmp(&found, &messages[index], FIPSEE_PAYLOAD_BYTES) != 0)
			return "lap that the reader does not cross";
	return put("lap", slots, sizeof(slots), into, length_bytes);
}

/* The cold words of a stream: the reader released three messages, asked for a hold and for choices, and is about to sleep. */
static const char *put_cold_words(uint8_t *into, size_t *length_bytes)
{
	static struct fipsee_slot slots[4];
	static struct fipsee_cold cold __attribute__((aligned(FIPSEE_SLOT_BYTES)));
	const struct fipsee_ring ring = { slots, &cold, 4 };
	const struct fipsee_cursor cursor = { 0, 1 };
	union fipsee_message messages[3] = { { .request = { 0 } } }, found;
	struct fipsee_writer writer;
	struct fipsee_reader reader;

	memset(slots, 0, sizeof(slots));
	memset(&cold, 0, sizeof(cold));
	if (fipsee_writer_init(&writer, ring, cursor) != FIPSEE_RING_OK ||
	    fipsee_reader_init(&reader, ring, cursor) != FIPSEE_RING_OK)
		return "cold words of a refused ring";
	fipsee_writer_publish_all(&writer, messages, 3);
	while (fipsee_reader_receive(&reader, &found))
		;
	fipsee_reader_release_all(&reader);
	cold.hold = 250;
	cold.choices = CHOICE(OWNERSHIP, LOCKED_AHEAD) | CHOICE(TOUCH, ALWAYS);
	if (fipsee_reader_arm_and_work_remains(&reader))
		return "cold words of a ring that is not empty";
	return put("cold-words", &cold, sizeof(cold), into, length_bytes);
}

const char *interop_golden(size_t index, uint8_t *into, size_t *length_bytes)
{
#define STRUCTURE(name, variable) { name, &(variable), sizeof(variable) }
#define PAYLOAD(name, variable) { name, &(variable), FIPSEE_PAYLOAD_BYTES }
	static const struct {
		const char *name;
		const void *bytes;
		size_t count;
	} plain[] = {
		STRUCTURE("hello", hello), STRUCTURE("welcome", welcome), STRUCTURE("attach", attach),
		STRUCTURE("attach-calls", attach_calls), STRUCTURE("call-info", calls),
		STRUCTURE("refused", refused), STRUCTURE("register", reg), STRUCTURE("registered", registered),
		STRUCTURE("unregister", unregister), STRUCTURE("unregistered", unregistered), STRUCTURE("detach", detach),
		STRUCTURE("detached", detached), STRUCTURE("list", list), STRUCTURE("region-header", region_header),
		STRUCTURE("queue-entry", queue_entry), STRUCTURE("block-info", info), STRUCTURE("indirect-table", table),
		PAYLOAD("request-read", read_one), PAYLOAD("request-write-fua", write_five),
		PAYLOAD("request-read-indirect", read_indirect), PAYLOAD("request-flush", flush),
		PAYLOAD("request-discard", discard), PAYLOAD("request-write-zeroes", write_zeroes),
		PAYLOAD("request-get-info", get_info), PAYLOAD("request-ack-event", ack_event),
		PAYLOAD("packed-two", packed_two), PAYLOAD("packed-three", packed_three),
		PAYLOAD("completion-one", one), PAYLOAD("completion-fourteen", fourteen),
		PAYLOAD("event-resize", resize), PAYLOAD("event-detach", detach_event),
		STRUCTURE("vm-query", vm_query), STRUCTURE("vm-attach", vm_attach), STRUCTURE("vm-bell", vm_bell),
		STRUCTURE("vm-detach", vm_detach), STRUCTURE("vm-reply-query", vm_offer),
		STRUCTURE("vm-reply-attach", vm_attached), STRUCTURE("vm-reply-invalid", vm_invalid),
		STRUCTURE("vm-reply-rung", vm_rung),
		STRUCTURE("attach-port", attach_port), STRUCTURE("port-info", port_info),
		PAYLOAD("frame-send", frame_send), PAYLOAD("frame-small", frame_small), PAYLOAD("frame-post", frame_post),
		PAYLOAD("frame-compressed", frame_compressed),
		PAYLOAD("frame-send-packed", frame_send_packed), PAYLOAD("frame-filled-packed", frame_filled_packed),
		PAYLOAD("frame-filled", frame_filled), PAYLOAD("frame-segmented", frame_segmented),
		PAYLOAD("frame-event", frame_event), PAYLOAD("frame-join", frame_join), PAYLOAD("frame-returned", frame_returned),
	};
	const size_t plain_count = sizeof(plain) / sizeof(plain[0]);

	if (index < plain_count)
		return put(plain[index].name, plain[index].bytes, plain[index].count, into, length_bytes);
	if (index == plain_count)
		return put_attached(into, length_bytes);
	if (index == plain_count + 1)
		return put_slot(into, length_bytes);
	if (index == plain_count + 2)
		return put_lap(into, length_bytes);
	if (index == plain_count + 3)
		return put_listed(into, length_bytes);
	return index == plain_count + 4 ? put_cold_words(into, length_bytes) : NULL;
}
