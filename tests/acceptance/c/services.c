/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* services SOCKET: every function for calls, with right and wrong arguments; server and callers are threads. */
#define _GNU_SOURCE
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SUM, FILL, NONSENSE };

struct request {
	uint32_t operation;
	uint32_t length_bytes;
	uint64_t a, b;
};

struct reply {
	uint64_t value;
};

static const struct fipsee_service_options served = {
	.size_bytes = sizeof(struct fipsee_service_options), .name = "test.sums/1",
	.request_bytes = sizeof(struct request), .reply_bytes = sizeof(struct reply),
	.request_payload_bytes = 100, .reply_payload_bytes = 4096, .max_depth = 32,
};

static const struct fipsee_caller_options wanted = {
	.size_bytes = sizeof(struct fipsee_caller_options), .name = "test.sums/1",
	.request_bytes = sizeof(struct request), .reply_bytes = sizeof(struct reply),
};

static void *serve(void *argument)
{
	struct fipsee_service *service = argument;
	struct fipsee_taken call;
	int outcome;

	while ((outcome = fipsee_service_next(service, &call, -1)) == 1) {
		const struct request *request = call.request;
		struct reply reply = { request->a + request->b };
		uint32_t i;

		EXPECT((uintptr_t)call.request % 64, 0);
		EXPECT(call.pid, getpid());
		EXPECT(call.request_payload_bytes, 128);
		FAILS(fipsee_service_next(service, &call, 0), -EBUSY, "not answered");
		if (request->operation == FILL)
			memset(call.reply_payload, (int)request->a, request->length_bytes % 4097);
		for (i = 0; request->operation == SUM && i < request->length_bytes % 129; i++)
			reply.value += ((const uint8_t *)call.request_payload)[i];
		if (request->operation >= NONSENSE)
			EXPECT(fipsee_service_refuse(service, "that is nonsense"), 0);
		else
			EXPECT(fipsee_service_reply(service, &reply), 0);
	}
	EXPECT(outcome, -ESHUTDOWN);
	return NULL;
}

static int open_caller(struct fipsee_caller_options options, struct fipsee_caller **caller)
{
	options.socket_path = options.socket_path == NULL ? the_socket : options.socket_path;
	*caller = NULL;
	return fipsee_caller_open(&options, caller);
}

static void opening(void)
{
	struct fipsee_service_options options = served;
	struct fipsee_caller_options other = wanted;
	struct fipsee_service *service;
	struct fipsee_caller *caller;

	FAILS(fipsee_service_open(NULL, &service), -EINVAL, "options");
	FAILS(fipsee_service_open(&options, NULL), -EINVAL, "service");
	FAILS(fipsee_service_open(&options, &service), -EINVAL, "socket_path");
	options.socket_path = the_socket;
	options.size_bytes = 8;
	FAILS(fipsee_service_open(&options, &service), -EINVAL, "size_bytes is 8");
	options.size_bytes = sizeof(options);
	options.reply_bytes = 61;
	FAILS(fipsee_service_open(&options, &service), -EINVAL, "at most 60");
	options.reply_bytes = 8;
	FAILS(fipsee_service_open(&options, &service), -EADDRINUSE, "another server already listens");
	other.name = "test.sums/2";
	FAILS(open_caller(other, &caller), -ENOENT, "serves 'test.sums/1', not 'test.sums/2'");
	other = wanted;
	other.request_bytes = 8;
	FAILS(open_caller(other, &caller), -EMSGSIZE, "a request has 24 bytes at the server and 8 here");
	other = wanted;
	other.wait = 77;
	FAILS(open_caller(other, &caller), -EINVAL, "FIPSEE_WAIT_");
	other = wanted;
	other.socket_path = "/nowhere/s";
	FAILS(open_caller(other, &caller), -ENOENT, "no server at /nowhere/s");
	EXPECT(caller == NULL, 1);
	EXPECT(fipsee_caller_close(NULL), 0);
	EXPECT(fipsee_service_close(NULL), 0);
	FAILS(fipsee_call(NULL, NULL, NULL, -1), -EINVAL, "caller is a null pointer");
}

