/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* copy FROM TO: copy one disk to another with blocking calls. The daemon's socket: $FIPSEE_SOCKET. */
#include <fipsee_client.h>
#include <stdio.h>
#include <stdlib.h>

#define PIECE_BYTES (1u << 20)

static void check(int outcome, const char *what)
{
	if (outcome < 0) {
		fprintf(stderr, "copy: %s: %s\n", what, fipsee_error_message());
		exit(1);
	}
}

static struct fipsee_disk *open_disk(const char *name, uint32_t flags, uint64_t *capacity_bytes)
{
	struct fipsee_options options;
	struct fipsee_info info;
	struct fipsee_disk *disk;

	fipsee_options_init(&options);
	options.disk = name;
	options.flags = flags;
	check(fipsee_open(&options, &disk), name);
	info.size_bytes = sizeof(info);
	check(fipsee_get_info(disk, &info), name);
	*capacity_bytes = info.capacity_bytes;
	return disk;
}

int main(int argc, char **argv)
{
	static char piece[PIECE_BYTES];	/* Any memory will do. */
	uint64_t from_bytes, to_bytes, offset_bytes, left_bytes;
	struct fipsee_disk *from, *to;

	if (argc != 3) {
		fprintf(stderr, "usage: copy FROM TO\n");
		return 2;
	}
	from = open_disk(argv[1], FIPSEE_OPEN_READ_ONLY, &from_bytes);
	to = open_disk(argv[2], 0, &to_bytes);
	for (offset_bytes = 0; offset_bytes < from_bytes; offset_bytes += PIECE_BYTES) {
		left_bytes = from_bytes - offset_bytes;
		left_bytes = left_bytes < PIECE_BYTES ? left_bytes : PIECE_BYTES;
		check(fipsee_read(fipsee_get_queue(from, 0), piece, left_bytes, offset_bytes), "read");
		check(fipsee_write(fipsee_get_queue(to, 0), piece, left_bytes, offset_bytes, 0), "write");
	}
	check(fipsee_flush(fipsee_get_queue(to, 0)), "flush");	/* Now it is durable. */
	check(fipsee_close(to), "close");
	check(fipsee_close(from), "close");
	printf("%llu bytes copied\n", (unsigned long long)from_bytes);
	return 0;
}
