/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* counter serve SOCKET, counter add|divide SOCKET NUMBER: a shared counter; crates/call/examples/counter.rs in C. */
#include <fipsee_client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADD, DIVIDE };

struct request {
	uint8_t operation;
	uint8_t zero[7];		/* padding has a name and is 0, so that both sides agree on every byte */
	int64_t value;
};

struct reply {
	int64_t value;			/* the counter after it */
	uint8_t failed;			/* errors are part of the reply */
	uint8_t zero[7];
};

static int fail(void)
{
	fprintf(stderr, "%s\n", fipsee_error_message());
	return 1;
}

static int serve(const char *socket)
{
	struct fipsee_service_options options = {
		.size_bytes = sizeof(options), .socket_path = socket, .name = "org.example.counter/1",
		.request_bytes = sizeof(struct request), .reply_bytes = sizeof(struct reply),
	};
	struct fipsee_service *service;
	struct fipsee_taken call;
	struct reply reply = { 0 };

	if (fipsee_service_open(&options, &service) != 0)
		return fail();
	while (fipsee_service_next(service, &call, -1) == 1) {
		const struct request *request = call.request;	/* a copy: what is checked stays so */

		if (request->operation > DIVIDE) {
			fipsee_service_refuse(service, "a counter adds and divides");
			continue;
		}
		reply.failed = request->operation == DIVIDE ? request->value == 0 || request->value == -1 :
			__builtin_add_overflow(reply.value, request->value, &reply.value);
		if (request->operation == DIVIDE && !reply.failed)
			reply.value /= request->value;
		fipsee_service_reply(service, &reply);
	}
	return -fipsee_service_close(service);
}

static int call(const char *socket, uint8_t operation, int64_t value)
{
	struct fipsee_caller_options options = {
		.size_bytes = sizeof(options), .socket_path = socket, .name = "org.example.counter/1",
		.request_bytes = sizeof(struct request), .reply_bytes = sizeof(struct reply),
	};
	struct request request = { .operation = operation, .value = value };
	struct fipsee_caller *caller;
	struct reply reply;

	if (fipsee_caller_open(&options, &caller) != 0 || fipsee_call(caller, &request, &reply, -1) != 0)
		return fail();
	printf("%lld%s\n", (long long)reply.value, reply.failed ? ", unchanged: that cannot be done" : "");
	return -fipsee_caller_close(caller);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "serve") == 0)
		return serve(argv[2]);
	if (argc == 4)
		return call(argv[2], strcmp(argv[1], "divide") == 0 ? DIVIDE : ADD, atoll(argv[3]));
	return fprintf(stderr, "usage: counter serve SOCKET | counter add|divide SOCKET NUMBER\n"), 1;
}
