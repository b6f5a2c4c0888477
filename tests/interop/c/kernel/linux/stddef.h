/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What fipsee.h uses of the kernel's header of this name, and nothing more. */
#define offsetof(type, member) __builtin_offsetof(type, member)
