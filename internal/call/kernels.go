package call

import (
	_ "embed"
	"math/rand/v2"
	"strings"
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
	// Gradients are small calls in float32. tests/gradients compares their gradients with finite
	// differences. Backward is the function that computes them, "" for none.
	Gradients []Call
	Backward  string
	Contract  Contract
}

// A Fixed is a call in any format on some paths.
type Fixed struct {
	Name      string
	Functions string   // that record it: package.Function, separated by spaces
	Paths     []string // Impl of the call; none: the kernel has one
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
func All() []Kernel {
	list := []Kernel{
		kernelAttention(),
		{Name: "decode", Weight: 3, New: func() Call { return &Decode{} }, Draw: drawDecode},
		{Name: "append", Weight: 2, New: func() Call { return &Append{} }, Draw: drawAppend},
		{Name: "step", Weight: 2, New: func() Call { return &Step{} }, Draw: drawStep},
		kernelGemm(),
		{Name: "gemm-group", Weight: 1, New: func() Call { return &GemmGroup{} }, Draw: drawGemmGroup},
		kernelMLP(),
		{Name: "grouped", Weight: 3, New: func() Call { return &MLP{} }, Draw: drawGrouped, Backward: "mlp.Backward", Gradients: mlpGradients(3)},
		kernelMixture(),
		kernelGMM(),
		kernelNorm(),
		kernelGLU(),
		kernelEmbed(),
		kernelXent(),
		{Name: "optim", Weight: 1, New: func() Call { return &Optim{} }, Draw: drawOptim},
		kernelQuantize(),
		kernelRope(),
		kernelSample(),
		kernelNormLinear(),
		kernelDropout(),
	}
	for _, x := range Lines(cases) {
		c := Fixed{Name: x.Words[0], Functions: strings.ReplaceAll(x.Words[1], ",", " "), Problem: x.Fields}
		if x.Words[2] != "-" {
			c.Paths = strings.Split(x.Words[2], ",")
		}
		c.Halves, c.Own = x.Words[3] == "halves", x.Words[3] == "own"
		for i := range list {
			if list[i].Name == x.Section[0] {
				list[i].Cases = append(list[i].Cases, c)
			}
		}
	}
	return list
}
