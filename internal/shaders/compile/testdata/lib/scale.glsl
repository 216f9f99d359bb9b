#ifndef SCALE_GLSL
#define SCALE_GLSL
#include "index.glsl"
TYPE scaled(TYPE x, float factor) { return TYPE(factor * x); }
#endif
