// decode_no_ahead: for loops of attention_decode that load nothing before they begin
// (lib/decode_matrix.glsl does).

struct Ahead { uint none; };

void load_ahead(const Part part, inout Ahead ahead) {}

void check_ahead(const Part part) {}
