/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * libfipsee: use the disks that a Fip-see daemon serves; serve calls and make calls ("Calls", at the end).
 *
 * Build: cc program.c $(pkg-config --cflags --libs fipsee). Guide with examples: docs/guide/c.md. C11 and C++17; Linux.
 *
 * A disk (fipsee_open) has queues (fipsee_get_queue), and memory that the daemon also maps (fipsee_memory_create).
 * A queue takes blocking calls (fipsee_read ...), and batches: stage requests (fipsee_stage_read ...), publish them
 * (fipsee_submit), and take results in the order of completion (fipsee_reap, fipsee_wait, or fipsee_descriptor in an
 * event loop).
 *
 * Units. Offsets and lengths are in bytes. On the disk they must be multiples of its logical block size
 * (fipsee_info.block_bytes); buffers of staged requests must start at a multiple of 512 bytes. Times are in nanoseconds.
 *
 * Errors. A call that returns int gives 0 or a count on success, and a negative errno on failure; then
 * fipsee_error_message() says what was wrong and what to do. Errors of several calls:
 *   -EINVAL    a null pointer, or an invalid value; nothing was done
 *   -ENOTCONN  the daemon ended or closed the connection; see fipsee_reconnect
 *   -EPROTO    the daemon broke the protocol; close the disk
 *   -ETIMEDOUT the daemon did not answer within 10 s; close the disk
 *   -EPERM     the disk was opened before fork(); see below
 *   -ENOTRECOVERABLE  an error in this library; close the disk, please report the message
 * Results of requests, in addition: -EIO, -EROFS (read-only), -ENXIO (beyond the end), -ENOSPC, -ENODEV (the daemon
 * removed the disk), -EOPNOTSUPP (see fipsee_info.capabilities), -EMSGSIZE (too long), -EFAULT (memory not registered).
 *
 * Threads. A queue is for one thread at a time: two calls on the same queue must not overlap, and there is no lock
 * inside. Different threads can use different queues of a disk at the same time without coordination. The same holds for
 * calls that take a disk, except fipsee_reconnect and fipsee_close, during which no other call on the disk, its queues
 * or its memory may run. fipsee_error_message() is per thread. Signals do not interrupt any call, and no call raises one.
 *
 * fork(). The child must not use what its parent opened (-EPERM) and opens disks of its own. execve() closes all descriptors.
 *
 * Durability. A write is durable once a flush that was submitted after its completion has completed, or on its own
 * completion with FIPSEE_DURABLE. Requests in flight at the same time are done in any order.
 */
#ifndef FIPSEE_CLIENT_H
#define FIPSEE_CLIENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>
#include "fipsee_doorbells.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header; fipsee_version() returns that of the library in use. */
#define FIPSEE_CLIENT_VERSION "0.1.0"

struct fipsee_disk;	/* an opened disk; from fipsee_open to fipsee_close */
struct fipsee_queue;	/* one of its queues; belongs to the disk */
struct fipsee_memory;	/* memory shared with the daemon; belongs to the disk */
struct fipsee_disk_list;	/* disks that may be opened; from fipsee_list_open to fipsee_list_close */

/* The library's version, as in "0.1.0". Static. */
const char *fipsee_version(void);

/* What was wrong in this thread's last call that failed, and what to do; valid until the next. Never NULL; "" if none has. */
const char *fipsee_error_message(void);

/* ---- Disk ------------------------------------------------------------------------------------------------------ */

/* How to wait (fipsee_options.wait). */
#define FIPSEE_WAIT_ADAPTIVE 0	/* poll for a while, then sleep; the default */
#define FIPSEE_WAIT_PAUSE 1	/* never sleep: the shortest latency; occupies a CPU */
#define FIPSEE_WAIT_POLL 1	/* another name for FIPSEE_WAIT_PAUSE */
#define FIPSEE_WAIT_SLEEP 2	/* sleep at once: the least CPU */
/*
 * Never sleep either, but replace the PAUSE between two looks by: nothing; a yield of the CPU; UMWAIT, TPAUSE or MWAITX,
 * which save power and are not in every CPU (fipsee ping --waits shows which; fipsee_open fails with -EOPNOTSUPP).
 */
