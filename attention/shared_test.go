package attention

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// leastShared returns the least shared memory of a device that feasible says is enough.
func leastShared(caps vk.Caps, feasible func(*vk.Caps) error) int {
	low, high := -1, 1<<20
	for high-low > 1 {
		caps.MaxSharedMemoryBytes = uint32((low + high) / 2)
		if feasible(&caps) == nil {
			high = int(caps.MaxSharedMemoryBytes)
		} else {
			low = int(caps.MaxSharedMemoryBytes)
		}
	}
	return high
}

// sharedOf returns the shared memory of a kernel of a file.
func sharedOf[S any](t *testing.T, name string, p *Problem, spec S) int {
	var constants any = spec
	if !p.Plain() {
		name += "_features"
		constants = withFeatureSpec[S]{spec, newFeatureSpec(p)}
	}
	m, err := shaders.Get(name, p.DType.Short())
	require.NoError(t, err)
	n, err := vk.SharedBytes(m.SPIRV, constants)
	require.NoError(t, err, name)
	require.Positive(t, n, name)
	return n
}

// TestSharedMemory says that kernels take no more shared memory than Feasible counts: a
// driver may run one that takes more than the device has, and hang.
func TestSharedMemory(t *testing.T) {
	d := vktest.Open(t)
	c, err := d.NewCmd("nothing")
	require.NoError(t, err)
	defer c.Close()
	for _, p := range []Problem{
		{}, {KeyMask: true}, {Dropout: Dropout{P: 0.1}}, {Bias: Bias{On: true}}, {Softcap: 30},
		{KeyMask: true, Dropout: Dropout{P: 0.1}, Bias: Bias{On: true, Rows: true}, ValueDim: 96},
	} {
		for _, p.DType = range []dtype.DType{dtype.Float16, dtype.Float32} {
			for _, p.HeadDim = range []int{40, 64, 200} {
				p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ, p.SeqKV = 1, 1, 1, 100, 100
				// Want is what is counted, of which the kernel may need less.
				check := func(name string, least, need, spare int) {
					if least < need || least > need+spare {
						t.Errorf("%v, %s: %d bytes of shared memory are feasible, the kernel has %d", p, name, least, need)
					}
				}
				for _, tiles := range [][3]int{{1, 1, 32}, {3, 2, 48}, {4, 1, 64}} {
					for _, impl := range []Impl{CoopMat2, CoopMat} {
						spare := 0
						if impl == CoopMat {
							shape, err := matrixShape(d.Caps(), impl, p.DType)
							require.NoError(t, err)
							spare = int(shape.M*shape.N) / 2 * 4 * tiles[0] // packed, which is not needed in every layout
						}
						config := Config{Impl: impl, Subgroups: tiles[0], RowTiles: tiles[1], BlockN: tiles[2]}
						spec, err := (&forward{p: p, config: config}).matrixSpec(d)
						if err != nil || config.Feasible(large(d.Caps()), p) != nil {
							continue
						}
						name := config.kernel(&p)
						check(name, leastShared(*d.Caps(), func(caps *vk.Caps) error { return config.Feasible(caps, p) }), sharedOf(t, name, &p, spec), spare)

						tile := BackwardTile{Subgroups: tiles[0], RowTiles: tiles[1], BlockN: tiles[2] / 2}
						b := backward{c: c, p: p, config: BackwardConfig{Impl: impl, DKV: tile, DQ: tile}}
						dkv, dq := impl.kernel("attention_bwd_dkv", p.DType), impl.kernel("attention_bwd_dq", p.DType)
						bwd := b.matrixSpec(tile, true)
						require.NoError(t, c.Err())
						least := leastShared(*d.Caps(), func(caps *vk.Caps) error { return tile.feasibleMatrix(caps, impl, p) })
						if tile.feasibleMatrix(large(d.Caps()), impl, p) != nil {
							continue
						}
						check(dkv, least, sharedOf(t, dkv, &p, bwdTurnsSpec{bwd, false}), spare+4<<10)
						check(dq, least, sharedOf(t, dq, &p, bwdTurnsSpec{bwd, false}), spare+4<<10)
						checkStored(t, &b, tiles, check)
						fused := BackwardConfig{Impl: impl, Fused: tile}
						if fused.feasibleFused(large(d.Caps()), &p) == nil {
							check("fused", leastShared(*d.Caps(), func(caps *vk.Caps) error { return fused.feasibleFused(caps, &p) }),
								sharedOf(t, impl.kernel(bwdFused, p.DType), &p, bwdFusedSpec{bwd, false}), spare)
						}
					}
				}
				tile := BackwardTile{Threads: 64, ThreadsX: 8, BlockM: 24, BlockN: 16, Depth: 16, StageRows: 8}
				least := leastShared(*d.Caps(), func(caps *vk.Caps) error { return tile.feasibleScalar(caps, Scalar, p) })
				block := tileSpec{blockSpec{64, 8, 24, 16}, 16}
				spec := bwdScalarSpec{block, 8, uint32(p.HeadDim), false, true}
				check("attention_bwd_dkv_scalar", least, sharedOf(t, "attention_bwd_dkv_scalar", &p, spec), 4<<10)
				check("attention_bwd_dq_scalar", least, sharedOf(t, "attention_bwd_dq_scalar", &p, spec), 4<<10)
				scores := unfusedScoresSpec{block, uint32(p.HeadDim), false, true}
				check("attention_unfused_bwd_scores", least, sharedOf(t, "attention_unfused_bwd_scores", &p, scores), 1<<20)
				check("attention_unfused_keys", least, sharedOf(t, "attention_unfused_keys", &p, unfusedKeysSpec{blockSpec{64, 8, 24, 8}, uint32(max(p.HeadDim, p.ValueHeadDim())), true}), 1<<20)
				if p.Bias.On {
					bias := bwdDBiasSpec{block, uint32(p.HeadDim), true, false, false, !p.Bias.Rows}
					check("attention_bwd_dbias", least, sharedOf(t, "attention_bwd_dbias", &p, bias), 8<<10)
				}
				config := Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 24, BlockN: 16, Depth: 16, ValueRows: 8}
				least = leastShared(*d.Caps(), func(caps *vk.Caps) error { return config.Feasible(caps, p) })
				fwd := fwdScalarSpec{block, 8, uint32(p.HeadDim), false, true, true, false}
				check("attention_fwd_scalar", least, sharedOf(t, "attention_fwd_scalar", &p, fwd), 16)
				config.Impl = Unfused
				least = leastShared(*d.Caps(), func(caps *vk.Caps) error { return config.Feasible(caps, p) })
				check("attention_unfused_scores", least, sharedOf(t, "attention_unfused_scores", &p, scores), 1<<20)
				check("attention_unfused_values", least, sharedOf(t, "attention_unfused_values", &p, unfusedValuesSpec{blockSpec{64, 8, 24, 16}, uint32(p.HeadDim), true}), 1<<20)
			}
		}
	}
}

