// Compiled for the plainest CPU of the family: picks the best kernels that this CPU can run.
#include "chain.h"

#define VARIANT(isa) extern const Kernels kernels_##isa;
VARIANT(baseline)
#ifdef HAVE_avx2
VARIANT(avx2)
#endif
#ifdef HAVE_avx512
VARIANT(avx512)
#endif

const Kernels* fedgraft_kernels_3(int64_t n) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
#ifdef HAVE_avx512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma") && n-- == 0)
        return &kernels_avx512;
#endif
#ifdef HAVE_avx2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && n-- == 0)
        return &kernels_avx2;
#endif
    return n == 0 ? &kernels_baseline : nullptr;
}
