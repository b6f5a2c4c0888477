/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What net_peers.c measures, and net_ways.c opens: two ends of a way of the kernel's. */
#ifndef NET_WAYS_H
#define NET_WAYS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOST (64 << 10) /* of a message */
#define BURST 32

struct end;
/*
 * Both do what is possible now, without waiting: bytes that were taken of those given, or put there. A message that is longer than a
 * frame is several.
 */
typedef size_t put(struct end *end, const char *bytes, size_t length);
typedef size_t get(struct end *end, char *bytes, size_t length);

extern put *put_some;
extern get *get_some;
extern struct end *const ends[2];
/* Bytes that are put at once. */
extern size_t longest;

void fail(const char *what) __attribute__((noreturn));
void check(long outcome, const char *what);
size_t least(size_t a, size_t b);
/* In a network namespace of its own, but for `devices`. */
void open_way(const char *way);

#endif
