package ref

import (
	"fmt"
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
			require.NoError(t, Plain(plain, nil, d.in, p))
			s := Measure(d.in, p)
			b := PlainBound(d.o, plain, d.lse, s, p)
			require.GreaterOrEqual(t, b.O, 2*guard.MaxDiff(plain, d.o).Off)
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

// TestPlainRounds: P and O are rounded to the storage type, for float32 too.
func TestPlainRounds(t *testing.T) {
	for _, dt := range dtype.All() {
		p := small
		p.DType = dt
		d := newData(p).forward(t)
		o := make([]float64, len(d.o))
		require.NoError(t, Plain(o, nil, d.in, p))
		for _, x := range o {
			require.Equal(t, x, float64(dt.Round(float32(x))))
		}
		off := guard.MaxDiff(o, d.o).Off
		require.Greater(t, off, dt.Eps()/50, "%v", dt)
		require.Less(t, off, 4*dt.Eps(), "%v", dt)
	}
}

// TestBoundOneKey: where plain is exact, the bound is one rounding.
func TestBoundOneKey(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 100, SeqKV: 1, HeadDim: 8, DType: dtype.Float16}
	d := newData(p).forward(t)
	plain := make([]float64, len(d.o))
	require.NoError(t, Plain(plain, nil, d.in, p))
	require.Equal(t, d.o, plain)
	b := PlainBound(d.o, plain, d.lse, Measure(d.in, p), p)
	require.Greater(t, b.O, 0x1p-12)
	require.Less(t, b.O, 0x1p-8)
}

func TestMeasure(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 2, SeqKV: 1, HeadDim: 8, Scale: -0.5}
	q := make([]float32, 16)
	q[0], q[8], q[9] = 4, 3, 4
	k := []float32{0, 0, -2, 0, 0, 0, 0, 0}
	v := []float32{1, 0, -9, 0, 0, 0, 0, 0}
	require.Equal(t, Scope{Product: 5, Logit: 5, V: 9}, Measure(Inputs[float32]{Q: q, K: k, V: v}, p))
}

// TestVerify: a right result passes on all rows and on some, a wrong element
// fails with its index, errors are about arguments.
func TestVerify(t *testing.T) {
	p := small
	p.Causal = true
	d := newData(p)
	require.NoError(t, Plain(d.o, d.lse, d.in, p))
	o, lse, in := float32s(d.o), float32s(d.lse), inputs32(d.in)
	for _, n := range []int{1, 20, 10000} {
		r, err := Verify(o, lse, in, p, SampleRows(in, p, n))
		require.NoError(t, err)
		require.NoError(t, r.Err())
		require.Equal(t, min(n, 444), r.Rows)
		require.Positive(t, r.O.Off)
		r, err = Verify(o, nil, in, p, SampleRows(in, p, n))
		require.NoError(t, err)
		require.NoError(t, r.Err())
		require.Equal(t, -1, r.LSE.Index)
	}
	verify := func() error {
		r, err := Verify(o, lse, in, p, AllRows(in, p))
		require.NoError(t, err)
		return r.Err()
	}
	at := (1*6+2)*37 + 7
	for _, x := range []float32{-50, float32(math.NaN())} {
		good := o[at*24+5]
		o[at*24+5] = x
		require.ErrorContains(t, verify(), fmt.Sprintf("attention: O[1,2,7,5] = %g, want ", x))
		o[at*24+5] = good
	}
	lse[at] += 0.001
	require.ErrorContains(t, verify(), "attention: LSE[1,2,7] = ")
	_, err := Verify(o[1:], lse, in, p, AllRows(in, p))
	require.EqualError(t, err, "attention: o has 10655 elements, want 10656 of shape [2 6 37 24]")
	_, err = Verify(o, lse[1:], in, p, AllRows(in, p))
	require.EqualError(t, err, "attention: lse has 443 elements, want 444 of shape [2 6 37]")
	_, err = Verify(o, lse, in, p, nil)
	require.EqualError(t, err, "attention: no rows to verify")
}

// TestImports: the packages that judge kernels do not depend on what they judge. They use of
// package attention what describes problems, and nothing of what runs them.
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
	for _, dir := range []string{".", "../attntest"} {
		files, err := filepath.Glob(dir + "/*.go")
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
}
