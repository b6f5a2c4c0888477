/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* layout: the offsets of the fields of the public structures, as crates/capi/abi/abi.txt says it. */
#include <fipsee_client.h>
#include <stdio.h>

#define STRUCT(name) printf("struct " #name " %zu\n", sizeof(struct name))
#define FIELD(name, field) printf("struct " #name " " #field " %zu\n", offsetof(struct name, field))

int main(void)
{
	STRUCT(fipsee_options);
	FIELD(fipsee_options, size_bytes);
	FIELD(fipsee_options, socket_path);
	FIELD(fipsee_options, disk);
	FIELD(fipsee_options, queue_count);
	FIELD(fipsee_options, depth);
	FIELD(fipsee_options, pool_bytes);
	FIELD(fipsee_options, wait);
	FIELD(fipsee_options, flags);
	FIELD(fipsee_options, look_ns);
	FIELD(fipsee_options, reconnect_ns);
	FIELD(fipsee_options, notify);
	STRUCT(fipsee_info);
	FIELD(fipsee_info, size_bytes);
	FIELD(fipsee_info, capacity_bytes);
	FIELD(fipsee_info, block_bytes);
	FIELD(fipsee_info, optimal_bytes);
	FIELD(fipsee_info, max_transfer_bytes);
	FIELD(fipsee_info, max_segments);
	FIELD(fipsee_info, max_range_bytes);
	FIELD(fipsee_info, capabilities);
	FIELD(fipsee_info, queue_count);
	FIELD(fipsee_info, identity);
	STRUCT(fipsee_result);
	FIELD(fipsee_result, token);
	FIELD(fipsee_result, result);
	FIELD(fipsee_result, status);
	STRUCT(fipsee_listed_disk);
	FIELD(fipsee_listed_disk, size_bytes);
	FIELD(fipsee_listed_disk, name);
	FIELD(fipsee_listed_disk, capacity_bytes);
	FIELD(fipsee_listed_disk, block_bytes);
	FIELD(fipsee_listed_disk, flags);
	STRUCT(fipsee_caller_options);
	FIELD(fipsee_caller_options, size_bytes);
	FIELD(fipsee_caller_options, socket_path);
	FIELD(fipsee_caller_options, name);
	FIELD(fipsee_caller_options, request_bytes);
	FIELD(fipsee_caller_options, reply_bytes);
	FIELD(fipsee_caller_options, depth);
	FIELD(fipsee_caller_options, wait);
	FIELD(fipsee_caller_options, look_ns);
	STRUCT(fipsee_service_options);
	FIELD(fipsee_service_options, size_bytes);
	FIELD(fipsee_service_options, socket_path);
	FIELD(fipsee_service_options, name);
	FIELD(fipsee_service_options, request_bytes);
	FIELD(fipsee_service_options, reply_bytes);
	FIELD(fipsee_service_options, request_payload_bytes);
	FIELD(fipsee_service_options, reply_payload_bytes);
	FIELD(fipsee_service_options, max_clients);
	FIELD(fipsee_service_options, max_depth);
	FIELD(fipsee_service_options, wait);
	FIELD(fipsee_service_options, socket_mode);
	FIELD(fipsee_service_options, look_ns);
	FIELD(fipsee_service_options, allow);
	FIELD(fipsee_service_options, context);
	STRUCT(fipsee_taken);
	FIELD(fipsee_taken, request);
	FIELD(fipsee_taken, request_payload);
	FIELD(fipsee_taken, reply_payload);
	FIELD(fipsee_taken, request_payload_bytes);
	FIELD(fipsee_taken, reply_payload_bytes);
	FIELD(fipsee_taken, client);
	FIELD(fipsee_taken, pid);
	FIELD(fipsee_taken, uid);
	FIELD(fipsee_taken, gid);
	FIELD(fipsee_taken, reserved);
	return 0;
}
