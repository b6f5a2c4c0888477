/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Ways of the kernel's: TCP and UDP over loopback, and a pair of veth devices with AF_PACKET, PACKET_MMAP or AF_XDP in copy
 * mode, or two devices that are there, fa and fb, with AF_PACKET. A frame's Ethernet header takes the place of a message's first bytes.
 */
#define _GNU_SOURCE
#include "net_ways.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ETHER_TYPE 0x88b5 /* IEEE 802 "local experimental" */
#define HEADER 14
/* Of AF_XDP a frame fits a chunk of a page, with its headroom. */
#define MTU 9000
#define XDP_MTU 3000
#define MMAP_FRAME (16 << 10)
#define MMAP_FRAMES 256
#define XDP_FRAME 4096
#define XDP_FRAMES 1024

struct xdp_queue {
	uint32_t *producer, *consumer, *flags;
	void *entries;
	uint32_t at;
};

struct end {
	int fd;
	unsigned interface;
	uint8_t header[HEADER];
	char frame[MTU + HEADER];
	char *receive_ring, *send_ring;
	unsigned received, sent;
	struct xdp_queue fill, completion, receive, send;
	char *memory;
	uint64_t free[XDP_FRAMES];
	unsigned free_count;
};

put *put_some;
get *get_some;
size_t longest;
static struct end both[2];
struct end *const ends[2] = { &both[0], &both[1] };

void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

void check(long outcome, const char *what)
{
	if (outcome < 0)
		fail(what);
}

static void run(const char *command)
{
	if (system(command) != 0) {
		fprintf(stderr, "%s: failed\n", command);
		exit(1);
	}
}

size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Sockets. */

static size_t put_socket(struct end *end, const char *bytes, size_t length)
{
	ssize_t done = send(end->fd, bytes, least(length, longest), MSG_DONTWAIT | MSG_NOSIGNAL);
	if (done < 0 && errno != EAGAIN && errno != ENOBUFS)
		fail("send");
	return done < 0 ? 0 : (size_t)done;
}

static size_t get_socket(struct end *end, char *bytes, size_t length)
{
	ssize_t done = recv(end->fd, bytes, length, MSG_DONTWAIT);
	if (done < 0 && errno != EAGAIN)
		fail("recv");
	return done < 0 ? 0 : (size_t)done;
}

