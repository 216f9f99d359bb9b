package ref_test

import (
	"fmt"
	"log"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
)

// One query attends to two keys. The second key's score is log(3) higher, so
// its weight is three times the first's.
func ExampleForward() {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 2, HeadDim: 8, Scale: 1}
	q := []float64{1, 0, 0, 0, 0, 0, 0, 0}
	k := []float64{
		0, 0, 0, 0, 0, 0, 0, 0,
		1.0986123, 0, 0, 0, 0, 0, 0, 0,
	}
	v := []float64{
		4, 0, 0, 0, 0, 0, 0, 0,
		8, 1, 0, 0, 0, 0, 0, 0,
	}
	o, lse := make([]float64, 8), make([]float64, 1)
	if err := ref.Forward(o, lse, ref.Inputs[float64]{Q: q, K: k, V: v}, p); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("O   = %.4f %.4f\n", o[0], o[1])
	fmt.Printf("LSE = %.4f\n", lse[0])
	// Output:
	// O   = 7.0000 0.7500
	// LSE = 1.3863
}

// A result of any size is checked on a sample of its rows.
func ExampleVerify() {
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 300, SeqKV: 400, HeadDim: 16, DType: dtype.Float16, Causal: true}
	in := ref.Inputs[float32]{Q: make([]float32, 2*300*16), K: make([]float32, 400*16), V: make([]float32, 400*16)}
	for j := range in.V {
		in.V[j] = float32(j % 16)
	}
	o := make([]float32, len(in.Q)) // a kernel's result: every row of V is 0, 1, 2, …
	for i := range o {
		o[i] = float32(i % 16)
	}
	report, err := ref.Verify(o, nil, in, p, ref.SampleRows(in, p, 64))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Rows, "rows:", report.Err())
	o[0]++
	report, _ = ref.Verify(o, nil, in, p, ref.SampleRows(in, p, 64))
	fmt.Println(report.Err() != nil)
	// Output:
	// 64 rows: <nil>
	// true
}
