/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Everything that fipsee.h fixes, by name. src/layout.rs derives the same names from the Rust code. */
#include "fipsee_vm.h"
#include "interop.h"

#define CONSTANT(name) { #name, FIPSEE_##name }
/* One choice as a word. */
#define CHOICE(field, name) { #field "_" #name, (uint64_t)FIPSEE_##field##_##name << FIPSEE_CHOICES_##field##_SHIFT }
#define SIZE(name) { #name ".bytes", sizeof(struct fipsee_##name) }
#define FIELD(name, field) \
	{ #name "." #field ".offset", offsetof(struct fipsee_##name, field) }, \
	{ #name "." #field ".bytes", sizeof(((struct fipsee_##name *)0)->field) }

static const struct interop_entry table[] = {
	CONSTANT(SLOT_BYTES), CONSTANT(PAYLOAD_BYTES), CONSTANT(STAMP_OFFSET_BYTES), CONSTANT(MIN_SLOTS),
	CONSTANT(MAX_SLOTS), CONSTANT(COLD_BYTES), CONSTANT(COLD_RELEASED_OFFSET_BYTES),
	CONSTANT(COLD_ASLEEP_OFFSET_BYTES), CONSTANT(COLD_HOLD_OFFSET_BYTES), CONSTANT(COLD_CHOICES_OFFSET_BYTES),
	CONSTANT(MAX_HOLD_NS),
	CHOICE(OWNERSHIP, PREFETCH_NEXT), CHOICE(OWNERSHIP, LOCKED_AHEAD), CHOICE(OWNERSHIP, NOT_ASKED),
	CHOICE(TOUCH, NEVER), CHOICE(TOUCH, RUNS), CHOICE(TOUCH, ALWAYS),
	CHOICE(STORES, WIDE16), CHOICE(STORES, SPLIT32), CHOICE(STORES, WIDE64),
	CHOICE(BURST_PREFETCH, OFF), CHOICE(BURST_PREFETCH, ON), CHOICE(TAKE, SINGLY), CHOICE(TAKE, SIXTEEN),
	CONSTANT(CHOICES_MEASURED),
	CONSTANT(REGION_MAGIC), CONSTANT(REGION_HEADER_BYTES), CONSTANT(FEATURE_WORKER_CPU),
	CONSTANT(FEATURE_SOLE_WRITER), CONSTANT(FEATURE_CHOICES), CONSTANT(FEATURE_LIST), CONSTANT(FEATURES),
	CONSTANT(QUEUE_ENTRY_BYTES), CONSTANT(MAX_DEPTH), CONSTANT(EVENT_CREDITS), CONSTANT(MAX_POOL_BYTES),
	CONSTANT(MAX_REGION_BYTES), CONSTANT(CONTROL_MAGIC), CONSTANT(VERSION), CONSTANT(MAX_MESSAGE_BYTES),
	CONSTANT(MAX_DESCRIPTORS), CONSTANT(MAX_QUEUES), CONSTANT(MAX_REGIONS), CONSTANT(MAX_NAME_BYTES),
	CONSTANT(MAX_LISTED), CONSTANT(LISTED_INFO_BYTES), CONSTANT(LISTED_READ_ONLY),
	CONSTANT(MAX_REFUSAL_BYTES), CONSTANT(SERVICE_INFO_BYTES), CONSTANT(MAX_SOCKET_PATH_BYTES),
	CONSTANT(SERVICE_BLOCK), CONSTANT(SERVICE_CALLS), CONSTANT(CALL_PAYLOAD_UNIT_BYTES),
	CONSTANT(ATTACH_READ_ONLY), CONSTANT(ATTACH_EXCLUSIVE), CONSTANT(ATTACH_SOLE_WRITER),
	CONSTANT(ATTACH_IGNORE_CLAIM), CONSTANT(ACCESS_READ),
	CONSTANT(ACCESS_WRITE), CONSTANT(SECTOR_BYTES), CONSTANT(SECTOR_SHIFT), CONSTANT(MAX_INLINE_SEGMENTS),
	CONSTANT(SEGMENTS_INDIRECT), CONSTANT(MAX_INDIRECT_ENTRIES), CONSTANT(MAX_TRANSFER_BYTES),
	CONSTANT(MAX_PACKED), CONSTANT(FLAG_FUA), CONSTANT(FLAG_UNMAP), CONSTANT(KIND_COMPLETIONS),
	CONSTANT(KIND_RESIZE), CONSTANT(KIND_DETACH), CONSTANT(CAPABILITY_WRITE), CONSTANT(CAPABILITY_FLUSH),
	CONSTANT(CAPABILITY_FUA), CONSTANT(CAPABILITY_DISCARD), CONSTANT(CAPABILITY_WRITE_ZEROES),
	CONSTANT(CAPABILITY_PACKED), CONSTANT(PACKED), CONSTANT(MAX_PACKED_REQUESTS),

	CONSTANT(HELLO), CONSTANT(WELCOME), CONSTANT(ATTACH), CONSTANT(ATTACHED), CONSTANT(REFUSED),
	CONSTANT(REGISTER), CONSTANT(REGISTERED), CONSTANT(UNREGISTER), CONSTANT(UNREGISTERED), CONSTANT(DETACH),
	CONSTANT(DETACHED), CONSTANT(LIST), CONSTANT(LISTED),
	CONSTANT(REFUSAL_VERSION), CONSTANT(REFUSAL_MALFORMED), CONSTANT(REFUSAL_UNKNOWN_NAME),
	CONSTANT(REFUSAL_NOT_ALLOWED), CONSTANT(REFUSAL_BUSY), CONSTANT(REFUSAL_LIMIT), CONSTANT(REFUSAL_BAD_MEMORY),
	CONSTANT(REFUSAL_SHUTTING_DOWN),
	CONSTANT(READ), CONSTANT(WRITE), CONSTANT(FLUSH), CONSTANT(DISCARD), CONSTANT(WRITE_ZEROES),
	CONSTANT(GET_INFO), CONSTANT(ACK_EVENT),
	CONSTANT(STATUS_OK), CONSTANT(STATUS_IO_ERROR), CONSTANT(STATUS_INVALID), CONSTANT(STATUS_UNSUPPORTED),
	CONSTANT(STATUS_BAD_MEMORY), CONSTANT(STATUS_READ_ONLY), CONSTANT(STATUS_OUT_OF_RANGE),
	CONSTANT(STATUS_NO_SPACE), CONSTANT(STATUS_DETACHED), CONSTANT(STATUS_MISALIGNED), CONSTANT(STATUS_TOO_LONG),
	CONSTANT(STATUS_NO_SEGMENTS), CONSTANT(STATUS_COUNT),

	SIZE(slot), FIELD(slot, stamp), SIZE(cold), FIELD(cold, released), FIELD(cold, asleep), FIELD(cold, hold),
	FIELD(cold, choices), FIELD(cold, reserved),

	SIZE(region_header), FIELD(region_header, magic), FIELD(region_header, version),
	FIELD(region_header, queue_count), FIELD(region_header, region_bytes), FIELD(region_header, features),
	FIELD(region_header, pool_offset_bytes), FIELD(region_header, pool_bytes), FIELD(region_header, reserved),
	SIZE(queue_entry), FIELD(queue_entry, request_offset_bytes), FIELD(queue_entry, completion_offset_bytes),
	FIELD(queue_entry, cold_offset_bytes), FIELD(queue_entry, request_slots), FIELD(queue_entry, completion_slots),
	FIELD(queue_entry, request_start), FIELD(queue_entry, completion_start), FIELD(queue_entry, depth),
	FIELD(queue_entry, worker_cpu_plus_1), FIELD(queue_entry, choices), FIELD(queue_entry, reserved),

	SIZE(control_header), FIELD(control_header, magic), FIELD(control_header, kind),
	FIELD(control_header, version), FIELD(control_header, length_bytes),
	SIZE(hello), FIELD(hello, header), FIELD(hello, version_min), FIELD(hello, version_max), FIELD(hello, features),
	SIZE(welcome), FIELD(welcome, header), FIELD(welcome, reserved), FIELD(welcome, version),
	FIELD(welcome, max_queues), FIELD(welcome, max_depth),
	FIELD(welcome, features), FIELD(welcome, max_pool_bytes),
	SIZE(attach), FIELD(attach, header), FIELD(attach, service), FIELD(attach, queue_count),
	FIELD(attach, depth), FIELD(attach, flags),
	FIELD(attach, pool_bytes), FIELD(attach, name),
	SIZE(attached), FIELD(attached, header), FIELD(attached, reserved), FIELD(attached, queue_count),
	FIELD(attached, region_bytes), FIELD(attached, service_info),
	SIZE(refused), FIELD(refused, header), FIELD(refused, code), FIELD(refused, text_bytes), FIELD(refused, text),
	SIZE(register), FIELD(register, header), FIELD(register, region), FIELD(register, access),
	FIELD(register, length_bytes),
	SIZE(region_id), FIELD(region_id, header), FIELD(region_id, reserved), FIELD(region_id, region),
	SIZE(list), FIELD(list, header), FIELD(list, service), FIELD(list, reserved), FIELD(list, after),
	SIZE(listed_entry), FIELD(listed_entry, name), FIELD(listed_entry, service_info),
	SIZE(listed), FIELD(listed, header), FIELD(listed, count), FIELD(listed, more), FIELD(listed, entries),
	SIZE(listed_info), FIELD(listed_info, sector_count), FIELD(listed_info, block_bytes), FIELD(listed_info, flags),

	SIZE(segment), FIELD(segment, offset_sectors), FIELD(segment, length_sectors), FIELD(segment, region),
	SIZE(request), FIELD(request, operation), FIELD(request, segment_count), FIELD(request, flags),
	FIELD(request, tag), FIELD(request, sector), FIELD(request, segments), FIELD(request, length_sectors),
	FIELD(request, aux), FIELD(request, reserved), FIELD(request, stamp),
	SIZE(packed_request), FIELD(packed_request, sector), FIELD(packed_request, segment),
	SIZE(packed), FIELD(packed, operation), FIELD(packed, count), FIELD(packed, writes), FIELD(packed, reserved),
	FIELD(packed, tags), FIELD(packed, requests), FIELD(packed, last_tag), FIELD(packed, reserved_end), FIELD(packed, stamp),
	SIZE(completion), FIELD(completion, count), FIELD(completion, kind), FIELD(completion, entries),
	FIELD(completion, reserved), FIELD(completion, stamp),
	SIZE(completion_entry), FIELD(completion_entry, tag), FIELD(completion_entry, status),
	SIZE(event), FIELD(event, count), FIELD(event, kind), FIELD(event, reserved), FIELD(event, reserved_too),
	FIELD(event, sector_count), FIELD(event, reserved_end), FIELD(event, stamp),
	SIZE(block_info), FIELD(block_info, first_sector), FIELD(block_info, sector_count),
	FIELD(block_info, block_bytes), FIELD(block_info, optimal_bytes), FIELD(block_info, max_transfer_bytes),
	FIELD(block_info, max_range_sectors), FIELD(block_info, max_segments), FIELD(block_info, capabilities),
	FIELD(block_info, identity),
	SIZE(call_info), FIELD(call_info, request_bytes), FIELD(call_info, reply_bytes),
	FIELD(call_info, request_payload_bytes), FIELD(call_info, reply_payload_bytes),

	CONSTANT(VM_REQUEST_TYPE), CONSTANT(VM_MAGIC), CONSTANT(VM_VERSION), CONSTANT(VM_REGION_SHIFT),
	CONSTANT(VM_QUERY), CONSTANT(VM_ATTACH), CONSTANT(VM_DOORBELL), CONSTANT(VM_DETACH),
	CONSTANT(VM_DONE), CONSTANT(VM_RUNG), CONSTANT(VM_NO_ATTACHMENT), CONSTANT(VM_NOT_NOW), CONSTANT(VM_INVALID),
	CONSTANT(VM_BAD_VERSION), CONSTANT(VM_FEATURE_CHOICES), CONSTANT(VM_FEATURES),
	SIZE(vm_question), FIELD(vm_question, magic), FIELD(vm_question, version), FIELD(vm_question, reserved),
	FIELD(vm_question, operation), FIELD(vm_question, attachment), FIELD(vm_question, features),
	FIELD(vm_question, queue_count), FIELD(vm_question, queue),
	SIZE(vm_queue), FIELD(vm_queue, request_address), FIELD(vm_queue, completion_address),
	FIELD(vm_queue, cold_address), FIELD(vm_queue, request_slots), FIELD(vm_queue, completion_slots),
	FIELD(vm_queue, request_start), FIELD(vm_queue, completion_start), FIELD(vm_queue, depth),
	FIELD(vm_queue, virtqueue),
	SIZE(vm_reply), FIELD(vm_reply, version), FIELD(vm_reply, reserved), FIELD(vm_reply, result),
	FIELD(vm_reply, max_queues), FIELD(vm_reply, attachment),
	FIELD(vm_reply, features), FIELD(vm_reply, max_depth), FIELD(vm_reply, queue),
	FIELD(vm_reply, choices),
};

const struct interop_entry *interop_layout(size_t index)
{
	return index < sizeof(table) / sizeof(table[0]) ? &table[index] : NULL;
}
