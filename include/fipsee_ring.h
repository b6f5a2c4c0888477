/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The Fip-see ring (docs/protocol.md section 2) as inline functions: the second implementation, independent of
 * crates/ring, against which it is tested. No allocation, no library, no system call: the includer maps the memory
 * and rings the doorbell.
 *
 * Position p of a ring uses slot p mod n and is published when the slot's stamp equals the lap number of p. All that the
 * reader may write into a slot is the stamp that it has just loaded, once more: after it has copied the message and before
 * the slot is given back. Memory order, as in docs/memory-order.md and crates/ring/src/ring.rs:
 *
 *   A  the writer publishes a stamp with Release; the reader looks at it with Acquire.
 *   B  the reader publishes the release counter with Release, after its copies; the writer looks with Acquire.
 *   S  both sides put a full fence between their own store and the look at the other's word, where sleeping is decided.
 *   T  the reader's second store of a stamp comes before the Release store that gives the slot back.
 *
 * The peer is never trusted: each slot is copied once, all cursors are private, and an impossible counter is
 * FIPSEE_RING_FAULT, after which the channel is closed.
 *
 * Machine-dependent operations are hooks. Define any of them before including this file:
 *
 *   FIPSEE_LOAD_ACQUIRE(word)               value of a shared uint32_t; later accesses stay after it
 *   FIPSEE_STORE_RELEASE(word, value)       store to a shared uint32_t; earlier accesses stay before it
 *   FIPSEE_FULL_FENCE()                     orders earlier stores before later loads
 *   FIPSEE_FULL_FENCE_AT(word)              the same by a locked operation on a shared uint32_t of ours, which keeps its value;
 *                                           it gets the word's line for writing on CPUs where a prefetch does not
 *   FIPSEE_PREFETCHW(slot)                  asks for a slot's line for writing; a hint
 *   FIPSEE_COPY_IN(into, slot)              copies 64 bytes out of a shared slot, each byte read exactly once
 *   FIPSEE_PUBLISH(slot, message, stamp)    writes 60 bytes and then, with Release, the stamp; no reader may see the
 *                                           stamp before the bytes
 *   FIPSEE_PUBLISH_AS(stores, slot, message, stamp)
 *                                           the same by the stores chosen, FIPSEE_STORES_*, or 0: not chosen
 *   FIPSEE_TOUCH(word, stamp)               stores the stamp that was loaded from a shared uint32_t once more
 *   FIPSEE_TICKS()                          the time-stamp counter; 0: there is none, and streams do not wait
 *   FIPSEE_PAUSE()                          in a loop that waits
 *
 * The defaults use stores of one machine word, which every CPU keeps in order with the stamp. A wider store belongs
 * into FIPSEE_PUBLISH or FIPSEE_PUBLISH_AS, and only where the CPU is known to make it visible at once.
 *
 * Choices (fipsee.h, FIPSEE_CHOICES_*) change the cost of a message, never its bytes. Each side may use any.
 */
#ifndef FIPSEE_RING_H
#define FIPSEE_RING_H

#include "fipsee.h"

#if !defined(__KERNEL__) && !defined(__cplusplus)
#include <stdbool.h>
#endif

/* Results of an operation. */
#define FIPSEE_RING_OK 0
#define FIPSEE_RING_FULL 1	/* no slot is free; nothing was published; try again later */
#define FIPSEE_RING_FAULT (-1)	/* the peer broke the protocol, or the geometry is invalid; close the channel */

/* ---- The hooks' defaults: userspace, gcc and clang ------------------------------------------------------------- */

/* Slots are bytes to the type system; these words may alias them. One machine word is loaded and stored at once. */
#if __SIZEOF_POINTER__ == 8
typedef uint64_t __attribute__((__may_alias__)) fipsee_ring_word;
#else
typedef uint32_t __attribute__((__may_alias__)) fipsee_ring_word;
#endif
typedef uint32_t __attribute__((__may_alias__)) fipsee_ring_half;

#ifndef FIPSEE_LOAD_ACQUIRE
#define FIPSEE_LOAD_ACQUIRE(word) __atomic_load_n((word), __ATOMIC_ACQUIRE)
#endif

#ifndef FIPSEE_STORE_RELEASE
#define FIPSEE_STORE_RELEASE(word, value) __atomic_store_n((word), (value), __ATOMIC_RELEASE)
#endif

#ifndef FIPSEE_FULL_FENCE
#define FIPSEE_FULL_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif

