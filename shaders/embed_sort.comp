// embed_sort: tokens in the order of their rows of a table; tokens of one row stay in their own order.
//
//     ids            (tokens)  i32, contiguous
//     tiles, sorted  (tokens)  (row, token): row is ids[token], or vocabulary if ids[token] is not
//                              in 0..vocabulary-1
//
// Without MERGE it writes tiles: each tile of TILE tokens is sorted by itself, by a bitonic network in
// shared memory. With MERGE it writes sorted: the place of a token is its place in its own tile and,
// for each other tile, how many go before it there, which a binary search finds. No two tokens are
// equal, so the order has one result, without atomics.
//
// Dispatch: any number of workgroups; each takes tiles in turn, or with MERGE tokens.
#version 450

layout(constant_id = 0) const uint WORKGROUP_SIZE = 256;
layout(constant_id = 1) const bool MERGE = false;
layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Params {
    uint tokens;
    uint vocabulary;
    uint ids_offset;
} p;

layout(binding = 0, scalar) readonly buffer IDs { int ids[]; };
layout(binding = 1, scalar) buffer Tiles { uvec2 tiles[]; };
layout(binding = 2, scalar) writeonly buffer Sorted { uvec2 sorted[]; };

const uint TILE = 1024;

shared uvec2 tile[TILE];

// order exchanges two places of the tile unless they are in order, ascending or descending.
void order(const uint low, const uint high, const bool ascending) {
    const uvec2 a = tile[low];
    const uvec2 b = tile[high];
    const bool after = a.x > b.x || a.x == b.x && a.y > b.y;
    if (after == ascending) {
        tile[low] = b;
        tile[high] = a;
    }
}

void sort_tile(const uint first) {
    const uint tid = gl_LocalInvocationIndex;
    barrier();  // the tile before is written before this one takes its place
    for (uint i = tid; i < TILE; i += WORKGROUP_SIZE) {
        const bool exists = first + i < p.tokens;
        tile[i] = uvec2(exists ? min(uint(ids[p.ids_offset + first + i]), p.vocabulary) : ~0u, first + i);
    }
    for (uint size = 2; size <= TILE; size *= 2) {
        for (uint apart = size / 2; apart > 0; apart /= 2) {
            barrier();  // the pairs of the step before are written before they are read
            for (uint i = tid; i < TILE / 2; i += WORKGROUP_SIZE) {
                const uint low = i / apart * 2 * apart + i % apart;
                order(low, low + apart, (low & size) == 0);
            }
        }
    }
    barrier();  // the last pairs are written before they are read
    for (uint i = tid; i < min(TILE, p.tokens - first); i += WORKGROUP_SIZE) {
        tiles[first + i] = tile[i];
    }
}

// below returns how many rows of the sorted tile that begins at first are less than row.
uint below(const uint first, const uint row) {
    uint low = first;
    uint high = min(first + TILE, p.tokens);
    while (low < high) {
        const uint middle = (low + high) / 2;
        if (tiles[middle].x < row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low - first;
}

void main() {
    const uint groups = gl_NumWorkGroups.x;
    if (!MERGE) {
        for (uint first = gl_WorkGroupID.x * TILE; first < p.tokens; first += groups * TILE) {
            sort_tile(first);
        }
        return;
    }
    for (uint i = gl_GlobalInvocationID.x; i < p.tokens; i += groups * WORKGROUP_SIZE) {
        const uvec2 own = tiles[i];
        uint place = i % TILE;
        for (uint first = 0; first < p.tokens; first += TILE) {
            if (first != i - i % TILE) {
                place += below(first, own.x + (first < i ? 1 : 0));  // equal rows of earlier tiles go first
            }
        }
        sorted[place] = own;
    }
}
