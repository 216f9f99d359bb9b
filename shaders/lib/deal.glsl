// deal: columns of op(B) dealt out to right matrices so that the elements that an invocation has of a row of
// sums, in matrices side by side, are neighbours in C.
//
// An invocation has DEAL_RUN elements of each row of an accumulator that it has a part of, and
// DEAL_LANES invocations share a row; columns are as chips.MatrixLayout.Pairs says. Of a panel of
// `width` matrices, deal_tiles(width) side by side share their columns: the invocations that have
// the columns of a row of two of NVIDIA's matrices,
//
//     as they lie  0 0 1 1 2 2 3 3 0 0 1 1 2 2 3 3   0 0 1 1 2 2 3 3 0 0 1 1 2 2 3 3
//     dealt        0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1   2 2 2 2 2 2 2 2 3 3 3 3 3 3 3 3
//
// so that eight numbers of 16 bits leave as 16 bytes, and four invocations write 64.
//
// The includer declares MAT_N, and DEAL_RUN, a power of two up to 8, and DEAL_LANES.

const uint DEAL_PAIR = DEAL_RUN < 2 ? 1 : 2;  // neighbours in a matrix, which stay neighbours

uint deal_tiles(const uint width) { return min(width & (0u - width), 8 / DEAL_RUN); }

// dealt returns which column of a panel column c of matrix j is.
uint dealt(const uint width, const uint j, const uint c) {
    const uint tiles = deal_tiles(width);
    const uint lane = c / DEAL_PAIR % max(DEAL_LANES, 1);
    const uint element = c / (DEAL_PAIR * max(DEAL_LANES, 1)) * DEAL_PAIR + c % DEAL_PAIR;
    return j / tiles * tiles * MAT_N + (lane * tiles + j % tiles) * DEAL_RUN + element;
}
