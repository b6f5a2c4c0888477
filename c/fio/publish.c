/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "publish.h"

bool publish_is_wide;

#if defined(__x86_64__)
#include <cpuid.h>
#include <string.h>

/* As crates/ring/src/cpu.rs: Intel's cores with AVX-512 have a 64-byte store path; of AMD's, Zen 5 for servers and
 * desktops. Zen 4 and mobile Zen 5 split the store in two, and the half with the stamp could be seen first. */
static bool wide_store_is_atomic(void)
{
	unsigned int a, b, c, d, family, model;
	char vendor[12];

	if (!__get_cpuid(0, &a, &b, &c, &d))
		return false;
	memcpy(vendor, &b, 4);
	memcpy(vendor + 4, &d, 4);
	memcpy(vendor + 8, &c, 4);
	if (!__get_cpuid(1, &a, &b, &c, &d))
		return false;
	family = (a >> 8 & 0xf) == 0xf ? 0xf + (a >> 20 & 0xff) : a >> 8 & 0xf;
	model = (a >> 4 & 0xf) | (a >> 16 & 0xf) << 4;
	if (memcmp(vendor, "GenuineIntel", 12) == 0)
		return family == 6;
	return memcmp(vendor, "AuthenticAMD", 12) == 0 && family == 0x1a &&
	       (model <= 0x1f || (model >= 0x40 && model <= 0x4f));
}

void publish_choose(void)
{
	__builtin_cpu_init();
	publish_is_wide = __builtin_cpu_supports("avx512f") && wide_store_is_atomic();
}
#else
void publish_choose(void)
{
}
#endif
