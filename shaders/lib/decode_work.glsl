// decode_work: which keys of which units a workgroup has (attention_decode.comp).

const float LOG2_E = 1.4426950408889634;
const uint TEAMS = SUBGROUP_SIZE / TEAM;
const uint TILE = KEYS * TEAMS;
const uint SUBGROUPS = WORKGROUP_SIZE / SUBGROUP_SIZE;

#include "cache_status.glsl"

uint found_bad = 0;  // by this invocation

// What the tiles of a batch are.
struct Sequence {
    int keys;     // with the new ones
    int from;     // first key that some row may see
    uint first;   // tile of that
    uint tiles;   // 1 at least: somebody must write O
};

Sequence sequence_of(const uint batch) {
    Sequence s;
    const int given = seq_lens[p.seq_lens_offset + batch];
    s.keys = clamp(given, 0, p.capacity - p.new_keys) + p.new_keys;
    if (s.keys != given + p.new_keys) {
        found_bad |= BAD_LENGTH;
    }
    s.from = WINDOW ? max(0, s.keys - int(p.seq_q) - p.window_left) : 0;
    if (LEFT_PAD) {
        s.from = max(s.from, left_pad[p.left_pad_offset + batch]);
    }
    s.from = min(s.from, s.keys);
    s.first = uint(s.from) / TILE;
    s.tiles = max((uint(s.keys) + TILE - 1) / TILE, s.first + 1) - s.first;
    return s;
}

// The tiles of a workgroup, and the batch that the next of them is in.
struct Work {
    uint tile, end;
    uint per;     // tiles of each workgroup
    uint batch;
    uint start;   // tile at which the batch starts
    uint splits;  // of each unit, a workgroup to each; 0: tiles are divided regardless of units
};

uint units() { return p.kv_heads * p.row_blocks; }

shared uvec2 counted[WORKGROUP_SIZE];

// Tiles beyond an even division that cost less than the start and the sums of a second part.
const uint PART_COST = 2 * SUBGROUPS;

// first_work divides the tiles. Invocation i counts the tiles of some batches.
//
// Each workgroup has parts of one unit alone, where there are workgroups enough and the longest
// part is not much longer than if all had as many tiles; else all have.
Work first_work() {
    const uint tid = gl_LocalInvocationIndex;
    const uint each = (p.batch + WORKGROUP_SIZE - 1) / WORKGROUP_SIZE;
    const uint counters = (p.batch + each - 1) / each;
    uint total = sequence_of(0).tiles;
    uint longest = total;
    if (p.batch > 1) {
        uint n = 0;
        uint most = 0;
        for (uint b = tid * each; b < min(tid * each + each, p.batch); b++) {
            const uint tiles = sequence_of(b).tiles;
            n += tiles;
            most = max(most, tiles);
        }
        counted[tid] = uvec2(n, most);
        barrier();  // counted is written
        total = 0;
        for (uint i = 0; i < counters; i++) {
            total += counted[i].x;
            longest = max(longest, counted[i].y);
        }
    }
    total *= units();

    Work w;
    // Every subgroup as many tiles, if possible.
    const uint all = gl_NumWorkGroups.x * SUBGROUPS;
    w.per = max((total + all - 1) / all * SUBGROUPS, p.least_tiles);
    w.splits = gl_NumWorkGroups.x / (p.batch * units());
    if (w.splits > 0 && (longest + w.splits - 1) / w.splits <= w.per + PART_COST) {
        const uint unit = gl_WorkGroupID.x / w.splits;
        w.batch = unit / units();
        w.start = 0;
        w.tile = 0;
        w.end = 0;
        if (w.batch < p.batch) {
            const uint tiles = sequence_of(w.batch).tiles;
            const uint first = (unit - w.batch * units()) * tiles;
            w.per = max((tiles + w.splits - 1) / w.splits, p.least_tiles);
            w.tile = first + min(gl_WorkGroupID.x % w.splits * w.per, tiles);
            w.end = min(w.tile + w.per, first + tiles);
        }
        return w;
    }
    w.splits = 0;
    w.tile = min(gl_WorkGroupID.x * w.per, total);
    w.end = min(w.tile + w.per, total);
    w.batch = 0;
    w.start = 0;
    for (uint i = 0; p.batch > 1 && i < counters; i++) {
        const uint next = w.start + counted[i].x * units();
        if (next > w.tile) {
            break;
        }
        w.start = next;
        w.batch = min((i + 1) * each, p.batch);
    }
    return w;
}