#ifndef FIPSEE_FULL_FENCE_AT
#if defined(__x86_64__)
/* In assembly: a compiler may turn an atomic `or 0` into a fence and a load, which leave the line where it is. */
#define FIPSEE_FULL_FENCE_AT(word) __asm__ volatile("lock orl $0, %0" : "+m"(*(word)) : : "memory", "cc")
#else
#define FIPSEE_FULL_FENCE_AT(word) do { (void)(word); FIPSEE_FULL_FENCE(); } while (0)
#endif
#endif

#ifndef FIPSEE_PREFETCHW
#ifdef __x86_64__
#define FIPSEE_PREFETCHW(slot) __asm__ volatile("prefetchw %0" : : "m"(*(const uint8_t *)(const void *)(slot)))
#else
#define FIPSEE_PREFETCHW(slot) __builtin_prefetch((slot), 1)
#endif
#endif

/* T: relaxed. After the load of the stamp because it is the same word; before the slot's return because that is Release. */
#ifndef FIPSEE_TOUCH
#define FIPSEE_TOUCH(word, stamp) __atomic_store_n((word), (stamp), __ATOMIC_RELAXED)
#endif

#ifndef FIPSEE_TICKS
#ifdef __x86_64__
#define FIPSEE_TICKS() __builtin_ia32_rdtsc()
#else
#define FIPSEE_TICKS() ((uint64_t)0)
#endif
#endif

#ifndef FIPSEE_PAUSE
#ifdef __x86_64__
#define FIPSEE_PAUSE() __builtin_ia32_pause()
#else
#define FIPSEE_PAUSE() do { } while (0)
#endif
#endif

#ifndef FIPSEE_COPY_IN
/* Atomic loads are neither repeated nor split nor merged by the compiler: each byte is read once. */
static inline void fipsee_copy_in(union fipsee_message *into, const struct fipsee_slot *slot)
{
	const fipsee_ring_word *from = (const fipsee_ring_word *)(const void *)slot;
	fipsee_ring_word *to = (fipsee_ring_word *)(void *)into;
	unsigned int index;

	for (index = 0; index < FIPSEE_SLOT_BYTES / sizeof(*from); index++)
		to[index] = __atomic_load_n(&from[index], __ATOMIC_RELAXED);
}
#define FIPSEE_COPY_IN(into, slot) fipsee_copy_in((into), (slot))
#endif

#ifndef FIPSEE_PUBLISH
static inline void fipsee_publish(struct fipsee_slot *slot, const union fipsee_message *message, uint32_t stamp)
{
	fipsee_ring_word *to = (fipsee_ring_word *)(void *)slot;
	const fipsee_ring_word *from = (const fipsee_ring_word *)(const void *)message;
	fipsee_ring_half *last = (fipsee_ring_half *)(void *)&slot->payload[56];
	const fipsee_ring_half *last_from = (const fipsee_ring_half *)(const void *)&message->slot.payload[56];
	unsigned int index;

	for (index = 0; index < 56 / sizeof(*to); index++)
		__atomic_store_n(&to[index], from[index], __ATOMIC_RELAXED);
	__atomic_store_n(last, *last_from, __ATOMIC_RELAXED);
	FIPSEE_STORE_RELEASE(&slot->stamp, stamp); /* A */
}
#define FIPSEE_PUBLISH(slot, message, stamp) fipsee_publish((slot), (message), (stamp))
#endif

#ifndef FIPSEE_PUBLISH_AS
#define FIPSEE_PUBLISH_AS(stores, slot, message, stamp) ((void)(stores), FIPSEE_PUBLISH(slot, message, stamp))
#endif

/* ---- Geometry and cursor --------------------------------------------------------------------------------------- */

/* The memory of one ring. The pointers lead into memory shared with the peer; the count is a private copy. */
struct fipsee_ring {
	struct fipsee_slot *slots;	/* slot_count slots, aligned to 64 bytes */
	struct fipsee_cold *cold;	/* this ring's cold words, aligned to 64 bytes */
	uint32_t slot_count;		/* power of two, FIPSEE_MIN_SLOTS..FIPSEE_MAX_SLOTS */
};

/* A position in the free-running sequence. */
struct fipsee_cursor {
	uint32_t index;			/* slot, below slot_count */
	uint32_t stamp;			/* lap number, never 0 */
};

/* The lap after `stamp`: 1, 2, .. 2^32 - 1, 1. Fresh memory is 0, so 0 is no lap. */
static inline uint32_t fipsee_next_stamp(uint32_t stamp)
{
	return stamp == 0xffffffffU ? 1 : stamp + 1;
}

/* The first position of a ring whose geometry says `start`. */
static inline struct fipsee_cursor fipsee_cursor_at_start(uint32_t start)
{
	struct fipsee_cursor cursor = { start, 1 };

	return cursor;
}

