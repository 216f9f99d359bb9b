// turn: the rotation of RoPE, which attention_append.comp and rope.comp share.

// turn rotates pairs x and y. It is precise: the same key must have the same bits in every
// specialization, with pages or without.
void turn(inout vec4 x, inout vec4 y, const vec4 c, const vec4 s) {
    precise const vec4 a = x * c - y * s;
    precise const vec4 b = y * c + x * s;
    x = a;
    y = b;
}
