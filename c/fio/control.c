/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "control.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* How long the daemon may take to answer. It takes microseconds unless the machine stalls or it drains a slow disk. */
#define ANSWER_TIMEOUT_MS 10000

int channel_fail(struct channel_error *error, int number, const char *format, ...)
{
	va_list arguments;

	error->number = number;
	va_start(arguments, format);
	vsnprintf(error->text, sizeof(error->text), format, arguments);
	va_end(arguments);
	return -number;
}

static int fault(struct channel_error *error, const char *what, unsigned long long value)
{
	return channel_fail(error, EPROTO, "the daemon gave %llu as %s, which the protocol does not allow", value, what);
}

static int fail_to_connect(const char *path, int number, struct channel_error *error)
{
	switch (number) {
	case ENOENT:
		return channel_fail(error, number,
				    "no daemon at %s: there is no such socket; start fipseed, or name its socket with "
				    "socket= or FIPSEE_SOCKET", path);
	case ECONNREFUSED:
		return channel_fail(error, number, "no daemon at %s: the socket is there but nothing listens; start fipseed",
				    path);
	case EACCES:
		return channel_fail(error, number, "no permission to open %s; ask for write permission on the socket", path);
	default:
		return channel_fail(error, number, "cannot connect to %s: %s", path, strerror(number));
	}
}

int control_connect(const char *path, struct channel_error *error)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t length_bytes = strlen(path);
	int control;

	if (length_bytes == 0 || length_bytes > FIPSEE_MAX_SOCKET_PATH_BYTES)
		return channel_fail(error, EINVAL, "socket path '%.120s' has %zu bytes; a Unix socket path has 1 to %d", path,
				    length_bytes, FIPSEE_MAX_SOCKET_PATH_BYTES);
	memcpy(address.sun_path, path, length_bytes + 1);
	control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (control < 0)
		return channel_fail(error, errno, "cannot make a socket: %s", strerror(errno));
	while (connect(control, (const struct sockaddr *)&address, sizeof(address)) != 0) {
		int number = errno;

		if (number == EINTR)
			continue;
		close(control);
		return fail_to_connect(path, number, error);
	}
	return control;
}

struct fipsee_control_header control_header(uint16_t kind, size_t length_bytes)
{
	struct fipsee_control_header header = {
		.magic = FIPSEE_CONTROL_MAGIC, .kind = kind, .version = FIPSEE_VERSION, .length_bytes = (uint32_t)length_bytes,
	};

	return header;
}

static int control_send(int control, const void *message, int descriptor)
{
	size_t length_bytes = ((const struct fipsee_control_header *)message)->length_bytes;
	union {
		struct cmsghdr header;
		uint8_t space[CMSG_SPACE(sizeof(int))];
	} ancillary = { .space = { 0 } };
	struct iovec vector = { .iov_base = (void *)(uintptr_t)message, .iov_len = length_bytes };
	struct msghdr packet = { .msg_iov = &vector, .msg_iovlen = 1 };
	ssize_t sent;

	if (descriptor >= 0) {
		packet.msg_control = ancillary.space;
		packet.msg_controllen = sizeof(ancillary.space);
		ancillary.header.cmsg_level = SOL_SOCKET;
		ancillary.header.cmsg_type = SCM_RIGHTS;
		ancillary.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&ancillary.header), &descriptor, sizeof(int));
	}
	do {
		sent = sendmsg(control, &packet, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)length_bytes ? 0 : sent < 0 ? -errno : -EPROTO;
}

void control_close_descriptors(struct control_answer *answer, uint32_t first)
{
	while (answer->descriptor_count > first)
		close(answer->descriptors[--answer->descriptor_count]);
}

