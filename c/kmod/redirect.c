// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Completions that are found on another CPU than that of their request, and end there all the same.
 *
 * Where they end is blk-mq's rule, which the disk's queue/rq_affinity sets. But blk_mq_complete_request() does not follow it where a hardware
 * queue has one CPU: Linux 6.1 takes it for granted then that the interrupt came there. Nor is it aware of batches. So the rule
 * is here again, and one call to the other CPU ends all that was found since the last one.
 */
#include <linux/llist.h>
#include <linux/percpu.h>
#include <linux/smp.h>

#include "fip_blk.h"

/* What is to end on a CPU. The call is made by what adds to an empty list, so it is never made twice at once. */
struct fip_remote {
	struct llist_head requests;		/* by ipi_list, as blk-mq has them */
	call_single_data_t call;
};
static DEFINE_PER_CPU_SHARED_ALIGNED(struct fip_remote, fip_remote);

/* Under a ring's reap bit, thus on one CPU. */
bool fip_redirect_is_due(const struct request *rq)
{
	const unsigned long *flags = &rq->q->queue_flags;
	unsigned int here = smp_processor_id(), cpu;

	/* A poller looks for the end of its request itself. With real-time preemption nothing may end in the other CPU's interrupt. */
	if (IS_ENABLED(CONFIG_PREEMPT_RT) || !test_bit(QUEUE_FLAG_SAME_COMP, flags) || rq->cmd_flags & REQ_POLLED)
		return false;
	cpu = blk_mq_rq_cpu((struct request *)rq);
	if (cpu == here || (!test_bit(QUEUE_FLAG_SAME_FORCE, flags) && fip_cache_of(cpu) == fip_cache_of(here)))
		return false;
	return cpu_online(cpu);
}

static void fip_redirect_end(void *info)
{
	struct fip_remote *remote = info;
	struct llist_node *list = llist_reverse_order(llist_del_all(&remote->requests));
	DEFINE_IO_COMP_BATCH(batch);
	struct request *rq, *next;

	llist_for_each_entry_safe(rq, next, list, ipi_list) {
		if (!blk_mq_add_to_batch(rq, &batch, false, blk_mq_end_request_batch))
			blk_mq_end_request(rq, BLK_STS_OK);
	}
	if (!fip_rq_list_is_empty(&batch.req_list))
		blk_mq_end_request_batch(&batch);
}

/* Those that succeeded and for which it is due, last first. Not under a lock: if a CPU has gone meanwhile, its requests end here. */
void fip_redirect(struct llist_node *list)
{
	/* No CPU goes offline meanwhile, and one that goes afterwards answers the call before. */
	preempt_disable();
	while (list) {
		struct llist_node *first = list, *last = list;
		unsigned int cpu = blk_mq_rq_cpu(llist_entry(first, struct request, ipi_list));
		struct fip_remote *remote = per_cpu_ptr(&fip_remote, cpu);

		while (last->next && blk_mq_rq_cpu(llist_entry(last->next, struct request, ipi_list)) == cpu)
			last = last->next;
		list = last->next;
		if (llist_add_batch(first, last, &remote->requests) && smp_call_function_single_async(cpu, &remote->call))
			fip_redirect_end(remote);
	}
	preempt_enable();
}

void fip_redirect_init(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct fip_remote *remote = per_cpu_ptr(&fip_remote, cpu);

		init_llist_head(&remote->requests);
		INIT_CSD(&remote->call, fip_redirect_end, remote);
	}
}
