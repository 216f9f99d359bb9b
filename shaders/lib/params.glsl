// params: the push constants of the attention kernels with and without FEATURES. Those of
// features are behind the kernel's own.
//
//     BEGIN_PARAMS
//         members
//     END_PARAMS
//
// Without FEATURES they are p. With FEATURES they are args.plain, and p is a private copy, which
// lib/features.glsl changes to that of a block.

#ifdef FEATURES
#include "feature_constants.glsl"
#include "feature_params.glsl"

#define BEGIN_PARAMS struct Plain {
#define END_PARAMS                                    \
    };                                                \
    layout(push_constant, scalar) uniform Params {    \
        Plain plain;                                  \
        Features features;                            \
    } args;                                           \
    Plain p = args.plain;
#else
#define BEGIN_PARAMS layout(push_constant, scalar) uniform Params {
#define END_PARAMS } p;
#endif