/* The next position: the next slot, or the first one of the next lap. */
static inline void fipsee_cursor_advance(struct fipsee_cursor *cursor, uint32_t slot_count)
{
	cursor->index++;
	if (cursor->index == slot_count) {
		cursor->index = 0;
		cursor->stamp = fipsee_next_stamp(cursor->stamp);
	}
}

/*
 * Is this a ring, and is the cursor in it? The caller has checked that slots and cold words are mapped. The init functions
 * below ask this; the others are undefined where it is false.
 */
static inline bool fipsee_ring_is_valid(const struct fipsee_ring *ring, struct fipsee_cursor cursor)
{
	uint32_t count = ring->slot_count;

	return count >= FIPSEE_MIN_SLOTS && count <= FIPSEE_MAX_SLOTS && (count & (count - 1)) == 0 &&
	       cursor.index < count && cursor.stamp != 0 &&
	       ((uintptr_t)ring->slots | (uintptr_t)ring->cold) % FIPSEE_SLOT_BYTES == 0;
}

/* ---- Writer ---------------------------------------------------------------------------------------------------- */

/* With FIPSEE_OWNERSHIP_LOCKED_AHEAD: longest burst after which slots of the next one are asked for. */
#define FIPSEE_MOST_LOCKED_SLOTS 8

/* The writing end, without flow control of its own. */
struct fipsee_writer {
	struct fipsee_ring ring;
	struct fipsee_cursor cursor;	/* where the next message goes */
	uint32_t fresh;			/* messages published since the last look at `asleep` */
	uint8_t ownership;		/* FIPSEE_OWNERSHIP_* */
	uint8_t burst_prefetch;		/* FIPSEE_BURST_PREFETCH_* */
	uint8_t stores;			/* FIPSEE_STORES_*, or 0: not chosen */
};

/* FIPSEE_RING_OK, or FIPSEE_RING_FAULT when the geometry is invalid. */
static inline int fipsee_writer_init(struct fipsee_writer *writer, struct fipsee_ring ring, struct fipsee_cursor cursor)
{
	writer->ring = ring;
	writer->cursor = cursor;
	writer->fresh = 0;
	writer->ownership = FIPSEE_OWNERSHIP_PREFETCH_NEXT;
	writer->burst_prefetch = FIPSEE_BURST_PREFETCH_ON;
	writer->stores = 0;
	return fipsee_ring_is_valid(&ring, cursor) ? FIPSEE_RING_OK : FIPSEE_RING_FAULT;
}

/* Take the advice of a word of choices, at any time. Fields without advice, or with a value that is not known, stay. */
static inline void fipsee_writer_choose(struct fipsee_writer *writer, uint32_t choices)
{
	uint32_t ownership = FIPSEE_CHOICE(choices, OWNERSHIP);
	uint32_t burst_prefetch = FIPSEE_CHOICE(choices, BURST_PREFETCH);
	uint32_t stores = FIPSEE_CHOICE(choices, STORES);

	if (ownership >= FIPSEE_OWNERSHIP_PREFETCH_NEXT && ownership <= FIPSEE_OWNERSHIP_NOT_ASKED)
		writer->ownership = (uint8_t)ownership;
	if (burst_prefetch == FIPSEE_BURST_PREFETCH_OFF || burst_prefetch == FIPSEE_BURST_PREFETCH_ON)
		writer->burst_prefetch = (uint8_t)burst_prefetch;
	if (stores >= FIPSEE_STORES_WIDE16 && stores <= FIPSEE_STORES_WIDE64)
		writer->stores = (uint8_t)stores;
}

/*
 * Ask for the line of the slot `ahead` of the next one, unless the choices say not to: as one of a burst, or as the slot of
 * a single message. The includer decides when; nothing else here prefetches.
 */
static inline void fipsee_writer_prefetch(const struct fipsee_writer *writer, uint32_t ahead, bool in_burst)
{
	uint32_t index = (writer->cursor.index + ahead) & (writer->ring.slot_count - 1);

	if (in_burst ? writer->burst_prefetch == FIPSEE_BURST_PREFETCH_ON
		     : writer->ownership == FIPSEE_OWNERSHIP_PREFETCH_NEXT)
		FIPSEE_PREFETCHW(&writer->ring.slots[index]);
}

/* Publish one message. The protocol above the ring guarantees that the slot is free. */
static inline void fipsee_writer_publish(struct fipsee_writer *writer, const union fipsee_message *message)
{
	FIPSEE_PUBLISH_AS(writer->stores, &writer->ring.slots[writer->cursor.index], message, writer->cursor.stamp);
	fipsee_cursor_advance(&writer->cursor, writer->ring.slot_count);
	writer->fresh++;
}