#define FIPSEE_WAIT_SPIN 3
#define FIPSEE_WAIT_YIELD 4
#define FIPSEE_WAIT_UMWAIT 5
#define FIPSEE_WAIT_TPAUSE 6
#define FIPSEE_WAIT_MONITORX 7

/* fipsee_options.flags */
#define FIPSEE_OPEN_READ_ONLY 1	/* the daemon refuses writes of this client */
#define FIPSEE_OPEN_EXCLUSIVE 2	/* be the only client of the disk, or fail with -EBUSY */
/*
 * Claim the disk: be the only client that may write. Fails with -EBUSY while another client may write, and keeps later writers
 * out. A client without this flag that may write gets -EBUSY while another client or a virtual machine claims the disk, unless
 * it ignores the claim. -EOPNOTSUPP: the daemon is too old to support claims.
 */
#define FIPSEE_OPEN_SOLE_WRITER 4
#define FIPSEE_OPEN_IGNORE_CLAIM 8	/* write beside a claim; nothing protects the data then */

/*
 * How to open a disk. Set it up with fipsee_options_init; 0 or NULL in a field means its default. It may grow at its
 * end: size_bytes says which fields the program knows.
 */
struct fipsee_options {
	size_t size_bytes;		/* sizeof(struct fipsee_options) */
	const char *socket_path;	/* the daemon's socket; default: $FIPSEE_SOCKET, else the user's, else the system's */
	const char *disk;		/* name of the disk; must be given */
	uint32_t queue_count;		/* queues wanted, default 1; the daemon may grant fewer */
	uint32_t depth;			/* requests outstanding per queue, default 64; the daemon may grant fewer */
	uint64_t pool_bytes;		/* memory for the library's own copies and tables, default 2.25 MiB per queue */
	uint32_t wait;			/* FIPSEE_WAIT_* */
	uint32_t flags;			/* FIPSEE_OPEN_* */
	uint64_t look_ns;		/* adaptive waiting: how long to poll before sleeping, default 200 us */
	/*
	 * Not 0: when the daemon is gone, fipsee_wait and the blocking calls reconnect, for at most this long (UINT64_MAX: for
	 * ever), and submit again what has no answer. 0: they fail at once. With more than one queue, call fipsee_reconnect.
	 */
	uint64_t reconnect_ns;
	/*
	 * When a daemon that sleeps is woken for requests: "max_rate=10000,max_delay_us=50", "auto"; default: at once. What is held
	 * back is sent in time by fipsee_reap and fipsee_wait, and by fipsee_arm: a thread that calls none of them leaves it there.
	 */
	const char *notify;
};

/* Set every field to its default. */
static inline void fipsee_options_init(struct fipsee_options *options)
{
	static const struct fipsee_options defaults = {
		sizeof(struct fipsee_options), NULL, NULL, 0, 0, 0, 0, 0, 0, 0, NULL,
	};

	*options = defaults;
}

/*
 * Open the disk options->disk. On success *disk is for fipsee_close; `options` and its strings are not needed afterwards.
 * Errors: -ENOENT (no socket there, or no disk of this name that this user may use: the message says which; fipsee_list_open
 * lists those), -ECONNREFUSED (no daemon listens), -EACCES (the socket is not for this user), -EBUSY (exclusive or claimed),
 * -EDQUOT (a limit of the daemon), -EMFILE, -ENOMEM, -EPROTONOSUPPORT, -E2BIG (options of a newer library are set).
 */
int fipsee_open(const struct fipsee_options *options, struct fipsee_disk **disk);

/*
 * Close it: the daemon finishes what was submitted, then queues and memory are freed, on errors, too. NULL is allowed.
 * Errors: -ENOTCONN, -ETIMEDOUT: requests without a result may or may not have been done.
 */
