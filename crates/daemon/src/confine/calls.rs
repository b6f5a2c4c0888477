//! Which system calls the daemon may make once it serves: those on a list, and nothing else (docs/decisions/0019-confinement.md).

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Flags of clone(2) that make namespaces.
const CLONE_NEW: u64 = 0x7e02_0080;
const CLONE_THREAD: u64 = 0x0001_0000;
const PROT_EXEC: u64 = 4;
const AF_UNIX: u64 = 1;
const PR_SET_NAME: u64 = 15;
const FIONBIO: u64 = 0x5421;
const BLKSSZGET: u64 = 0x1268;
const BLKGETSIZE64: u64 = 0x8008_1272;

/// Calls whatever their arguments.
const ALLOWED: &[c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mbind,
    libc::SYS_memfd_create,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mremap,
    libc::SYS_munlock,
    libc::SYS_munmap,
    libc::SYS_set_mempolicy,
    // Files; which ones is landlock's part.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fadvise64,
    libc::SYS_faccessat,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // The kernel rings of file disks; they were made before, and can do what their restrictions say.
    libc::SYS_io_uring_enter,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_ppoll,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    // Unix sockets; of other kinds none can be made.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Threads, their ends, and that of the process.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_membarrier,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    // What we are.
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_uname,
];

/// What only older machines have beside its successor.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_chmod,
    libc::SYS_epoll_wait,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

/// What no daemon of ours ever does, and whoever has taken one over would do next.
const FATAL: &[c_long] = &[
    // Become another program, or look into one.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    // Become another user, or one in another world.
    libc::SYS_capset,
    libc::SYS_chroot,
    libc::SYS_personality,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setns,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setuid,
    libc::SYS_unshare,
    // Mounts, and files past their paths.
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_umount2,
    // The kernel itself.
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_perf_event_open,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    // Its clock and its names.
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_settimeofday,
];

#[cfg(target_arch = "x86_64")]
const FATAL_HERE: &[c_long] =
    &[libc::SYS_fork, libc::SYS_ioperm, libc::SYS_iopl, libc::SYS_kexec_file_load, libc::SYS_modify_ldt, libc::SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const FATAL_HERE: &[c_long] = &[];

/// Calls of which only some arguments are allowed; all of a rule's conditions must hold.
fn allowed_with_arguments() -> Vec<(c_long, Vec<Condition>)> {
    let own = u64::from(std::process::id());
    let ioctls = [FIONBIO, BLKSSZGET, BLKGETSIZE64].map(|request| (libc::SYS_ioctl, vec![is(1, request)]));
    // That an eventfd hears of a ring, or does no more; what else can be registered, the restrictions of our rings forbid as well.
    let registered = [4, 5].map(|operation| (libc::SYS_io_uring_register, vec![is(1, operation)]));
    let others = [
        // A thread, with everything shared.
        (libc::SYS_clone, vec![bits(0, CLONE_THREAD | CLONE_NEW, CLONE_THREAD)]),
        // Another filter says that there is no such call: its flags are in memory, where none can look.
        (libc::SYS_clone3, Vec::new()),
        // No memory that can be executed.
        (libc::SYS_mmap, vec![bits(2, PROT_EXEC, 0)]),
        (libc::SYS_mprotect, vec![bits(2, PROT_EXEC, 0)]),
        (libc::SYS_socket, vec![is(0, AF_UNIX)]),
        (libc::SYS_socketpair, vec![is(0, AF_UNIX)]),
        // abort(3), and a disk that fails like a power supply; nobody else's process.
        (libc::SYS_kill, vec![is(0, own)]),
        (libc::SYS_tgkill, vec![is(0, own)]),
        // Limits are asked for, not changed.
        (libc::SYS_prlimit64, vec![is(0, 0), whole(2, 0)]),
        (libc::SYS_prctl, vec![is(0, PR_SET_NAME)]),
    ];
    ioctls.into_iter().chain(registered).chain(others).collect()
}

/// In the order in which they are set: the last one allows no further ones.
#[derive(Debug)]
pub(super) struct Filters([BpfProgram; 3]);

impl Filters {
    pub(super) fn new() -> Result<Self, seccompiler::BackendError> {
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        // The C library then makes threads by clone(2), whose flags can be looked at.
        let unknown = SeccompAction::Errno(errno(libc::ENOSYS));
        let no_clone3 = program(rules([libc::SYS_clone3], Vec::new())?, SeccompAction::Allow, unknown, arch)?;
        let processes = vec![
            (libc::SYS_clone, vec![bits(0, CLONE_THREAD, 0)]),
            (libc::SYS_socket, vec![Condition(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, AF_UNIX)]),
        ];
        let fatal = rules(FATAL.iter().chain(FATAL_HERE).copied(), processes)?;
        let fatal = program(fatal, SeccompAction::Allow, SeccompAction::KillProcess, arch)?;
        let allowed = rules(ALLOWED.iter().chain(ALLOWED_HERE).copied(), allowed_with_arguments())?;
        let allowed = program(allowed, SeccompAction::Errno(errno(libc::EPERM)), SeccompAction::Allow, arch)?;
        Ok(Self([no_clone3, fatal, allowed]))
    }

    /// Have the kernel refuse everything else from now on, in all threads.
    pub(super) fn restrict(&self) -> Result<(), seccompiler::Error> {
        self.0.iter().try_for_each(|filter| seccompiler::apply_filter_all_threads(filter))
    }
}

const fn errno(errno: i32) -> u32 {
    errno.cast_unsigned()
}

fn program(
    rules: Rules,
    otherwise: SeccompAction,
    then: SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, seccompiler::BackendError> {
    SeccompFilter::new(rules, otherwise, then, arch)?.try_into()
}

fn rules(
    whole: impl IntoIterator<Item = c_long>,
    some: Vec<(c_long, Vec<Condition>)>,
) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = whole.into_iter().map(|call| (call, Vec::new())).collect();
    for (call, conditions) in some {
        let of_call = rules.entry(call).or_default();
        if !conditions.is_empty() {
            let conditions = conditions.into_iter().map(Condition::build).collect::<Result<_, _>>()?;
            of_call.push(SeccompRule::new(conditions)?);
        }
    }
    Ok(rules)
}

/// What an argument must be: its number, its width, how it compares with what.
struct Condition(u8, SeccompCmpArgLen, SeccompCmpOp, u64);

impl Condition {
    fn build(self) -> Result<SeccompCondition, seccompiler::BackendError> {
        let Self(argument, width, comparison, value) = self;
        SeccompCondition::new(argument, width, comparison, value)
    }
}

/// An `int`: the kernel looks at no more of it.
const fn is(argument: u8, value: u64) -> Condition {
    Condition(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// A `long` or a pointer.
const fn whole(argument: u8, value: u64) -> Condition {
    Condition(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value)
}

const fn bits(argument: u8, mask: u64, value: u64) -> Condition {
    Condition(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value)
}
