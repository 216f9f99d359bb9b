package attention_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// An example has tensors that are full of one number.
type example struct{ *vktest.Example }

func newExample() example { return example{vktest.NewExample()} }

func must[T any](x T, err error) T {
	vktest.Must(err)
	return x
}

// tensor returns a tensor with the same number everywhere.
func (x example) tensor(f dtype.DType, number float32, shape ...int) vk.Tensor {
	t := x.Tensor(f, shape)
	fill(t, number)
	return t
}

func fill(t vk.Tensor, number float32) {
	if t.DType == dtype.Int32 {
		vktest.Must(t.UploadInts(context.Background(), slices.Repeat([]int32{int32(number)}, t.NumElements())))
		return
	}
	vktest.Must(t.Upload(context.Background(), slices.Repeat([]float32{number}, t.NumElements())))
}

// A cache of two sequences with room for 16 keys each. The sequences have 3 and 5 keys, as only the
// device knows.
func ExampleDecode() {
	d := newExample()
	defer d.Close()
	p := attention.DecodeProblem{Problem: attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 1, SeqKV: 16, HeadDim: 8, DType: dtype.Float16, Causal: true}}
	t := attention.DecodeTensors{
		Q: d.tensor(p.DType, 0, p.QShape()...), // so each row of O is the mean of the values that it sees
		K: d.tensor(p.DType, 1, p.KShape()...), V: d.tensor(p.DType, 100, p.VShape()...),
		O: d.tensor(p.DType, 0, p.OShape()...), SeqLens: d.tensor(dtype.Int32, 0, p.SeqLensShape()...),
		State: d.tensor(dtype.Int32, 0, p.StateShape()...),
	}
	for i := range 5 { // value number i is i, in all sequences and heads
		fill(t.V.Slice(2, i, i+1), float32(i))
	}
	vktest.Must(t.SeqLens.UploadInts(context.Background(), []int32{3, 5}))
	d.Run(func(c *vk.Cmd) error { return attention.Decode(c, t, p, attention.Options{}) })
	o := d.Values(t.O)
	fmt.Println(o[0], o[4*8], attention.DecodeStatus(context.Background(), t.State, p))
	// Output: 1 2 <nil>
}

// A key goes to position 3 of a contiguous cache, turned by its position: by 3 radians in its
// first pair.
func ExampleAppend() {
	d := newExample()
	defer d.Close()
	p := attention.AppendProblem{
		DecodeProblem: attention.DecodeProblem{
			Problem: attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 8, HeadDim: 8, DType: dtype.Float32},
			NewKeys: 1,
		},
		RoPE: attention.RoPE{Dims: 4, Interleaved: true}, // pairs (0, 1) and (2, 3)
	}
	t := attention.AppendTensors{
		NewK: d.tensor(p.DType, 1, p.NewKShape()...), NewV: d.tensor(p.DType, 2, p.NewVShape()...),
		K: d.tensor(p.DType, 0, p.KShape()...), V: d.tensor(p.DType, 0, p.VShape()...),
		Cos: d.tensor(dtype.Float32, 0, 8, 2), Sin: d.tensor(dtype.Float32, 0, 8, 2),
		SeqLens: d.tensor(dtype.Int32, 3, p.SeqLensShape()...), State: d.tensor(dtype.Int32, 0, 1),
	}
	cos, sin := attention.Frequencies{Dims: 4}.Table(8)
	vktest.Must(t.Cos.Upload(context.Background(), cos))
	vktest.Must(t.Sin.Upload(context.Background(), sin))
	d.Run(func(c *vk.Cmd) error {
		return errors.Join(attention.Append(c, t, p), attention.Advance(c, t.SeqLens, 1)) // the sequence has 4 keys from now on
	})
	fmt.Printf("%.3f\n", d.Values(t.K)[3*8:4*8]) // cos 3 - sin 3, cos 3 + sin 3, the same of 0.03, and what is not turned
	// Output: [-1.131 -0.849 0.970 1.030 1.000 1.000 1.000 1.000]
}

// The fastest pair of Llama 3 turns by a radian with each position, the slowest by 32 times less than it did.
func ExampleParseScaling() {
	scaling, err := attention.ParseScaling("llama3")
	f := attention.Frequencies{Dims: 64, Base: 500000, Scaling: scaling, Factor: 32, Original: 8192}
	turns := f.Turns()
	slow := attention.Angle(attention.Frequencies{Dims: 64, Base: 500000}.Turns()[31], 1000)
	fmt.Printf("%v %.3f %.3f\n", err, attention.Angle(turns[0], 3), slow/attention.Angle(turns[31], 1000))
	// Output: <nil> 3.000 32.000
}

