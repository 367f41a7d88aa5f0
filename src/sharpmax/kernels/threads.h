// Threads: those of the caller or the library's own.
#pragma once

#include "sharpmax.h"

namespace sharpmax {

// How many threads a call may use that asks for `wanted`, or for the default by 0. One in a forked process: no pool of threads
// survives that, and a wait for it would not end.
int64_t threads_for(int64_t wanted);

// Runs body(context) on up to `threads` threads at once, this one included, and returns when all have returned. Throws what one
// of them threw.
void run_parallel(sharpmax_parallel parallel, int64_t threads, void (*body)(void*), void* context);

} // namespace sharpmax
