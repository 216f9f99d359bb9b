package engine

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Table says which configuration a kernel made of products takes. All have the same built-in
// rows; in a user's file each kernel has its own.
type Table = table.Table[Problem, Config, shape]

// products is the table of Multiply.
var products = NewTable("gemm", kit.Forward, "gemm_coopmat", "gemm_coopmat_packed", "gemm_pack", "gemm_amax", "gemm_f32x2", "gemm_scalar", "gemm_gemv", "gemm_gemv_coopmat", "gemm_combine")

// NewTable returns the table of a pass of a kernel that consists of these modules.
func NewTable(kernel string, pass kit.Pass, modules ...string) *Table {
	return table.New(table.Table[Problem, Config, shape]{
		Kernel: kernel, Pass: pass, Paths: append(pathNames, GEMV.String()), EveryReason: true, Family: chips.Family, Rows: rows,
		Format:   func(p *Problem) dtype.DType { return p.DType },
		Path:     func(c *Config) string { return c.Impl.String() },
		Feasible: func(c *Config, caps *vk.Caps, p *Problem) error { return c.Feasible(caps, *p) },
		Blocks:   func(c *Config, caps *vk.Caps, p *Problem) int { return c.filling(caps, p) },
		None:     func(path string, _ *Problem) error { return Unsupported("impl %s is not a path", path) },
		Fit: func(c Config, caps *vk.Caps, p *Problem, measured bool) Config {
			if c.Splits == 0 || measured {
				c = c.withSplits(caps, p, c.costs(caps, p))
			}
			return c
		},
		Candidates: candidates, Variants: func(caps *vk.Caps, p Problem, c Config) []Config { return Variants(caps, p, c) },
		Likeness: likeness,
		Module:   func(p *Problem, _ *Config) string { return shaders.Hash(p.DType.Short(), modules...) },
		Large:    []string{"Rows"},
		Validate: func(p *Problem) error { return p.Validate() },
	})
}

// likeness says which problems a measurement is for: problems that differ in sizes only.
func likeness(p *Problem) table.Likeness {
	kind := *p
	kind.Batch, kind.M, kind.N, kind.K, kind.Alpha, kind.Beta = 0, 0, 0, 0, 0, 0
	return table.Likeness{Kind: kind, Sizes: [4]table.Size{
		{N: float64(p.Batches()) * float64(p.M) * float64(p.N), Enough: 1 << 24}, // 1024 blocks of 128 x 128
		{N: float64(p.M), Enough: 1 << 12},
		{N: float64(p.N), Enough: 1 << 12},
		{N: float64(p.K), Enough: 1 << 13},
	}}
}

// A shape has the sizes and transposes that a row matches.
type shape struct {
	trans string // "" matches any; else nn, nt, tn or tt
	k     int    // k up to this; 0 matches any
	m     int    // m from this on, with any k from 1 on; 0 matches any
	most  int    // m of each product up to this; 0 matches any
	thinM int    // m up to this; 0 matches any
	thinN int    // n up to this; 0 matches any
}

// Has implements table.Shape.
func (s shape) Has(p *Problem) bool {
	return (s.trans == "" || s.trans == p.Transposes()) && (s.k == 0 || p.K <= s.k) && (s.m == 0 || p.M >= s.m && p.K > 0) && (s.most == 0 || p.Batch > 1 && p.M > 0 && p.M <= s.most) &&
		(s.thinM == 0 || p.M <= s.thinM) && (s.thinN == 0 || p.N <= s.thinN)
}

