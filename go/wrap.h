/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * fipsee_client.h for cgo. The message of a failure belongs to the thread that made the call, and a goroutine may run on
 * another thread after each call: these functions return both at once. Buffers are of unsigned char, not void: cgo would
 * look for pointers all around a buffer of unknown type, and refuse part of a structure that has some elsewhere.
 */
#ifndef FIPSEE_GO_WRAP_H
#define FIPSEE_GO_WRAP_H

#include <fipsee_client.h>
#include <stdlib.h>
#include <string.h>

struct outcome {
	int code;	/* what the function returned */
	char *message;	/* of a failure, to be freed; else NULL */
};

static inline struct outcome outcome_of(int code)
{
	struct outcome outcome = { code, NULL };

	if (code < 0)
		outcome.message = strdup(fipsee_error_message());
	return outcome;
}

static inline struct outcome wrap_open(const struct fipsee_options *options, struct fipsee_disk **disk)
{
	return outcome_of(fipsee_open(options, disk));
}

static inline struct outcome wrap_close(struct fipsee_disk *disk)
{
	return outcome_of(fipsee_close(disk));
}

static inline struct outcome wrap_get_info(const struct fipsee_disk *disk, struct fipsee_info *info)
{
	return outcome_of(fipsee_get_info(disk, info));
}

static inline struct outcome wrap_list_open(const char *socket_path, struct fipsee_disk_list **list)
{
	return outcome_of(fipsee_list_open(socket_path, list));
}

static inline struct outcome wrap_list_next(struct fipsee_disk_list *list, struct fipsee_listed_disk *disk)
{
	disk->size_bytes = sizeof(*disk);
	return outcome_of(fipsee_list_next(list, disk));
}

static inline struct outcome wrap_reconnect(struct fipsee_disk *disk, uint64_t give_up_after_ns)
{
	return outcome_of(fipsee_reconnect(disk, give_up_after_ns));
}

static inline struct outcome wrap_memory_create(struct fipsee_disk *disk, uint64_t length_bytes,
						struct fipsee_memory **memory)
{
	return outcome_of(fipsee_memory_create(disk, length_bytes, memory));
}

static inline struct outcome wrap_memory_free(struct fipsee_disk *disk, struct fipsee_memory *memory)
{
	return outcome_of(fipsee_memory_free(disk, memory));
}

static inline struct outcome wrap_read(struct fipsee_queue *queue, unsigned char *buffer, size_t length_bytes,
				       uint64_t offset_bytes)
{
	return outcome_of(fipsee_read(queue, buffer, length_bytes, offset_bytes));
}

static inline struct outcome wrap_write(struct fipsee_queue *queue, const unsigned char *buffer, size_t length_bytes,
					uint64_t offset_bytes, uint32_t flags)
{
	return outcome_of(fipsee_write(queue, buffer, length_bytes, offset_bytes, flags));
}

static inline struct outcome wrap_flush(struct fipsee_queue *queue)
{
	return outcome_of(fipsee_flush(queue));
}

static inline struct outcome wrap_discard(struct fipsee_queue *queue, uint64_t length_bytes, uint64_t offset_bytes)
{
	return outcome_of(fipsee_discard(queue, length_bytes, offset_bytes));
}

static inline struct outcome wrap_write_zeroes(struct fipsee_queue *queue, uint64_t length_bytes, uint64_t offset_bytes,
					       uint32_t flags)
{
	return outcome_of(fipsee_write_zeroes(queue, length_bytes, offset_bytes, flags));
}

static inline struct outcome wrap_stage_read(struct fipsee_queue *queue, unsigned char *buffer, size_t length_bytes,
					     uint64_t offset_bytes, uint64_t token)
{
	return outcome_of(fipsee_stage_read(queue, buffer, length_bytes, offset_bytes, token));
}

static inline struct outcome wrap_stage_write(struct fipsee_queue *queue, const unsigned char *buffer, size_t length_bytes,
					      uint64_t offset_bytes, uint32_t flags, uint64_t token)
{
	return outcome_of(fipsee_stage_write(queue, buffer, length_bytes, offset_bytes, flags, token));
}

/* Most pieces of one request; the header's limit. */
#define WRAP_MAX_PIECES 256

/*
 * `pieces` holds an address and a length for each piece. They are numbers: an array of pointers in Go's memory may only
 * lead to C's, and a piece that is not in memory of the disk is the library's to refuse.
 */
static inline void wrap_pieces(struct iovec *vector, const uintptr_t *pieces, uint32_t piece_count)
{
	uint32_t index;

	for (index = 0; index < piece_count; index++) {
		vector[index].iov_base = (void *)pieces[2 * index];
		vector[index].iov_len = pieces[2 * index + 1];
	}
}

static inline struct outcome wrap_stage_readv(struct fipsee_queue *queue, const uintptr_t *pieces, uint32_t piece_count,
					      uint64_t offset_bytes, uint64_t token)
{
	struct iovec vector[WRAP_MAX_PIECES];

	wrap_pieces(vector, pieces, piece_count);
	return outcome_of(fipsee_stage_readv(queue, vector, piece_count, offset_bytes, token));
}

static inline struct outcome wrap_stage_writev(struct fipsee_queue *queue, const uintptr_t *pieces, uint32_t piece_count,
					       uint64_t offset_bytes, uint32_t flags, uint64_t token)
{
	struct iovec vector[WRAP_MAX_PIECES];

	wrap_pieces(vector, pieces, piece_count);
	return outcome_of(fipsee_stage_writev(queue, vector, piece_count, offset_bytes, flags, token));
}

static inline struct outcome wrap_stage_flush(struct fipsee_queue *queue, uint64_t token)
{
	return outcome_of(fipsee_stage_flush(queue, token));
}

static inline struct outcome wrap_stage_discard(struct fipsee_queue *queue, uint64_t length_bytes, uint64_t offset_bytes,
						uint64_t token)
{
	return outcome_of(fipsee_stage_discard(queue, length_bytes, offset_bytes, token));
}

static inline struct outcome wrap_stage_write_zeroes(struct fipsee_queue *queue, uint64_t length_bytes,
						     uint64_t offset_bytes, uint32_t flags, uint64_t token)
{
	return outcome_of(fipsee_stage_write_zeroes(queue, length_bytes, offset_bytes, flags, token));
}

static inline struct outcome wrap_submit(struct fipsee_queue *queue)
{
	return outcome_of(fipsee_submit(queue));
}

static inline struct outcome wrap_reap(struct fipsee_queue *queue, struct fipsee_result *results, uint32_t max_results)
{
	return outcome_of(fipsee_reap(queue, results, max_results));
}

static inline struct outcome wrap_wait(struct fipsee_queue *queue, struct fipsee_result *results, uint32_t max_results,
				       int64_t timeout_ns)
{
	return outcome_of(fipsee_wait(queue, results, max_results, timeout_ns));
}

static inline struct outcome wrap_depth(const struct fipsee_queue *queue)
{
	return outcome_of(fipsee_depth(queue));
}

static inline struct outcome wrap_outstanding(const struct fipsee_queue *queue)
{
	return outcome_of(fipsee_outstanding(queue));
}

static inline struct outcome wrap_next_event(struct fipsee_queue *queue)
{
	return outcome_of(fipsee_next_event(queue));
}

#endif /* FIPSEE_GO_WRAP_H */