/* Keep the descriptors of a received packet; those beyond the protocol's count are closed. */
static void take_descriptors(struct msghdr *packet, struct control_answer *answer)
{
	struct cmsghdr *part;

	for (part = CMSG_FIRSTHDR(packet); part; part = CMSG_NXTHDR(packet, part)) {
		size_t count, index;

		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (index = 0; index < count; index++) {
			int descriptor;

			memcpy(&descriptor, CMSG_DATA(part) + index * sizeof(int), sizeof(int));
			if (answer->descriptor_count < FIPSEE_MAX_DESCRIPTORS)
				answer->descriptors[answer->descriptor_count++] = descriptor;
			else
				close(descriptor);
		}
	}
}

/* Take one packet if one is there: 1; 0 when there is none yet; -ENOTCONN when the daemon has closed. */
static int try_receive(int control, struct control_answer *answer, struct channel_error *error)
{
	union {
		struct cmsghdr header;
		uint8_t space[CMSG_SPACE(FIPSEE_MAX_DESCRIPTORS * sizeof(int))];
	} ancillary;
	struct iovec vector = { .iov_base = answer->bytes, .iov_len = sizeof(answer->bytes) };
	struct msghdr packet = { .msg_iov = &vector, .msg_iovlen = 1, .msg_control = ancillary.space,
				 .msg_controllen = sizeof(ancillary.space) };
	ssize_t received = recvmsg(control, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	answer->descriptor_count = 0;
	if (received < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (received == 0 || (received < 0 && errno == ECONNRESET))
		return channel_fail(error, ENOTCONN, "%s", QUEUE_DISCONNECTED_TEXT);
	if (received < 0)
		return channel_fail(error, errno, "cannot talk to the daemon: %s", strerror(errno));
	take_descriptors(&packet, answer);
	answer->length_bytes = (size_t)received;
	if (packet.msg_flags & MSG_CTRUNC) {
		control_close_descriptors(answer, 0);
		return channel_fail(error, EMFILE, "the daemon's descriptors did not fit: raise the limit of open files "
				    "(ulimit -n)");
	}
	return 1;
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int receive(int control, struct control_answer *answer, const char *what, struct channel_error *error)
{
	int64_t deadline_ms = now_ms() + ANSWER_TIMEOUT_MS;

	for (;;) {
		struct pollfd ready = { .fd = control, .events = POLLIN };
		int64_t left_ms = deadline_ms - now_ms();
		int outcome = try_receive(control, answer, error);

		if (outcome != 0)
			return outcome < 0 ? outcome : 0;
		if (left_ms <= 0)
			return channel_fail(error, ETIMEDOUT, "the daemon did not answer %s in time; is it stopped or overloaded?",
					    what);
		poll(&ready, 1, (int)left_ms);
	}
}

static bool is_zero(const uint8_t *bytes, size_t count)
{
	while (count > 0 && *bytes == 0) {
		bytes++;
		count--;
	}
	return count == 0;
}

/* Is this UTF-8 without zero bytes? Overlong forms, surrogates and what is beyond U+10FFFF are not. */
static bool is_text(const uint8_t *bytes, size_t count)
{
	size_t at = 0;

	while (at < count) {
		uint8_t lead = bytes[at];
		size_t more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
		uint32_t code = lead < 0x80 ? lead : lead & (0x3fU >> more);
		static const uint32_t least[] = { 1, 0x80, 0x800, 0x10000 };
		size_t index;

		if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || at + more >= count)
			return false;
		for (index = 1; index <= more; index++) {
			if ((bytes[at + index] & 0xc0) != 0x80)
				return false;
			code = code << 6 | (bytes[at + index] & 0x3f);
		}
		if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
			return false;
		at += more + 1;
	}
	return true;
}

/* The daemon refused: its text becomes the error. A refusal of another version may be longer (section 4.2). */
static int take_refusal(const struct control_answer *answer, struct channel_error *error)
{
	const struct fipsee_refused *refused = &answer->refused;
	size_t head_bytes = offsetof(struct fipsee_refused, text);
	size_t text_bytes;
	int number;

	if (answer->length_bytes < head_bytes || refused->text_bytes > FIPSEE_MAX_REFUSAL_BYTES ||
	    head_bytes + refused->text_bytes > answer->length_bytes)
		return channel_fail(error, EPROTO, "the daemon sent a malformed refusal");
	text_bytes = refused->text_bytes;
	/* Its text ends at a zero, whatever that version puts behind it. */
	if (refused->header.version != FIPSEE_VERSION)
		text_bytes = strnlen((const char *)refused->text, text_bytes);
	if (!is_text(refused->text, text_bytes))
		return channel_fail(error, EPROTO, "the daemon sent a malformed refusal");
	if (refused->header.version == FIPSEE_VERSION &&
	    (answer->length_bytes != sizeof(*refused) || !is_zero(refused->text + text_bytes, sizeof(refused->text) - text_bytes)))
		return channel_fail(error, EPROTO, "the daemon sent a malformed refusal");
	switch (refused->code) {
	case FIPSEE_REFUSAL_UNKNOWN_NAME:
		number = ENOENT;
		break;
	case FIPSEE_REFUSAL_NOT_ALLOWED:
		number = EACCES;
		break;
	case FIPSEE_REFUSAL_BUSY:
		number = EBUSY;
		break;
	case FIPSEE_REFUSAL_LIMIT:
		number = ENOSPC;
		break;
	case FIPSEE_REFUSAL_SHUTTING_DOWN:
		number = ENOTCONN;
		break;
	default:
		number = EINVAL;
	}
	return channel_fail(error, number, "%.*s", (int)text_bytes, (const char *)refused->text);
}

static int check(const struct control_answer *answer, uint16_t kind, struct channel_error *error)
{
	const struct fipsee_control_header *header = &answer->header;
	size_t expected_bytes;

	if (answer->length_bytes < sizeof(*header) || answer->length_bytes > FIPSEE_MAX_MESSAGE_BYTES ||
	    header->magic != FIPSEE_CONTROL_MAGIC || header->length_bytes != answer->length_bytes)
		return channel_fail(error, EPROTO, "the daemon sent something that is not a control message");
	if (answer->descriptor_count > 0 && header->kind != FIPSEE_ATTACHED)
		return channel_fail(error, EPROTO, "the daemon sent descriptors that the protocol does not know");
	if (header->kind == FIPSEE_REFUSED)
		return take_refusal(answer, error);
	if (header->version != FIPSEE_VERSION)
		return fault(error, "the version of a message", header->version);
	if (header->kind == FIPSEE_DETACHED && kind != FIPSEE_DETACHED)
		return channel_fail(error, ENOTCONN, "%s", QUEUE_DISCONNECTED_TEXT);	/* it is shutting down */
	if (header->kind != kind)
		return fault(error, "the kind of an answer", header->kind);
	expected_bytes = kind == FIPSEE_WELCOME ? sizeof(struct fipsee_welcome) :
			 kind == FIPSEE_ATTACHED ? sizeof(struct fipsee_attached) :
			 kind == FIPSEE_DETACHED ? sizeof(struct fipsee_control_header) : sizeof(struct fipsee_region_id);
	if (answer->length_bytes != expected_bytes)
		return fault(error, "the length of an answer", answer->length_bytes);
	return 0;
}

int control_ask(int control, const void *request, uint16_t kind, int descriptor, const char *what,
		struct control_answer *answer, struct channel_error *error)
{
	/* A refusal may already be waiting when the daemon hangs up, so the answer says why a send failed. */
	int sent = control_send(control, request, descriptor);
	int outcome = receive(control, answer, what, error);

	/* When it hangs up with our request unread, the kernel reports the reset first and then hands out the refusal. */
	if (outcome == -ENOTCONN && try_receive(control, answer, error) == 1)
		outcome = 0;
	if (outcome == 0)
		outcome = check(answer, kind, error);
	else if (sent != 0 && sent != -EPIPE && sent != -ECONNRESET)
		outcome = channel_fail(error, -sent, "cannot talk to the daemon: %s", strerror(-sent));
	if (outcome != 0)
		control_close_descriptors(answer, 0);
	return outcome;
}