static void open_sockets(bool stream)
{
	struct sockaddr_in address[2];
	int one = 1, bytes = 4 << 20, ear = -1;
	for (int i = 0; i < 2; i++)
		address[i] = (struct sockaddr_in){
			.sin_family = AF_INET,
			.sin_port = htons(7001 + i),
			.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		};
	for (int i = 0; i < 2; i++) {
		check(ends[i]->fd = socket(AF_INET, stream ? SOCK_STREAM : SOCK_DGRAM, 0), "socket");
		setsockopt(ends[i]->fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
		setsockopt(ends[i]->fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
		check(bind(ends[i]->fd, (void *)&address[i], sizeof address[i]), "bind");
	}
	if (stream) {
		check(listen(ear = ends[1]->fd, 1), "listen");
		check(connect(ends[0]->fd, (void *)&address[1], sizeof address[1]), "connect");
		check(ends[1]->fd = accept(ear, NULL, NULL), "accept");
		for (int i = 0; i < 2; i++)
			setsockopt(ends[i]->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	} else {
		for (int i = 0; i < 2; i++)
			check(connect(ends[i]->fd, (void *)&address[!i], sizeof address[0]), "connect");
	}
}

/* Frames over AF_PACKET: by calls, or through memory that is shared with the kernel. */

/* The header takes the place of the first bytes. */
static size_t fill_frame(const struct end *end, char *frame, const char *bytes, size_t length)
{
	length = least(length, longest);
	memcpy(frame, end->header, HEADER);
	memcpy(frame + HEADER, bytes + HEADER, length - HEADER);
	return length;
}

static size_t put_packet(struct end *end, const char *bytes, size_t length)
{
	length = fill_frame(end, end->frame, bytes, length);
	ssize_t done = send(end->fd, end->frame, length, MSG_DONTWAIT);
	if (done < 0 && errno != EAGAIN && errno != ENOBUFS)
		fail("send a frame");
	return done < 0 ? 0 : length;
}

static size_t get_packet(struct end *end, char *bytes, size_t length)
{
	ssize_t done = recv(end->fd, end->frame, sizeof end->frame, MSG_DONTWAIT);
	if (done < 0 && errno != EAGAIN)
		fail("receive a frame");
	if (done <= 0)
		return 0;
	length = least(length, (size_t)done);
	memcpy(bytes, end->frame, length);
	return length;
}

static struct tpacket2_hdr *mmap_slot(char *ring, unsigned index)
{
	return (void *)(ring + (size_t)(index % MMAP_FRAMES) * MMAP_FRAME);
}

static size_t put_mmap(struct end *end, const char *bytes, size_t length)
{
	size_t done = 0;
	for (int burst = 0; burst < BURST && done < length; burst++) {
		struct tpacket2_hdr *slot = mmap_slot(end->send_ring, end->sent);
		if (__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) != TP_STATUS_AVAILABLE)
			break;
		char *frame = (char *)slot + TPACKET2_HDRLEN - sizeof(struct sockaddr_ll);
		size_t now = fill_frame(end, frame, bytes + done, length - done);
		slot->tp_len = (uint32_t)now;
		__atomic_store_n(&slot->tp_status, TP_STATUS_SEND_REQUEST, __ATOMIC_RELEASE);
		end->sent++;
		done += now;
	}
	return done;
}

static size_t put_mmap_and_send(struct end *end, const char *bytes, size_t length)
{
	size_t done = put_mmap(end, bytes, length);
	if (send(end->fd, NULL, 0, MSG_DONTWAIT) < 0 && errno != EAGAIN && errno != ENOBUFS)
		fail("send frames");
	return done;
}

/* Between two looks at memory, as the ports of ours are polled. */
static void pause_look(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

static size_t get_mmap(struct end *end, char *bytes, size_t length)
{
	struct tpacket2_hdr *slot = mmap_slot(end->receive_ring, end->received);
	if (!(__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) {
		pause_look();
		return 0;
	}
	length = least(length, slot->tp_len);
	memcpy(bytes, (char *)slot + slot->tp_mac, length);
	__atomic_store_n(&slot->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
	end->received++;
	return length;
}

static void open_packets(bool mapped)
{
	int one = 1, bytes = 8 << 20, version = TPACKET_V2;
	struct tpacket_req ring = {
		.tp_block_size = MMAP_FRAME * 4,
		.tp_block_nr = MMAP_FRAMES / 4,
		.tp_frame_size = MMAP_FRAME,
		.tp_frame_nr = MMAP_FRAMES,
	};
	for (int i = 0; i < 2; i++) {
		struct sockaddr_ll address = {
			.sll_family = AF_PACKET,
			.sll_protocol = htons(ETHER_TYPE),
			.sll_ifindex = (int)ends[i]->interface,
		};
		int fd = ends[i]->fd = socket(AF_PACKET, SOCK_RAW, htons(ETHER_TYPE));
		check(fd, "packet socket");
		check(setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one), "PACKET_QDISC_BYPASS");
		setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
		setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
		setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
		if (mapped) {
			check(setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version), "PACKET_VERSION");
			check(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring), "PACKET_RX_RING");
			check(setsockopt(fd, SOL_PACKET, PACKET_TX_RING, &ring, sizeof ring), "PACKET_TX_RING");
			size_t length = (size_t)MMAP_FRAME * MMAP_FRAMES;
			char *memory = mmap(NULL, 2 * length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
			if (memory == MAP_FAILED)
				fail("map the rings of a packet socket");
			ends[i]->receive_ring = memory;
			ends[i]->send_ring = memory + length;
		}
		check(bind(fd, (void *)&address, sizeof address), "bind a packet socket");
	}
}

/* AF_XDP in copy mode: what veth has. */

static long bpf(int command, union bpf_attr *attributes)
{
	return syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

static void map_queue(int fd, struct xdp_queue *queue, const struct xdp_ring_offset *offsets, size_t entry, off_t at)
{
	size_t length = offsets->desc + XDP_FRAMES * entry;
	char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, at);
	if (memory == MAP_FAILED)
		fail("map a queue of AF_XDP");
	queue->producer = (void *)(memory + offsets->producer);
	queue->consumer = (void *)(memory + offsets->consumer);
	queue->flags = (void *)(memory + offsets->flags);
	queue->entries = memory + offsets->desc;
}

/* A program that gives every frame to the socket of its queue. */
static void redirect_to(int fd, unsigned interface)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1 };
	int map_fd = (int)bpf(BPF_MAP_CREATE, &map);
	check(map_fd, "BPF map");
	uint32_t key = 0, value = (uint32_t)fd;
	union bpf_attr update = { .map_fd = (uint32_t)map_fd, .key = (uintptr_t)&key, .value = (uintptr_t)&value };
	check(bpf(BPF_MAP_UPDATE_ELEM, &update), "BPF map entry");
	struct bpf_insn code[] = {
		{ .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = offsetof(struct xdp_md, rx_queue_index) },
		{ .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = map_fd },
		{ 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_XDP,
		.insns = (uintptr_t)code,
		.insn_cnt = sizeof code / sizeof *code,
		.license = (uintptr_t) "GPL",
	};
	int program = (int)bpf(BPF_PROG_LOAD, &load);
	check(program, "BPF program");
	union bpf_attr link = {
		.link_create.prog_fd = (uint32_t)program,
		.link_create.target_ifindex = interface,
		.link_create.attach_type = BPF_XDP,
		.link_create.flags = XDP_FLAGS_DRV_MODE,
	};
	check(bpf(BPF_LINK_CREATE, &link), "XDP at a veth device");
}

static void open_xdp(void)
{
	struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	setrlimit(RLIMIT_MEMLOCK, &unlimited);
	for (int i = 0; i < 2; i++) {
		struct end *end = ends[i];
		int count = XDP_FRAMES, fd = end->fd = socket(AF_XDP, SOCK_RAW, 0);
		check(fd, "AF_XDP socket");
		size_t length = (size_t)XDP_FRAMES * XDP_FRAME;
		end->memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		struct xdp_umem_reg memory = { .addr = (uintptr_t)end->memory, .len = length, .chunk_size = XDP_FRAME };
		check(setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &memory, sizeof memory), "XDP_UMEM_REG");
		for (int option = XDP_RX_RING; option <= XDP_UMEM_COMPLETION_RING; option++)
			if (option != XDP_UMEM_REG)
				check(setsockopt(fd, SOL_XDP, option, &count, sizeof count), "queues of AF_XDP");
		struct xdp_mmap_offsets offsets;
		socklen_t size = sizeof offsets;
		check(getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &size), "XDP_MMAP_OFFSETS");
		map_queue(fd, &end->fill, &offsets.fr, 8, XDP_UMEM_PGOFF_FILL_RING);
		map_queue(fd, &end->completion, &offsets.cr, 8, (off_t)XDP_UMEM_PGOFF_COMPLETION_RING);
		map_queue(fd, &end->receive, &offsets.rx, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);
		map_queue(fd, &end->send, &offsets.tx, sizeof(struct xdp_desc), XDP_PGOFF_TX_RING);
		for (uint64_t frame = 0; frame < XDP_FRAMES / 2; frame++)
			((uint64_t *)end->fill.entries)[frame] = frame * XDP_FRAME;
		__atomic_store_n(end->fill.producer, end->fill.at = XDP_FRAMES / 2, __ATOMIC_RELEASE);
		for (uint64_t frame = XDP_FRAMES / 2; frame < XDP_FRAMES; frame++)
			end->free[end->free_count++] = frame * XDP_FRAME;
		struct sockaddr_xdp address = {
			.sxdp_family = AF_XDP,
			.sxdp_ifindex = end->interface,
			.sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP,
		};
		check(bind(fd, (void *)&address, sizeof address), "bind an AF_XDP socket");
		redirect_to(fd, end->interface);
	}
}

