/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The file server of the report on the split driver model, and its clients, as the report describes them:
 *
 *   split-driver server FOLDER SLOTS FILE      serve the sectors of FILE until killed; prints a line when ready
 *   split-driver client FOLDER THREADS REQUESTS OUTPUT
 *                                              REQUESTS random sectors in all, shared out among threads, one at a time each
 *
 * A registration thread takes process numbers from a ring with a published name, makes a ring of SLOTS slots for each client
 * process, and starts a worker thread for it. The worker hands the next request of its ring to the one file thread, and waits
 * until that is served, the client has been notified, and has copied its data. The file thread walks the circular list of
 * clients, one request of each. All waiting is by semaphores, mutexes and condition variables in shared memory. Names in
 * /dev/shm are files in FOLDER, which is to be there.
 *
 * OUTPUT is of 64-bit words: for each thread the number of its requests, the nanoseconds from the common start to its last
 * answer, and the nanoseconds of each request, from before it takes a slot until its data is copied.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SECTOR_BYTES 512
#define REGISTRATION_SLOTS 16
#define STACK_BYTES (64 * 1024)
#define NAME_BYTES 4096

struct registration_slot {
	int32_t process;
	uint64_t first_sector, last_sector;
	sem_t done, taken;
};

struct registration {
	pthread_mutex_t mutex;
	sem_t free, filled;
	uint64_t next;
	struct registration_slot slots[REGISTRATION_SLOTS];
};

struct slot {
	uint64_t sector;
	sem_t answered, taken;
	unsigned char data[SECTOR_BYTES];
};

/* Of one client process. Its threads are synchronous, so the server needs one index and each thread the one of its request. */
struct ring {
	pthread_mutex_t mutex;
	sem_t free, pending;
	uint64_t slot_count, next;
	struct slot slots[];
};

/* A client in the circular list of the file thread. */
struct node {
	struct node *next;
	struct ring *ring;
	struct slot *request;	/* pending, else null */
	sem_t served;
};

static const char *folder;
static uint64_t slot_count, sector_count;
static int file;
static struct node *last_served;
static pthread_mutex_t work_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_is_there = PTHREAD_COND_INITIALIZER;

static _Noreturn void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void take(sem_t *semaphore)
{
	while (sem_wait(semaphore) != 0)
		;	/* interrupted by a signal */
}

static void shared_semaphore(sem_t *semaphore, uint64_t value)
{
	if (sem_init(semaphore, 1, (unsigned int)value) != 0)
		fail("sem_init");
}

static void shared_mutex(pthread_mutex_t *mutex)
{
	pthread_mutexattr_t attributes;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(mutex, &attributes);
}

/* Shared memory by its name; length_bytes of 0: it is there. */
static void *shared_memory(const char *name, size_t length_bytes)
{
	char path[NAME_BYTES];
	struct stat status;
	void *memory;
	int memory_file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	memory_file = open(path, O_RDWR | (length_bytes > 0 ? O_CREAT | O_EXCL : 0), 0600);
	if (memory_file < 0 || (length_bytes > 0 && ftruncate(memory_file, (off_t)length_bytes) != 0))
		fail(path);
	if (fstat(memory_file, &status) != 0)
		fail(path);
	memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, memory_file, 0);
	if (memory == MAP_FAILED)
		fail(path);
	close(memory_file);
	return memory;
}

static void spawn(pthread_t *thread, void *(*run)(void *), void *argument)
{
	pthread_attr_t attributes;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	if (pthread_create(thread, &attributes, run, argument) != 0)
		fail("pthread_create");
}

static void *file_thread(void *unused)
{
	(void)unused;
	for (;;) {
		struct node *node;

		pthread_mutex_lock(&work_mutex);
		for (;;) {
			/* From the one behind the last that was served, once around. */
			node = last_served != NULL ? last_served->next : NULL;
			while (node != NULL && node->request == NULL && node != last_served)
				node = node->next;
			if (node != NULL && node->request != NULL)
				break;
			pthread_cond_wait(&work_is_there, &work_mutex);
		}
		last_served = node;
		pthread_mutex_unlock(&work_mutex);
		/* No cache of its own: from the file, into the client's slot. */
		if (pread(file, node->request->data, SECTOR_BYTES, (off_t)(node->request->sector * SECTOR_BYTES)) != SECTOR_BYTES)
			fail("pread");
		pthread_mutex_lock(&work_mutex);
		node->request = NULL;
		pthread_mutex_unlock(&work_mutex);
		sem_post(&node->served);
	}
	return NULL;
}