int fipsee_close(struct fipsee_disk *disk);

/* fipsee_info.capabilities; the same numbers as in fipsee.h. */
#define FIPSEE_CAPABILITY_WRITE 1
#define FIPSEE_CAPABILITY_FLUSH 2
#define FIPSEE_CAPABILITY_FUA 4
#define FIPSEE_CAPABILITY_DISCARD 8
#define FIPSEE_CAPABILITY_WRITE_ZEROES 16

/* A disk. The structure may grow at its end. */
struct fipsee_info {
	size_t size_bytes;		/* in: sizeof(struct fipsee_info) */
	uint64_t capacity_bytes;	/* size of the disk, the newest known */
	uint32_t block_bytes;		/* logical block size: the unit of offset and length; 512 to 4096 */
	uint32_t optimal_bytes;		/* preferred size and alignment of a transfer */
	uint32_t max_transfer_bytes;	/* most data of one staged read or write; blocking calls split */
	uint32_t max_segments;		/* most pieces of one staged readv or writev */
	uint64_t max_range_bytes;	/* longest staged discard or write_zeroes; blocking calls split */
	uint32_t capabilities;		/* FIPSEE_CAPABILITY_* */
	uint32_t queue_count;		/* queues granted */
	uint8_t identity[16];		/* identifies the disk and its content; the same after a restart of the daemon */
};

/* Describe the disk. Set info->size_bytes first; the library fills as much. Never asks the daemon, never blocks. */
int fipsee_get_info(const struct fipsee_disk *disk, struct fipsee_info *info);

/* Queue `index`, 0 to fipsee_info.queue_count - 1; always the same for the same index. NULL if there is none. */
struct fipsee_queue *fipsee_get_queue(const struct fipsee_disk *disk, uint32_t index);

/*
 * Bind the calling thread near the worker that served queue `queue` when the disk was opened, on one of the CPUs that the
 * opening thread could use, apart from workers and other queues while there are enough.
 */
int fipsee_place_thread(const struct fipsee_disk *disk, uint32_t queue);

/*
 * After -ENOTCONN from any queue, or at any time: connect again to the same disk, register its memory, and submit every
 * staged request without a result again, on all queues. Tries until give_up_after_ns have passed since the call, at least
 * once. The queues get new descriptors. On failure nothing changes, and the function may be called again.
 * A write without a result may have been done before; doing it again is harmless unless other requests on the same
 * blocks were in flight. Blocking calls that failed are not repeated.
 * Errors: those of fipsee_open; -ESTALE when there is another disk in its place: close it.
 */
int fipsee_reconnect(struct fipsee_disk *disk, uint64_t give_up_after_ns);

/* ---- List ------------------------------------------------------------------------------------------------------ */

#define FIPSEE_LISTED_READ_ONLY 1	/* no client may write the disk */

/* A disk that this user may open. The structure may grow at its end. */
struct fipsee_listed_disk {
	size_t size_bytes;		/* in: sizeof(struct fipsee_listed_disk) */
	const char *name;		/* for fipsee_options.disk; valid until fipsee_list_close */
	uint64_t capacity_bytes;	/* size of the disk */
	uint32_t block_bytes;		/* logical block size */
	uint32_t flags;			/* FIPSEE_LISTED_* */
};

/*
 * Ask the daemon at `socket_path` (NULL: the default of fipsee_options) which disks this user may open. On success *list is
 * the caller's, to be given to fipsee_list_close; one thread at a time may use it. Nothing is opened.
 * Errors: as fipsee_open; -EOPNOTSUPP: the daemon is too old to list.
 */
int fipsee_list_open(const char *socket_path, struct fipsee_disk_list **list);

/* Take the next disk, in the order of the names. Set disk->size_bytes first. Returns 1 with a disk, and 0 at the end. */
int fipsee_list_next(struct fipsee_disk_list *list, struct fipsee_listed_disk *disk);

/* Free the list and the names. NULL is allowed. */
void fipsee_list_close(struct fipsee_disk_list *list);

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