static void calling(void)
{
	struct request request = { SUM, 0, 40, 2 };
	struct reply reply = { 0 }, replies[40];
	struct fipsee_caller *caller;
	uint32_t length_bytes;
	uint8_t *payload;
	uint64_t i, started = 0, taken = 0;
	int count;

	EXPECT(open_caller(wanted, &caller), 0);
	FAILS(fipsee_call(caller, NULL, &reply, -1), -EINVAL, "request is a null pointer");
	FAILS(fipsee_call(caller, &request, NULL, -1), -EINVAL, "reply is a null pointer");
	FAILS(fipsee_call_poll(caller, replies, 0), -EINVAL, "max_replies is 0");
	EXPECT(fipsee_call_wait(caller, replies, 40, -1), 0);
	for (i = 0; i < 1000; i++) {
		request.a = i;
		EXPECT(fipsee_call(caller, &request, &reply, -1), 0);
		EXPECT(reply.value, i + 2);
	}
	while (taken < 10000) {
		while (request.a = started, fipsee_call_start(caller, &request) == 0)
			started++;
		EXPECT(started - taken, 32);
		EXPECT(fipsee_request_payload(caller, NULL) == NULL, 1);
		FAILS(fipsee_call_start(caller, &request), -EAGAIN, "take replies first");
		FAILS(fipsee_call(caller, &request, &reply, -1), -EBUSY, "32 calls were started");
		count = fipsee_call_wait(caller, replies, 40, -1);
		EXPECT(count > 0, 1);
		for (i = 0; i < (uint64_t)count; i++, taken++)
			EXPECT(replies[i].value, taken + 2);
	}
	while (taken < started)
		taken += (uint64_t)fipsee_call_wait(caller, replies, 7, 1000000);
	payload = fipsee_request_payload(caller, &length_bytes);
	EXPECT(length_bytes, 128);
	memset(payload, 1, 128);
	request = (struct request){ SUM, 128, 0, 0 };
	EXPECT(fipsee_call(caller, &request, &reply, 1000000000), 0);
	EXPECT(reply.value, 128);
	request = (struct request){ FILL, 4096, 7, 0 };
	EXPECT(fipsee_call(caller, &request, &reply, -1), 0);
	EXPECT(((const uint8_t *)fipsee_reply_payload(caller, 0, &length_bytes))[4095], 7);
	EXPECT(length_bytes, 4096);
	request.a = 8;
	EXPECT(fipsee_call(caller, &request, &reply, -1), 0);
	EXPECT(((const uint8_t *)fipsee_reply_payload(caller, 0, NULL))[0], 8);
	EXPECT(((const uint8_t *)fipsee_reply_payload(caller, 1, NULL))[0], 7);
	request.operation = NONSENSE;
	FAILS(fipsee_call(caller, &request, &reply, -1), -EPROTO, "that is nonsense");
	EXPECT(fipsee_caller_close(caller), 0);
}

static void event_loop(void)
{
	struct fipsee_caller_options options = wanted;
	struct request request = { SUM, 0, 0, 0 };
	struct reply reply;
	struct fipsee_caller *caller;
	int i;

	options.wait = FIPSEE_WAIT_SLEEP;
	EXPECT(open_caller(options, &caller), 0);
	for (i = 0; i < 500; i++) {
		request.a = (uint64_t)i;
		EXPECT(fipsee_call_start(caller, &request), 0);
		EXPECT(fipsee_call_submit(caller), 0);
		while (fipsee_call_poll(caller, &reply, 1) == 0) {
			struct pollfd doorbell = { fipsee_caller_descriptor(caller), POLLIN, 0 };

			if (fipsee_caller_arm(caller) == 0)
				EXPECT(poll(&doorbell, 1, -1), 1);
			EXPECT(fipsee_caller_woken(caller), 0);
		}
		EXPECT(reply.value, i);
	}
	EXPECT(fipsee_caller_close(caller), 0);
}

static struct fipsee_doorbell_counts doorbells_of(const struct fipsee_caller *caller)
{
	struct fipsee_doorbell_counts counts = { .size_bytes = sizeof(counts) };

	EXPECT(fipsee_caller_get_doorbell_counts(caller, &counts), 0);
	return counts;
}

