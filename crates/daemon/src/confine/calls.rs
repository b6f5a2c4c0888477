//! The system calls that the daemon may make once it serves: those on a list, and no others (docs/decisions/0019-confinement.md).

use std::collections::BTreeMap;

use fipsee_serve::{Argument, Needs};
use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Flags of clone(2) that make namespaces.
const CLONE_NEW: u64 = 0x7e02_0080;
const CLONE_THREAD: u64 = 0x0001_0000;
const PROT_EXEC: u64 = 4;
const AF_UNIX: u32 = 1;
const PR_SET_NAME: u32 = 15;
const FIONBIO: u32 = 0x5421;

macro_rules! calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}
pub(crate) use calls;

/// Calls with any arguments, for every service: those of the runtime, the transports, the log and the C library.
const ALLOWED: &[c_long] = calls! {
    // Memory.
    SYS_brk SYS_madvise SYS_mbind SYS_memfd_create SYS_mremap SYS_munmap SYS_set_mempolicy
    // Files; which ones is landlock's part.
    SYS_close SYS_dup SYS_dup3 SYS_faccessat SYS_fchmod SYS_fchmodat SYS_fcntl SYS_flock SYS_fstat SYS_ftruncate
    SYS_getcwd SYS_getdents64 SYS_lseek SYS_mkdirat SYS_newfstatat SYS_openat SYS_read SYS_readlinkat SYS_readv
    SYS_statx SYS_unlinkat SYS_write SYS_writev
    // The kernel rings of engines and interrupts; they were made before, and are limited by their restrictions.
    SYS_io_uring_enter
    // Waiting.
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_futex SYS_ppoll
    SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_gettimeofday SYS_nanosleep SYS_restart_syscall
    SYS_sched_yield
    // Unix sockets; no other sockets can be made.
    SYS_accept4 SYS_bind SYS_connect SYS_getpeername SYS_getsockname SYS_getsockopt SYS_listen SYS_recvfrom
    SYS_recvmsg SYS_sendmsg SYS_sendto SYS_setsockopt SYS_shutdown
    // Threads, their ends, and that of the process.
    SYS_exit SYS_exit_group SYS_membarrier SYS_rseq SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn
    SYS_sched_getaffinity SYS_sched_setaffinity SYS_set_robust_list SYS_sigaltstack
    // Another filter returns ENOSYS for this call: its flags are in memory, which no filter can read.
    SYS_clone3
    // The process itself.
    SYS_getcpu SYS_getegid SYS_geteuid SYS_getgid SYS_getpid SYS_getrandom SYS_gettid SYS_getuid SYS_uname
};

/// Calls that only older architectures have beside their successors.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = calls! {
    SYS_access SYS_chmod SYS_epoll_wait SYS_lstat SYS_mkdir SYS_open SYS_poll SYS_readlink SYS_stat SYS_time SYS_unlink
};
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

/// Calls that the daemon never makes and that an attacker would make next. No service can allow them.
const FATAL: &[c_long] = calls! {
    // Become another program, or inspect one.
    SYS_execve SYS_execveat SYS_kcmp SYS_pidfd_getfd SYS_process_madvise SYS_process_vm_readv SYS_process_vm_writev
    SYS_ptrace
    // Become another user, or enter another namespace.
    SYS_capset SYS_chroot SYS_personality SYS_setfsgid SYS_setfsuid SYS_setgid SYS_setgroups SYS_setns SYS_setregid
    SYS_setresgid SYS_setresuid SYS_setreuid SYS_setuid SYS_unshare
    // Mounts, and files without their paths.
    SYS_fsconfig SYS_fsmount SYS_fsopen SYS_fspick SYS_mount SYS_mount_setattr SYS_move_mount SYS_open_by_handle_at
    SYS_open_tree SYS_pivot_root SYS_umount2
    // The kernel itself.
    SYS_acct SYS_add_key SYS_bpf SYS_delete_module SYS_fanotify_init SYS_finit_module SYS_init_module SYS_kexec_load
    SYS_keyctl SYS_perf_event_open SYS_quotactl SYS_reboot SYS_request_key SYS_swapoff SYS_swapon SYS_syslog
    SYS_userfaultfd SYS_vhangup
    // Its clock and its names.
    SYS_adjtimex SYS_clock_adjtime SYS_clock_settime SYS_setdomainname SYS_sethostname SYS_settimeofday
};

