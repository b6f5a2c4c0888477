// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * fip_bench: the cost of the ring between two CPUs of one kernel. A caller publishes a batch of calls and waits for as many
 * answers; an answerer answers each. For batches of 1 to 64 calls and each way to wait: cycles of the batch and per call, as
 * tables below debugfs.
 *
 *   insmod fip_bench.ko; echo 1 > /sys/module/fip_bench/parameters/run; cat /sys/kernel/debug/fip_bench/results
 */
#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/sort.h>

#include "ticks.h"
#include "fipsee_ring.h"

#define FIP_MAX_BATCH 64
#define FIP_BATCH_SIZES 7
#define FIP_RING_SLOTS 128
#define FIP_MWAIT_TICKS 100000

enum fip_wait { FIP_WAIT_SPIN, FIP_WAIT_PAUSE, FIP_WAIT_MWAIT, FIP_WAITS };
static const char *const fip_wait_names[FIP_WAITS] = { "spin", "pause", "mwait" };

static int fip_caller_cpu = -1;
module_param_named(caller_cpu, fip_caller_cpu, int, 0644);
MODULE_PARM_DESC(caller_cpu, "CPU of the caller; -1: the first");

static int fip_answerer_cpu = -1;
module_param_named(answerer_cpu, fip_answerer_cpu, int, 0644);
MODULE_PARM_DESC(answerer_cpu, "CPU of the answerer; -1: the second");

static unsigned int fip_rounds = 20000;
module_param_named(rounds, fip_rounds, uint, 0644);
MODULE_PARM_DESC(rounds, "batches measured for each line of a table");

static char fip_waits[32];
module_param_string(waits, fip_waits, sizeof(fip_waits), 0644);
MODULE_PARM_DESC(waits, "ways to wait, such as spin,pause,mwait; all that the CPU has if empty");

static DEFINE_MUTEX(fip_running);
static struct dentry *fip_debugfs;

struct fip_line {
	bool is_measured;
	u32 min, p50, p99;
	u64 mean;
};

static struct fip_line fip_lines[FIP_WAITS][FIP_BATCH_SIZES];
static u64 fip_checked;
static char fip_header[160] = "nothing was measured yet: write 1 to the parameter run\n";

/* ---- The two sides --------------------------------------------------------------------------------------------- */

struct fip_bench {
	void *pages;
	size_t bytes;
	enum fip_wait wait;
	bool stop;
	struct fipsee_ring calls, answers;
	u32 *samples;
	unsigned int rounds;
	unsigned int batch;
	u64 checked;				/* correct answers */
	int fault;
	struct completion caller_done, answerer_done;
};

static void fip_pause(struct fip_bench *bench, const struct fipsee_reader *reader)
{
	const struct fipsee_slot *slot = &reader->ring.slots[reader->cursor.index];
	u32 stamp = READ_ONCE(slot->stamp);

	if (bench->wait == FIP_WAIT_MWAIT && stamp != reader->cursor.stamp)
		fip_mwait(&slot->stamp, stamp, FIP_MWAIT_TICKS);
	else if (bench->wait == FIP_WAIT_PAUSE)
		cpu_relax();
}

static int fip_answer(void *data)
{
	struct fip_bench *bench = data;
	struct fipsee_reader reader;
	struct fipsee_writer writer;
	union fipsee_message message;
	unsigned int looks = 0;

	if (fipsee_reader_init(&reader, bench->calls, fipsee_cursor_at_start(0)) ||
	    fipsee_writer_init(&writer, bench->answers, fipsee_cursor_at_start(0)))
		bench->fault = -EINVAL;
	while (!READ_ONCE(bench->stop) && !bench->fault) {
		if (fipsee_reader_receive(&reader, &message)) {
			fipsee_writer_publish(&writer, &message);
			continue;
		}
		fip_pause(bench, &reader);
		if (++looks % 4096 == 0)
			cond_resched();
	}
	kthread_complete_and_exit(&bench->answerer_done, 0);
}

/* One batch; false if an answer is wrong. */
static bool fip_exchange(struct fip_bench *bench, struct fipsee_writer *writer, struct fipsee_reader *reader, u64 number)
{
	union fipsee_message message = {};
	unsigned int index;

	for (index = 0; index < bench->batch; index++) {
		message.words[0] = number * FIP_MAX_BATCH + index;
		message.words[6] = ~message.words[0];
		fipsee_writer_publish(writer, &message);
	}
	for (index = 0; index < bench->batch; index++) {
		while (!fipsee_reader_receive(reader, &message)) {
			fip_pause(bench, reader);
			if (READ_ONCE(bench->stop))
				return false;
		}
		if (message.words[0] != number * FIP_MAX_BATCH + index || message.words[6] != ~message.words[0])
			return false;
		bench->checked++;
	}
	return true;
}