// rows are searched in order; the first feasible match of a path wins.
func rows() []table.Row[shape, Config] {
	words := table.Must[Config]
	return []table.Row[shape, Config]{
		// Hopper, measured on an H200. A workgroup of eight subgroups has the 48 KiB of shared memory
		// of a multiprocessor to itself. It takes k-tiles of 128-byte lines, and where both operands
		// have lines along m and n the largest block that fits. With a packed op(B) two workgroups of
		// four subgroups fit, and hide each other's loads and stores. Blocks of 128 rows leave too
		// few registers, so they are for short k. In a batch of products with few rows they would be
		// half empty.
		//
		// Products of a LoRA, first: 2048x8x4096 tn 21.1 → 13.9 µs, 24x2048x4096 19.1 → 14.1, 8x1536x4096 17.6 → 13.1, 4096x24x576 nt 16.5 → 7.7,
		// 4096x8x1536 nn 16.0 → 14.2, 4096x8x5632 26.7 → 22.7, and to what is there 4096x3072x16 nt 29.8 → 27.3, 4096x960x16 15.0 → 11.2.
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{trans: "tn", thinN: thin}, Config: words("coopmat s4x2 t3x1 k96 align g16")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{trans: "tn", thinM: thin}, Config: words("coopmat s2x4 t1x3 k96 align g16")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{k: thin, m: leastRows}, Config: words("coopmat s2x2 t2x2 k32 align g16")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{k: 1024, m: leastRows, thinN: thin}, Config: words("coopmat s2x1 t1x1 k96 align g16")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{k: 2048, m: leastRows, thinN: thin}, Config: words("coopmat s1x2 t1x1 k96 align g16")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{m: leastRows, thinN: thin}, Config: words("coopmat s4x1 t3x1 k96 align g16")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{trans: "tn"}, Fill: 1, Config: words("coopmat s4x2 t4x4 k48 align g8")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{trans: "tn"}, Fill: 1, Config: words("coopmat s2x4 t4x4 k48 align g8")}, // the same turned, for 1365x512x18048
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{trans: "tn", m: 512}, Fill: 0.9, Config: words("coopmat s4x2 t4x4 k48 align g16")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{trans: "tn", m: 512}, Fill: 0.9, Config: words("coopmat s2x4 t4x4 k48 align g16")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{trans: "tn"}, Fill: 0.9, Config: words("coopmat s2x2 t4x4 k32 align g16")}, // few blocks, with splits: 512x1024x2048 48.8 → 25.5 µs
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{most: 64}, Fill: 0.9, Config: words("coopmat s2x2 t2x4 k64 align g8")},
		// Blocks of 128 x 256 that just fill the device once: 4096x960x576 24.6 → 20.8 µs. Twice: 4096x2048x2048 108.7 → 98.9, but not timed in the step of small.
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{k: 2048, m: leastRows}, Fill: 0.9, Most: 1, Config: words("coopmat s2x4 t4x4 k64 align packb g4")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{k: 1024, m: leastRows}, Fill: 12, Config: words("coopmat s2x2 t4x4 k64 align packb g10")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{m: leastRows}, Fill: 2, Config: words("coopmat s2x2 t3x4 k64 align packb g22")},
		{Family: "hopper", Formats: table.Of16Bits, Fill: 1, Config: words("coopmat s4x2 t3x4 k64 align g10")},
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{m: leastRows}, Fill: 0.9, Most: 1, Config: words("coopmat s2x4 t3x3 k64 align g16")}, // once: 4096x576x1536 48.7 → 27.9 µs
		{Family: "hopper", Formats: table.Of16Bits, Fill: 1, Config: words("coopmat s2x2 t4x4 k32 align g16")},                                        // for kernels that need more shared memory
		{Family: "hopper", Formats: table.Of16Bits, Config: words("coopmat s2x2 t2x2 k32 align g8")},

		// F32x2: half as many sums, since high and low parts of A wait in registers, and products are
		// summed before they are added to the sums. Without LoadAhead f32x2 is 12 % slower.
		{Family: "hopper", Formats: table.OfFloat32, Fill: 1, Config: words("coopmat s2x2 t4x4 k16 loadahead1 g16")},
		{Family: "hopper", Formats: table.OfFloat32, Config: words("coopmat s2x2 t2x2 k16 g8")},

		// Small tiles: the time to compile on lavapipe grows with them, to seconds. A k-tile of two
		// matrices takes float32 four times as long.
		{Family: "lavapipe", Formats: table.Of16Bits, Config: words("coopmat s2x1 t1x2 k8 g4")},
		{Family: "lavapipe", Formats: table.OfFloat32, Config: words("coopmat s2x1 t1x2 k8 g4")},

		// Any device with matrices: 32 x 32 sums of a subgroup, 10 KiB.
		{Formats: table.Of16Bits, Config: words("coopmat s2x2 t2x2 k32 g8")},
		{Formats: table.OfFloat32, Config: words("coopmat s2x2 t2x2 k16 g8")},

		// Few rows. Where a row of op(B) is along k, 128 invocations divide k for each
		// four columns: 7 x 128 invocations with 64 bytes on their way keep a multiprocessor's 29 KB (gemv.go). With
		// too few columns they have one, and where k is short 32 do. Where a row is along n, a block has
		// 64 bytes of it, so that 4096 columns are a block for each multiprocessor, with 32 KB.
		{Formats: table.Of16Bits, Shape: shape{trans: "nt", k: 1024}, Fill: 4, Config: words("gemv 16x16 t4x32 k256 g1")},
		{Formats: table.Of16Bits, Shape: shape{trans: "nt", k: 1024}, Config: words("gemv 16x4 t4x32 k256 g1")},
		// On matrices 16 rows of 4096 x 4096 take 13.1 us, in plain arithmetic 31.3, and four rows 14.1 there.
		{Family: "hopper", Formats: table.Of16Bits, Shape: shape{trans: "nt", m: 4}, Fill: 1, Config: words("gemv 16x16 t1x512 k2048 matrix g1")},
		{Formats: table.Of16Bits, Shape: shape{trans: "nt"}, Fill: 4, Config: words("gemv 16x4 t1x128 k1024 g1")},
		{Formats: table.Of16Bits, Shape: shape{trans: "nt"}, Config: words("gemv 16x1 t1x128 k1024 g1")},
		{Formats: table.Of16Bits, Shape: shape{trans: "nn"}, Fill: 0.9, Config: words("gemv 16x32 t4x64 k512 g1")},
		{Formats: table.Of16Bits, Shape: shape{trans: "nn"}, Config: words("gemv 16x16 t2x64 k512 g1")},
		{Formats: table.OfFloat32, Shape: shape{trans: "nt"}, Fill: 4, Config: words("gemv 16x4 t1x128 k512 g1")},
		{Formats: table.OfFloat32, Shape: shape{trans: "nt"}, Config: words("gemv 16x1 t1x128 k512 g1")},
		{Formats: table.OfFloat32, Shape: shape{trans: "nn"}, Config: words("gemv 16x16 t4x32 k256 g1")},

		// Any device. These fit Vulkan's guaranteed 16 KiB and 128 invocations.
		{Fill: 1, Config: words("scalar 64x64 t8x16 k16 g8")},
		{Config: words("scalar 32x32 t8x8 k32 g8")},
	}
}

