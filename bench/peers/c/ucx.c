/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * UCX active messages over its POSIX shared-memory transport: one worker per process, progressed in a loop by the only
 * thread, eager messages. The two sides exchange addresses through memory that both map.
 */

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucp/api/ucp.h>

#define PAYLOAD_BYTES 60
#define MESSAGE_BYTES 64
#define MESSAGE_ID 1
#define ADDRESS_BYTES 4000
/* Messages that came while something else was waited for: a power of two, more than any transport queue of ours. */
#define MAX_RECEIVED 16384

struct peers_ucx_exchange {
	_Atomic uint64_t address_bytes[2];
	unsigned char address[2][ADDRESS_BYTES];
};

struct peers_ucx {
	ucp_context_h context;
	ucp_worker_h worker;
	ucp_ep_h endpoint;
	uint32_t head, tail;
	unsigned char received[MAX_RECEIVED][MESSAGE_BYTES];
};

size_t peers_ucx_exchange_bytes(void)
{
	return sizeof(struct peers_ucx_exchange);
}

static ucs_status_t on_message(void *argument, const void *header, size_t header_bytes, void *data, size_t length,
			       const ucp_am_recv_param_t *parameters)
{
	struct peers_ucx *end = argument;

	(void)header;
	(void)header_bytes;
	(void)parameters;
	if (length != PAYLOAD_BYTES || end->tail - end->head == MAX_RECEIVED)
		abort();
	memcpy(end->received[end->tail++ & (MAX_RECEIVED - 1)], data, PAYLOAD_BYTES);
	return UCS_OK;
}

static ucs_status_t make_worker(struct peers_ucx *end)
{
	ucp_params_t of_context = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM };
	ucp_worker_params_t of_worker = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
					  .thread_mode = UCS_THREAD_MODE_SINGLE };
	ucp_am_handler_param_t handler = {
		.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
		.id = MESSAGE_ID,
		.cb = on_message,
		.arg = end,
	};
	ucp_config_t *config;
	ucs_status_t status = ucp_config_read(NULL, NULL, &config);

	if (status != UCS_OK)
		return status;
	status = ucp_config_modify(config, "TLS", "posix");
	if (status == UCS_OK)
		status = ucp_init(&of_context, config, &end->context);
	ucp_config_release(config);
	if (status == UCS_OK)
		status = ucp_worker_create(end->context, &of_worker, &end->worker);
	if (status == UCS_OK)
		status = ucp_worker_set_am_recv_handler(end->worker, &handler);
	return status;
}

static ucs_status_t meet(struct peers_ucx *end, struct peers_ucx_exchange *exchange, int side)
{
	ucp_ep_params_t of_endpoint = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
	ucp_address_t *address;
	size_t address_bytes;
	ucs_status_t status = ucp_worker_get_address(end->worker, &address, &address_bytes);

	if (status != UCS_OK)
		return status;
	if (address_bytes > ADDRESS_BYTES)
		return UCS_ERR_BUFFER_TOO_SMALL;
	memcpy(exchange->address[side], address, address_bytes);
	atomic_store(&exchange->address_bytes[side], address_bytes);
	ucp_worker_release_address(end->worker, address);
	while (atomic_load(&exchange->address_bytes[!side]) == 0)
		ucp_worker_progress(end->worker);
	of_endpoint.address = (const ucp_address_t *)exchange->address[!side];
	return ucp_ep_create(end->worker, &of_endpoint, &end->endpoint);
}

/* An end, or NULL with the reason in `error`. `slots`: elements of the transport's receive queue. */
struct peers_ucx *peers_ucx_open(struct peers_ucx_exchange *exchange, int side, unsigned int slots, const char **error)
{
	struct peers_ucx *end = calloc(1, sizeof(*end));
	char number[16];
	ucs_status_t status = UCS_ERR_NO_MEMORY;

	snprintf(number, sizeof(number), "%u", slots);
	if (end && setenv("UCX_POSIX_FIFO_SIZE", number, 1) == 0)
		status = make_worker(end);
	if (status == UCS_OK)
		status = meet(end, exchange, side);
	if (status == UCS_OK)
		return end;
	*error = ucs_status_string(status);
	free(end);
	return NULL;
}

/* Send all messages: 0, or UCX's negative status. */
int peers_ucx_send(struct peers_ucx *end, const unsigned char *messages, size_t count)
{
	const ucp_request_param_t eager = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_AM_SEND_FLAG_EAGER };

	for (size_t index = 0; index < count; index++) {
		const void *message = messages + index * MESSAGE_BYTES;
		ucs_status_ptr_t request =
			ucp_am_send_nbx(end->endpoint, MESSAGE_ID, NULL, 0, message, PAYLOAD_BYTES, &eager);
		ucs_status_t status;

		if (request == NULL)
			continue;
		if (UCS_PTR_IS_ERR(request))
			return UCS_PTR_STATUS(request);
		/* The transport's queue is full: the message is sent when the peer has made room. */
		while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
			ucp_worker_progress(end->worker);
		ucp_request_free(request);
		if (status != UCS_OK)
			return status;
	}
	return 0;
}

/* Copy what has arrived, at most `count` messages; returns how many. */
size_t peers_ucx_receive(struct peers_ucx *end, unsigned char *into, size_t count)
{
	size_t taken = 0;

	if (end->head == end->tail)
		ucp_worker_progress(end->worker);
	while (taken < count && end->head != end->tail) {
		memcpy(into + taken * MESSAGE_BYTES, end->received[end->head++ & (MAX_RECEIVED - 1)], MESSAGE_BYTES);
		taken++;
	}
	return taken;
}