// A step writes a key and its value after three others, and a query of each head sees all four.
func ExampleStep() {
	d := newExample()
	defer d.Close()
	p := attention.AppendProblem{DecodeProblem: attention.DecodeProblem{
		Problem: attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 1, SeqKV: 8, HeadDim: 8, DType: dtype.Float32, Causal: true},
		NewKeys: 1,
	}}
	t := attention.StepTensors{
		DecodeTensors: attention.DecodeTensors{
			Q: d.tensor(p.DType, 0, p.QShape()...), O: d.tensor(p.DType, 0, p.OShape()...),
			K: d.tensor(p.DType, 1, p.KShape()...), V: d.tensor(p.DType, 1, p.VShape()...),
			SeqLens: d.tensor(dtype.Int32, 3, p.SeqLensShape()...), State: d.tensor(dtype.Int32, 0, p.StateShape()...),
		},
		NewK: d.tensor(p.DType, 2, p.NewKShape()...), NewV: d.tensor(p.DType, 5, p.NewVShape()...),
	}
	d.Run(func(c *vk.Cmd) error { return attention.Step(c, t, p, attention.Options{}) })
	o, k := d.Values(t.O), d.Values(t.K)
	fmt.Println(o[0], k[2*8], k[3*8]) // the mean of three values 1 and the new one, 5; the last old key and the new one
	plan, err := attention.ChooseStep(d.D.Caps(), p, attention.Options{})
	fmt.Println(len(plan.Kernels()), err) // float32 has no matrices
	// Output:
	// 2 1 2
	// 2 <nil>
}

// A recorded step decodes token after token; two sequences then go on from the keys of one, and
// share its full pages.
func ExampleKVCache() {
	ctx, d := context.Background(), newExample()
	defer d.Close()
	cache := must(attention.NewKVCache(ctx, d.D, attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{
		Problem:  attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 1, SeqKV: 64, HeadDim: 8, DType: dtype.Float16, Causal: true},
		PageSize: 8, Pages: 8,
	}}))
	defer cache.Close()
	p := attention.AppendProblem{DecodeProblem: cache.Problem(1, 1)} // a query and a key of each sequence
	q, k, v, o := d.tensor(p.DType, 0, p.QShape()...), d.tensor(p.DType, 1, p.NewKShape()...), d.tensor(p.DType, 0, p.NewVShape()...), d.tensor(p.DType, 0, p.OShape()...)
	vktest.Must(cache.Reserve(ctx, 11)) // pages for 11 keys
	step := must(d.D.NewCmd("step"))
	defer step.Close()
	// Errors of recording stay with step: Submit returns the first.
	_ = cache.Step(step, 0, attention.StepTensors{DecodeTensors: attention.DecodeTensors{Q: q, O: o}, NewK: k, NewV: v}, p, attention.Options{})
	_ = cache.Advance(step, 1)
	for i := range 11 {
		fill(v, float32(i))
		vktest.Must(step.Submit(ctx))
	}
	lens, err := cache.Len(ctx)
	fmt.Println(d.Values(o)[0], lens, cache.Free(), err) // the mean of 0 to 10

	vktest.Must(cache.Prefill(ctx, 0, 1))
	fmt.Println(cache.Free(), cache.Status(ctx)) // the two share a page, so one is free
	// Output:
	// 5 [11 11] 4 <nil>
	// 5 <nil>
}

// A projection (batch, seq, heads*dim) is Q without a copy, and O likewise what the next product
// reads. Grouped, a query head lies beside the query heads that share its key head.
func ExampleSplitHeads() {
	d := newExample()
	defer d.Close()
	q := must(attention.SplitHeads(d.tensor(dtype.Float16, 0, 2, 100, 6*64), 6))
	grouped := must(attention.GroupHeads(q, 2))
	merged := must(attention.MergeHeads(must(attention.UngroupHeads(grouped))))
	for _, x := range []vk.Tensor{q, grouped, merged} {
		fmt.Println(x.Shape, x.Strides)
	}
	_, err := attention.MergeHeads(q.Permute(0, 2, 1, 3))
	fmt.Println(err)
	// Output:
	// [2 6 100 64] [38400 64 384 1]
	// [2 2 3 100 64] [38400 192 64 384 1]
	// [2 100 384] [38400 384 1]
	// attention: merge heads: strides [38400 384 64 1]: heads of 64 elements do not follow one another, so that no view merges them
}

// Both passes in one recording, with a barrier between them. Q is zero, so each of the two rows
// is the mean of the two values, and half of each row's gradient reaches each of them.
func ExampleBackward() {
	d := newExample()
	defer d.Close()
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 2, SeqKV: 2, HeadDim: 8, DType: dtype.Float32}
	tensor := func(shape []int) vk.Tensor { return d.tensor(p.DType, 0, shape...) }
	t := attention.Tensors{Q: tensor(p.QShape()), K: tensor(p.KShape()), V: tensor(p.VShape()), O: tensor(p.OShape()), LSE: tensor(p.LSEShape())}
	g := attention.Gradients{DO: tensor(p.OShape()), DQ: tensor(p.QShape()), DK: tensor(p.KShape()), DV: tensor(p.VShape())}
	fill(t.V.Slice(2, 0, 1), 1)
	fill(t.V.Slice(2, 1, 2), 3)
	fill(g.DO.Slice(2, 0, 1), 1)
	fill(g.DO.Slice(2, 1, 2), 2)
	d.Run(func(c *vk.Cmd) error {
		return errors.Join(attention.Forward(c, t, p, attention.Options{}), attention.Backward(c, t, g, p, attention.Options{}))
	})
	o, dv := d.Values(t.O), d.Values(g.DV)
	fmt.Println("o", o[0], o[8], "dv", dv[0], dv[8])
	// Output: o 2 2 dv 1.5 1.5
}