// A Part is the part of a unit that a workgroup reads.
struct Part {
    uint batch, cache, kv_head, row0;
    Sequence sequence;
    int end;          // the key after the last that some row of the unit sees
    uint first, tiles;
    uint last;        // the tile after all
    uint unit;        // of all
    uint shared_by;   // workgroups
    uint first_group; // of these
    uint place;       // of this workgroup's sums in parts
};

void set_unit(inout Part x, const uint batch, const uint unit) {
    x.batch = batch;
    x.cache = batch;
    if (BATCH_IDX) {
        const int row = batch_idx[p.batch_idx_offset + batch];
        x.cache = uint(row) < p.pages ? uint(row) : 0;
        found_bad |= uint(row) < p.pages ? 0 : BAD_BATCH;
    }
    x.kv_head = p.row_blocks == 1 ? unit : unit / p.row_blocks;
    x.row0 = (unit - x.kv_head * p.row_blocks) * ROWS;
    x.unit = batch * units() + unit;
}

// by_group returns row / p.group of a row of a key head, without a division: with group_inverse =
// 2^31 / group + e, 0 < e <= 1, it is the whole part of row / group + 2 * row * e / 2^32, which is
// less than 1 / group more.
uint by_group(const uint row) {
    uint high, low;
    umulExtended(2 * row, p.group_inverse, high, low);
    return high;
}

void set_end(inout Part x) {
    x.end = x.sequence.keys;
    if (CAUSAL && !TREE) {
        const uint last = min(x.row0 + ROWS, p.group * p.seq_q) - 1;
        x.end += int(by_group(last)) + 1 - int(p.seq_q);
    }
}

// tiles_before returns the lesser of a tile and that after the last of which some row sees a key.
uint tiles_before(const Part x, const uint tile) {
    return x.end <= x.sequence.from ? 0 : min(tile, (uint(x.end) + TILE - 1) / TILE);
}

// apart returns how many tiles a stripe is from the next.
uint apart() { return ALONE ? p.splits : 1; }

// lone_part returns the part of a workgroup where each has a split of one unit of the only sequence, as
// if that had all the keys that it can have: workgroups take tiles in turn, so that the first of each
// stripe is the same whatever the length is.
Part lone_part() {
    Part x;
    const uint unit = gl_WorkGroupID.x / p.splits;
    set_unit(x, 0, unit);
    x.first = gl_WorkGroupID.x - unit * p.splits;
    x.sequence.from = 0;
    x.end = p.capacity;
    return x;
}

// know_length sets what depends on the length, and returns whether the workgroup has any tile.
bool know_length(inout Part x) {
    const uint split = x.first;
    x.sequence = sequence_of(0);
    set_end(x);
    x.first += x.sequence.first;
    x.last = tiles_before(x, x.sequence.first + x.sequence.tiles);
    x.shared_by = min(p.splits, x.sequence.tiles);
    x.first_group = x.unit * p.splits;
    x.place = 2 * gl_WorkGroupID.x + (split == 0 ? 1 : 0);
    return split < x.shared_by;
}

// next_part returns the part that begins at w.tile, and makes w.batch its batch.
Part next_part(inout Work w) {
    Part x;
    x.sequence = sequence_of(w.batch);
    while (w.tile >= w.start + x.sequence.tiles * units()) {
        w.start += x.sequence.tiles * units();
        w.batch++;
        x.sequence = sequence_of(w.batch);
    }
    const uint tiles = x.sequence.tiles;
    const uint unit = units() == 1 ? 0 : (w.tile - w.start) / tiles;
    const uint unit_start = w.start + unit * tiles;
    set_unit(x, w.batch, unit);
    set_end(x);
    x.first = w.tile - unit_start;
    x.tiles = min(tiles - x.first, w.end - w.tile);
    x.first += x.sequence.first;
    if (w.splits > 0) {
        x.first_group = x.unit * w.splits;
        x.shared_by = (tiles + w.per - 1) / w.per;
    } else {
        x.first_group = unit_start / w.per;
        x.shared_by = (unit_start + tiles - 1) / w.per - x.first_group + 1;
    }
    x.last = tiles_before(x, x.first + x.tiles);
    x.place = 2 * gl_WorkGroupID.x + (gl_WorkGroupID.x == x.first_group ? 1 : 0);
    return x;
}

void report() {
    if (found_bad != 0) {
        atomicOr(state[p.state_offset], found_bad);
    }
}
