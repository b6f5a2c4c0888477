/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* calls SOCKET: every call of the library, with right and wrong arguments. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int open_with(const struct fipsee_options *options)
{
	struct fipsee_disk *disk = NULL;
	int outcome = fipsee_open(options, &disk);

	if (outcome == 0)
		EXPECT(fipsee_close(disk), 0);
	else
		EXPECT(disk == NULL, 1);
	return outcome;
}

static void opening(void)
{
	struct fipsee_options options;
	struct { struct fipsee_options known; uint64_t newer; } grown;
	int outcome;

	EXPECT(strcmp(fipsee_version(), FIPSEE_CLIENT_VERSION), 0);
	EXPECT(strcmp(fipsee_error_message(), ""), 0);
	FAILS(fipsee_open(NULL, NULL), -EINVAL, "null");
	FAILS(open_with(NULL), -EINVAL, "options");
	memset(&options, 0, sizeof(options));
	FAILS(open_with(&options), -EINVAL, "fipsee_options_init");
	fipsee_options_init(&options);
	options.socket_path = the_socket;
	FAILS(open_with(&options), -EINVAL, "options->disk");
	options.disk = "";
	FAILS(open_with(&options), -EINVAL, "options->disk");
	options.disk = "\xff";
	FAILS(open_with(&options), -EINVAL, "UTF-8");
	options.disk = "nowhere";
	FAILS(open_with(&options), -ENOENT, "no disk 'nowhere' that user ");
	options.disk = "a";
	options.wait = FIPSEE_WAIT_MONITORX + 1;
	FAILS(open_with(&options), -EINVAL, "FIPSEE_WAIT_");
	for (options.wait = FIPSEE_WAIT_ADAPTIVE; options.wait <= FIPSEE_WAIT_YIELD; options.wait++)
		EXPECT(open_with(&options), 0);
	for (; options.wait <= FIPSEE_WAIT_MONITORX; options.wait++) {
		/* No CPU has all of these. */
		outcome = open_with(&options);
		if (outcome != 0)
			FAILS(outcome, -EOPNOTSUPP, "this CPU has no ");
	}
	options.wait = 0;
	options.flags = 16;
	FAILS(open_with(&options), -EINVAL, "flags");
	options.flags = FIPSEE_OPEN_SOLE_WRITER | FIPSEE_OPEN_IGNORE_CLAIM;
	FAILS(open_with(&options), -EINVAL, "give one of them");
	options.flags = FIPSEE_OPEN_READ_ONLY | FIPSEE_OPEN_EXCLUSIVE;
	options.look_ns = 1000;
	EXPECT(open_with(&options), 0);
	options.queue_count = 70000;
	FAILS(open_with(&options), -EINVAL, "queue_count");
	options.queue_count = 2;
	options.reconnect_ns = 1;
	FAILS(open_with(&options), -EINVAL, "fipsee_reconnect");
	options.reconnect_ns = 0;
	options.socket_path = "/nowhere/at/all";
	FAILS(open_with(&options), -ENOENT, "start fipseed");

	/* A program of today with a library of yesterday: fields it does not set are harmless, others are not. */
	memset(&grown, 0, sizeof(grown));
	fipsee_options_init(&grown.known);
	grown.known.socket_path = the_socket;
	grown.known.disk = "a";
	grown.known.size_bytes = sizeof(grown);
	EXPECT(open_with(&grown.known), 0);
	grown.newer = 1;
	FAILS(open_with(&grown.known), -E2BIG, "newer libfipsee");
	/* And the other way round: only the fields up to the disk's name. */
	grown.known.size_bytes = offsetof(struct fipsee_options, queue_count);
	grown.known.wait = 77;
	EXPECT(open_with(&grown.known), 0);
	EXPECT(fipsee_close(NULL), 0);
}

