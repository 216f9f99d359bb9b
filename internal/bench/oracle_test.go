package bench

import (
	"math"
	"strings"
	"testing"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
)

// right returns inputs of p and outputs that are right: the plain
// implementation's.
func right(t *testing.T, p attention.Problem) (in ref.Inputs[float32], o, lse []float32) {
	t.Helper()
	in.Q = Normal(p.DType, p.Batch*p.NumHeads*p.SeqQ*p.HeadDim, 1)
	in.K = Normal(p.DType, p.Batch*p.NumKVHeads*p.SeqKV*p.HeadDim, 2)
	in.V = Normal(p.DType, p.Batch*p.NumKVHeads*p.SeqKV*p.HeadDim, 3)
	o64, lse64 := make([]float64, len(in.Q)), make([]float64, len(in.Q)/p.HeadDim)
	if err := ref.Plain(o64, lse64, in, p); err != nil {
		t.Fatal(err)
	}
	for _, x := range o64 {
		o = append(o, float32(x))
	}
	for _, x := range lse64 {
		lse = append(lse, float32(x))
	}
	return in, o, lse
}

// TestOracle says that right outputs pass and that each kind of wrong ones is
// found and named.
func TestOracle(t *testing.T) {
	// Rows 0 to 9 see no key.
	p := attention.Problem{Batch: 2, NumHeads: 2, NumKVHeads: 1, SeqQ: 40, SeqKV: 30, HeadDim: 16, DType: dtype.Float16, Causal: true}
	in, goodO, goodLSE := right(t, p)
	oracle, err := newOracle(in, p)
	if err != nil {
		t.Fatal(err)
	}
	inf := float32(math.Inf(1))
	nan := float32(math.NaN())
	at := func(b, h, i, d int) int { return ((b*2+h)*40+i)*16 + d }
	for _, c := range []struct {
		name   string
		change func(o, lse []float32)
		want   string // "" passes
	}{
		{"right", func(o, lse []float32) {}, ""},
		{"one element", func(o, lse []float32) { o[at(1, 0, 20, 7)] += 0.1 }, "O[1,0,20,7] is "},
		{"not written", func(o, lse []float32) { o[at(0, 1, 39, 15)] = nan }, "O[0,1,39,15] is NaN"},
		{"infinite", func(o, lse []float32) { o[at(0, 0, 10, 0)] = -inf }, "O[0,0,10,0] is -Inf"},
		{"empty row not zero", func(o, lse []float32) { o[at(0, 0, 3, 0)] = 1 }, "O[0,0,3,0] is 1, want 0"},
		{"LSE off", func(o, lse []float32) { lse[at(1, 1, 15, 0)/16] += 0.01 }, "LSE[1,1,15] is "},
		{"LSE in base 2", func(o, lse []float32) {
			for i := range lse {
				lse[i] /= math.Ln2
			}
		}, "LSE["},
		{"LSE of an empty row", func(o, lse []float32) { lse[at(1, 1, 9, 0)/16] = 0 }, "LSE[1,1,9] is 0, want -Inf"},
		{"heads exchanged", func(o, lse []float32) {
			for i := range 40 * 16 {
				o[i], o[40*16+i] = o[40*16+i], o[i]
			}
		}, "O["},
	} {
		o, lse := append([]float32(nil), goodO...), append([]float32(nil), goodLSE...)
		c.change(o, lse)
		check, err := oracle.Check(map[string][]float32{"o": o, "lse": lse})
		if check.Rows != 160 || check.OfRows != 160 || check.Limit <= 0 || check.LSELimit <= 0 {
			t.Errorf("%s: %+v", c.name, check)
		}
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "" && (check.MaxAbs > 0.002 || check.MaxAbs == 0 || check.MeanAbs >= check.MaxAbs || check.MeanAbs == 0):
			t.Errorf("%s: %+v", c.name, check)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)):
			t.Errorf("%s: %v, want %s…", c.name, err, c.want)
		}
	}
}

// TestOracleSamples says that a large problem is compared on a sample of its
// rows, and that an element that was not written shows in every row.
func TestOracleSamples(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 300, SeqKV: 3000, HeadDim: 256, DType: dtype.BFloat16, Scale: 0.1}
	q := Normal(p.DType, 2*300*256, 1)
	k := Normal(p.DType, 3000*256, 2)
	v := Normal(p.DType, 3000*256, 3)
	oracle, err := newOracle(ref.Inputs[float32]{Q: q, K: k, V: v}, p)
	if err != nil {
		t.Fatal(err)
	}
	if n, want := len(oracle.rows), int(checkOperations)/(8*3000*256); n != want || n >= 600 {
		t.Fatalf("%d rows, want %d of 600", n, want)
	}
	o, lse := make([]float32, len(q)), make([]float32, 600)
	sampled := make(map[int]bool)
	for x, r := range oracle.rows {
		at := r.Head*300 + r.Row
		sampled[at] = true
		lse[at] = float32(oracle.wantLSE[x])
		for d := range 256 {
			o[at*256+d] = float32(oracle.wantO[x*256+d])
		}
	}
	if c, err := oracle.Check(map[string][]float32{"o": o, "lse": lse}); err != nil || c.Rows >= c.OfRows {
		t.Fatalf("%+v, %v", c, err)
	}
	for at := range 600 {
		if !sampled[at] {
			o[at*256+255] = float32(math.NaN())
			break
		}
	}
	if _, err := oracle.Check(map[string][]float32{"o": o, "lse": lse}); err == nil || !strings.Contains(err.Error(), "was not written or is not finite") {
		t.Errorf("an element outside the sample was not written: %v", err)
	}
}
