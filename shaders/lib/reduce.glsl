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

// team_sum returns the sum of x over the team, in every invocation of it. Every
// invocation of the team calls it; where that is the workgroup, the whole workgroup does.
vec2 team_sum(const vec2 x) {
    const vec2 own = subgroupAdd(x);
    if (SUBGROUP_TEAM) {
        return own;
    }
    barrier();  // partial read, by an earlier call, before it is written
    if (gl_SubgroupInvocationID == 0) {
        partial[gl_SubgroupID] = own;
    }
    barrier();  // partial written before it is read
    vec2 sum = partial[0];
    for (uint s = 1; s < gl_NumSubgroups; s++) {
        sum += partial[s];
    }
    return sum;
}

#endif