#[cfg(target_arch = "x86_64")]
const FATAL_HERE: &[c_long] = calls! { SYS_fork SYS_ioperm SYS_iopl SYS_kexec_file_load SYS_modify_ldt SYS_vfork };
#[cfg(not(target_arch = "x86_64"))]
const FATAL_HERE: &[c_long] = &[];

/// Calls of which only some arguments are allowed; all of a rule's conditions must hold.
fn allowed_with_arguments() -> Vec<(c_long, Vec<Argument>)> {
    let (int, own) = (Argument::int, std::process::id());
    // No memory that can be executed.
    let not_executable = || vec![Argument { index: 2, mask: PROT_EXEC, value: 0 }];
    vec![
        (libc::SYS_ioctl, vec![int(1, FIONBIO)]),
        // Register an eventfd with a ring, or unregister it; the restrictions of our rings forbid all other registrations as
        // well.
        (libc::SYS_io_uring_register, vec![int(1, 4)]),
        (libc::SYS_io_uring_register, vec![int(1, 5)]),
        // A thread, with everything shared.
        (libc::SYS_clone, vec![Argument { index: 0, mask: CLONE_THREAD | CLONE_NEW, value: CLONE_THREAD }]),
        (libc::SYS_mmap, not_executable()),
        (libc::SYS_mprotect, not_executable()),
        (libc::SYS_socket, vec![int(0, AF_UNIX)]),
        (libc::SYS_socketpair, vec![int(0, AF_UNIX)]),
        // abort(3), and a disk that simulates a power cut; not other processes.
        (libc::SYS_kill, vec![int(0, own)]),
        (libc::SYS_tgkill, vec![int(0, own)]),
        // Limits are read, not changed.
        (libc::SYS_prlimit64, vec![int(0, 0), Argument { index: 2, mask: u64::MAX, value: 0 }]),
        (libc::SYS_prctl, vec![int(0, PR_SET_NAME)]),
    ]
}

/// In the order in which they are set: the last one allows no further ones.
#[derive(Debug)]
pub(super) struct Filters([BpfProgram; 3]);

impl Filters {
    pub(super) fn new(needs: &Needs) -> Result<Self, BackendError> {
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        let program = |rules, otherwise, then| SeccompFilter::new(rules, otherwise, then, arch)?.try_into();
        // The C library then makes threads by clone(2), whose flags a filter can read.
        let unknown = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        let no_clone3 = program(rules(&[&[libc::SYS_clone3]], &[])?, SeccompAction::Allow, unknown)?;
        let mut fatal =
            rules(&[FATAL, FATAL_HERE], &[(libc::SYS_clone, vec![Argument { index: 0, mask: CLONE_THREAD, value: 0 }])])?;
        let family = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, AF_UNIX.into())?;
        fatal.insert(libc::SYS_socket, vec![SeccompRule::new(vec![family])?]);
        let fatal = program(fatal, SeccompAction::Allow, SeccompAction::KillProcess)?;
        let allowed =
            rules(&[ALLOWED, ALLOWED_HERE, &needs.calls], &[allowed_with_arguments(), needs.calls_with.clone()].concat())?;
        let refused = SeccompAction::Errno(libc::EPERM.cast_unsigned());
        Ok(Self([no_clone3, fatal, program(allowed, refused, SeccompAction::Allow)?]))
    }

    /// Make the kernel refuse everything else from now on, in all threads.
    pub(super) fn restrict(&self) -> Result<(), seccompiler::Error> {
        self.0.iter().try_for_each(|filter| seccompiler::apply_filter_all_threads(filter))
    }
}

/// A filter of `whole` calls with any arguments, and of `some` arguments of others.
fn rules(whole: &[&[c_long]], some: &[(c_long, Vec<Argument>)]) -> Result<Rules, BackendError> {
    let mut rules = Rules::new();
    for (call, arguments) in some {
        let condition = |Argument { index, mask, value }: &Argument| {
            SeccompCondition::new(*index, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(*mask), *value)
        };
        let conditions = arguments.iter().map(condition).collect::<Result<_, _>>()?;
        rules.entry(*call).or_default().push(SeccompRule::new(conditions)?);
    }
    rules.extend(whole.concat().into_iter().map(|call| (call, Vec::new())));
    Ok(rules)
}
