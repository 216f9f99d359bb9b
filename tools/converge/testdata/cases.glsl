// Sources for TestAnalyse, behind the header of converge_test.go, with the findings that each has.

// == straight:
void main() { put(subgroupMax(lane())); barrier(); put(cell[0]); }

// Inside.

// == if: inside subgroupMax#1
void main() { if (mine()) put(subgroupMax(lane())); }

// == else: inside subgroupMax#1
void main() { if (mine()) put(1); else put(subgroupMax(lane())); }

// == switch: inside subgroupMax#1
void main() { switch (lane() % 3) { case 0: put(1); break; case 1: put(subgroupMax(lane())); break; } }

// == return before: inside subgroupMax#1
void main() { if (mine()) return; put(subgroupMax(lane())); }

// == loop of its own length: inside subgroupMax#1
void main() { for (uint i = lane(); i < p.n; i += 7) put(subgroupMax(i)); }

// == break: inside subgroupMax#1
void main() { for (uint i = 0; i < p.n; i++) { if (from[i + lane()] == 0) break; put(subgroupMax(i)); } }

// == break after: inside subgroupMax#1
void main() { for (uint i = 0; i < p.n; i++) { put(subgroupMax(i)); if (from[i + lane()] == 0) break; } }

// == continue: inside subgroupMax#1
void main() { for (uint i = 0; i < p.n; i++) { if (from[i + lane()] == 0) continue; put(subgroupMax(i)); } }

// == called inside: inside subgroupMax#1
uint f() { return subgroupMax(lane()); } void main() { if (mine()) put(f()); }

// == argument decides: inside subgroupMax#1
uint f(bool x) { return x ? subgroupMax(lane()) : 0; } void main() { put(f(mine())); }

// == argument of one call decides: inside subgroupMax#1
uint f(bool x) { return x ? subgroupMax(lane()) : 0; } void main() { put(f(p.n > 3)); put(f(mine())); }

// == result decides: inside subgroupMax#1
bool f() { return lane() > 3; } void main() { if (f()) put(subgroupMax(lane())); }

// == return decides: inside subgroupMax#1
bool f() { if (lane() > 3) return true; return false; } void main() { if (f()) put(subgroupMax(lane())); }

// == out argument decides: inside subgroupMax#1
void f(out bool x) { x = mine(); } void main() { bool x; f(x); if (x) put(subgroupMax(lane())); }

// == variable stored in a branch: inside subgroupMax#1
void main() { bool x = false; if (mine()) x = true; barrier(); if (x) put(subgroupMax(lane())); }

// == variable of a loop of its own length: inside subgroupMax#1
void main() { uint i = 0; while (i < lane()) i++; barrier(); if (i == 3) put(subgroupMax(lane())); }

// == global: inside subgroupMax#1
bool x; void main() { x = mine(); if (x) put(subgroupMax(lane())); }

// == array: inside subgroupMax#1
void main() { bool x[4]; x[0] = true; x[lane() % 4] = false; if (x[0]) put(subgroupMax(lane())); }

// == and: inside subgroupMax#1
void main() { if (p.n > 3 && from[lane()] > 3) put(subgroupMax(lane())); }

// == own place of a buffer: inside subgroupMax#1
void main() { if (from[lane()] > 3) put(subgroupMax(lane())); }

// == buffer that is written: inside subgroupMax#1
void main() { if (to[0] > 3) put(subgroupMax(lane())); }

// == atomic: inside subgroupMax#1
void main() { if (atomicAdd(to[0], 1) > 3) put(subgroupMax(lane())); }

// == elect: inside subgroupMax#1
void main() { if (subgroupElect()) put(subgroupMax(lane())); }

// == scan: inside subgroupMax#1
void main() { if (subgroupExclusiveAdd(1) > 3) put(subgroupMax(lane())); }

// == shuffle: inside subgroupMax#1
void main() { if (subgroupShuffle(lane(), lane() / 2) > 3) put(subgroupMax(lane())); }

// == barrier by subgroup: inside barrier#1
void main() { if (gl_SubgroupID == 0) barrier(); put(subgroupMax(lane())); }

// == barrier by vote: inside barrier#1
void main() { if (subgroupAny(mine())) barrier(); }

// == barrier by shared memory: inside barrier#1
void main() { if (cell[0] > 3) barrier(); }

// == subgroupBarrier: inside subgroupBarrier#1
void main() { if (mine()) subgroupBarrier(); }

// The same for all.

// == same for the workgroup:
void main() {
for (uint i = gl_WorkGroupID.x; i < min(p.n, from[p.n]); i += gl_NumWorkGroups.x) {
	if (CHOICE || never[i] > 3) { barrier(); put(subgroupMax(i)); }
} }

// == same for the subgroup:
void main() {
if (gl_SubgroupID == 3) put(subgroupMax(1));
if (subgroupAny(mine())) put(subgroupMax(2));
if (subgroupAdd(lane()) > 3) put(subgroupMax(3));
if (cell[gl_SubgroupID] > 3) put(subgroupMax(4));
if (subgroupBroadcastFirst(lane()) > 3) put(subgroupMax(5)); }