static int fip_call(void *data)
{
	struct fip_bench *bench = data;
	struct fipsee_writer writer;
	struct fipsee_reader reader;
	unsigned int round, warm_up = bench->rounds / 10;

	if (fipsee_writer_init(&writer, bench->calls, fipsee_cursor_at_start(0)) ||
	    fipsee_reader_init(&reader, bench->answers, fipsee_cursor_at_start(0)))
		bench->fault = -EINVAL;
	for (round = 0; round < bench->rounds + warm_up && !bench->fault; round++) {
		u64 began = fip_ticks();

		if (!fip_exchange(bench, &writer, &reader, round))
			bench->fault = -EIO;
		if (round >= warm_up)
			bench->samples[round - warm_up] = (u32)min_t(u64, fip_ticks() - began, U32_MAX);
		if (round % 256 == 0)
			cond_resched();
	}
	WRITE_ONCE(bench->stop, true);
	kthread_complete_and_exit(&bench->caller_done, 0);
}

/* ---- Measuring ------------------------------------------------------------------------------------------------- */

static int fip_compare(const void *left, const void *right)
{
	return *(const u32 *)left < *(const u32 *)right ? -1 : *(const u32 *)left > *(const u32 *)right;
}

static void fip_summarize(struct fip_bench *bench, struct fip_line *line)
{
	unsigned int index;
	u64 sum = 0;

	sort(bench->samples, bench->rounds, sizeof(u32), fip_compare, NULL);
	for (index = 0; index < bench->rounds; index++)
		sum += bench->samples[index];
	line->min = bench->samples[0];
	line->p50 = bench->samples[bench->rounds / 2];
	line->p99 = bench->samples[(u64)bench->rounds * 99 / 100];
	line->mean = div_u64(sum, bench->rounds);
	line->is_measured = true;
}

static int fip_start_on(int (*function)(void *data), struct fip_bench *bench, unsigned int cpu, const char *name)
{
	struct task_struct *task = kthread_create_on_node(function, bench, cpu_to_node(cpu), "fip_bench/%s", name);

	if (IS_ERR(task))
		return PTR_ERR(task);
	kthread_bind(task, cpu);
	wake_up_process(task);
	return 0;
}

static int fip_measure(struct fip_bench *bench, unsigned int caller_cpu, unsigned int answerer_cpu, struct fip_line *line)
{
	struct fipsee_slot *slots = bench->pages;
	struct fipsee_cold *cold = (struct fipsee_cold *)(slots + 2 * FIP_RING_SLOTS);
	int error;

	memset(bench->pages, 0, bench->bytes);
	bench->calls = (struct fipsee_ring){ slots, &cold[0], FIP_RING_SLOTS };
	bench->answers = (struct fipsee_ring){ slots + FIP_RING_SLOTS, &cold[1], FIP_RING_SLOTS };
	bench->stop = false;
	bench->fault = 0;
	reinit_completion(&bench->caller_done);
	reinit_completion(&bench->answerer_done);
	error = fip_start_on(fip_answer, bench, answerer_cpu, "answerer");
	if (error)
		return error;
	error = fip_start_on(fip_call, bench, caller_cpu, "caller");
	if (error)
		WRITE_ONCE(bench->stop, true);
	else
		wait_for_completion(&bench->caller_done);
	wait_for_completion(&bench->answerer_done);
	error = error ?: bench->fault;
	if (!error)
		fip_summarize(bench, line);
	return error;
}

static int fip_choose_cpu(int wanted, unsigned int place, unsigned int *cpu)
{
	if (wanted >= 0 && !(wanted < nr_cpu_ids && cpu_online(wanted)))
		return -EINVAL;
	*cpu = wanted >= 0 ? (unsigned int)wanted : cpumask_local_spread(place % num_online_cpus(), NUMA_NO_NODE);
	return 0;
}

/* The ways to wait that are named, as bits; without names, all. */
static int fip_choose_waits(unsigned int *waits)
{
	char copy[sizeof(fip_waits)], *rest = copy, *word;
	int wait;

	strscpy(copy, fip_waits, sizeof(copy));
	*waits = 0;
	while ((word = strsep(&rest, ",\n"))) {
		if (!*word)
			continue;
		wait = match_string(fip_wait_names, FIP_WAITS, word);
		if (wait < 0) {
			snprintf(fip_header, sizeof(fip_header), "the parameter waits names what is none of spin, pause, mwait: %s\n", word);
			return -EINVAL;
		}
		*waits |= 1U << wait;
	}
	if (!*waits)
		*waits = 1U << FIP_WAIT_SPIN | 1U << FIP_WAIT_PAUSE | (fip_can_mwait() ? 1U << FIP_WAIT_MWAIT : 0);
	if (!(*waits & 1U << FIP_WAIT_MWAIT) || fip_can_mwait())
		return 0;
	snprintf(fip_header, sizeof(fip_header), "this CPU shows neither WAITPKG nor MONITOR: leave mwait out of the parameter waits\n");
	return -EOPNOTSUPP;
}