/* The disks of the harness, in the order of their names. */
static void listing(void)
{
	static const struct { const char *name; uint64_t capacity_bytes; uint32_t block_bytes, flags; } wanted[] = {
		{ "a", 16 << 20, 512, 0 }, { "f", 16 << 20, 4096, 0 }, { "n", 1 << 30, 512, 0 },
		{ "r", 1 << 20, 512, FIPSEE_LISTED_READ_ONLY },
	};
	struct { struct fipsee_listed_disk known; uint64_t newer; } disk;
	struct fipsee_disk_list *list = NULL;
	size_t index;

	FAILS(fipsee_list_open(the_socket, NULL), -EINVAL, "list");
	FAILS(fipsee_list_open("/nowhere/at/all", &list), -ENOENT, "start fipseed");
	EXPECT(list == NULL, 1);
	EXPECT(fipsee_list_open(the_socket, &list), 0);
	memset(&disk, 0, sizeof(disk));
	FAILS(fipsee_list_next(NULL, &disk.known), -EINVAL, "list");
	FAILS(fipsee_list_next(list, NULL), -EINVAL, "disk");
	FAILS(fipsee_list_next(list, &disk.known), -EINVAL, "sizeof(struct fipsee_listed_disk)");
	for (index = 0; index < sizeof(wanted) / sizeof(wanted[0]); index++) {
		memset(&disk, 0xff, sizeof(disk));
		disk.known.size_bytes = sizeof(disk);
		EXPECT(fipsee_list_next(list, &disk.known), 1);
		EXPECT(disk.known.size_bytes, sizeof(disk.known));
		EXPECT(disk.newer, 0);
		EXPECT(strcmp(disk.known.name, wanted[index].name), 0);
		EXPECT(disk.known.capacity_bytes, wanted[index].capacity_bytes);
		EXPECT(disk.known.block_bytes, wanted[index].block_bytes);
		EXPECT(disk.known.flags, wanted[index].flags);
	}
	EXPECT(fipsee_list_next(list, &disk.known), 0);
	EXPECT(fipsee_list_next(list, &disk.known), 0);
	fipsee_list_close(list);
	fipsee_list_close(NULL);
}

static void describing(void)
{
	struct { struct fipsee_info known; uint64_t newer; } info;
	struct fipsee_disk *disk = open_disk("a", 2, 8), *other;
	struct fipsee_options options;

	memset(&info, 0xff, sizeof(info));
	info.known.size_bytes = sizeof(info);
	EXPECT(fipsee_get_info(disk, &info.known), 0);
	EXPECT(info.known.size_bytes, sizeof(info.known));
	EXPECT(info.newer, 0);
	EXPECT(info.known.capacity_bytes, 16 << 20);
	EXPECT(info.known.block_bytes, 512);
	EXPECT(info.known.queue_count, 2);
	EXPECT(info.known.capabilities & FIPSEE_CAPABILITY_WRITE, FIPSEE_CAPABILITY_WRITE);
	EXPECT(info.known.max_transfer_bytes >= 1 << 20, 1);
	info.known.size_bytes = offsetof(struct fipsee_info, block_bytes);
	info.known.block_bytes = 77;
	EXPECT(fipsee_get_info(disk, &info.known), 0);
	EXPECT(info.known.block_bytes, 77);
	info.known.size_bytes = 4;
	FAILS(fipsee_get_info(disk, &info.known), -EINVAL, "size_bytes");
	FAILS(fipsee_get_info(disk, NULL), -EINVAL, "info");
	FAILS(fipsee_get_info(NULL, &info.known), -EINVAL, "disk");
	EXPECT(fipsee_get_queue(disk, 0) != NULL, 1);
	EXPECT(fipsee_get_queue(disk, 1) == fipsee_get_queue(disk, 1), 1);
	EXPECT(fipsee_get_queue(disk, 2) == NULL, 1);
	EXPECT(strstr(fipsee_error_message(), "no queue 2") != NULL, 1);
	EXPECT(fipsee_get_queue(NULL, 0) == NULL, 1);
	EXPECT(fipsee_depth(fipsee_get_queue(disk, 0)), 8);
	FAILS(fipsee_depth(NULL), -EINVAL, "queue");
	FAILS(fipsee_outstanding(NULL), -EINVAL, "queue");
	fipsee_options_init(&options);
	options.socket_path = the_socket;
	options.disk = "a";
	options.flags = FIPSEE_OPEN_EXCLUSIVE;
	EXPECT(fipsee_open(&options, &other), -EBUSY);
	options.flags = FIPSEE_OPEN_SOLE_WRITER;
	FAILS(fipsee_open(&options, &other), -EBUSY, "may write it, too");
	EXPECT(fipsee_close(disk), 0);
	EXPECT(fipsee_open(&options, &disk), 0);
	options.flags = 0;
	FAILS(fipsee_open(&options, &other), -EBUSY, "is its sole writer");
	options.flags = FIPSEE_OPEN_IGNORE_CLAIM;
	EXPECT(fipsee_open(&options, &other), 0);
	EXPECT(fipsee_close(other), 0);
	options.flags = FIPSEE_OPEN_READ_ONLY;
	EXPECT(fipsee_open(&options, &other), 0);
	EXPECT(fipsee_close(other), 0);
	EXPECT(fipsee_close(disk), 0);
}

