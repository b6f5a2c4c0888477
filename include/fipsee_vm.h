/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * In-band upgrade of a virtio-blk device (docs/protocol.md section 9). Counterpart of crates/virtio/src/blk/upgrade/wire.rs.
 * Usable in a kernel.
 */
#ifndef FIPSEE_VM_H
#define FIPSEE_VM_H

#include "fipsee.h"

/* Type of the virtio-blk requests that are upgrade requests. Bit 0 ("out") is clear, as older devices mask it away. */
#define FIPSEE_VM_REQUEST_TYPE 0x46495030U
#define FIPSEE_VM_MAGIC 0x50556946U
#define FIPSEE_VM_VERSION 1

/* Operations. */
#define FIPSEE_VM_QUERY 1
#define FIPSEE_VM_ATTACH 2
#define FIPSEE_VM_DOORBELL 3
#define FIPSEE_VM_DETACH 4
#define FIPSEE_VM_BELL FIPSEE_VM_DOORBELL	/* its earlier name */

/* Results. */
#define FIPSEE_VM_DONE 0
#define FIPSEE_VM_RUNG 1
#define FIPSEE_VM_NO_ATTACHMENT 2
#define FIPSEE_VM_NOT_NOW 3
#define FIPSEE_VM_INVALID 4
#define FIPSEE_VM_BAD_VERSION 5

/* Features: the reply of attach advises choices. And all that this header knows. */
#define FIPSEE_VM_FEATURE_CHOICES (1ULL << 0)
#define FIPSEE_VM_FEATURES FIPSEE_VM_FEATURE_CHOICES

/* A segment of guest memory: id and offset from a guest-physical address. */
#define FIPSEE_VM_REGION_SHIFT 41

struct fipsee_vm_question {
	uint32_t magic;
	uint16_t version;
	uint16_t operation;			/* FIPSEE_VM_QUERY .. FIPSEE_VM_DETACH */
	uint64_t attachment;
	uint64_t features;
	uint16_t queue_count;			/* attach: entries that follow */
	uint16_t queue;				/* bell */
	uint8_t reserved[36];
};
FIPSEE_ASSERT_SIZE(struct fipsee_vm_question, 64);
FIPSEE_ASSERT_AT(struct fipsee_vm_question, attachment, 8);
FIPSEE_ASSERT_AT(struct fipsee_vm_question, features, 16);
FIPSEE_ASSERT_AT(struct fipsee_vm_question, queue_count, 24);
FIPSEE_ASSERT_AT(struct fipsee_vm_question, queue, 26);

struct fipsee_vm_queue {
	uint64_t request_address;		/* guest-physical, multiple of 64 */
	uint64_t completion_address;
	uint64_t cold_address;			/* of the request ring; those of the completion ring follow at + 128 */
	uint32_t request_slots;
	uint32_t completion_slots;
	uint32_t request_start;
	uint32_t completion_start;
	uint32_t depth;
	uint32_t virtqueue;			/* the queue's doorbell */
	uint8_t reserved[16];
};
FIPSEE_ASSERT_SIZE(struct fipsee_vm_queue, 64);
FIPSEE_ASSERT_AT(struct fipsee_vm_queue, request_slots, 24);
FIPSEE_ASSERT_AT(struct fipsee_vm_queue, depth, 40);
FIPSEE_ASSERT_AT(struct fipsee_vm_queue, virtqueue, 44);

struct fipsee_vm_reply {
	uint32_t result;			/* FIPSEE_VM_DONE .. FIPSEE_VM_BAD_VERSION */
	uint16_t version;
	uint16_t max_queues;
	uint64_t attachment;
	uint64_t features;
	uint32_t max_depth;
	uint32_t queue;				/* which entry of attach was wrong */
	uint32_t choices;			/* attach, with FIPSEE_VM_FEATURE_CHOICES in force: FIPSEE_CHOICES_*; else 0 */
	uint8_t reserved[28];
};
FIPSEE_ASSERT_SIZE(struct fipsee_vm_reply, 64);
FIPSEE_ASSERT_AT(struct fipsee_vm_reply, attachment, 8);
FIPSEE_ASSERT_AT(struct fipsee_vm_reply, max_depth, 24);
FIPSEE_ASSERT_AT(struct fipsee_vm_reply, choices, 32);

#endif