// checkStored checks the kernels between which weights pass through memory.
func checkStored(t *testing.T, b *backward, tiles [3]int, check func(name string, least, need, spare int)) {
	impl, p, d := b.config.Impl, &b.p, b.c.Device()
	stored := BackwardConfig{Impl: impl, DQ: b.config.DQ, Stored: BackwardTile{Subgroups: 2 * tiles[0], RowTiles: tiles[1], BlockN: tiles[2] / 4}}
	if stored.feasibleStored(large(d.Caps()), p) != nil {
		return
	}
	shape, err := matrixShape(d.Caps(), impl, p.DType)
	require.NoError(t, err)
	store := bwdStoreSpec{b.matrixSpec(stored.DQ, true), stored.packed(d.Caps())}
	require.NoError(t, b.c.Err())
	least := leastShared(*d.Caps(), func(caps *vk.Caps) error { return stored.feasibleStored(caps, p) })
	// The part of the products is counted as if W were not packed: packed, it needs less.
	check("stored", least, sharedOf(t, stored.storeKernel(p.DType), p, store), 1<<20)
	// What the kernel with features takes, also where the other runs.
	products := strings.TrimSuffix(stored.productsKernel(d.Caps(), p), "_features")
	for _, dim := range []int{p.HeadDim, p.ValueHeadDim()} {
		check("products", least, sharedOf(t, products, p, stored.productsSpec(d.Caps(), p, dim, shape, true)), 1<<20)
	}
}

