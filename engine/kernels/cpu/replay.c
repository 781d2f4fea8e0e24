/* Calls of the other functions, one after the other. Python takes a few microseconds between two of
 * them, and 20 to 50 where the weights of a product have just swept its own memory from the caches.
 */
#include <stdint.h>
#include <string.h>

#define NUMBERS 16

/* On x86-64 integers and addresses are passed in one row of registers and floats in another, whatever
 * stands between them, and the rest of the integers one after the other on the stack. A function that
 * takes fewer reads fewer; one that takes an int32 reads half of a number. */
typedef void function(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                      int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float, float);

typedef struct {
    function *function;
    int64_t numbers[NUMBERS]; /* integers and addresses, in their order */
    float floats[2];
    int32_t scratch, threads, rows; /* which of the numbers are those that are given anew; -1: none */
    int32_t is_sampled;             /* rows: of the tokens that are sampled, else of all */
    int64_t each;                   /* rows of a token */
} call;

void native_replay(const call *calls, int64_t count, void *scratch, int32_t threads, int64_t tokens,
                   int64_t sampled) {
    for (const call *c = calls; c < calls + count; c++) {
        int64_t n[NUMBERS];
        memcpy(n, c->numbers, sizeof n);
        if (c->scratch >= 0) n[c->scratch] = (int64_t)scratch;
        if (c->threads >= 0) n[c->threads] = threads;
        if (c->rows >= 0) n[c->rows] = (c->is_sampled ? sampled : tokens) * c->each;
        c->function(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], n[12],
                    n[13], n[14], n[15], c->floats[0], c->floats[1]);
    }
}
