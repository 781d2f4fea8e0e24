/* A barrier that spins for microseconds, without the operating system. */
#include <immintrin.h>
#include <stdint.h>
#include <time.h>

#define APART 8       /* numbers: a cache line for each thread's own */
#define BETWEEN_CLOCKS 32

static int64_t microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int all_reached(const int64_t *places, int64_t size, int64_t round) {
    for (int64_t i = 0; i < size; i++)
        if (__atomic_load_n(places + i * APART, __ATOMIC_ACQUIRE) < round) return 0;
    return 1;
}

/* Thread `own` of `size` has reached a round. places [size * APART]: the round of each. 1: so have
   all; 0: somebody has not after `patience` microseconds. What a thread wrote before it came here
   the others see behind it. */
int32_t native_barrier(int64_t *places, int64_t own, int64_t size, int64_t round, int64_t patience) {
    __atomic_store_n(places + own * APART, round, __ATOMIC_RELEASE);
    int64_t end = 0;
    for (int64_t turn = 1;; turn++) {
        if (all_reached(places, size, round)) return 1;
        if (turn % BETWEEN_CLOCKS == 0) {
            const int64_t now = microseconds();
            if (end == 0) end = now + patience;
            if (now >= end) return 0;
        }
        _mm_pause();
    }
}
