package call

import (
	_ "embed"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/decoder"
	"github.com/flashvk/flashvk/pipelines/dropout"
	"github.com/flashvk/flashvk/pipelines/embed"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/pipelines/normlinear"
	"github.com/flashvk/flashvk/pipelines/quantize"
	"github.com/flashvk/flashvk/pipelines/rope"
	"github.com/flashvk/flashvk/pipelines/sample"
	"github.com/flashvk/flashvk/pipelines/xent"
)

// A Kernel is a kernel whose calls are described here, with what draws and proves them.
type Kernel struct {
	Name   string // of its random problems, as in norm:{"Rows":3}
	Weight int    // the share of its random problems, relative to other kernels' weights
	New    func() Call
	// Draw draws a call; nil: the Space has none. What a pipeline is compiled for (path, formats,
	// features, tile sizes) comes from family, which is the same for some calls one after the other,
	// all else from rng: compiling takes longer than computing.
	Draw func(family, rng *rand.Rand, s Space) Call
	// Cases are calls that run every module. tests/conformance checks them on each device.
	Cases []Fixed
	// Gradients are small calls, whose gradients in float32 tests/gradients compares with finite
	// differences. Their functions compute the gradients.
	Gradients []Fixed
	Contract  Contract
}

// A Fixed is a call in any format on some paths.
type Fixed struct {
	Name      string
	Functions string   // that record it: package.Function, separated by spaces
	Paths     []string // Impl of the call; "" of a kernel that has one
	// Problem is the call's JSON without braces and data, with words of tests/conformance.
	Problem string
	Halves  bool // the kernel has no float32
	// Own says that float32 has kernels of its own on matrices, not only the same source in
	// another format.
	Own bool
}

// A Contract has a valid problem and the functions of a package that keeps the contract of package
// kit. Backward is nil for a kernel whose gradients are calls of itself. More are the other functions
// that record into a Cmd. Without a Problem there is no such package.
type Contract struct {
	Problem, Forward, Backward, Choose, Supports, Workspace any

	More map[string]any
}

// A Line is a line of a table of text. The table has sections, [words] fields, and lines, words fields.
// Fields are JSON without braces. The fields of a line replace equal fields of its section.
type Line struct {
	Section, Words []string
	Fields         string
}

// Lines reads a table. Lines that begin with # are comments.
func Lines(text string) (list []Line) {
	var section Line
	for line := range strings.Lines(text) {
		at := strings.Index(line+`"`, `"`)
		words, fields := strings.Fields(strings.Trim(line[:at], "[] \n")), strings.TrimSpace(line[at:])
		switch {
		case strings.TrimSpace(line) == "" || line[0] == '#':
		case line[0] == '[':
			section = Line{Section: words, Fields: fields}
		default:
			list = append(list, Line{section.Section, words, strings.Trim(section.Fields+","+fields, ",")})
		}
	}
	return list
}

//go:embed cases.txt
var cases string

// All lists the kernels.
func All() []Kernel { return slices.Clone(kernels()) }