/* Publish `count` messages in one burst, in order. The protocol above the ring guarantees that their slots are free. */
static inline void fipsee_writer_publish_all(struct fipsee_writer *writer, const union fipsee_message *messages,
					     uint32_t count)
{
	uint32_t index;

	for (index = 0; index < count; index++)
		fipsee_writer_publish(writer, &messages[index]);
}

/*
 * The fence between our stamps and the look at `asleep`. With FIPSEE_OWNERSHIP_LOCKED_AHEAD it is made by locked operations,
 * which fetch lines of ours before they are written: after one message on the slot after the next one, after up to
 * FIPSEE_MOST_LOCKED_SLOTS on as many slots, from the next one on. They need not be free: nothing in them changes.
 */
static inline void fipsee_writer_fence(struct fipsee_writer *writer)
{
	uint32_t burst = writer->fresh;
	uint32_t ahead = burst == 1 ? 1 : 0;
	uint32_t end = ahead + burst;

	writer->fresh = 0;
	if (writer->ownership != FIPSEE_OWNERSHIP_LOCKED_AHEAD || burst == 0 || burst > FIPSEE_MOST_LOCKED_SLOTS) {
		FIPSEE_FULL_FENCE();
		return;
	}
	for (; ahead < end; ahead++)
		FIPSEE_FULL_FENCE_AT(&writer->ring.slots[(writer->cursor.index + ahead) & (writer->ring.slot_count - 1)].stamp);
}

/*
 * Must the doorbell be rung for what was published? Ask once per batch, after publishing; on true, ring after this
 * returns. The flag is cleared so that a burst of batches rings once. A plain store suffices: should it hit a flag that the
 * reader has set again, the ring that follows reaches that reader, because the reader emptied its doorbell before setting
 * the flag.
 */
static inline bool fipsee_writer_needs_doorbell(struct fipsee_writer *writer)
{
	/* S: between our stamp and the peer's flag; pairs with fipsee_reader_arm_and_work_remains(). */
	fipsee_writer_fence(writer);
	if (FIPSEE_LOAD_ACQUIRE(&writer->ring.cold->asleep) == 0)
		return false;
	FIPSEE_STORE_RELEASE(&writer->ring.cold->asleep, 0);
	return true;
}

/* ---- Reader ---------------------------------------------------------------------------------------------------- */

/* The reading end. */
struct fipsee_reader {
	struct fipsee_ring ring;
	struct fipsee_cursor cursor;	/* the next message */
	uint32_t received;		/* messages received, modulo 2^32 */
	uint32_t released;		/* value of `received` when the release counter was last written */
	bool armed;			/* `asleep` was set and not cleared by this end */
	bool in_run;			/* the last look took a message */
	bool touch_first;		/* touch messages that begin a run, or travel alone */
	bool touch_rest;		/* touch those that follow them */
	uint32_t gather_since;		/* value of `received` when a stream last waited or could have */
	uint64_t gather_ticks;		/* the time then */
};

/* FIPSEE_RING_OK, or FIPSEE_RING_FAULT when the geometry is invalid. */
static inline int fipsee_reader_init(struct fipsee_reader *reader, struct fipsee_ring ring, struct fipsee_cursor cursor)
{
	reader->ring = ring;
	reader->cursor = cursor;
	reader->received = 0;
	reader->released = 0;
	reader->armed = false;
	reader->in_run = false;
	reader->touch_first = false;
	reader->touch_rest = false;
	reader->gather_since = 0;
	reader->gather_ticks = 0;
	return fipsee_ring_is_valid(&ring, cursor) ? FIPSEE_RING_OK : FIPSEE_RING_FAULT;
}

/* Take the advice of a word of choices, at any time. A field without advice, or with a value that is not known, stays. */
static inline void fipsee_reader_choose(struct fipsee_reader *reader, uint32_t choices)
{
	uint32_t touch = FIPSEE_CHOICE(choices, TOUCH);

	if (touch < FIPSEE_TOUCH_NEVER || touch > FIPSEE_TOUCH_ALWAYS)
		return;
	reader->touch_first = touch == FIPSEE_TOUCH_ALWAYS;
	reader->touch_rest = touch != FIPSEE_TOUCH_NEVER;
}

/* The next message begins a new run: for readers that know what is due, and do not look until there is nothing more. */
static inline void fipsee_reader_begin_run(struct fipsee_reader *reader)
{
	reader->in_run = false;
}

