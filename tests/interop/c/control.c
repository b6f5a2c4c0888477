/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Control messages, decoded and encoded from docs/protocol.md section 4, not from the Rust code. */
#include <string.h>

#include "interop.h"

union any_control {
	struct fipsee_control_header header;
	struct fipsee_hello hello;
	struct fipsee_welcome welcome;
	struct fipsee_attach attach;
	struct fipsee_attached attached;
	struct fipsee_refused refused;
	struct fipsee_register reg;
	struct fipsee_region_id id;
	struct fipsee_list list;
	struct fipsee_listed listed;
	uint8_t bytes[FIPSEE_MAX_MESSAGE_BYTES];
};

static size_t length_of(uint64_t kind)
{
	switch (kind) {
	case FIPSEE_HELLO: return sizeof(struct fipsee_hello);
	case FIPSEE_WELCOME: return sizeof(struct fipsee_welcome);
	case FIPSEE_ATTACH: return sizeof(struct fipsee_attach);
	case FIPSEE_ATTACHED: return sizeof(struct fipsee_attached);
	case FIPSEE_REFUSED: return sizeof(struct fipsee_refused);
	case FIPSEE_REGISTER: return sizeof(struct fipsee_register);
	case FIPSEE_REGISTERED:
	case FIPSEE_UNREGISTER:
	case FIPSEE_UNREGISTERED: return sizeof(struct fipsee_region_id);
	case FIPSEE_DETACH:
	case FIPSEE_DETACHED: return sizeof(struct fipsee_control_header);
	case FIPSEE_LIST: return sizeof(struct fipsee_list);
	case FIPSEE_LISTED: return sizeof(struct fipsee_listed);
	default: return 0;
	}
}

/* Well-formed UTF-8: shortest form, no surrogates, at most U+10FFFF. */
static int is_utf8(const uint8_t *text, size_t length)
{
	size_t at = 0;

	while (at < length) {
		uint8_t lead = text[at++];
		unsigned int more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
		uint8_t low = 0x80, high = 0xbf;

		if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4)
			return 0;
		if (lead == 0xe0)
			low = 0xa0;
		if (lead == 0xed)
			high = 0x9f;
		if (lead == 0xf0)
			low = 0x90;
		if (lead == 0xf4)
			high = 0x8f;
		for (; more > 0; more--) {
			if (at == length || text[at] < low || text[at] > high)
				return 0;
			at++;
			low = 0x80;
			high = 0xbf;
		}
	}
	return 1;
}

static int all_zero(const uint8_t *bytes, size_t length)
{
	while (length > 0)
		if (bytes[--length] != 0)
			return 0;
	return 1;
}

/* The length of a name, which is UTF-8 and has zeroes behind it; -1: it is not so. */
static int name_length(const uint8_t *name)
{
	size_t length = 0;

	while (length < FIPSEE_MAX_NAME_BYTES && name[length] != 0)
		length++;
	return is_utf8(name, length) && all_zero(name + length, FIPSEE_MAX_NAME_BYTES - length) ? (int)length : -1;
}

static int decode_list(const union any_control *in, struct interop_control *out)
{
	int length = name_length(in->list.after);

	if (length < 0 || in->list.reserved != 0)
		return 0;
	out->values[1] = in->list.service;
	out->text_bytes = (uint32_t)length;
	memcpy(out->text, in->list.after, (size_t)length);
	return 1;
}

static int decode_listed(const union any_control *in, struct interop_control *out)
{
	uint32_t count = in->listed.count, index;

	if (count > FIPSEE_MAX_LISTED || in->listed.more > 1)
		return 0;
	for (index = 0; index < count; index++)
		if (name_length(in->listed.entries[index].name) < 0)
			return 0;
	if (!all_zero(in->bytes + offsetof(struct fipsee_listed, entries) + count * sizeof(struct fipsee_listed_entry),
		      (FIPSEE_MAX_LISTED - count) * sizeof(struct fipsee_listed_entry)))
		return 0;
	out->values[1] = count;
	out->values[2] = in->listed.more;
	out->text_bytes = sizeof(in->listed.entries);
	memcpy(out->text, in->listed.entries, sizeof(in->listed.entries));
	return 1;
}

static int decode_attach(const union any_control *in, struct interop_control *out)
{
	int length = name_length(in->attach.name);

	if (length < 0)
		return 0;
	out->values[1] = in->attach.service;
	out->values[2] = in->attach.queue_count;
	out->values[3] = in->attach.depth;
	out->values[4] = in->attach.flags;
	out->values[5] = in->attach.pool_bytes;
	out->text_bytes = (uint32_t)length;
	memcpy(out->text, in->attach.name, (size_t)length);
	return 1;
}

/* `strict`: the header says our version. Otherwise a later version may have put more behind, and a zero into, the text. */
static int decode_refused(const union any_control *in, size_t length_bytes, int strict, struct interop_control *out)
{
	uint32_t used = in->refused.text_bytes;
	size_t length = 0;

	if (length_bytes < 20 || used > FIPSEE_MAX_REFUSAL_BYTES || length_bytes < 20 + (size_t)used)
		return 0;
	while (length < used && in->refused.text[length] != 0)
		length++;
	if (!is_utf8(in->refused.text, length))
		return 0;
	if (strict && (length != used || !all_zero(in->refused.text + used, FIPSEE_MAX_REFUSAL_BYTES - used)))
		return 0;
	out->values[1] = in->refused.code;
	out->text_bytes = (uint32_t)length;
	memcpy(out->text, in->refused.text, length);
	return 1;
}

