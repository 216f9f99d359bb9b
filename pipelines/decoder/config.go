package decoder

import (
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// A Config says how a layer is divided.
type Config struct {
	Groups  int  `word:"g%d"`      // workgroups, all of which the device must run at once
	Threads int  `word:"t%d"`      // of a workgroup
	Splits  int  `word:"splits%d"` // ranges of keys
	Team    int  `word:"team%d"`   // invocations that share a row of weights, a power of two up to a subgroup
	Loads   int  `word:"loads%d"`  // vectors of weights of 16 bytes that an invocation loads at once
	Keys    int  `word:"keys%d"`   // that a team of 8 invocations loads at once
	Ahead   int  `word:"ahead%d"`  // waits between the first loads of a phase and their use, up to 3
	Copies  int  `word:"copies%d"` // of words that workgroups hand to each other, up to Team: each has readers of its own
	Beside  bool `word:"beside"`   // the next layer's workgroups start while there is room, with no barrier between
}

// String names the choices in a few words, which ParseConfig reads.
func (c Config) String() string { return table.Text(c) }

// ParseConfig reads what Config.String writes, as in "g132 t256 splits8 team16 loads8 keys4 ahead2 copies4".
func ParseConfig(text string) (Config, error) { return table.Parse[Config]("decoder", text) }

const (
	vec        = 8  // elements of 16 bytes
	lanes      = 8  // of a team that has a key
	mostVecs   = 8  // of a key head's queries, which an invocation has sums of
	mostSplits = 16 // parts that an invocation combines at once
	mostAhead  = 3
	mostWords  = 64 // of a phase that an invocation reads: Mesa 25.0's compiler for RDNA2 crashes at 112
)

// Sizes up to which Hopper has this kernel (Plan.Fast says what of that was measured): weights of a layer, and keys.
const (
	fewWeights  = 1 << 23 // a layer waits for words more than for memory
	mostWeights = 1 << 28
	mostKeys    = 1 << 12
)

// choose returns the configuration for a device, and Plan.Fast. Where nobody has measured, one workgroup computes everything:
// it needs no other to run.
func choose(caps *vk.Caps, p *Problem) (c Config, fast bool) {
	subgroup := max(1, int(caps.SubgroupSize))
	c = Config{Groups: 1, Threads: max(128, subgroup), Splits: 1, Team: min(16, subgroup), Loads: 4, Keys: 2, Ahead: 1, Copies: 1}
	for c.Threads*mostWords < max(p.Width, p.Hidden) {
		c.Threads *= 2
	}
	if chips.Family(caps) != "hopper" || caps.ComputeUnits < 2 {
		return c, false
	}
	c = Config{Groups: int(caps.ComputeUnits), Threads: 512, Splits: 8, Team: 32, Loads: 8, Keys: 2, Ahead: 1, Copies: 4, Beside: true}
	if p.matrices() <= fewWeights { // two layers have the device: one computes, and weights of the next are there before it ends
		c.Groups, c.Splits, c.Keys, c.Ahead = c.Groups/2, 16, 1, 2
	}
	for c.Splits > 1 && c.Splits*p.KVHeads > c.Groups {
		c.Splits /= 2
	}
	return c, p.matrices() <= mostWeights && p.Keys <= mostKeys
}

// together returns how many workgroups of a kernel a device runs at once, for all that is known.
func together(caps *vk.Caps) int {
	if caps.Type == vk.CPU {
		return 2 // threads, of which a machine has as many
	}
	return max(1, int(caps.ComputeUnits))
}

// Feasible returns nil if the device can run c for p, and otherwise an error that wraps vk.ErrUnsupported.
func (c Config) Feasible(caps *vk.Caps, p Problem) error {
	unsupported := func(format string, args ...any) error { return argument.Unsupported("decoder", format, args...) }
	subgroup := int(caps.SubgroupSize)
	group := p.Heads / p.KVHeads
	switch {
	case p.DType.Size() != 2:
		return unsupported("dtype=%v is not one of 16 bits", p.DType)
	case p.HeadDim != 64 && p.HeadDim != 128:
		return unsupported("head_dim=%d is neither 64 nor 128", p.HeadDim)
	case group*p.HeadDim/64 > mostVecs:
		return unsupported("%d heads of %d for a key head are more than %d elements", group, p.HeadDim, mostVecs*64)
	case p.Width%vec != 0 || p.Hidden%vec != 0:
		return unsupported("width=%d and hidden=%d are not multiples of %d", p.Width, p.Hidden, vec)
	case min(c.Groups, c.Threads, c.Splits, c.Team, c.Loads, c.Keys, c.Copies) < 1 || c.Ahead < 0 || c.Ahead > mostAhead || c.Splits > mostSplits:
		return unsupported("%v: a number is not positive, ahead is more than %d, or splits are more than %d", c, mostAhead, mostSplits)
	case c.Groups > together(caps):
		return unsupported("%d workgroups are more than the %d that the device is known to run at once", c.Groups, together(caps))
	case !caps.SubgroupOps.Has(vk.SubgroupBasic|vk.SubgroupArithmetic|vk.SubgroupShuffle) || subgroup < lanes:
		return unsupported("subgroups of %d lack arithmetic, shuffles, or %d invocations", subgroup, lanes)
	case !caps.ComputeFullSubgroups || !caps.SubgroupSizeControl && caps.MinSubgroupSize != caps.MaxSubgroupSize:
		return unsupported("the size of subgroups is not known")
	case c.Threads%subgroup != 0 || c.Threads%32 != 0 || c.Team&(c.Team-1) != 0 || c.Team > subgroup || c.Copies > c.Team:
		return unsupported("%v: %d invocations are not subgroups of %d, or these not teams of %d, a power of two, for %d copies", c, c.Threads, subgroup, c.Team, c.Copies)
	case c.Threads*mostWords < max(p.Width, p.Hidden):
		return unsupported("%d invocations read more than %d words each of width=%d or hidden=%d", c.Threads, mostWords, p.Width, p.Hidden)
	case caps.MaxStorageBuffers < buffers:
		return unsupported("%d storage buffers are more than the device's %d", buffers, caps.MaxStorageBuffers)
	case caps.MaxWorkgroupSubgroups != 0 && c.Threads > subgroup*int(caps.MaxWorkgroupSubgroups):
		return unsupported("%d invocations are more than %d subgroups of %d", c.Threads, caps.MaxWorkgroupSubgroups, subgroup)
	}
	if err := argument.Storage("decoder", caps, p.DType); err != nil {
		return err
	}
	if err := argument.FitsWorkgroup("decoder", caps, c, c.Threads); err != nil {
		return err
	}
	subgroups := c.Threads / subgroup
	vectors := max(4*p.Width, 4*p.attended(), 2*p.Hidden, 4*c.Threads/32*group*p.HeadDim)
	rest := (group+2)*p.HeadDim + c.Keys*c.Threads/lanes*(group+3)/4*4 + (p.Width+c.Groups-1)/c.Groups +
		subgroups*(1+group) + 2*group + c.Threads/32*group + 3*p.Heads*c.Splits
	return argument.FitsShared("decoder", caps, c, vectors+4*rest)
}

// words returns the words that workgroups hand to each other in a layer.
func (c *Config) words(p *Problem) int {
	return c.Copies * (p.qkv() + p.Heads*c.Splits*(2+p.HeadDim) + 2*p.Width + p.Hidden)
}