/* Is a message there? Any stamp but that of this lap means no. */
static inline bool fipsee_reader_has_message(const struct fipsee_reader *reader)
{
	return FIPSEE_LOAD_ACQUIRE(&reader->ring.slots[reader->cursor.index].stamp) == reader->cursor.stamp; /* A */
}

/*
 * Copy the next message and step past it; false, and `into` as it was, when there is none. A stamp is touched here and never
 * later: once the caller answers or releases the message, the slot may hold the next lap's.
 */
static inline bool fipsee_reader_receive(struct fipsee_reader *reader, union fipsee_message *into)
{
	struct fipsee_slot *slot = &reader->ring.slots[reader->cursor.index];

	if (!fipsee_reader_has_message(reader)) {
		reader->in_run = false;
		return false;
	}
	FIPSEE_COPY_IN(into, slot);
	if (reader->in_run ? reader->touch_rest : reader->touch_first)
		FIPSEE_TOUCH(&slot->stamp, reader->cursor.stamp);
	reader->in_run = true;
	fipsee_cursor_advance(&reader->cursor, reader->ring.slot_count);
	reader->received++;
	return true;
}

/* Streams: everything received is free again. Call before sleeping. */
static inline void fipsee_reader_release_all(struct fipsee_reader *reader)
{
	if (reader->released == reader->received)
		return;
	reader->released = reader->received;
	FIPSEE_STORE_RELEASE(&reader->ring.cold->released, reader->released); /* B */
}

/* Streams: release if a quarter of the ring can be. Call after each batch. */
static inline void fipsee_reader_release_some(struct fipsee_reader *reader)
{
	uint32_t quarter = reader->ring.slot_count / 4;

	if (reader->received - reader->released >= (quarter ? quarter : 1))
		fipsee_reader_release_all(reader);
}

/*
 * Announce that we are about to sleep, then look again: does work remain? Only on false may the caller sleep on its
 * doorbell, which it drained before this call. Stays armed until fipsee_reader_disarm().
 */
static inline bool fipsee_reader_arm_and_work_remains(struct fipsee_reader *reader)
{
	reader->armed = true;
	FIPSEE_STORE_RELEASE(&reader->ring.cold->asleep, 1);
	FIPSEE_FULL_FENCE(); /* S: between our flag and the peer's stamp; pairs with fipsee_writer_needs_doorbell(). */
	return fipsee_reader_has_message(reader);
}

/* Awake again: the writer need not ring. */
static inline void fipsee_reader_disarm(struct fipsee_reader *reader)
{
	if (!reader->armed)
		return;
	reader->armed = false;
	FIPSEE_STORE_RELEASE(&reader->ring.cold->asleep, 0);
}

/* ---- Call and reply: flow control by the answers ---------------------------------------------------------------- */

/* The writing end of a call ring. */
struct fipsee_call_writer {
	struct fipsee_writer writer;
	uint32_t outstanding;		/* calls published and not answered */
	uint32_t depth;			/* most calls outstanding, 1..slot_count */
};

/* FIPSEE_RING_OK, or FIPSEE_RING_FAULT when the geometry is invalid or `depth` is not 1..slot_count: `call` is unusable. */
static inline int fipsee_call_init(struct fipsee_call_writer *call, struct fipsee_ring ring, struct fipsee_cursor cursor,
				   uint32_t depth)
{
	call->outstanding = 0;
	call->depth = depth;
	if (depth < 1 || depth > ring.slot_count)
		return FIPSEE_RING_FAULT;
	return fipsee_writer_init(&call->writer, ring, cursor);
}

/* Calls that may be published now. */
static inline uint32_t fipsee_call_free(const struct fipsee_call_writer *call)
{
	return call->depth - call->outstanding;
}

/* Publish `count` calls in one burst, all or none: FIPSEE_RING_OK or FIPSEE_RING_FULL. */
static inline int fipsee_call_publish_all(struct fipsee_call_writer *call, const union fipsee_message *messages,
					  uint32_t count)
{
	if (count > fipsee_call_free(call))
		return FIPSEE_RING_FULL;
	fipsee_writer_publish_all(&call->writer, messages, count);
	call->outstanding += count;
	return FIPSEE_RING_OK;
}

/* One call was answered: its slot is free. FIPSEE_RING_FAULT when none is outstanding: the peer answered twice. */
static inline int fipsee_call_answered(struct fipsee_call_writer *call)
{
	if (call->outstanding == 0)
		return FIPSEE_RING_FAULT;
	call->outstanding--;
	return FIPSEE_RING_OK;
}

#include "fipsee_stream.h"

#endif /* FIPSEE_RING_H */