/*
 * `length_bytes` of new memory, all zeroes, rounded up to pages, that the daemon also maps: data moves between it and
 * the disk without being copied. It belongs to the disk until fipsee_memory_free or fipsee_close. Up to 63 at a time.
 * Errors: -ENOMEM, -EMFILE, -EDQUOT (a limit, see the message).
 */
int fipsee_memory_create(struct fipsee_disk *disk, uint64_t length_bytes, struct fipsee_memory **memory);

/*
 * The same with the first `length_bytes` of a memory file of the caller's: from memfd_create(2), sealed with
 * F_SEAL_SHRINK. The descriptor stays the caller's and may be closed. Requests use the addresses of this mapping
 * (fipsee_memory_address), not of another one of the same file.
 * Errors: as above; -EINVAL when the file cannot be used safely.
 */
int fipsee_memory_register(struct fipsee_disk *disk, int descriptor, uint64_t length_bytes, struct fipsee_memory **memory);

/* Its first byte, aligned to pages; stays the same, also over fipsee_reconnect. NULL if memory is NULL. */
void *fipsee_memory_address(const struct fipsee_memory *memory);

/* Its length in bytes; 0 if memory is NULL. */
uint64_t fipsee_memory_length(const struct fipsee_memory *memory);

/* Its file, to be mapped by another process; do not close it. -EINVAL if memory is NULL. */
int fipsee_memory_descriptor(const struct fipsee_memory *memory);

/*
 * Take it back from the daemon and unmap it. No request that uses it may be staged; the daemon finishes those in flight.
 * Errors: -EINVAL when it is not memory of this disk; -ENOTCONN: call it again after fipsee_reconnect, or close the disk.
 */
int fipsee_memory_free(struct fipsee_disk *disk, struct fipsee_memory *memory);

/* ---- Blocking calls -------------------------------------------------------------------------------------------- */

/* Flags of writes and write_zeroes. */
#define FIPSEE_DURABLE 1	/* durable on completion (FUA); needs FIPSEE_CAPABILITY_FUA */
#define FIPSEE_UNMAP 2		/* write_zeroes only: the blocks may be deallocated */

/*
 * Read or write at any length and alignment of `buffer`; offset and length are multiples of the logical block size. Not
 * copied when the buffer is in memory of the disk and starts at a multiple of 512 bytes; otherwise copied through the
 * pool. After a failure some of the data may have been moved.
 * These calls, like the three below, need a queue without staged requests: -EBUSY when some are not reaped yet.
 */
int fipsee_read(struct fipsee_queue *queue, void *buffer, size_t length_bytes, uint64_t offset_bytes);
int fipsee_write(struct fipsee_queue *queue, const void *buffer, size_t length_bytes, uint64_t offset_bytes,
		 uint32_t flags);

/* Make everything durable that was completed before, on any queue. */
int fipsee_flush(struct fipsee_queue *queue);

/* The content of a range is no longer needed: it reads as zeroes or as before. */
int fipsee_discard(struct fipsee_queue *queue, uint64_t length_bytes, uint64_t offset_bytes);

/* Make a range read as zeroes. */
int fipsee_write_zeroes(struct fipsee_queue *queue, uint64_t length_bytes, uint64_t offset_bytes, uint32_t flags);

/* ---- Batches --------------------------------------------------------------------------------------------------- */

/*
 * Stage a request; `token` comes back with its result. The daemon does not see it before fipsee_submit or fipsee_wait.
 * Buffers are in memory of the disk, start at a multiple of 512 bytes, and must not be used until the result is reaped.
 * A request has at least one block and at most what fipsee_info says.
 * Errors: -EAGAIN: fipsee_depth requests are outstanding (one less while an event is acknowledged), reap first; -EFAULT: the
 * buffer is not in memory of this disk; -EMSGSIZE: too long; -EINVAL: not aligned.
 */
int fipsee_stage_read(struct fipsee_queue *queue, void *buffer, size_t length_bytes, uint64_t offset_bytes,
		      uint64_t token);