// plainDevice is one with plain Vulkan 1.2.
var plainDevice = vk.Caps{
	Name: "plain", SubgroupSize: 32, ComputeUnits: 10,
	MaxSharedMemoryBytes: 32 << 10, MaxWorkgroupInvocations: 256, MaxWorkgroupSize: [3]uint32{256, 256, 64},
	MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBuffers: 32, MaxPushConstantsBytes: 256,
	MaxStorageBufferRange: 1 << 27, MaxAllocationBytes: 1 << 30, ScalarBlockLayout: true, ComputeFullSubgroups: true,
	Storage16: true, Int8: true, Storage8: true, Int16: true,
	SubgroupOps: vk.SubgroupBasic | vk.SubgroupVote | vk.SubgroupArithmetic | vk.SubgroupBallot | vk.SubgroupShuffle,
}

// What would run, before anything is recorded: the path, its tiles, its modules, its memory.
func ExampleChoose() {
	p := attention.Problem{Batch: 1, NumHeads: 8, NumKVHeads: 2, SeqQ: 512, SeqKV: 512, HeadDim: 64, DType: dtype.Float32, Causal: true}
	for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
		plan := must(attention.Choose(&plainDevice, p, pass, attention.Options{}))
		fmt.Println(plan)
		fmt.Println(plan.Kernels(), plan.Workspace())
	}
	step := attention.DecodeProblem{Problem: attention.Problem{Batch: 4, NumHeads: 8, NumKVHeads: 2, SeqQ: 1, SeqKV: 4096, HeadDim: 64, DType: dtype.Float16}}
	fmt.Println(must(attention.ChooseDecode(&plainDevice, step, attention.Options{})).Kernels())
	// Output:
	// scalar 32x32 t8x16 depth32 rows8
	// [attention_fwd_scalar.f32] 0
	// scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8
	// [attention_bwd_delta.f32 attention_bwd_dkv_scalar.f32 attention_bwd_dq_scalar.f32] 32768
	// [attention_decode.f16]
}

// Why a device does not compute a problem on a path.
func ExampleSupports() {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: 64, DType: dtype.Float16}
	err := attention.Supports(&vk.Caps{ScalarBlockLayout: true}, p, kit.Forward, attention.Options{Impl: attention.Scalar})
	fmt.Println(err)
	fmt.Println(errors.Is(err, vk.ErrUnsupported))
	// Output:
	// attention: scalar: float16 needs 16-bit storage: unsupported on this device
	// true
}

// The mask that is drawn in the documentation: two queries, five keys.
func ExampleProblem() {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 2, SeqKV: 5, HeadDim: 64, DType: dtype.BFloat16, Causal: true}
	fmt.Println(p.Validate())
	fmt.Println(p.Mask().Keys(0))
	fmt.Println(p.Mask().Keys(1))
	fmt.Println(p.Entries(), "entries,", p.FLOPs(), "operations,", p.Bytes(), "bytes at least")
	p.Window = attention.Window{On: true, Left: 2, Right: attention.Unlimited}
	fmt.Println(p.Mask().Keys(1))
	p.HeadDim = 60
	fmt.Println(p.Validate())
	// Output:
	// <nil>
	// 0 4
	// 0 5
	// 9 entries, 2304 operations, 1800 bytes at least
	// 2 5
	// attention: head_dim=60 is not a multiple of 8
}

// Configurations and words are read as they are written.
func ExampleParseBackwardConfig() {
	backward, err := attention.ParseBackwardConfig("scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8")
	fmt.Println(backward.DQ.Depth, backward, err)
	forward, err := attention.ParseConfig("coopmat2 sg4 rt1")
	fmt.Println(forward.Subgroups, forward, err)
	decode, err := attention.ParseDecodeConfig("scalar,rows=2,subgroups=8,groups=64")
	fmt.Println(decode.Groups, decode, err)
	impl, err := attention.ParseImpl("coopmat2")
	fmt.Println(impl, err, attention.Impls())
	fmt.Println(attention.ParseAlign("top-left"))
	fmt.Println(attention.ParseCacheFormat("e4m3"))
	// Output:
	// 32 scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8 <nil>
	// 4 coopmat2 sg4 rt1 <nil>
	// 64 scalar,rows=2,subgroups=8,groups=64 <nil>
	// coopmat2 <nil> [coopmat2 coopmat scalar unfused]
	// top-left <nil>
	// e4m3 <nil>
}
