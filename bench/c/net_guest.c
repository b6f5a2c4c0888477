/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The first process of a guest of `cargo xtask bench net --only guest`, and the only one: one end of TCP connections.
 *
 * It sets up its interfaces as the kernel's command line says: guest_links=NAME:ADDRESS,... with 24 bits of network each. Then it accepts
 * one connection after the other on port 7000. The first byte of each says what it does, until its client ends the connection:
 *
 *   e  send messages of MESSAGE bytes back
 *   s  take all that comes, and send its number of bytes (8 bytes, big endian) when the client has sent all
 *   g  send as much as the client takes
 *   h  answer with one byte and halt the machine
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT 7000
#define MESSAGE 64
#define PIECE (64 << 10)

static char buffer[PIECE];

static void halt(void)
{
	sync();
	reboot(RB_POWER_OFF);
	_exit(1);
}

/* The host has the console in a file. */
static void check(bool succeeded, const char *what)
{
	if (succeeded)
		return;
	printf("net-guest: %s: %s\n", what, strerror(errno));
	fflush(stdout);
	halt();
}

static void change(int any, struct ifreq *request, unsigned long call, const char *what)
{
	char text[64];
	snprintf(text, sizeof text, "%.15s: %s", request->ifr_name, what);
	check(ioctl(any, call, request) == 0, text);
}

static void set_up(int any, const char *name, const char *address)
{
	struct ifreq request = { 0 };
	struct sockaddr_in in = { .sin_family = AF_INET };
	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	if (address) {
		check(inet_pton(AF_INET, address, &in.sin_addr) == 1, address);
		memcpy(&request.ifr_addr, &in, sizeof in);
		change(any, &request, SIOCSIFADDR, "its address");
		in.sin_addr.s_addr = htonl(0xffffff00);
		memcpy(&request.ifr_netmask, &in, sizeof in);
		change(any, &request, SIOCSIFNETMASK, "its network");
	}
	change(any, &request, SIOCGIFFLAGS, "its flags");
	request.ifr_flags |= IFF_UP;
	change(any, &request, SIOCSIFFLAGS, "up");
}

/* `links` is changed. */
static void set_up_all(char *links)
{
	int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	check(any >= 0, "a socket");
	set_up(any, "lo", NULL);
	for (char *link = strtok(links, ","); link; link = strtok(NULL, ",")) {
		char *colon = strchr(link, ':');
		errno = EINVAL;
		check(colon != NULL, link);
		*colon = 0;
		set_up(any, link, colon + 1);
	}
	close(any);
}

static bool get(int peer, char *to, size_t length)
{
	for (size_t got = 0; got < length;) {
		ssize_t more = read(peer, to + got, length - got);
		if (more <= 0)
			return false;
		got += (size_t)more;
	}
	return true;
}

static bool put(int peer, const void *from, size_t length)
{
	for (size_t sent = 0; sent < length;) {
		ssize_t more = write(peer, (const char *)from + sent, length - sent);
		if (more < 0)
			return false;
		sent += (size_t)more;
	}
	return true;
}

static void serve(int peer)
{
	char kind;
	if (!get(peer, &kind, 1))
		return;
	switch (kind) {
	case 'e':
		while (get(peer, buffer, MESSAGE) && put(peer, buffer, MESSAGE))
			;
		break;
	case 's': {
		uint64_t bytes = 0;
		for (ssize_t more; (more = read(peer, buffer, sizeof buffer)) > 0;)
			bytes += (uint64_t)more;
		bytes = htobe64(bytes);
		put(peer, &bytes, sizeof bytes);
		break;
	}
	case 'g':
		while (put(peer, buffer, sizeof buffer))
			;
		break;
	case 'h':
		put(peer, &kind, 1);
		close(peer);
		halt();
		break;
	default:
		printf("net-guest: no order %d\n", kind);
	}
}

int main(void)
{
	/* The kernel hands its first process the settings that it does not know itself. */
	char *links = getenv("guest_links");
	int one = 1;
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int console = open("/dev/console", O_RDWR);
	for (int fd = 0; fd < 3 && console >= 0; fd++)
		dup2(console, fd);
	signal(SIGPIPE, SIG_IGN);
	errno = EINVAL;
	check(links != NULL, "guest_links is not on the kernel's command line");
	set_up_all(links);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	check(listener >= 0, "a socket");
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	check(bind(listener, (struct sockaddr *)&any, sizeof any) == 0, "the port");
	check(listen(listener, 8) == 0, "the port");
	for (;;) {
		int peer = accept(listener, NULL, NULL);
		check(peer >= 0, "a connection");
		setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		serve(peer);
		close(peer);
	}
}