// leastRows is the least number of rows of op(A) for which packing op(B) pays. Packing takes
// about 200/m of the product's time, and gains a tenth.
const leastRows = 2048

// thin is up to which m, n or k a product is a LoRA's: one operand, or C, is read once, whatever it takes.
const thin = 32

// blocks returns how many workgroups a problem makes before k is split.
func (c *Config) blocks(caps *vk.Caps, p *Problem) int {
	m, n := c.Block(caps, p.DType)
	return p.Batches() * ((p.M + m - 1) / m) * ((p.N + n - 1) / n)
}

// leastSplitK is the k of a workgroup that counts as a block of its own, where blocks are few.
const leastSplitK = 512

// filling returns how many workgroups a problem makes, with splits where blocks are few.
func (c *Config) filling(caps *vk.Caps, p *Problem) int {
	blocks := c.blocks(caps, p)
	if c.Impl == GEMV {
		return blocks
	}
	return blocks * max(min(c.Slots(caps, p)/blocks, p.K/leastSplitK), 1)
}

// Choose returns the configuration that Multiply takes for p on a device. Its error
// wraps vk.ErrUnsupported if no path, or not the forced one, handles p.
func Choose(caps *vk.Caps, p Problem, opt Options) (Config, error) {
	c, _, err := ChooseOrigin(caps, p, opt)
	return c, err
}

// ChooseOrigin is Choose, and returns the origin of the configuration.
func ChooseOrigin(caps *vk.Caps, p Problem, opt Options) (Config, table.Origin, error) {
	if err := p.Validate(); err != nil {
		return Config{}, table.Origin{}, err
	}
	if opt.Config != nil {
		return *opt.Config, table.Origin{}, opt.Config.Feasible(caps, p)
	}
	q := query(caps, opt.Impl, &p, opt.Tuning)
	if few := p.M <= fewRows && !p.TransA && !opt.PadB && (p.TransB || p.M <= fewRows/2); few || p.Ones {
		q.Auto = append([]string{GEMV.String()}, q.Auto...)
	}
	return products.Choose(caps, &p, q)
}

// query returns a call's query of a table.
func query(caps *vk.Caps, impl Impl, p *Problem, tuning *kit.Tuning) table.Query[Config] {
	q := table.Query[Config]{Auto: autoPaths(caps, p), Tuning: tuning}
	if impl != Auto {
		q.Path = impl.String()
	}
	return q
}

// Supports returns nil if path impl can compute p on a device, and otherwise why not.
func Supports(caps *vk.Caps, impl Impl, p Problem) error {
	_, err := Choose(caps, p, Options{Impl: impl})
	return err
}

// ChooseBeside is Choose for kernels with their own table, which need some bytes of shared memory
// and pack no op(B).
func ChooseBeside(caps *vk.Caps, t *Table, p Problem, impl Impl, bytes func(*Config) int, tuning *kit.Tuning, packs bool) (Config, error) {
	q := query(caps, impl, &p, tuning)
	q.More = func(c *Config) error {
		if c.PackB && !packs {
			return Unsupported("%v: only products pack op(B)", c)
		}
		return c.FitsBeside(caps, &p, bytes(c))
	}
	c, _, err := t.Choose(caps, &p, q)
	return c, err
}

// autoPaths returns the paths in the order in which Auto tries them.
//
// Matrices pay where the device has units for them, as CPU devices have not. For float32 the
// product must be large enough, too.
func autoPaths(caps *vk.Caps, p *Problem) []string {
	small := min(p.M, p.N) < leastF32x2 || p.FLOPs() < leastF32x2FLOPs
	if caps.Type == vk.CPU || p.DType == dtype.Float32 && small {
		return plainFirst
	}
	return pathNames
}

var (
	pathNames  = []string{CoopMat.String(), Scalar.String()}
	plainFirst = []string{Scalar.String(), CoopMat.String()}
)
