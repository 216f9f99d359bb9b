package kernels

import (
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/quantize"
)

// quantizer is the row of quantize.
func quantizer() Kernel {
	k := calls[*call.Quantize]{
		name: "quantize",
		flags: []flag{
			{name: "quant", usage: "format: int8 (default), q8_0 or e4m3", value: named("FORMAT", dtype.Quants()...)},
			{name: "block", usage: "rows of a head that share a scale; not of q8_0"},
			{name: "whole", usage: "one scale for all"},
			{name: "batch", usage: "batch size", size: true},
			{name: "heads", usage: "heads", size: true},
			{name: "rows", usage: "rows of a head (default 8192 on a GPU, 256 on a CPU device)", size: true},
			{name: "cols", usage: "elements of a row", size: true},
			{name: "dtype", usage: "format of the numbers: float16, bfloat16 (default) or float32", size: true},
		},
		base: func(cpu bool) *call.Quantize {
			p := quantize.Problem{Batch: 1, Heads: 1, Rows: 8192, Cols: 4096, DType: dtype.BFloat16, Quant: dtype.QuantInt8, Block: 1}
			if cpu {
				p.Rows, p.DType = 256, dtype.Float16
			}
			return &call.Quantize{Problem: p}
		},
		check: func(q *call.Quantize, f *pflag.FlagSet) error {
			if (q.Whole || q.Quant.Block() > 0) && !f.Changed("block") {
				q.Block = 0
			}
			return nil
		},
		file: func(s *Source, q *call.Quantize) error {
			return s.into(q, "x", "dtype", "batch", "heads", "rows", "cols")
		},
		cases: []string{
			"--quant=int8 --rows=8192 --cols=4096", "--quant=q8_0 --rows=4096 --cols=11008", "--quant=e4m3 --whole --rows=8192 --cols=4096",
			"--quant=int8 --block=64 --heads=16 --rows=16384 --cols=128",
		},
		shrink: func(q *call.Quantize) { q.Rows /= 100 },
		keys:   "quant dtype batch heads rows cols block whole",
		sample: func(*call.Quantize) int { return 1024 },
	}
	return Kernel{
		Name: "quantize", Title: "quantization to 8 bits", Impls: []string{"auto"}, New: k.New,
		Fixed: "how invocations share numbers follows from their sizes",
		Formulas: `
    amax  = max |x|                  of --block rows of a head, or all with --whole; 32 elements of a row for q8_0
    scale = round(amax / 127)        e4m3: round(amax / 448)
    y     = round(x / scale)`,
		About: "The rate counts memory traffic: each tensor is read or written once.",
		Files: `
    x (batch, heads, rows, cols), F16, BF16 or F32
    written: y as x, I8 or F8_E4M3; scale (batch, heads, rows/block), F32, with --whole (1);
    for q8_0 (batch, heads, rows, cols/32), F16`,
		Examples: []string{
			"bench --quant e4m3 --heads 32 --rows 4096 --cols 128 --block 64",
			"run --in x.safetensors --out y.safetensors --quant q8_0",
			"sweep --rows 1024..65536x4 --cols 4096 --csv quantize.csv",
		},
	}
}
