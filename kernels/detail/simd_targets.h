#pragma once

// Include before any Highway header. The instruction sets that the kernels are compiled for: every one that Highway
// knows for the machine, except SSSE3 (SSE4 is as old, to within a year) and SVE, whose vectors have no size at compile
// time, so that they cannot stand in arrays; NEON serves those machines.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif

// In front of a loop over an array of vectors: unless such loops are unrolled, the array lives in memory instead of in
// registers, at a fifth of the speed.
#define TANDEM_UNROLL _Pragma("GCC unroll 16")