// == argument is the same:
uint f(bool x) { return x ? subgroupMax(lane()) : 0; } void main() { put(f(p.n > 3)); put(f(CHOICE)); }

// == select:
void main() { put(subgroupMax(mine() ? 1 : 0)); }

// After.

// == known defect: after subgroupMax#1
void main() { for (uint i = 0; i < p.n; i++) {
uint x = from[i + lane()];
if (from[i * 2 + lane()] > 3) { x = 0; }
put(subgroupMax(x));
barrier();
if (i > gl_SubgroupID) continue;
put(2);
} }

// == known defect without branch:
void main() { for (uint i = 0; i < p.n; i++) {
uint x = from[i + lane()];
x = mix(x, 0, from[i * 2 + lane()] > 3);
put(subgroupMax(x));
barrier();
if (i > gl_SubgroupID) continue;
put(2);
} }

// == known defect with a barrier:
void main() { for (uint i = 0; i < p.n; i++) {
uint x = from[i + lane()];
if (from[i * 2 + lane()] > 3) { x = 0; }
barrier();
put(subgroupMax(x));
if (i > gl_SubgroupID) continue;
put(2);
} }

// == known defect with subgroupBarrier:
void main() { for (uint i = 0; i < p.n; i++) {
uint x = from[i + lane()];
if (from[i * 2 + lane()] > 3) { x = 0; }
subgroupBarrier();
put(subgroupMax(x));
if (i > gl_SubgroupID) continue;
put(2);
} }

// == turn before: after subgroupMax#1
void main() { for (uint i = 0; i < p.n; i++) {
put(subgroupMax(i));
barrier();
if (i > gl_SubgroupID) continue;
if (mine()) put(2);
} }

// == in a subgroup's branch: after subgroupMax#1
void main() { if (gl_SubgroupID == 0) { if (mine()) put(1); put(subgroupMax(lane())); } }

// == left by a subgroup: after subgroupMax#1
void main() { if (p.n > 3) { if (gl_SubgroupID == 0) return; if (mine()) put(1); } put(subgroupMax(lane())); }

// == return of a function: after subgroupMax#1
uint f() { if (mine()) return 1; return to[0]; } void main() { put(subgroupMax(f())); }

// == in another function: after subgroupMax#1
uint f() { return subgroupMax(lane()); }
void main() { if (gl_SubgroupID == 0) { if (mine()) put(1); put(f()); } }

// == two barriers: after subgroupMax#1, inside subgroupBarrier#1, inside subgroupBarrier#2
void main() { if (gl_SubgroupID == 0) { if (mine()) { put(1); subgroupBarrier(); } else subgroupBarrier(); put(subgroupMax(lane())); } }

// Merged, as the specification promises.

// == merged if: merged subgroupMax#1
void main() { if (mine()) put(1); put(subgroupMax(lane())); }

// == merged if in a loop: merged subgroupMax#1
void main() { for (uint i = 0; i < p.n; i++) { if (mine()) put(1); put(subgroupMax(lane())); } }

// == merged if after a barrier of all: merged subgroupMax#1
void main() { for (uint i = 0; i < p.n; i++) {
barrier();
if (mine()) put(1);
put(subgroupMax(lane()));
if (i > gl_SubgroupID) continue;
put(2);
} }

// == if after a barrier of the subgroup: after subgroupMax#1
void main() { for (uint i = 0; i < p.n; i++) {
subgroupBarrier();
if (mine()) put(1);
put(subgroupMax(lane()));
if (i > gl_SubgroupID) continue;
put(2);
} }

// == merged loop: merged subgroupMax#1
void main() { for (uint i = 0; i < p.n; i++) { if (from[lane() + i] > 3) break; put(1); } put(subgroupMax(lane())); }

// == merged call: merged subgroupMax#1
uint f() { if (mine()) return 1; return to[0]; } void main() { uint x; if (CHOICE) { x = f(); } put(subgroupMax(x)); }

// Matrices.

// == matrix:
#define M coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
void main() { M m; coopMatLoad(m, matrix, gl_SubgroupID * 256, 16, gl_CooperativeMatrixLayoutRowMajor); m += M(1.0);
coopMatStore(m, matrix, gl_SubgroupID * 256, 16, gl_CooperativeMatrixLayoutRowMajor); }

// == matrix in a branch: inside coopMatStore#1
#define M coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
void main() { M m; coopMatLoad(m, matrix, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
if (m[0] > 3) coopMatStore(m, matrix, 0, 16, gl_CooperativeMatrixLayoutRowMajor); }

// == matrix at its own place: operand coopMatLoad#1
#define M coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
void main() { M m; coopMatLoad(m, matrix, lane(), 16, gl_CooperativeMatrixLayoutRowMajor);
coopMatStore(m, matrix, 0, 16, gl_CooperativeMatrixLayoutRowMajor); }

