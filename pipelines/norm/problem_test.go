package norm

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

func TestValidate(t *testing.T) {
	good := Problem{Rows: 1, Cols: 1}
	require.NoError(t, good.Validate())
	for _, c := range []struct {
		change func(p *Problem)
		want   string
	}{
		{func(p *Problem) { p.Rows = 0 }, "norm: rows=0 is not positive"},
		{func(p *Problem) { p.Cols = -1 }, "norm: cols=-1 is not positive"},
		{func(p *Problem) { p.Rows, p.Cols = 1<<17, 1<<16 }, "norm: rows=131072 by cols=65536 are more than 4294967295 elements"},
		{func(p *Problem) { p.Eps = -1 }, "norm: eps=-1 is not a finite number from 0 on"},
		{func(p *Problem) { p.Eps = math.NaN() }, "norm: eps=NaN is not a finite number from 0 on"},
		{func(p *Problem) { p.Eps = 1e39 }, "norm: eps=1e+39 is not a finite number from 0 on"},
		{func(p *Problem) { p.DType = dtype.Int32 }, "norm: dtype=int32 is not one of float32, float16, bfloat16"},
		{func(p *Problem) { p.WeightDType = dtype.Float16 }, "norm: weight dtype=float16 is neither float32 nor that of the rows, float32"},
	} {
		p := good
		c.change(&p)
		require.EqualError(t, p.Validate(), c.want)
	}
}
