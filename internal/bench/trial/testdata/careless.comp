#version 450
layout(local_size_x = 64) in;
layout(binding = 0) readonly buffer In { uint given[]; };
layout(binding = 1) writeonly buffer Out { uint found[]; };
shared uint memory[1024];
layout(constant_id = 0) const bool SHARED = false;
void main() {
    const uint at = (gl_WorkGroupID.x * 64 + gl_LocalInvocationIndex) * 2;
    found[at] = SHARED ? memory[gl_LocalInvocationIndex * 16] : 0;
    found[at + 1] = given[gl_LocalInvocationIndex];
}
