package attention_test

import (
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/attention/ondevice"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// onDevice runs attention.Forward for the suite.
type onDevice struct {
	d   *vk.Device
	opt attention.Options
}

func (f onDevice) Supports(p attention.Problem) error {
	plan, err := attention.Choose(f.d.Caps(), p, kit.Forward, f.opt)
	if err != nil || !software(f.d) {
		return err
	}
	most, config := 128, plan.Config
	switch {
	case p.DType == dtype.Float32:
		most = 40
	case !p.Plain() || config.Impl == attention.CoopMat:
		most = 72
	}
	if !vktest.Thorough(f.d) && p.Plain() {
		most = 40
		if p.DType == dtype.Float32 {
			most = 24
		}
	}
	if err := widerHeads(f.d, config.Impl, p, most); err != nil {
		return err
	}
	return fewerFeatures(config.Impl, takesAlone(f.d, f.opt.Config != nil, kit.Forward), p)
}

// Forward implements attntest.Forwarder.
func (f onDevice) Forward(o, lse *guard.View, in attntest.Inputs, p attention.Problem) error {
	k := ondevice.Kernel{Device: guard.Device{Device: f.d}, Options: f.opt}
	return k.Forward(o, lse, in, p)
}

// suite returns the cases for the device: a software driver gets the short
// set. Its expectations are shared by all tests of the package.
func suite(d *vk.Device) *attntest.Suite { return suites[setOf(d)] }

var suites = [...]*attntest.Suite{
	attntest.Short: attntest.NewSuite(attntest.Short, attntest.Reference, attntest.TwicePlain),
	attntest.Full:  attntest.NewSuite(attntest.Full, attntest.Reference, attntest.TwicePlain),
}

// TestForward runs the suite on every path of the device.
func TestForward(t *testing.T) {
	for _, impl := range attention.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			t.Parallel() // lavapipe compiles on one core
			d := vktest.Open(t, vktest.WholeBuffers)
			vktest.Require(t, impl.String(), pathError(d.Caps(), impl))
			f := onDevice{d, attention.Options{Impl: impl}}
			attntest.TestForward(t, suiteStandIns(d, impl, suite(d), f.Supports), f)
		})
	}
}

// pathError returns nil if a path runs on the device at all: for one of the
// storage types.
func pathError(caps *vk.Caps, impl attention.Impl) error {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: 64}
	var err error
	for _, p.DType = range dtype.All() {
		if err = attention.Supports(caps, p, kit.Forward, attention.Options{Impl: impl}); err == nil {
			return nil
		}
	}
	return err
}

// TestConfigs runs small problems on configurations that the tuning table does
// not take on this device: one and several row tiles of a subgroup, keys that
// wait in registers, one loop and two, matrix layouts that are not known.
func TestConfigs(t *testing.T) {
	d := vktest.Open(t)
	small := suite(d).Where(func(c *attntest.Case) bool {
		dims := strings.HasPrefix(c.Name, "head-dim/") || strings.HasPrefix(c.Name, "value-dim/") && !software(d)
		return dims && c.Problem.HeadDim <= 24
	})
	for _, config := range []attention.Config{
		{Impl: attention.CoopMat2, Subgroups: 1, RowTiles: 1, BlockN: 16, PeelMask: true},
		{Impl: attention.CoopMat2, Subgroups: 2, RowTiles: 2, BlockN: 16, Prefetch: true, PeelMask: true},
		{Impl: attention.CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 16, Prefetch: true},
		{Impl: attention.CoopMat2, Subgroups: 2, RowTiles: 1, BlockN: 16, Detour: true},
		{Impl: attention.CoopMat, Subgroups: 2, RowTiles: 2, BlockN: 16, PeelMask: true},
		{Impl: attention.CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, Detour: true},
		{Impl: attention.Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 8, ValueRows: 4},
		{Impl: attention.Scalar, Threads: 128, ThreadsX: 16, BlockM: 32, BlockN: 64, Depth: 16, ValueRows: 16},
	} {
		t.Run(config.String(), func(t *testing.T) {
			vktest.Require(t, config.Impl.String(), pathError(d.Caps(), config.Impl))
			cases := small
			if config.Impl == attention.CoopMat || config.Impl == attention.CoopMat2 && !config.Detour {
				cases = small.Where(func(c *attntest.Case) bool { return lightOnSoftware(d, c) })
			}
			f := onDevice{d, attention.Options{Config: &config}}
			attntest.TestForward(t, standIns(d, cases, f.Supports), f)
		})
	}
}