/* A wake-up with a reply, or, if it is `early`, with a reply that was taken before. 0: the reply was there before the doorbell was armed. */
static int wake(struct fipsee_caller *caller, int early)
{
	struct request request = { SUM, 0, 1, 2 };
	struct pollfd doorbell = { fipsee_caller_descriptor(caller), POLLIN, 0 };
	struct reply reply;

	EXPECT(fipsee_call_start(caller, &request), 0);
	if (fipsee_caller_arm(caller) == 1)
		return 0;
	while (early && fipsee_call_poll(caller, &reply, 1) == 0)
		;
	EXPECT(poll(&doorbell, 1, -1), 1);
	EXPECT(fipsee_caller_woken(caller), 0);
	if (!early)
		EXPECT(fipsee_call_poll(caller, &reply, 1), 1);
	EXPECT(reply.value, 3);
	return 1;
}

static void doorbells(void)
{
	struct fipsee_doorbell_counts counts = { .size_bytes = 0 };
	struct fipsee_caller *caller;
	int done;

	do {
		EXPECT(open_caller(wanted, &caller), 0);
		counts = doorbells_of(caller);
		EXPECT(counts.doorbells + counts.suppressed + counts.wakeups + counts.spurious, 0);
		done = wake(caller, 0);
		EXPECT(doorbells_of(caller).wakeups, done);
		EXPECT(doorbells_of(caller).spurious, 0);
		done = done && wake(caller, 1);
		counts = doorbells_of(caller);
		EXPECT(fipsee_caller_close(caller), 0);
	} while (!done);
	EXPECT(counts.wakeups, 2);
	EXPECT(counts.spurious, 1);
	EXPECT(counts.doorbells <= 2, 1);
	EXPECT(counts.suppressed, 0);
	FAILS(fipsee_caller_get_doorbell_counts(NULL, &counts), -EINVAL, "caller is a null pointer");
}

static void forking(struct fipsee_service *service)
{
	struct fipsee_caller *caller;
	int status;
	pid_t child;

	EXPECT(open_caller(wanted, &caller), 0);
	child = fork();
	if (child == 0) {
		FAILS(fipsee_call_submit(caller), -EPERM, "before fork()");
		FAILS(fipsee_service_stop(service), -EPERM, "before fork()");
		/* Not _exit: Valgrind would report the threads of the parent as lost. */
		kill(getpid(), SIGKILL);
	}
	EXPECT(waitpid(child, &status, 0), child);
	EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, 1);
	EXPECT(fipsee_caller_close(caller), 0);
}

static int allow_nobody(void *context, int32_t pid, uint32_t uid, uint32_t gid)
{
	(void)uid, (void)gid;
	*(int32_t *)context = pid;
	return 0;
}

int main(int argc, char **argv)
{
	struct fipsee_service_options options = served;
	struct fipsee_service *service, *another;
	struct fipsee_caller *caller;
	pthread_t threads[2];
	struct reply reply = { 0 };
	int32_t asked = 0;

	the_socket = argc > 1 ? argv[1] : "services.sock";
	options.socket_path = the_socket;
	EXPECT(fipsee_service_open(&options, &service), 0);
	FAILS(fipsee_service_reply(service, &reply), -EINVAL, "fipsee_service_next comes first");
	FAILS(fipsee_service_refuse(service, "why"), -EINVAL, "fipsee_service_next comes first");
	FAILS(fipsee_service_next(service, NULL, -1), -EINVAL, "call is a null pointer");
	EXPECT(fipsee_service_share(service, &another), 0);
	EXPECT(pthread_create(&threads[0], NULL, serve, service), 0);
	EXPECT(pthread_create(&threads[1], NULL, serve, another), 0);
	opening();
	calling();
	event_loop();
	doorbells();
	forking(service);
	EXPECT(fipsee_service_stop(another), 0);
	EXPECT(pthread_join(threads[0], NULL), 0);
	EXPECT(pthread_join(threads[1], NULL), 0);
	EXPECT(fipsee_service_close(another), 0);
	EXPECT(fipsee_service_close(service), 0);
	FAILS(open_caller(wanted, &caller), -ENOENT, "no server at");
	options.allow = allow_nobody;
	options.context = &asked;
	EXPECT(fipsee_service_open(&options, &service), 0);
	FAILS(open_caller(wanted, &caller), -EACCES, "may not call");
	EXPECT(asked, getpid());
	EXPECT(fipsee_service_close(service), 0);
	puts("done");
	return 0;
}