var kernels = sync.OnceValue(func() []Kernel {
	list := []Kernel{
		{Name: "attention", Weight: 8, New: func() Call { return &Attention{} }, Draw: drawAttention}, // half of all modules are its
		{Name: "decode", Weight: 3, New: func() Call { return &Decode{} }, Draw: drawDecode},
		{Name: "append", Weight: 2, New: func() Call { return &Append{} }, Draw: drawAppend},
		{Name: "step", Weight: 2, New: func() Call { return &Step{} }, Draw: drawStep},
		{Name: "gemm", Weight: 4, New: func() Call { return &Gemm{} }, Draw: drawGemm, Contract: Contract{
			gemm.Problem{M: 3, N: 5, K: 7}, gemm.Forward, nil, gemm.Choose, gemm.Supports, gemm.Workspace, map[string]any{"ForwardGroup": gemm.ForwardGroup},
		}},
		{Name: "gemm-group", Weight: 1, New: func() Call { return &GemmGroup{} }, Draw: drawGemmGroup},
		{Name: "mlp", Weight: 2, New: func() Call { return &MLP{} }, Draw: drawMLP, Contract: Contract{
			mlp.Problem{Tokens: 3, In: 5, Hidden: 7, Out: 2}, mlp.Forward, mlp.Backward, mlp.Choose, mlp.Supports, mlp.Workspace,
			map[string]any{"BackwardLoss": mlp.BackwardLoss},
		}},
		{Name: "grouped", Weight: 3, New: func() Call { return &MLP{} }, Draw: drawGrouped},
		{Name: "mixture", Weight: 2, New: func() Call { return &Mixture{} }, Draw: drawMixture, Contract: Contract{
			mixture.Problem{Tokens: 3, Heads: 2, In: 5, Hidden: 7}, mixture.Forward, mixture.Backward, mixture.Choose, mixture.Supports, mixture.Workspace, nil,
		}},
		{Name: "gmm", Weight: 1, New: func() Call { return &GMM{} }, Draw: drawGMM, Contract: Contract{
			gmm.Problem{Tokens: 3, Components: 5}, gmm.Forward, gmm.Backward, gmm.Choose, gmm.Supports, gmm.Workspace, map[string]any{"Merge": gmm.Merge},
		}},
		{Name: "norm", Weight: 2, New: func() Call { return &Norm{} }, Draw: drawn(drawNorm), Contract: Contract{
			norm.Problem{Rows: 3, Cols: 5, Eps: 1e-5}, norm.Forward, norm.Backward, norm.Choose, norm.Supports, norm.Workspace, nil,
		}},
		{Name: "glu", Weight: 1, New: func() Call { return &GLU{} }, Draw: drawn(drawGLU), Contract: Contract{
			glu.Problem{Rows: 3, Cols: 5}, glu.Forward, glu.Backward, glu.Choose, glu.Supports, glu.Workspace, nil,
		}},
		{Name: "embed", Weight: 2, New: func() Call { return &Embed{} }, Draw: drawn(drawEmbed), Contract: Contract{
			embed.Problem{Tokens: 70, Vocabulary: 5, Dim: 6}, embed.Forward, embed.Backward, embed.Choose, embed.Supports, embed.Workspace, nil,
		}},
		{Name: "xent", Weight: 3, New: func() Call { return &Xent{} }, Draw: drawXent, Contract: Contract{
			xent.Problem{Tokens: 9, Vocabulary: 7, Dim: 5}, xent.Forward, xent.Backward, xent.Choose, xent.Supports, xent.Workspace, nil,
		}},
		{Name: "optim", Weight: 1, New: func() Call { return &Optim{} }, Draw: drawOptim},
		{Name: "quantize", Weight: 1, New: func() Call { return &Quantize{} }, Draw: drawn(drawQuantize), Contract: Contract{
			quantize.Problem{Batch: 1, Heads: 1, Rows: 3, Cols: 5, Quant: dtype.QuantInt8, Block: 1},
			quantize.Forward, nil, quantize.Choose, quantize.Supports, quantize.Workspace, nil,
		}},
		{Name: "rope", Weight: 1, New: func() Call { return &Rope{} }, Draw: drawn(drawRope), Contract: Contract{
			rope.Problem{Batch: 2, Seq: 3, Heads: 2, KVHeads: 1, HeadDim: 10, Frequencies: attention.Frequencies{Dims: 8}},
			rope.Forward, rope.Backward, rope.Choose, rope.Supports, rope.Workspace, nil,
		}},
		{Name: "sample", Weight: 1, New: func() Call { return &Sample{} }, Draw: drawn(drawSample), Contract: Contract{
			sample.Problem{Rows: 3, Vocabulary: 70, Filters: sample.Filters{Temperature: 0.8, TopK: 5, TopP: 0.9, MinP: 0.01, RepetitionPenalty: 1.2}},
			sample.Forward, nil, sample.Choose, sample.Supports, sample.Workspace, nil,
		}},
		{Name: "decoder", Weight: 2, New: func() Call { return &Decoder{} }, Draw: drawDecoder, Contract: Contract{
			decoder.Problem{Width: 16, Hidden: 24, Heads: 2, KVHeads: 1, HeadDim: 64, Keys: 9, Eps: 1e-5, DType: dtype.Float16},
			decoder.Forward, nil, decoder.Choose, decoder.Supports, decoder.Workspace, map[string]any{"ForwardLayers": decoder.ForwardLayers},
		}},
		{Name: "normlinear", Weight: 2, New: func() Call { return &NormLinear{} }, Draw: drawn(drawNormLinear), Contract: Contract{
			normlinear.Problem{Rows: 3, In: 5, Out: 7, Eps: 1e-5}, normlinear.Forward, nil, normlinear.Choose, normlinear.Supports, normlinear.Workspace, nil,
		}},
		{Name: "dropout", Weight: 1, New: func() Call { return &Dropout{} }, Draw: drawn(drawDropout), Contract: Contract{
			dropout.Problem{Rows: 3, Cols: 5, P: 0.5}, dropout.Forward, nil, dropout.Choose, dropout.Supports, dropout.Workspace, nil,
		}},
	}
	for _, x := range Lines(cases) {
		c := Fixed{Name: x.Words[0], Functions: strings.ReplaceAll(x.Words[1], ",", " "), Problem: x.Fields}
		c.Paths, c.Halves, c.Own = strings.Split(strings.Trim(x.Words[2], "-"), ","), x.Words[3] == "halves", x.Words[3] == "own"
		k := &list[slices.IndexFunc(list, func(k Kernel) bool { return k.Name == x.Section[0] })]
		if len(x.Section) > 1 {
			k.Gradients = append(k.Gradients, c)
		} else {
			k.Cases = append(k.Cases, c)
		}
	}
	return list
})
