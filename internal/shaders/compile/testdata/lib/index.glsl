uint index() { return gl_GlobalInvocationID.x; }
