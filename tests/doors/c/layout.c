/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* layout: where the fields of the public structures lie, as crates/capi/abi/abi.txt says it. */
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
	return 0;
}
