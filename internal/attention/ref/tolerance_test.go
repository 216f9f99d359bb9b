package ref

import (
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
)

// TestPlainBound: above the plain implementation's own error, below the
// ceiling with room, and of the size the storage type suggests.
func TestPlainBound(t *testing.T) {
	for _, dt := range dtype.All() {
		for _, causal := range []bool{false, true} {
			p := small
			p.DType, p.Causal = dt, causal
			d := newData(p).forward(t)
			plain := make([]float64, len(d.o))
			require.NoError(t, Plain(plain, nil, d.in, p, nil))
			s := Measure(d.in, p)
			b := PlainBound(d.o, plain, d.lse, s, p)
			require.GreaterOrEqual(t, b.O, 2*guard.Off(plain, d.o))
			require.Less(t, b.O, 0.7*ceiling(s, p))
			require.Greater(t, b.O, dt.Eps()/2)
			require.Less(t, b.O, 16*dt.Eps())
			require.Less(t, b.LSE, 1e-4)

			// The ceiling holds whatever plain is.
			for _, broken := range []float64{7, math.NaN(), math.Inf(1)} {
				plain[3] = broken
				require.Equal(t, ceiling(s, p), PlainBound(d.o, plain, d.lse, s, p).O)
			}
		}
	}
}

// TestPlainBoundCancelled: products that add up to 0 are exact in plain, but not in a kernel that
// multiplies Q by Scale first. That is an error of the weight, however small LSE is.
func TestPlainBoundCancelled(t *testing.T) {
	p := attention.Problem{
		Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 2, HeadDim: 64, DType: dtype.Float32, Scale: 1.3,
	}
	d := newData(p)
	clear(d.in.K)
	clear(d.in.V)
	score := 0.0
	for i := 0; i < p.HeadDim; i += 2 {
		d.in.Q[i], d.in.Q[i+1], d.in.K[i], d.in.K[i+1] = 3, 5, 5, -3
		for e := i; e < i+2; e++ {
			score += float64(float32(d.in.Q[e]*p.Scale)) * d.in.K[e]
		}
	}
	for e := range p.HeadDim {
		d.in.V[e] = 1
	}
	d.forward(t)
	plain := make([]float64, len(d.o))
	require.NoError(t, Plain(plain, nil, d.in, p, nil))
	worst := math.Abs(1/(1+math.Exp(-score)) - d.o[0])
	s := Measure(d.in, p)
	require.Less(t, worst, PlainBound(d.o, plain, d.lse, s, p).O)
	require.Greater(t, worst, PlainBound(d.o, plain, d.lse, s, p).O/16)
	s.Product = 0
	require.Greater(t, worst, PlainBound(d.o, plain, d.lse, s, p).O, "the term decides")
}

// TestPlainRounds: P and O are rounded to the storage type, for float32 too.
func TestPlainRounds(t *testing.T) {
	for _, dt := range dtype.All() {
		p := small
		p.DType = dt
		d := newData(p).forward(t)
		o := make([]float64, len(d.o))
		require.NoError(t, Plain(o, nil, d.in, p, nil))
		for _, x := range o {
			require.Equal(t, x, float64(dt.Round(float32(x))))
		}
		off := guard.Off(o, d.o)
		require.Greater(t, off, dt.Eps()/50, "%v", dt)
		require.Less(t, off, 4*dt.Eps(), "%v", dt)
	}
}

// TestBoundOneKey: where plain is exact, the bound is one rounding.
func TestBoundOneKey(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 100, SeqKV: 1, HeadDim: 8, DType: dtype.Float16}
	d := newData(p).forward(t)
	plain := make([]float64, len(d.o))
	require.NoError(t, Plain(plain, nil, d.in, p, nil))
	require.Equal(t, d.o, plain)
	b := PlainBound(d.o, plain, d.lse, Measure(d.in, p), p)
	require.Greater(t, b.O, 0x1p-12)
	require.Less(t, b.O, 0x1p-8)
}

func TestMeasure(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 2, HeadDim: 8, Scale: -1}
	in := Inputs[float64]{Q: []float64{3, 4, 0, 0, 0, 0, 0, 0}, K: make([]float64, 16), V: []float64{1, 0, -9, 0}}
	in.K[9] = 2
	require.Equal(t, Scope{Product: 10, Logit: 10, V: 9}, Measure(in, p))
	p.Softcap = 6
	p.Bias.On, in.Bias = true, []float64{-3, math.Inf(-1)}
	p.ALiBi, in.ALiBiSlopes = attention.ALiBiPerHead, []float64{0.5}
	p.Dropout = attention.Dropout{P: 0.5, Seeded: true}
	require.Equal(t, Scope{Product: 10, Logit: 6 + 3 + 1, V: 18}, Measure(in, p))
	p.Sinks, in.Sinks = true, []float64{-20}
	require.Equal(t, 20.0, Measure(in, p).Logit)
}

// TestImports: the packages that judge kernels do not depend on kernels. They use the descriptions
// of problems in package attention, and nothing that runs a kernel.
func TestImports(t *testing.T) {
	describes := map[string]bool{}
	for _, file := range []string{"problem", "problem_features", "mask", "dropout", "shapes", "counts", "validate", "decode_problem", "cache8"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "../../../attention/"+file+".go", nil, 0)
		require.NoError(t, err)
		for name := range parsed.Scope.Objects {
			describes[name] = true
		}
	}
	require.True(t, describes["Problem"] && describes["BottomRight"] && !describes["Forward"])
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if x, ok := n.(*ast.SelectorExpr); ok {
				if of, ok := x.X.(*ast.Ident); ok && of.Name == "attention" {
					require.True(t, describes[x.Sel.Name], "%s uses attention.%s", file, x.Sel.Name)
				}
			}
			return true
		})
	}
}
