#include "index.glsl"
TYPE scaled(TYPE x, float factor) { return TYPE(factor * x); }