static void remembering(void)
{
	struct fipsee_disk *disk = open_disk("a", 1, 8), *stranger = open_disk("a", 1, 8);
	struct fipsee_memory *memory = NULL, *all[63];
	int file, i;
	char *own;

	FAILS(fipsee_memory_create(disk, 0, &memory), -EINVAL, "length");
	FAILS(fipsee_memory_create(disk, 4096, NULL), -EINVAL, "memory");
	FAILS(fipsee_memory_create(NULL, 4096, &memory), -EINVAL, "disk");
	FAILS(fipsee_memory_create(disk, 1ull << 35, &memory), -EDQUOT, "max_memory_bytes");
	EXPECT(fipsee_memory_create(disk, 100, &memory), 0);
	EXPECT(fipsee_memory_length(memory), 4096);
	EXPECT((uintptr_t)fipsee_memory_address(memory) % 4096, 0);
	EXPECT(fcntl(fipsee_memory_descriptor(memory), F_GETFD), FD_CLOEXEC);
	FAILS(fipsee_memory_free(stranger, memory), -EINVAL, "not memory of this disk");
	FAILS(fipsee_memory_free(disk, NULL), -EINVAL, "memory");
	EXPECT(fipsee_memory_free(disk, memory), 0);
	FAILS(fipsee_memory_free(disk, memory), -EINVAL, "freed before");
	EXPECT(fipsee_memory_address(NULL) == NULL, 1);
	EXPECT(fipsee_memory_length(NULL), 0);
	FAILS(fipsee_memory_descriptor(NULL), -EINVAL, "memory");
	for (i = 0; i < 63; i++)
		EXPECT(fipsee_memory_create(disk, 4096, &all[i]), 0);
	FAILS(fipsee_memory_create(disk, 4096, &memory), -EDQUOT, "63");
	for (i = 0; i < 62; i++)
		EXPECT(fipsee_memory_free(disk, all[i]), 0);

	FAILS(fipsee_memory_register(disk, -1, 8192, &memory), -EINVAL, "descriptor");
	FAILS(fipsee_memory_register(disk, 9999, 8192, &memory), -EBADF, "9999");
	FAILS(fipsee_memory_register(disk, 0, 8192, &memory), -EINVAL, "memory file");
	file = memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	EXPECT(ftruncate(file, 8192), 0);
	FAILS(fipsee_memory_register(disk, file, 8192, &memory), -EINVAL, "F_SEAL_SHRINK");
	EXPECT(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	FAILS(fipsee_memory_register(disk, file, 16384, &memory), -EINVAL, "8192");
	EXPECT(fipsee_memory_register(disk, file, 8192, &memory), 0);
	own = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	EXPECT(close(file), 0);
	strcpy(own, "through the caller's mapping");
	EXPECT(fipsee_write(fipsee_get_queue(disk, 0), fipsee_memory_address(memory), 512, 0, 0), 0);
	memset(own, 0, 512);
	EXPECT(fipsee_read(fipsee_get_queue(disk, 0), fipsee_memory_address(memory), 512, 0), 0);
	EXPECT(strcmp(own, "through the caller's mapping"), 0);
	EXPECT(munmap(own, 8192), 0);
	EXPECT(fipsee_memory_free(disk, memory), 0);
	EXPECT(fipsee_close(stranger), 0);
	EXPECT(fipsee_close(disk), 0);	/* Frees the 63rd. */
}

static void blocking(void)
{
	static char out[3 << 20], in[sizeof(out) + 1];
	struct fipsee_disk *disk = open_disk("a", 1, 16), *ro = open_disk("r", 1, 1), *coarse = open_disk("f", 1, 16);
	struct fipsee_queue *queue = fipsee_get_queue(disk, 0);
	struct fipsee_memory *memory;
	uint64_t seed = 1;
	size_t i;

	for (i = 0; i < sizeof(out); i++)
		out[i] = (char)next_random(&seed);
	EXPECT(fipsee_write(queue, out, sizeof(out), 512, FIPSEE_DURABLE), 0);
	EXPECT(fipsee_read(queue, in + 1, sizeof(out), 512), 0);
	EXPECT(memcmp(in + 1, out, sizeof(out)), 0);
	EXPECT(fipsee_flush(queue), 0);
	EXPECT(fipsee_write_zeroes(queue, 1 << 20, 512, FIPSEE_DURABLE | FIPSEE_UNMAP), 0);
	EXPECT(fipsee_discard(queue, 1 << 20, 512 + (1 << 20)), 0);
	EXPECT(fipsee_memory_create(disk, sizeof(out), &memory), 0);
	EXPECT(fipsee_read(queue, fipsee_memory_address(memory), sizeof(out), 512), 0);
	memset(out, 0, 1 << 20);
	EXPECT(memcmp(fipsee_memory_address(memory), out, 1 << 20), 0);
	EXPECT(memcmp((char *)fipsee_memory_address(memory) + (2 << 20), out + (2 << 20), 1 << 20), 0);
	/* In memory of the disk but not where a request may start: copied. */
	EXPECT(fipsee_read(queue, (char *)fipsee_memory_address(memory) + 7, 1 << 20, 512), 0);
	EXPECT(memcmp((char *)fipsee_memory_address(memory) + 7, out, 1 << 20), 0);
	EXPECT(fipsee_read(queue, NULL, 0, 0), 0);
	FAILS(fipsee_read(queue, NULL, 512, 0), -EINVAL, "buffer");
	FAILS(fipsee_read(NULL, in, 512, 0), -EINVAL, "queue");
	FAILS(fipsee_read(queue, in, 100, 0), -EINVAL, "multiples of the disk's logical block size, 512");
	FAILS(fipsee_write(queue, in, 512, 100, 0), -EINVAL, "multiples");
	FAILS(fipsee_write(queue, in, 512, 0, FIPSEE_UNMAP), -EINVAL, "FIPSEE_DURABLE");
	FAILS(fipsee_write_zeroes(queue, 512, 0, 4), -EINVAL, "FIPSEE_UNMAP");
	FAILS(fipsee_read(queue, in, 1024, (16 << 20) - 512), -ENXIO, "end of the disk");
	FAILS(fipsee_read(queue, in, 512, UINT64_MAX - 511), -ENXIO, "end of the disk");
	FAILS(fipsee_discard(queue, 512, 16 << 20), -ENXIO, "end of the disk");
	FAILS(fipsee_discard(queue, 1, 0), -EINVAL, "multiples");
	EXPECT(fipsee_discard(queue, 0, 0), 0);
	FAILS(fipsee_flush(NULL), -EINVAL, "queue");
	FAILS(fipsee_write(fipsee_get_queue(ro, 0), in, 512, 0, 0), -EROFS, "read-only");
	FAILS(fipsee_read(fipsee_get_queue(coarse, 0), in, 512, 0), -EINVAL, "4096");
	EXPECT(fipsee_stage_flush(queue, 1), 0);
	FAILS(fipsee_read(queue, in, 512, 0), -EBUSY, "not reaped");
	FAILS(fipsee_flush(queue), -EBUSY, "not reaped");
	FAILS(fipsee_discard(queue, 512, 0), -EBUSY, "not reaped");
	EXPECT(fipsee_close(coarse), 0);
	EXPECT(fipsee_close(ro), 0);
	EXPECT(fipsee_close(disk), 0);
}

/* After a fork the child is refused, and the parent's disk is still usable. */
static void forking(void)
{
	static struct fipsee_disk *disk;	/* Where leak checkers find it in the child, which cannot free it. */
	struct fipsee_queue *queue;
	struct fipsee_disk *own;
	struct fipsee_info info;
	char block[512];
	int status;
	pid_t child;

	disk = open_disk("a", 1, 4);
	queue = fipsee_get_queue(disk, 0);
	child = fork();
	if (child == 0) {
		info.size_bytes = sizeof(info);
		FAILS(fipsee_read(queue, block, 512, 0), -EPERM, "fork");
		FAILS(fipsee_submit(queue), -EPERM, "fork");
		FAILS(fipsee_get_info(disk, &info), -EPERM, "fork");
		FAILS(fipsee_close(disk), -EPERM, "fork");
		own = open_disk("a", 1, 4);
		EXPECT(fipsee_read(fipsee_get_queue(own, 0), block, 512, 0), 0);
		EXPECT(fipsee_close(own), 0);
		_exit(0);
	}
	EXPECT(waitpid(child, &status, 0), child);
	EXPECT(status, 0);
	EXPECT(fipsee_read(queue, block, 512, 0), 0);
	EXPECT(fipsee_close(disk), 0);
}

/* Bound to one CPU, unless there is no other; and again from there. */
static void placing(void)
{
	struct fipsee_disk *disk = open_disk("a", 2, 8);
	cpu_set_t before, placed, again;
	uint32_t queue;

	EXPECT(sched_getaffinity(0, sizeof(before), &before), 0);
	for (queue = 0; queue < 2; queue++) {
		EXPECT(fipsee_place_thread(disk, queue), 0);
		EXPECT(sched_getaffinity(0, sizeof(placed), &placed), 0);
		EXPECT(CPU_COUNT(&placed), 1);
		CPU_AND(&again, &placed, &before);
		EXPECT(CPU_EQUAL(&again, &placed), 1);
	}
	EXPECT(fipsee_place_thread(disk, 1), 0);
	EXPECT(sched_getaffinity(0, sizeof(again), &again), 0);
	EXPECT(CPU_EQUAL(&again, &placed), 1);
	FAILS(fipsee_place_thread(disk, 2), -EINVAL, "no queue 2");
	FAILS(fipsee_place_thread(NULL, 0), -EINVAL, "disk");
	EXPECT(sched_setaffinity(0, sizeof(before), &before), 0);
	EXPECT(fipsee_close(disk), 0);
}

int main(int argc, char **argv)
{
	EXPECT(argc, 2);
	the_socket = argv[1];
	opening();
	describing();
	listing();
	remembering();
	blocking();
	placing();
	forking();
	puts("done");
	return 0;
}