// TestDecodeSharedMemory says so of Decode: sharedBytes is exactly the shared memory of the
// kernels, and Feasible compares it with the device.
func TestDecodeSharedMemory(t *testing.T) {
	device := nvidia("NVIDIA H200", 132, true)
	caps := &device
	kernels := map[string]bool{}
	for _, format := range []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32} {
		for _, dims := range [][2]int{{40, 40}, {64, 64}, {128, 128}, {256, 256}, {256, 64}, {64, 256}, {96, 200}} {
			for _, config := range []DecodeConfig{
				{Scalar, 1, 1, 8, false, false}, {Scalar, 1, 16, 8, false, false}, {Scalar, 2, 3, 8, false, false}, {Scalar, 4, 8, 8, false, false}, {Scalar, 16, 4, 8, false, false},
				{CoopMat, 16, 1, 8, false, false}, {CoopMat, 16, 8, 8, false, false}, {CoopMat, 32, 2, 8, false, false}, {CoopMat, 32, 8, 8, false, false},
				{CoopMat, 16, 6, 8, false, false}, {CoopMat, 8, 1, 8, false, false}, {CoopMat, 8, 12, 8, false, false}, {CoopMat, 8, 16, 8, false, false},
				{CoopMat, 16, 2, 8, false, true}, {CoopMat, 16, 4, 8, false, true},
			} {
				for _, cache := range []CacheFormat{CacheSame, CacheE4M3} {
					p := DecodeProblem{Problem: Problem{Batch: 1, NumHeads: 40, NumKVHeads: 1, SeqQ: 1, SeqKV: 100, HeadDim: dims[0], ValueDim: dims[1], DType: format}, Cache: cache}
					if p.Validate() != nil || config.Feasible(large(caps), p) != nil {
						continue
					}
					m, err := shaders.Get(config.kernel(&p), format.Short())
					require.NoError(t, err)
					n, err := vk.SharedBytes(m.SPIRV, config.spec(caps, &DecodeTensors{}, &p))
					require.NoError(t, err)
					require.Equal(t, n, config.sharedBytes(caps, p), "%v, %v", config, p)
					require.Equal(t, n, leastShared(*caps, func(caps *vk.Caps) error { return config.Feasible(caps, p) }), "%v, %v", config, p)
					kernels[m.Name] = true
					if cache != CacheSame || config.Detour {
						continue
					}
					together := config
					together.Append = true
					m, err = shaders.Get(together.kernel(&p), format.Short())
					require.NoError(t, err)
					n, err = vk.SharedBytes(m.SPIRV, stepSpec{Decode: newDecodeSpec(caps, &DecodeTensors{}, &p, config), Rotary: 8, Interleaved: true})
					require.NoError(t, err)
					require.Equal(t, n, together.sharedBytes(caps, p), "%v, %v", together, p)
					kernels[m.Name] = true
				}
			}
		}
	}
	require.Len(t, kernels, 17, "every module has a feasible configuration")
}

// large returns caps with more shared memory than any kernel takes.
func large(caps *vk.Caps) *vk.Caps {
	c := *caps
	c.MaxSharedMemoryBytes = 1 << 20
	return &c
}
