package attention

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// decodeTable has the configuration of Decode. Decode has a rule instead of rows: the configuration
// follows from the rows of a group, head_dim and the device.
var decodeTable = table.New(table.Table[DecodeProblem, DecodeConfig, anyCache]{
	Kernel: "decode", Pass: kit.Forward, Paths: decodePaths, Family: chips.Family, Rule: decodeRule,
	Format:   func(p *DecodeProblem) dtype.DType { return p.DType },
	Path:     func(c *DecodeConfig) string { return c.Impl.String() },
	Feasible: func(c *DecodeConfig, caps *vk.Caps, p *DecodeProblem) error { return c.Feasible(caps, *p) },
	// Rows and subgroups are candidates, numbers of workgroups are variants.
	Candidates: func(_ *vk.Caps, _ DecodeProblem, start DecodeConfig) []DecodeConfig {
		return table.Grid(start, start.Impl.String())
	},
	Variants: decodeVariants,
	Likeness: func(p *DecodeProblem) table.Likeness {
		kind := *p // without the sizes
		kind.Batch, kind.SeqKV, kind.Pages, kind.CacheRows, kind.NewKeys, kind.Scale = 0, 0, 0, 0, 0, 0
		return table.Likeness{Kind: kind, Sizes: [4]table.Size{{N: float64(p.Batch), Enough: manyRows}, {N: float64(p.SeqKV), Enough: manyKeys}}}
	},
	Module:   func(p *DecodeProblem, c *DecodeConfig) string { return shaders.Hash(p.DType.Short(), c.kernel(p)) },
	Validate: func(p *DecodeProblem) error { return p.Validate() },
})

// decodePaths are the paths of Decode in the order in which Auto tries them.
var decodePaths = []string{CoopMat.String(), Scalar.String()}

// anyCache is the shape of rows; the table has none.
type anyCache struct{}

// Has implements table.Shape.
func (anyCache) Has(*DecodeProblem) bool { return true }

const (
	// With decodeRows rows of a unit, Q and O of the rows fit in registers beside the keys that are
	// being loaded. A group with more rows reads the keys again, from the cache of the device.
	decodeRows = 4
	// detourRows is up to how many rows of a key head multiply-adds are taken where the layout of matrices is
	// not known: they read keys twice then, from the cache of the device, and the detour goes through shared
	// memory. Argued, not measured.
	detourRows = 8
	// decodeUnits stands for the compute units of a device that does not report them.
	decodeUnits = 32
)

// ChooseDecode returns how Decode runs p on a device. Its error wraps vk.ErrUnsupported if no
// kernel, or not the kernel of the forced path, handles p.
func ChooseDecode(caps *vk.Caps, p DecodeProblem, opt Options) (Plan, error) {
	c, origin, err := chooseDecode(caps, p, opt)
	if err != nil {
		return Plan{}, err
	}
	return Plan{Decode: c, Origin: origin, name: c.String(), bytes: c.partsBytes(p), kernels: c.kernels(&p)}, nil
}

// chooseDecode returns the configuration for p, or the forced one if it is feasible, and its
// origin.
func chooseDecode(caps *vk.Caps, p DecodeProblem, opt Options) (c DecodeConfig, origin table.Origin, err error) {
	if err := p.Validate(); err != nil {
		return c, origin, err
	}
	if opt.Impl != Auto && opt.Impl != CoopMat && opt.Impl != Scalar {
		return c, origin, unsupported("decode: no kernel of path %v", opt.Impl)
	}
	if opt.DecodeConfig != nil {
		if opt.Impl != Auto && opt.Impl != opt.DecodeConfig.Impl {
			return c, origin, fmt.Errorf("attention: decode: the configuration is of path %v, not of %v", opt.DecodeConfig.Impl, opt.Impl)
		}
		return *opt.DecodeConfig, origin, opt.DecodeConfig.Feasible(caps, p)
	}
	auto := decodePaths
	if caps.Type == vk.CPU || !chips.Quads(caps) && p.groupRows() <= detourRows {
		auto = scalarOnly
	}
	return decodeTable.Choose(caps, &p, query[DecodeConfig](opt, auto))
}

// decodeRule returns the configuration of a path.
func decodeRule(caps *vk.Caps, p *DecodeProblem, path string) (DecodeConfig, error) {
	c := DecodeConfig{Impl: Scalar, Groups: int(caps.ComputeUnits)}
	if c.Groups == 0 {
		c.Groups = decodeUnits
	}
	if path == CoopMat.String() {
		c.Impl = CoopMat
	}
	return c.choose(caps, *p)
}

// fewerRows returns how many rows a unit has where it reads few keys: more workgroups then share
// the rows, and the sums of each are shorter. Shorter sums save more time than reading the keys
// once more costs; a single sequence may have twice as many keys. The limits follow from
// measurements on an H200 (TUNING.md); no measurement has more rows than a unit of c.
func (c *DecodeConfig) fewerRows(p *DecodeProblem) int {
	keys := p.Batch * p.NumKVHeads * p.SeqKV / c.Groups // of a workgroup
	most := 512
	if p.Batch == 1 {
		most = 1024
	}
	switch {
	case p.groupRows() > c.Rows:
		return c.Rows
	case c.Rows == 16 && keys <= most/2 || keys <= most/8:
		return 8
	case keys <= most:
		return 16
	}
	return c.Rows
}

// choose returns c with the remaining choices.
func (c DecodeConfig) choose(caps *vk.Caps, p DecodeProblem) (DecodeConfig, error) {
	if shape, err := matrixShape(caps, CoopMat, p.operands()); c.Impl == CoopMat && err == nil && !quadsKnown(caps, shape) {
		c.Detour, c.Subgroups, c.Rows = true, 4, int(shape.M)
	} else if c.Impl == CoopMat {
		c.Rows, c.Subgroups = 16, 8
		dim := max(p.HeadDim, p.ValueHeadDim())
		switch {
		case p.groupRows() > 16 && dim <= 128:
			c.Rows = 32
		case p.groupRows() <= 8:
			c.Rows = 8
		}
		if c.Rows > 8 && p.Cache == CacheSame && dim <= 128 {
			c.Rows = c.fewerRows(&p)
		}
		switch few := c.Rows == 8 && p.Cache != CacheQ8_0; {
		case c.Rows < 32 && dim <= 64:
			c.Subgroups = 16 // a key is half as long, so more of them are on their way
		case few && dim <= 128:
			c.Subgroups = 12
		}
		// Where four subgroups of each compute unit have a tile of 16 keys each, more of them would wait, and more parts be
		// merged: 1024 keys of 3 heads on an H200 take 8.8 µs instead of 10.0, of 8 heads 9.1 instead of 9.9.
		groups := c.units(&p) * ((p.SeqKV + 63) / 64)
		if !c.Detour && c.Rows == 8 && dim <= 64 && p.Cache == CacheSame && p.Batch == 1 && groups <= c.Groups {
			c.Subgroups, c.Groups = 4, groups
		}
	} else {
		c.Rows, c.Subgroups = min(nextPower(p.groupRows()), decodeRows), 16
	}
	c.Subgroups = min(c.Subgroups, int(caps.MaxWorkgroupInvocations/max(caps.SubgroupSize, 1)))
	for ; ; c.Subgroups = (c.Subgroups + 1) / 2 {
		err := c.Feasible(caps, p)
		if err == nil || c.Subgroups <= 1 {
			return c, err
		}
	}
}