/* Between one client's ring and the file thread: one request at a time. */
static void *worker_thread(void *argument)
{
	struct node *node = argument;
	uint64_t next;

	for (next = 0;; next++) {
		struct slot *slot = &node->ring->slots[next % node->ring->slot_count];

		take(&node->ring->pending);
		if (slot->sector >= sector_count)
			fail("a sector beyond the end");
		pthread_mutex_lock(&work_mutex);
		node->request = slot;
		pthread_cond_signal(&work_is_there);
		pthread_mutex_unlock(&work_mutex);
		take(&node->served);
		sem_post(&slot->answered);
		take(&slot->taken);
		sem_post(&node->ring->free);
	}
	return NULL;
}

static struct ring *make_ring(int32_t process)
{
	char name[32];
	struct ring *ring;
	uint64_t index;

	snprintf(name, sizeof(name), "client-%d", process);
	ring = shared_memory(name, sizeof(*ring) + slot_count * sizeof(ring->slots[0]));
	ring->slot_count = slot_count;
	shared_mutex(&ring->mutex);
	shared_semaphore(&ring->free, slot_count);
	shared_semaphore(&ring->pending, 0);
	for (index = 0; index < slot_count; index++) {
		shared_semaphore(&ring->slots[index].answered, 0);
		shared_semaphore(&ring->slots[index].taken, 0);
	}
	return ring;
}

static void register_client(struct registration_slot *slot)
{
	struct node *node = calloc(1, sizeof(*node));
	pthread_t thread;

	if (node == NULL)
		fail("calloc");
	node->ring = make_ring(slot->process);
	shared_semaphore(&node->served, 0);
	pthread_mutex_lock(&work_mutex);
	if (last_served == NULL) {
		node->next = node;
		last_served = node;
	} else {
		node->next = last_served->next;
		last_served->next = node;
	}
	pthread_mutex_unlock(&work_mutex);
	spawn(&thread, worker_thread, node);
	slot->first_sector = 0;
	slot->last_sector = sector_count - 1;
	sem_post(&slot->done);
}

/* The registration thread. */
static int serve(void)
{
	struct registration *registration = shared_memory("registration", sizeof(*registration));
	pthread_t thread;
	uint64_t next;

	shared_mutex(&registration->mutex);
	shared_semaphore(&registration->free, REGISTRATION_SLOTS);
	shared_semaphore(&registration->filled, 0);
	for (next = 0; next < REGISTRATION_SLOTS; next++) {
		shared_semaphore(&registration->slots[next].done, 0);
		shared_semaphore(&registration->slots[next].taken, 0);
	}
	spawn(&thread, file_thread, NULL);
	puts("ready");
	fflush(stdout);
	for (next = 0;; next++) {
		struct registration_slot *slot = &registration->slots[next % REGISTRATION_SLOTS];

		take(&registration->filled);
		register_client(slot);
		take(&slot->taken);
		sem_post(&registration->free);
	}
	return 0;
}

