/* What the library computes with. */
#define _DEFAULT_SOURCE /* syscall */
#include "tiles.h"

#include <sys/syscall.h>
#include <unistd.h>

#define REQUEST_PERMISSION 0x1023 /* arch_prctl: state that grows what a thread saves */
#define TILE_DATA 18

int tiles_made_of = NO_TILES;

/* Asks for the tiles, for this thread and those that it starts from now on. */
const char *native_instructions(void) {
#if AMX
    if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0) {
        tiles_made_of = REGISTERS;
        return INSTRUCTIONS " and AMX";
    }
#elif TILES
    tiles_made_of = FLOATS ? FLOAT_VECTORS : VECTORS;
    return FLOATS ? INSTRUCTIONS : INSTRUCTIONS " and BF16";
#endif
    return INSTRUCTIONS;
}