// TestSplits runs problems whose keys are divided among workgroups: in equal and
// unequal shares, more of them than tiles that a block sees, in rows that see
// nothing, with subgroups that have no rows.
func TestSplits(t *testing.T) {
	d := vktest.Open(t)
	dims := setOf(d).HeadDims()
	masks := suite(d).Where(func(c *attntest.Case) bool { // edges, masks, layouts, decode
		p := c.Problem
		return (p.HeadDim == dims.Feature || p.HeadDim == dims.Odd) && p.FLOPs() < 1e7
	})
	extremes := suite(d).Where(func(c *attntest.Case) bool { // maxima far apart, usual heads
		return strings.HasPrefix(c.Name, "extreme/") || c.Problem.HeadDim == dims.Odd
	})
	light := func(s *attntest.Suite) *attntest.Suite {
		return s.Where(func(c *attntest.Case) bool { return lightOnSoftware(d, c) })
	}
	for _, x := range []struct {
		cases  *attntest.Suite
		config attention.Config
	}{
		{light(extremes), attention.Config{Impl: attention.CoopMat2, Subgroups: 2, RowTiles: 1, BlockN: 16, Prefetch: true, PeelMask: true, Splits: 3}},
		{light(masks), attention.Config{Impl: attention.CoopMat2, Subgroups: 2, RowTiles: 2, BlockN: 16, Detour: true, Splits: 2}},
		{masks, attention.Config{Impl: attention.CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 16, Splits: 5}},
		{light(masks), attention.Config{Impl: attention.CoopMat, Subgroups: 4, RowTiles: 1, BlockN: 32, Prefetch: true, Detour: true, Splits: 2}},
		{extremes, attention.Config{Impl: attention.Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 8, Depth: 16, ValueRows: 4, Splits: 6}},
	} {
		t.Run(x.config.String(), func(t *testing.T) {
			vktest.Require(t, x.config.Impl.String(), pathError(d.Caps(), x.config.Impl))
			cases := x.cases
			if onMatrices(x.config.Impl) && !vktest.Thorough(d) { // of decoding, what sees one key: shares see none
				cases = light(cases).Where(func(c *attntest.Case) bool {
					return c.Problem.SeqQ > 1 || !c.Problem.Causal || c.Problem.CausalAlign == attention.TopLeft
				})
			}
			f := onDevice{d, attention.Options{Config: &x.config}}
			attntest.TestForward(t, standIns(d, cases, f.Supports), f)
		})
	}
	t.Run("many batches", func(t *testing.T) {
		d := vktest.Open(t)
		d.Caps().MaxWorkgroupCount[2] = 1
		config := attention.Config{Impl: attention.Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 8, Depth: 16, ValueRows: 4, Splits: 2}
		batches := masks.Where(func(c *attntest.Case) bool { return c.Problem.Batch > 1 })
		f := onDevice{d, attention.Options{Config: &config}}
		attntest.TestForward(t, standIns(d, batches, f.Supports), f)
	})
}

// TestSplitsKernels says that a sequence that grows, and is divided among more
// and more workgroups, does not have kernels compiled for each number of them.
func TestSplitsKernels(t *testing.T) {
	d := vktest.Open(t)
	kernels := make(map[int]int) // by the number of splits that were run
	for splits := 2; splits <= 15; splits++ {
		p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 1, SeqKV: 16 * splits, HeadDim: 64, DType: dtype.Float32}
		config := attention.Config{Impl: attention.Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 16, ValueRows: 4, Splits: splits}
		o, lse, q, k, v := newTensors(t, d, p)
		c, err := d.NewCmd("growing")
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, attention.Forward(c, attention.Tensors{O: o, LSE: lse, Q: q, K: k, V: v}, p, attention.Options{Config: &config}))
		kernels[splits] = len(d.CachedKernels())
	}
	require.Equal(t, 2, kernels[2], "the fused kernel and the one that combines two splits at a time")
	require.Equal(t, 4, kernels[15], "and four and eight")
}

// TestManyBatches runs every path in several dispatches, as for more batches
// than the device has workgroups. Of features, the
// cases that have all tensors with a batch axis; causal ones take one dispatch.
func TestManyBatches(t *testing.T) {
	d := vktest.Open(t)
	d.Caps().MaxWorkgroupCount[2] = 1
	perBatch := regexp.MustCompile("^pair/.*key-mask.*(bias|alibi)|^alibi/batch-heads/.*/dense")
	small := suite(d).Where(func(c *attntest.Case) bool {
		p := c.Problem
		few := strings.HasPrefix(c.Name, "heads/") && p.DType == dtype.Float16 // TestForward has their kernels
		plain := p.Plain() && (few || vktest.Thorough(d))
		return p.Batch > 1 && p.HeadDim <= setOf(d).HeadDims().Odd && (plain || perBatch.MatchString(c.Name)) && float64(p.SeqQ)*float64(p.SeqKV) < 1e5
	})
	if len(small.Cases) == 0 {
		t.Fatal("the suite has no case with two batches")
	}
	for _, impl := range attention.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			vktest.Require(t, impl.String(), pathError(d.Caps(), impl))
			f := onDevice{d, attention.Options{Impl: impl}}
			attntest.TestForward(t, standIns(d, small, f.Supports), f)
		})
	}
}

