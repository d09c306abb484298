/* peak_vnni.c - the fastest that vpdpbusd can go: registers only, sixteen chains. */
#include "peak.h"

void nb_peak_vnni(uint64_t n)
{
    __asm__ volatile("vpxord %%zmm16, %%zmm16, %%zmm16\n"
                     "1:\n\t"
                     "vpdpbusd %%zmm16, %%zmm16, %%zmm0\n\tvpdpbusd %%zmm16, %%zmm16, %%zmm1\n\t"
                     "vpdpbusd %%zmm16, %%zmm16, %%zmm2\n\tvpdpbusd %%zmm16, %%zmm16, %%zmm3\n\t"
                     "vpdpbusd %%zmm16, %%zmm16, %%zmm4\n\tvpdpbusd %%zmm16, %%zmm16, %%zmm5\n\t"
                     "vpdpbusd %%zmm16, %%zmm16, %%zmm6\n\tvpdpbusd %%zmm16, %%zmm16, %%zmm7\n\t"
                     "vpdpbusd %%zmm16, %%zmm16, %%zmm8\n\tvpdpbusd %%zmm16, %%zmm16, %%zmm9\n\t"
                     "vpdpbusd %%zmm16, %%zmm16, %%zmm10\n\tvpdpbusd %%zmm16, %%zmm16, %%zmm11\n\t"
                     "vpdpbusd %%zmm16, %%zmm16, %%zmm12\n\tvpdpbusd %%zmm16, %%zmm16, %%zmm13\n\t"
                     "vpdpbusd %%zmm16, %%zmm16, %%zmm14\n\tvpdpbusd %%zmm16, %%zmm16, %%zmm15\n\t"
                     "dec %0\n\tjnz 1b"
                     : "+r"(n)
                     :
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
                       "xmm13", "xmm14", "xmm15", "xmm16");
}