static int fip_measure_all(struct fip_bench *bench)
{
	unsigned int caller_cpu, answerer_cpu, size, waits;
	int error = fip_choose_cpu(fip_caller_cpu, 0, &caller_cpu) ?: fip_choose_cpu(fip_answerer_cpu, 1, &answerer_cpu);

	if (error)
		return error;
	memset(fip_lines, 0, sizeof(fip_lines));
	fip_checked = 0;
	error = fip_choose_waits(&waits);
	if (error)
		return error;
	if (caller_cpu == answerer_cpu) {
		snprintf(fip_header, sizeof(fip_header), "caller and answerer need a CPU each: this machine has one, or the parameters name one\n");
		return -EINVAL;
	}
	snprintf(fip_header, sizeof(fip_header), "caller on CPU %u, answerer on CPU %u, %u rounds, %llu ticks per us\n", caller_cpu,
		 answerer_cpu, bench->rounds, div_u64(fip_measure_ticks_per_ms(), 1000));
	for (bench->wait = FIP_WAIT_SPIN; !error && bench->wait < FIP_WAITS; bench->wait++) {
		for (size = 0; !error && waits & 1U << bench->wait && size < FIP_BATCH_SIZES; size++) {
			bench->batch = 1U << size;
			error = fip_measure(bench, caller_cpu, answerer_cpu, &fip_lines[bench->wait][size]);
		}
	}
	fip_checked = bench->checked;
	return error;
}

static int fip_run(void)
{
	struct fip_bench *bench = kzalloc(sizeof(*bench), GFP_KERNEL);
	int error = -ENOMEM;

	if (!bench)
		return -ENOMEM;
	bench->rounds = clamp(fip_rounds, 100U, 1000000U);
	bench->bytes = 2 * FIP_RING_SLOTS * FIPSEE_SLOT_BYTES + 2 * FIPSEE_COLD_BYTES;
	bench->pages = alloc_pages_exact(bench->bytes, GFP_KERNEL);
	bench->samples = kvcalloc(bench->rounds, sizeof(u32), GFP_KERNEL);
	init_completion(&bench->caller_done);
	init_completion(&bench->answerer_done);
	if (bench->pages && bench->samples)
		error = fip_measure_all(bench);
	if (bench->pages)
		free_pages_exact(bench->pages, bench->bytes);
	kvfree(bench->samples);
	kfree(bench);
	return error;
}

/* ---- The module ------------------------------------------------------------------------------------------------ */

static int fip_show(struct seq_file *file, void *unused)
{
	unsigned int wait, size;

	mutex_lock(&fip_running);
	seq_puts(file, fip_header);
	if (fip_checked)
		seq_printf(file, "%llu answers, each what was asked\n", fip_checked);
	for (wait = 0; wait < FIP_WAITS; wait++) {
		if (!fip_lines[wait][0].is_measured)
			continue;
		seq_printf(file, "\n%s: cycles\nbatch      min     mean      p50      p99  mean/call\n", fip_wait_names[wait]);
		for (size = 0; size < FIP_BATCH_SIZES; size++) {
			const struct fip_line *line = &fip_lines[wait][size];

			if (line->is_measured)
				seq_printf(file, "%5u %8u %8llu %8u %8u %10llu\n", 1U << size, line->min, line->mean, line->p50,
					   line->p99, line->mean >> size);
		}
	}
	mutex_unlock(&fip_running);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(fip);

static int fip_set_run(const char *text, const struct kernel_param *parameter)
{
	int error = -EINTR;

	/* Other parameters stay readable; a writer that waits must not hold the lock that the running one takes at its end. */
	kernel_param_unlock(THIS_MODULE);
	if (!mutex_lock_interruptible(&fip_running)) {
		error = fip_run();
		mutex_unlock(&fip_running);
	}
	kernel_param_lock(THIS_MODULE);
	return error;
}

static const struct kernel_param_ops fip_run_operations = { .set = fip_set_run };
module_param_cb(run, &fip_run_operations, NULL, 0200);
MODULE_PARM_DESC(run, "write anything: measure now");

static int __init fip_init(void)
{
	fip_debugfs = debugfs_create_dir("fip_bench", NULL);
	debugfs_create_file("results", 0444, fip_debugfs, NULL, &fip_fops);
	return 0;
}

static void __exit fip_exit(void)
{
	debugfs_remove_recursive(fip_debugfs);
}

module_init(fip_init);
module_exit(fip_exit);
MODULE_DESCRIPTION("The Fip-see ring between two CPUs");
MODULE_LICENSE("Dual MIT/GPL");