struct client {
	struct ring *ring;
	pthread_barrier_t *start;
	const uint64_t *started_ns;
	uint64_t last_sector, random, request_count, elapsed_ns;
	uint64_t *latencies_ns;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What the benchmark writes into its files, at this offset. */
static unsigned char content(uint64_t offset)
{
	return (unsigned char)((uint32_t)(offset % (1u << 20)) * 2654435761u >> 24);
}

static void request(struct client *client)
{
	struct ring *ring = client->ring;
	unsigned char data[SECTOR_BYTES];
	struct slot *slot;
	uint64_t sector;

	client->random = client->random * 6364136223846793005u + 1442695040888963407u;
	sector = (client->random >> 32) % (client->last_sector + 1);
	take(&ring->free);
	pthread_mutex_lock(&ring->mutex);
	slot = &ring->slots[ring->next++ % ring->slot_count];
	slot->sector = sector;
	pthread_mutex_unlock(&ring->mutex);
	sem_post(&ring->pending);
	take(&slot->answered);
	memcpy(data, slot->data, sizeof(data));
	sem_post(&slot->taken);
	if (data[0] != content(sector * SECTOR_BYTES) || data[SECTOR_BYTES - 1] != content(sector * SECTOR_BYTES + SECTOR_BYTES - 1)) {
		fprintf(stderr, "split-driver: wrong data of sector %llu\n", (unsigned long long)sector);
		exit(1);
	}
}

static void *client_thread(void *argument)
{
	struct client *client = argument;
	uint64_t index;

	pthread_barrier_wait(client->start);
	for (index = 0; index < client->request_count; index++) {
		uint64_t before_ns = now_ns();

		request(client);
		client->latencies_ns[index] = now_ns() - before_ns;
	}
	client->elapsed_ns = now_ns() - *client->started_ns;
	return NULL;
}

/* The last sector, and the ring by the name that the server gives it. */
static struct ring *register_here(uint64_t *last_sector)
{
	struct registration *registration = shared_memory("registration", 0);
	struct registration_slot *slot;
	char name[32];

	take(&registration->free);
	pthread_mutex_lock(&registration->mutex);
	slot = &registration->slots[registration->next++ % REGISTRATION_SLOTS];
	slot->process = getpid();
	pthread_mutex_unlock(&registration->mutex);
	sem_post(&registration->filled);
	take(&slot->done);
	*last_sector = slot->last_sector;
	sem_post(&slot->taken);
	snprintf(name, sizeof(name), "client-%d", getpid());
	return shared_memory(name, 0);
}

static int load(uint64_t thread_count, uint64_t request_count, const char *path)
{
	struct client *clients = calloc(thread_count, sizeof(*clients));
	pthread_t *threads = calloc(thread_count, sizeof(*threads));
	pthread_barrier_t start;
	uint64_t last_sector = 0, started_ns = 0, index;
	struct ring *ring;
	FILE *output;

	if (clients == NULL || threads == NULL)
		fail("calloc");
	ring = register_here(&last_sector);
	pthread_barrier_init(&start, NULL, (unsigned int)thread_count + 1);
	for (index = 0; index < thread_count; index++) {
		struct client *client = &clients[index];

		client->ring = ring;
		client->start = &start;
		client->started_ns = &started_ns;
		client->last_sector = last_sector;
		client->random = index + 1;
		client->request_count = request_count / thread_count + (index < request_count % thread_count);
		client->latencies_ns = calloc(client->request_count + 1, sizeof(uint64_t));
		if (client->latencies_ns == NULL)
			fail("calloc");
		spawn(&threads[index], client_thread, client);
	}
	started_ns = now_ns();
	pthread_barrier_wait(&start);
	for (index = 0; index < thread_count; index++)
		pthread_join(threads[index], NULL);
	output = fopen(path, "w");
	if (output == NULL)
		fail(path);
	for (index = 0; index < thread_count; index++) {
		fwrite(&clients[index].request_count, sizeof(uint64_t), 1, output);
		fwrite(&clients[index].elapsed_ns, sizeof(uint64_t), 1, output);
		fwrite(clients[index].latencies_ns, sizeof(uint64_t), clients[index].request_count, output);
	}
	if (fclose(output) != 0)
		fail(path);
	return 0;
}

int main(int argc, char **argv)
{
	struct stat status;

	if (argc == 5 && strcmp(argv[1], "server") == 0) {
		folder = argv[2];
		slot_count = strtoull(argv[3], NULL, 10);
		file = open(argv[4], O_RDONLY);
		if (file < 0 || fstat(file, &status) != 0)
			fail(argv[4]);
		sector_count = (uint64_t)status.st_size / SECTOR_BYTES;
		if (slot_count > 0 && sector_count > 0)
			return serve();
	}
	if (argc == 6 && strcmp(argv[1], "client") == 0) {
		folder = argv[2];
		if (strtoull(argv[3], NULL, 10) > 0)
			return load(strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), argv[5]);
	}
	fputs("usage: split-driver server FOLDER SLOTS FILE | client FOLDER THREADS REQUESTS OUTPUT\n", stderr);
	return 2;
}
