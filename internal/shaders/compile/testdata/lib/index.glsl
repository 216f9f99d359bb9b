#ifndef INDEX_GLSL
#define INDEX_GLSL
uint index() { return gl_GlobalInvocationID.x; }
#endif
