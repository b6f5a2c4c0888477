/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What fipsee.h uses of the kernel's header of this name, and nothing more. */
#define EIO 5
#define ENXIO 6
#define EFAULT 14
#define ENODEV 19
#define EINVAL 22
#define ENOSPC 28
#define EROFS 30
#define EPROTO 71
#define EMSGSIZE 90
#define EOPNOTSUPP 95
