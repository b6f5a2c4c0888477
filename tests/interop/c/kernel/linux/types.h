/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What fipsee.h and fipsee_ring.h use of the kernel's header of this name, and nothing more. */
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long uintptr_t;
typedef _Bool bool;
#define true 1
#define false 0
