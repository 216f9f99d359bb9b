package ref_test

import (
	"fmt"
	"log"

	"github.com/flashvk/flashvk/attention"
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
	if err := ref.Forward(o, lse, ref.Inputs[float64]{Q: q, K: k, V: v}, p, nil); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("O   = %.4f %.4f\n", o[0], o[1])
	fmt.Printf("LSE = %.4f\n", lse[0])
	// Output:
	// O   = 7.0000 0.7500
	// LSE = 1.3863
}