int fipsee_stage_write(struct fipsee_queue *queue, const void *buffer, size_t length_bytes, uint64_t offset_bytes,
		       uint32_t flags, uint64_t token);

/*
 * The same with 1 to 256 pieces; each starts at a multiple of 512 bytes and is a multiple of 512 bytes long, their sum a
 * multiple of the logical block size. The array is not needed afterwards. -ENOMEM: more than 5 pieces, and no room for
 * their table (2 KiB) in the pool.
 */
int fipsee_stage_readv(struct fipsee_queue *queue, const struct iovec *pieces, uint32_t piece_count,
		       uint64_t offset_bytes, uint64_t token);
int fipsee_stage_writev(struct fipsee_queue *queue, const struct iovec *pieces, uint32_t piece_count,
			uint64_t offset_bytes, uint32_t flags, uint64_t token);

int fipsee_stage_flush(struct fipsee_queue *queue, uint64_t token);
int fipsee_stage_discard(struct fipsee_queue *queue, uint64_t length_bytes, uint64_t offset_bytes, uint64_t token);
int fipsee_stage_write_zeroes(struct fipsee_queue *queue, uint64_t length_bytes, uint64_t offset_bytes, uint32_t flags,
			      uint64_t token);

/* Publish what is staged, together. Cheap when nothing is staged. Never blocks. */
int fipsee_submit(struct fipsee_queue *queue);

/* A finished request. */
struct fipsee_result {
	uint64_t token;		/* as staged */
	int32_t result;		/* 0, or a negative errno */
	uint32_t status;	/* finer than the errno: FIPSEE_STATUS_* in fipsee.h */
};

/*
 * Take up to `max_results` finished requests, in any order. Returns how many; 0 when none is there. Never blocks.
 * Only fipsee_wait and fipsee_woken return -ENOTCONN.
 */
int fipsee_reap(struct fipsee_queue *queue, struct fipsee_result *results, uint32_t max_results);

/*
 * fipsee_submit, then wait for at least one result or event; returns the number of results. 0 means that an event came,
 * that timeout_ns passed (negative: wait for ever), or that nothing is outstanding.
 * Errors: -ENOTCONN when the daemon is gone and nothing is left to reap.
 */
int fipsee_wait(struct fipsee_queue *queue, struct fipsee_result *results, uint32_t max_results, int64_t timeout_ns);

/* What was wrong with a request, and what to do; "done" if nothing was. Never NULL, static. */
const char *fipsee_result_message(const struct fipsee_result *result);

/* Most requests in flight at a time (staged and not reaped), and their number now. Negative errno on misuse. */
int fipsee_depth(const struct fipsee_queue *queue);
int fipsee_outstanding(const struct fipsee_queue *queue);

#define FIPSEE_EVENT_NONE 0
#define FIPSEE_EVENT_RESIZED 1	/* the disk has a new size: fipsee_get_info */
#define FIPSEE_EVENT_DETACHED 2	/* the daemon removes the disk: requests end with -ENODEV; close it */

/* The oldest event not yet taken, FIPSEE_EVENT_*. Call it after fipsee_reap or fipsee_wait. Each queue gets each event. */
int fipsee_next_event(struct fipsee_queue *queue);

/* ---- Event loops ----------------------------------------------------------------------------------------------- */

/*
 * A descriptor that becomes readable (poll, level-triggered epoll) when results or events came, or the daemon is gone. It
 * is not readable until armed, and sometimes readable without cause. It belongs to the queue: do not read, write or close
 * it. fipsee_reconnect makes a new one.
 *
 *	for (;;) {
 *		reap until 0, take events, stage;
 *		if (fipsee_arm(queue) == 1)
 *			continue;		something came meanwhile: waiting now would miss it
 *		poll, with the loop's other descriptors;
 *		fipsee_woken(queue);		whatever poll returned
 *	}
 */
int fipsee_descriptor(const struct fipsee_queue *queue);

