// decode_no_ahead: for loops of attention_decode that load nothing before they begin
// (lib/decode_matrix.glsl does).
#ifndef LIB_DECODE_NO_AHEAD_GLSL
#define LIB_DECODE_NO_AHEAD_GLSL

struct Ahead {
    uint none;
};

void load_ahead(const Part part, inout Ahead ahead) {
}

void check_ahead(const Part part) {
}

#endif