static int decode_fields(const union any_control *in, struct interop_control *out)
{
	switch (in->header.kind) {
	case FIPSEE_HELLO:
		out->values[1] = in->hello.version_min;
		out->values[2] = in->hello.version_max;
		out->values[3] = in->hello.features;
		return 1;
	case FIPSEE_WELCOME:
		out->values[1] = in->welcome.version;
		out->values[2] = in->welcome.max_queues;
		out->values[3] = in->welcome.max_depth;
		out->values[4] = in->welcome.features;
		out->values[5] = in->welcome.max_pool_bytes;
		return in->welcome.reserved == 0;
	case FIPSEE_ATTACH:
		return decode_attach(in, out);
	case FIPSEE_ATTACHED:
		out->values[1] = in->attached.queue_count;
		out->values[2] = in->attached.region_bytes;
		out->text_bytes = FIPSEE_SERVICE_INFO_BYTES;
		memcpy(out->text, in->attached.service_info, FIPSEE_SERVICE_INFO_BYTES);
		return in->attached.reserved == 0;
	case FIPSEE_REGISTER:
		out->values[1] = in->reg.region;
		out->values[2] = in->reg.access;
		out->values[3] = in->reg.length_bytes;
		return 1;
	case FIPSEE_REGISTERED:
	case FIPSEE_UNREGISTER:
	case FIPSEE_UNREGISTERED:
		out->values[1] = in->id.region;
		return in->id.reserved == 0;
	case FIPSEE_LIST:
		return decode_list(in, out);
	case FIPSEE_LISTED:
		return decode_listed(in, out);
	default:
		return 1;
	}
}

int interop_control_decode(const uint8_t *bytes, size_t length_bytes, struct interop_control *out)
{
	union any_control in;
	size_t expected;
	int other_version;

	memset(out, 0, sizeof(*out));
	memset(&in, 0, sizeof(in));
	if (length_bytes < sizeof(in.header) || length_bytes > sizeof(in))
		return 0;
	memcpy(&in, bytes, length_bytes);
	if (in.header.magic != FIPSEE_CONTROL_MAGIC || in.header.length_bytes != length_bytes)
		return 0;
	expected = length_of(in.header.kind);
	if (expected == 0)
		return 0;
	out->values[0] = in.header.kind;
	other_version = in.header.version != FIPSEE_VERSION;
	if (in.header.kind == FIPSEE_REFUSED)
		return decode_refused(&in, length_bytes, !other_version, out) &&
		       (other_version || length_bytes == expected);
	if (other_version)
		return in.header.kind == FIPSEE_HELLO && length_bytes >= expected && decode_fields(&in, out);
	return length_bytes == expected && decode_fields(&in, out);
}

size_t interop_control_encode(const struct interop_control *in, uint8_t *into)
{
	union any_control out;
	size_t length = length_of(in->values[0]);

	memset(&out, 0, sizeof(out));
	out.header.magic = FIPSEE_CONTROL_MAGIC;
	out.header.kind = (uint16_t)in->values[0];
	out.header.version = FIPSEE_VERSION;
	out.header.length_bytes = (uint32_t)length;
	switch (in->values[0]) {
	case FIPSEE_HELLO:
		out.hello.version_min = (uint16_t)in->values[1];
		out.hello.version_max = (uint16_t)in->values[2];
		out.hello.features = in->values[3];
		break;
	case FIPSEE_WELCOME:
		out.welcome.version = (uint16_t)in->values[1];
		out.welcome.max_queues = (uint16_t)in->values[2];
		out.welcome.max_depth = (uint32_t)in->values[3];
		out.welcome.features = in->values[4];
		out.welcome.max_pool_bytes = in->values[5];
		break;
	case FIPSEE_ATTACH:
		out.attach.service = (uint16_t)in->values[1];
		out.attach.queue_count = (uint16_t)in->values[2];
		out.attach.depth = (uint32_t)in->values[3];
		out.attach.flags = (uint32_t)in->values[4];
		out.attach.pool_bytes = in->values[5];
		memcpy(out.attach.name, in->text, sizeof(out.attach.name));
		break;
	case FIPSEE_ATTACHED:
		out.attached.queue_count = (uint16_t)in->values[1];
		out.attached.region_bytes = in->values[2];
		memcpy(out.attached.service_info, in->text, sizeof(out.attached.service_info));
		break;
	case FIPSEE_REFUSED:
		out.refused.code = (uint32_t)in->values[1];
		out.refused.text_bytes = in->text_bytes;
		memcpy(out.refused.text, in->text, sizeof(out.refused.text));
		break;
	case FIPSEE_REGISTER:
		out.reg.region = (uint16_t)in->values[1];
		out.reg.access = (uint16_t)in->values[2];
		out.reg.length_bytes = in->values[3];
		break;
	case FIPSEE_REGISTERED:
	case FIPSEE_UNREGISTER:
	case FIPSEE_UNREGISTERED:
		out.id.region = (uint16_t)in->values[1];
		break;
	case FIPSEE_LIST:
		out.list.service = (uint16_t)in->values[1];
		memcpy(out.list.after, in->text, sizeof(out.list.after));
		break;
	case FIPSEE_LISTED:
		out.listed.count = (uint16_t)in->values[1];
		out.listed.more = (uint16_t)in->values[2];
		memcpy(out.listed.entries, in->text, sizeof(out.listed.entries));
		break;
	default:
		break;
	}
	memcpy(into, &out, length);
	return length;
}
