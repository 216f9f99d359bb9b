// reduce: sums over a team, which is the invocations that share a row: a subgroup or the
// workgroup. Partial sums are added in a fixed order, so every run has the same bits.
//
// The includer declares
//
//     const uint WORKGROUP_SIZE
//     const bool SUBGROUP_TEAM        a team is a subgroup; all subgroups are full
//     shared vec3 partial[WORKGROUP_SIZE]    used where a team is the workgroup
#extension GL_KHR_shader_subgroup_arithmetic : require

// DEFINE_TEAM_SUM(T, members) makes `T team_sum(T x)`, which returns the sum of x over the
// team to every invocation of it; members are the members of a vec3 that make a T. Every invocation
// of the team calls it; if the team is the workgroup, every invocation of the workgroup does.
#define DEFINE_TEAM_SUM(T, members)                                              \
    T team_sum(const T x) {                                                      \
        const T own = subgroupAdd(x);                                            \
        if (SUBGROUP_TEAM) {                                                     \
            return own;                                                          \
        }                                                                        \
        barrier(); /* partial read, by an earlier call, before it is written */  \
        if (gl_SubgroupInvocationID == 0) {                                      \
            partial[gl_SubgroupID].members = own;                                \
        }                                                                        \
        barrier(); /* partial written before it is read */                       \
        T sum = partial[0].members;                                              \
        for (uint s = 1; s < gl_NumSubgroups; s++) {                             \
            sum += partial[s].members;                                           \
        }                                                                        \
        return sum;                                                              \
    }

DEFINE_TEAM_SUM(float, x)
DEFINE_TEAM_SUM(vec2, xy)
DEFINE_TEAM_SUM(vec3, xyz)
