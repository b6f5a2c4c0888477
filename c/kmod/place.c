// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Where threads run: what the kernel knows of the CPUs; place.h decides.
 */
#include <linux/cpumask.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/topology.h>

#include "fip_blk.h"
#include "place.h"

/* Of all disks, so that their threads do not share a CPU. Under the lock, which is innermost. */
static DEFINE_PER_CPU(unsigned int, fip_threads_on);
static DEFINE_MUTEX(fip_place_lock);

/* Of the memory of the ring that a thread has first, else of the device. */
static int fip_node_of(const struct fip_thread *thread)
{
	const struct fip_disk *disk = thread->disk;
	const void *pages = thread->index < disk->ring_count ? READ_ONCE(disk->rings[thread->index].memory.pages) : NULL;
	struct device *parent = disk->vdev->dev.parent;

	if (pages)
		return page_to_nid(virt_to_page(pages));
	return parent ? dev_to_node(parent) : NUMA_NO_NODE;
}

static unsigned int fip_threads_beside(unsigned int cpu)
{
	unsigned int sibling, count = 0;

	for_each_cpu(sibling, topology_sibling_cpumask(cpu)) {
		if (sibling != cpu)
			count += per_cpu(fip_threads_on, sibling);
	}
	return count;
}

/* With the CPUs locked: chooses `thread->cpu` among those that are online. */
void fip_place_thread(struct fip_thread *thread)
{
	const struct fip_thread *first = &thread->disk->threads[0];
	int node = fip_node_of(thread);
	struct fip_place best = { .threads = UINT_MAX };
	unsigned int cpu;

	mutex_lock(&fip_place_lock);
	if (thread->is_placed)
		per_cpu(fip_threads_on, thread->cpu)--;
	for_each_online_cpu(cpu) {
		struct fip_place place = {
			.cpu = cpu,
			.threads = per_cpu(fip_threads_on, cpu),
			.beside = fip_threads_beside(cpu),
			.is_far = node != NUMA_NO_NODE && cpu_to_node(cpu) != node,
			.is_cold = first != thread && first->is_placed && fip_cache_of(cpu) != fip_cache_of(first->cpu),
		};

		if (fip_place_is_better(&place, &best))
			best = place;
	}
	per_cpu(fip_threads_on, best.cpu)++;
	thread->cpu = best.cpu;
	thread->is_placed = true;
	mutex_unlock(&fip_place_lock);
}

void fip_unplace_thread(struct fip_thread *thread)
{
	mutex_lock(&fip_place_lock);
	if (thread->is_placed)
		per_cpu(fip_threads_on, thread->cpu)--;
	thread->is_placed = false;
	mutex_unlock(&fip_place_lock);
}
