/* SPDX-License-Identifier: GPL-2.0-only */
/* Reconnecting after the daemon was restarted. */
#define _GNU_SOURCE
#include "engine.h"

#include <time.h>

/* Pauses between two attempts: the first, doubled up to the longest. */
#define FIRST_PAUSE_MS 5
#define LONGEST_PAUSE_MS 1000

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void pause_ms(int64_t duration_ms)
{
	struct timespec pause = { .tv_sec = duration_ms / 1000, .tv_nsec = duration_ms % 1000 * 1000000 };

	nanosleep(&pause, NULL);
}

/* May the next attempt succeed? The new daemon may not be there, or not complete, or hold us for its other client. */
static bool is_transient(int outcome)
{
	switch (-outcome) {
	case ENOENT:
	case ECONNREFUSED:
	case EAGAIN:
	case ENOTCONN:
	case EBUSY:
	case ENOSPC:
	case ETIMEDOUT:
		return true;
	default:
		return false;
	}
}

int fipsee_reconnect(struct thread_data *td, struct engine *engine, struct channel_error *error)
{
	const struct engine_options *given = td->eo;
	struct channel_memory *const memories[] = { &engine->buffers, &engine->bounce };
	int64_t deadline_ms = now_ms() + (int64_t)given->reconnect_s * 1000;
	int64_t next_ms = FIRST_PAUSE_MS;
	char path[PATH_MAX];
	struct channel_options wanted;

	if (given->reconnect_s == 0)
		return -ENOTCONN;
	fipsee_channel_options(td, &wanted, path);
	log_info("fipsee: the daemon is gone; waiting up to %u s for the next\n", given->reconnect_s);
	for (;;) {
		int outcome = channel_reopen(&engine->channel, &wanted, memories, 2, fipsee_build, engine, error);

		if (outcome == 0) {
			log_info("fipsee: connected again\n");
			return 0;
		}
		if (!is_transient(outcome))
			return outcome;
		/* fio ends, or the time is up. */
		if (td->terminate || now_ms() + next_ms > deadline_ms)
			return -ENOTCONN;
		pause_ms(next_ms);
		next_ms = next_ms * 2 < LONGEST_PAUSE_MS ? next_ms * 2 : LONGEST_PAUSE_MS;
	}
}