// TestRepeatedCall says that recording a call again compiles nothing and
// allocates next to nothing; BenchmarkForwardRecord has its time.
func TestRepeatedCall(t *testing.T) {
	d := vktest.Open(t)
	for _, impl := range append(attention.Impls(), attention.Auto) {
		for _, format := range dtype.All() {
			p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 8, SeqKV: 8, HeadDim: 8, DType: format}
			if attention.Supports(d.Caps(), p, kit.Forward, attention.Options{Impl: impl}) != nil {
				continue
			}
			o, lse, q, k, v := newTensors(t, d, p)
			c, err := d.NewCmd("repeated")
			if err != nil {
				t.Fatal(err)
			}
			record := func() {
				c.Reset()
				if err := attention.Forward(c, attention.Tensors{O: o, LSE: lse, Q: q, K: k, V: v}, p, attention.Options{Impl: impl}); err != nil {
					t.Fatal(err)
				}
			}
			record()
			kernels := len(d.CachedKernels())
			// Refusals of other paths are 2 each, until one fits.
			if n := testing.AllocsPerRun(10, record); n > 60 {
				t.Errorf("%v %v: %v allocations", impl, format, n)
			}
			if n := len(d.CachedKernels()); n != kernels {
				t.Errorf("%v %v: %d kernels after the first call, then %d", impl, format, kernels, n)
			}
			c.Close()
		}
	}
}

// TestEqualWeights has many keys of the same weight, which is no round number: additions of it to a
// float32 sum round in the same direction. Matrix paths add the sum of a key tile at a time. Each of those
// additions is off by u of the sum so far at most, and so all of them by half of their number.
func TestEqualWeights(t *testing.T) {
	const keys, first, blockN = 1 << 16, 128, 32 // the weight of the first keys is 2^HEADROOM
	const u = 0x1p-24
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: keys, HeadDim: 8, DType: dtype.Float32, Scale: 1}
	d := vktest.Open(t)
	for _, impl := range []attention.Impl{attention.CoopMat2, attention.CoopMat} {
		t.Run(impl.String(), func(t *testing.T) {
			plan, err := attention.Choose(d.Caps(), p, kit.Forward, attention.Options{Impl: impl})
			vktest.Require(t, impl.String(), err)
			plan.Config.BlockN, plan.Config.Splits = blockN, 1
			for _, logit := range []float32{0x1.bp-14, 0x1.dp-14} {
				x := attention.HostTensors{
					Q: make([]float32, p.HeadDim), K: make([]float32, keys*p.HeadDim), V: make([]float32, keys*p.HeadDim),
					O: make([]float32, p.HeadDim), LSE: make([]float32, 1),
				}
				x.Q[0] = 1
				for j := first; j < keys; j++ {
					x.K[j*p.HeadDim] = logit
				}
				require.NoError(t, attention.ForwardHost(t.Context(), d, x, p, attention.Options{Config: &plan.Config}))
				want := math.Log(first + (keys-first)*math.Exp(float64(logit)))
				require.InDelta(t, want, x.LSE[0], u*(keys/blockN/2+3*want))
			}
		})
	}
}

// newTensors returns tensors for p, closed at the end of the test.
func newTensors(t testing.TB, d *vk.Device, p attention.Problem) (o, lse, q, k, v vk.Tensor) {
	query := []int{p.Batch, p.NumHeads, p.SeqQ, p.HeadDim}
	key := []int{p.Batch, p.NumKVHeads, p.SeqKV, p.HeadDim}
	for _, x := range []struct {
		target *vk.Tensor
		name   string
		format dtype.DType
		shape  []int
	}{{&o, "o", p.DType, query}, {&lse, "lse", dtype.Float32, query[:3]}, {&q, "q", p.DType, query}, {&k, "k", p.DType, key}, {&v, "v", p.DType, key}} {
		var err error
		if *x.target, err = d.NewTensor(x.name, x.format, x.shape...); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(x.target.Close)
	}
	return o, lse, q, k, v
}