/* fipsee_submit, and ask for the descriptor to be made readable. Returns 1 when work remains: reap, do not wait. */
int fipsee_arm(struct fipsee_queue *queue);

/* The wait is over: drain the descriptor. Errors: -ENOTCONN when the daemon is gone and nothing is left to reap. */
int fipsee_woken(struct fipsee_queue *queue);

/* ---- Calls ----------------------------------------------------------------------------------------------------- */

/*
 * A program serves functions at a socket; other programs call them. Guide with examples: docs/guide/calls.md.
 *
 * A request and its reply are structures of at most 60 bytes, without padding; the two programs agree on their meaning;
 * the name of the service identifies it and ends in a version, as in "org.example.counter/1". Larger data is payload:
 * shared memory, separate for each call; the request or reply contains the used length. Replies come in
 * the order of the calls. An error of a call is part of the reply.
 *
 * Errors and threads are as above: a caller, and each handle of a service, is for one thread at a time; -ENOTCONN means
 * that the server is gone. fork() likewise: both belong to the process that opened them.
 */
#define FIPSEE_CALL_MAX_BYTES 60

struct fipsee_caller;	/* a connection to a service; from fipsee_caller_open to fipsee_caller_close */
struct fipsee_service;	/* a service, or another thread's handle of it */

/* How to connect; 0 means default. It may grow at its end. */
struct fipsee_caller_options {
	size_t size_bytes;		/* sizeof(struct fipsee_caller_options) */
	const char *socket_path;	/* the server's socket; must be given */
	const char *name;		/* the service and the version of its types, 1 to 64 bytes; must be given */
	uint32_t request_bytes;		/* sizeof a request */
	uint32_t reply_bytes;		/* sizeof a reply */
	uint32_t depth;			/* calls outstanding, default 64; the server may grant fewer */
	uint32_t wait;			/* FIPSEE_WAIT_* */
	uint64_t look_ns;		/* adaptive waiting: how long to poll before sleeping, default 200 us */
};

/*
 * Connect. On success *caller is the caller's own, to be given to fipsee_caller_close.
 * Errors: as fipsee_open; -ENOENT also when the server serves another name or version; -EMSGSIZE when its types have
 * other sizes.
 */
int fipsee_caller_open(const struct fipsee_caller_options *options, struct fipsee_caller **caller);

/* Hang up. Calls without a reply may or may not be carried out. NULL is allowed. */
int fipsee_caller_close(struct fipsee_caller *caller);

/*
 * Call and wait for the reply, at most timeout_ns (negative: for ever).
 * Errors: -EBUSY when replies to started calls were not taken; -ETIMEDOUT, after which the reply is still due
 * (fipsee_call_wait); -ENOTCONN; -EPROTO with the server's message when the request is no value of its type.
 */
int fipsee_call(struct fipsee_caller *caller, const void *request, void *reply, int64_t timeout_ns);

/* Start a call; fipsee_call_submit publishes what was started, in one burst. -EAGAIN when `depth` are outstanding. */
int fipsee_call_start(struct fipsee_caller *caller, const void *request);
int fipsee_call_submit(struct fipsee_caller *caller);

/* Take up to max_replies replies, in the order of their calls, into an array. Returns how many; never blocks. */
int fipsee_call_poll(struct fipsee_caller *caller, void *replies, uint32_t max_replies);

/*
 * fipsee_call_submit, then wait for at least one reply and take those that are there; returns how many. 0 when
 * timeout_ns passed (negative: for ever), or when nothing is outstanding.
 */
int fipsee_call_wait(struct fipsee_caller *caller, void *replies, uint32_t max_replies, int64_t timeout_ns);

/*
 * The payload of the next call, to be filled before it, and its length. NULL when there is none, or (error -EAGAIN)
 * when `depth` calls are outstanding. length_bytes may be NULL.
 */
void *fipsee_request_payload(struct fipsee_caller *caller, uint32_t *length_bytes);

/*
 * The payload of a reply that was taken: `age` 0 is the newest, 1 the one before. It stays until `depth` calls were
 * started after its call. The server can write there at any time: copy first what must be checked.
 */