static void reclaim(struct end *end)
{
	uint32_t until = __atomic_load_n(end->completion.producer, __ATOMIC_ACQUIRE);
	while (end->completion.at != until)
		end->free[end->free_count++] = ((uint64_t *)end->completion.entries)[end->completion.at++ % XDP_FRAMES];
	__atomic_store_n(end->completion.consumer, until, __ATOMIC_RELEASE);
}

static size_t put_xdp(struct end *end, const char *bytes, size_t length)
{
	size_t done = 0;
	if (end->free_count < BURST)
		reclaim(end);
	for (int burst = 0; burst < BURST && done < length && end->free_count > 0; burst++) {
		uint64_t at = end->free[--end->free_count];
		size_t now = fill_frame(end, end->memory + at, bytes + done, length - done);
		((struct xdp_desc *)end->send.entries)[end->send.at++ % XDP_FRAMES] = (struct xdp_desc){ .addr = at, .len = (uint32_t)now };
		done += now;
	}
	__atomic_store_n(end->send.producer, end->send.at, __ATOMIC_RELEASE);
	return done;
}

static size_t put_xdp_and_send(struct end *end, const char *bytes, size_t length)
{
	size_t done = put_xdp(end, bytes, length);
	if (sendto(end->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY && errno != ENOBUFS)
		fail("send frames");
	return done;
}

static size_t get_xdp(struct end *end, char *bytes, size_t length)
{
	if (__atomic_load_n(end->receive.producer, __ATOMIC_ACQUIRE) == end->receive.at) {
		if (__atomic_load_n(end->fill.flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP)
			recvfrom(end->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
		return 0;
	}
	struct xdp_desc *entry = (struct xdp_desc *)end->receive.entries + end->receive.at++ % XDP_FRAMES;
	length = least(length, entry->len);
	memcpy(bytes, end->memory + entry->addr, length);
	((uint64_t *)end->fill.entries)[end->fill.at++ % XDP_FRAMES] = entry->addr / XDP_FRAME * XDP_FRAME;
	__atomic_store_n(end->fill.producer, end->fill.at, __ATOMIC_RELEASE);
	__atomic_store_n(end->receive.consumer, end->receive.at, __ATOMIC_RELEASE);
	return length;
}

/* Two devices that pass frames to each other. */
static void use_devices(const char *names[2], size_t mtu)
{
	for (int i = 0; i < 2; i++) {
		const uint8_t address[2][6] = { { 2, 0, 0, 0, 0, 1 }, { 2, 0, 0, 0, 0, 2 } };
		memcpy(ends[i]->header, address[!i], 6);
		memcpy(ends[i]->header + 6, address[i], 6);
		ends[i]->header[12] = ETHER_TYPE >> 8;
		ends[i]->header[13] = ETHER_TYPE & 0xff;
		check((ends[i]->interface = if_nametoindex(names[i])) ? 0 : -1, names[i]);
	}
	longest = mtu + HEADER;
}

static void make_veth(size_t mtu)
{
	char command[512];
	/* No frames but ours: without IPv6 the devices announce nothing. */
	snprintf(command, sizeof command,
		 "ip link add va mtu %zu type veth peer name vb mtu %zu"
		 " && ip link set va addrgenmode none up && ip link set vb addrgenmode none up",
		 mtu, mtu);
	run(command);
	use_devices((const char *[]){ "va", "vb" }, mtu);
}

void open_way(const char *way)
{
	if (!strcmp(way, "devices")) {
		use_devices((const char *[]){ "fa", "fb" }, MTU);
		open_packets(false);
		put_some = put_packet, get_some = get_packet;
		return;
	}
	check(unshare(CLONE_NEWNET), "a network namespace of its own");
	run("ip link set lo up");
	if (!strcmp(way, "tcp") || !strcmp(way, "udp")) {
		bool stream = way[0] == 't';
		open_sockets(stream);
		longest = stream ? MOST : MOST / 2; /* a datagram has less than 64 KiB */
		put_some = put_socket, get_some = get_socket;
		return;
	}
	if (!strcmp(way, "xdp")) {
		make_veth(XDP_MTU);
		open_xdp();
		put_some = put_xdp_and_send, get_some = get_xdp;
		return;
	}
	make_veth(MTU);
	open_packets(!strcmp(way, "mmap"));
	put_some = put_packet, get_some = get_packet;
	if (!strcmp(way, "mmap"))
		put_some = put_mmap_and_send, get_some = get_mmap;
}
