// reduce: sums over the invocations that share a row: a team, which is a subgroup or
// the workgroup. The same on every run: partial sums are added in a fixed order.
//
// The includer enables GL_KHR_shader_subgroup_arithmetic and declares
//
//     const uint WORKGROUP_SIZE
//     const bool SUBGROUP_TEAM        a team is a subgroup; all subgroups are full
//     shared vec2 partial[WORKGROUP_SIZE]    used where a team is the workgroup
#ifndef LIB_REDUCE_GLSL
#define LIB_REDUCE_GLSL

// DEFINE_TEAM_SUM(T, first) makes `T team_sum(T x)`, the sum of x over the team, in
// every invocation of it; first(v) is the part of a vec2 that is a T. Every invocation of
// the team calls it; where that is the workgroup, the whole workgroup does.
#define DEFINE_TEAM_SUM(T, first)                                          \
    T team_sum(const T x) {                                                \
        const T own = subgroupAdd(x);                                      \
        if (SUBGROUP_TEAM) {                                               \
            return own;                                                    \
        }                                                                  \
        barrier(); /* partial read, by an earlier call, before it is written */ \
        if (gl_SubgroupInvocationID == 0) {                                \
            partial[gl_SubgroupID] = vec2(own);                            \
        }                                                                  \
        barrier(); /* partial written before it is read */                 \
        T sum = first(partial[0]);                                         \
        for (uint s = 1; s < gl_NumSubgroups; s++) {                       \
            sum += first(partial[s]);                                      \
        }                                                                  \
        return sum;                                                        \
    }

#define FIRST_OF(v) ((v).x)
#define BOTH_OF(v) (v)

DEFINE_TEAM_SUM(float, FIRST_OF)
DEFINE_TEAM_SUM(vec2, BOTH_OF)

#endif
