// SPDX-License-Identifier: MIT OR Apache-2.0
#include "guest.h"

#include <string.h>

static const struct {
	const char *name;
	int (*main)(int argc, char **argv);
	const char *arguments;
} COMMANDS[] = {
	{ "sizes", sizes_main, "DEVICE STEP_BYTES SEED" },
	{ "zeroes", zeroes_main, "DEVICE SEED" },
	{ "stress", stress_main, "DIRECTORY PROCESSES OPERATIONS SEED" },
	{ "tree", tree_main, "DIRECTORY FILES SEED" },
	{ "follow", follow_main, "DEVICE VIRTIO READS LEAST [CPU]" },
	{ "kills", kills_main, "DEVICE KILLS THREADS SEED REPORTS FIRST" },
};

int main(int argc, char **argv)
{
	size_t count = sizeof(COMMANDS) / sizeof(COMMANDS[0]);
	for (size_t i = 0; i < count && argc > 1; i++)
		if (!strcmp(argv[1], COMMANDS[i].name))
			return COMMANDS[i].main(argc - 1, argv + 1);
	for (size_t i = 0; i < count; i++)
		fprintf(stderr, "usage: fip-guest %s %s\n", COMMANDS[i].name, COMMANDS[i].arguments);
	return 2;
}