const void *fipsee_reply_payload(struct fipsee_caller *caller, uint32_t age, uint32_t *length_bytes);

/* For event loops, as fipsee_descriptor, fipsee_arm (1: take replies, do not wait) and fipsee_woken. */
int fipsee_caller_descriptor(const struct fipsee_caller *caller);
int fipsee_caller_arm(struct fipsee_caller *caller);
int fipsee_caller_woken(struct fipsee_caller *caller);

/* How to serve; 0 means default. It may grow at its end. */
struct fipsee_service_options {
	size_t size_bytes;		/* sizeof(struct fipsee_service_options) */
	const char *socket_path;	/* where to listen; must be given. A stale socket there is replaced */
	const char *name;		/* as fipsee_caller_options.name */
	uint32_t request_bytes;		/* sizeof a request, at most 60 */
	uint32_t reply_bytes;		/* sizeof a reply, at most 60 */
	uint32_t request_payload_bytes;	/* payload with each request, rounded up to 64; each outstanding call has its own */
	uint32_t reply_payload_bytes;	/* payload with each reply */
	uint32_t max_clients;		/* clients at a time, default 1000 */
	uint32_t max_depth;		/* calls that a client may have outstanding, default 256 */
	uint32_t wait;			/* FIPSEE_WAIT_* */
	uint32_t socket_mode;		/* permissions of the socket, default 0666 */
	uint64_t look_ns;		/* as fipsee_caller_options.look_ns */
	/*
	 * Not 0: may this client call? NULL: the same user and root may. Called on a thread of the library, with `context`.
	 */
	int (*allow)(void *context, int32_t pid, uint32_t uid, uint32_t gid);
	void *context;
};

/* A call that was taken. The pointers are valid until it is answered. */
struct fipsee_taken {
	const void *request;		/* a copy of request_bytes bytes, aligned to 64 */
	const void *request_payload;	/* shared memory: the client can write there at any time. NULL: none */
	void *reply_payload;		/* shared memory, to be filled before the reply. NULL: none */
	uint32_t request_payload_bytes;
	uint32_t reply_payload_bytes;
	uint64_t client;		/* unique for each client */
	int32_t pid;			/* process and user of the client */
	uint32_t uid;
	uint32_t gid;
	uint32_t reserved;
};

/*
 * Serve. Clients can connect from now on; their calls are answered by fipsee_service_next and fipsee_service_reply.
 * Errors: -EADDRINUSE (another server listens there, or the path cannot be used), -EINVAL, -EMFILE.
 */
int fipsee_service_open(const struct fipsee_service_options *options, struct fipsee_service **service);

/* A handle for another thread: each answers the calls of its own clients. To be given to fipsee_service_close, too. */
int fipsee_service_share(const struct fipsee_service *service, struct fipsee_service **another);

/*
 * Take the next call, waiting for it at most timeout_ns (negative: for ever). Returns 1 with a call, which must be
 * answered before the next is taken (-EBUSY), and 0 when none came. -ESHUTDOWN: fipsee_service_stop was called, and all
 * clients of this handle were disconnected.
 */
int fipsee_service_next(struct fipsee_service *service, struct fipsee_taken *call, int64_t timeout_ns);

/* Answer the call that was taken. -EINVAL when there is none. */
int fipsee_service_reply(struct fipsee_service *service, const void *reply);

/* Instead of a reply: the request is no value of its type. Disconnect the client, with the reason. */
int fipsee_service_refuse(struct fipsee_service *service, const char *why);

/* From any thread: accept no new client, answer what was published, then fail with -ESHUTDOWN. Returns at once. */
int fipsee_service_stop(const struct fipsee_service *service);

/* Close a handle and disconnect its clients. The last handle removes the socket. NULL is allowed. */
int fipsee_service_close(struct fipsee_service *service);

#ifdef __cplusplus
}
#endif

#endif /* FIPSEE_CLIENT_H */
