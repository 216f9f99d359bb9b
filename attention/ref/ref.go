package ref

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"

	"github.com/flashvk/flashvk/attention/problem"
)

// A Float is the element type of the inputs. Results are float64 always.
type Float interface{ ~float32 | ~float64 }

// A Row names one query row of a problem.
type Row struct{ Batch, Head, Row int }

// AllRows returns every row of p in the order of the LSE tensor.
func AllRows(p problem.Problem) []Row {
	rows := make([]Row, 0, p.Batch*p.NumHeads*p.SeqQ)
	for b := range p.Batch {
		for h := range p.NumHeads {
			for i := range p.SeqQ {
				rows = append(rows, Row{b, h, i})
			}
		}
	}
	return rows
}

// SampleRows returns n rows of p, or all of them if p has no more than n. The
// first and the last row of the problem are always among them; the others are
// random, spread evenly over batches and heads. The same p and n give the same
// rows. n must be positive.
func SampleRows(p problem.Problem, n int) []Row {
	heads := p.Batch * p.NumHeads
	if n >= heads*p.SeqQ {
		return AllRows(p)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	rows := make([]Row, n)
	for x := range rows {
		head := x * heads / n
		rows[x] = Row{head / p.NumHeads, head % p.NumHeads, rng.IntN(p.SeqQ)}
	}
	rows[0] = Row{}
	if n > 1 {
		rows[n-1] = Row{p.Batch - 1, p.NumHeads - 1, p.SeqQ - 1}
	}
	return rows
}

// checkInputs returns an error that names the first slice of the wrong length.
func checkInputs(q, k, v int, p problem.Problem) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if !p.Plain() {
		return fmt.Errorf("attention: the reference does not know %v", p.Features())
	}
	queries := p.Batch * p.NumHeads * p.SeqQ * p.HeadDim
	keys := p.Batch * p.NumKVHeads * p.SeqKV * p.HeadDim
	for _, s := range []struct {
		name      string
		got, want int
		rule      string
	}{
		{"q", q, queries, "batch*num_heads*seq_q*head_dim"},
		{"k", k, keys, "batch*num_kv_heads*seq_kv*head_dim"},
		{"v", v, keys, "batch*num_kv_heads*seq_kv*head_dim"},
	} {
		if s.got != s.want {
			return fmt.Errorf("attention: %s has %d elements, want %s = %d", s.name, s.got, s.rule, s.want)
		}
	}
	return nil
}

// checkOutputs does the same for o and lse, which hold the given number of
// rows. lse may be nil.
func checkOutputs(o, lse []float64, rows int, p problem.Problem) error {
	if len(o) != rows*p.HeadDim {
		return fmt.Errorf("attention: o has %d elements, want %d rows of head_dim=%d", len(o), rows, p.HeadDim)
	}
	if lse != nil && len(lse) != rows {
		return fmt.Errorf("attention: lse has %d elements, want %d rows", len(lse), rows)
	}
	return nil
}

// A chunk is a set of query rows that read the same key head. The query heads
// of one key head are neighbours, so a chunk may span several of them.
type chunk struct {
	kv   int   // batch*NumKVHeads + key head
	rows []int // (batch*NumHeads + head)*SeqQ + row, ascending
	at   []int // row x's result is row at[x] of the output
}

// chunks splits rows into chunks of at most size rows. rows == nil stands for
// all rows in order.
func chunks(p problem.Problem, rows []Row, size int) ([]chunk, error) {
	total := p.Batch * p.NumHeads * p.SeqQ
	n := len(rows)
	if rows == nil {
		n = total
	}
	flat, at := make([]int, n), make([]int, n)
	for x := range n {
		flat[x], at[x] = x, x
	}
	if rows != nil {
		for x, r := range rows {
			if r.Batch < 0 || r.Batch >= p.Batch || r.Head < 0 || r.Head >= p.NumHeads || r.Row < 0 || r.Row >= p.SeqQ {
				return nil, fmt.Errorf("attention: row (%d, %d, %d) is outside (batch, num_heads, seq_q) = (%d, %d, %d)",
					r.Batch, r.Head, r.Row, p.Batch, p.NumHeads, p.SeqQ)
			}
			flat[x] = (r.Batch*p.NumHeads+r.Head)*p.SeqQ + r.Row
		}
		slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(flat[a], flat[b]) })
		slices.Sort(flat)
	}
	perKV := p.NumHeads / p.NumKVHeads * p.SeqQ
	var list []chunk
	for first := 0; first < n; {
		kv := flat[first] / perKV
		end := first + 1
		for end < n && end-first < size && flat[end]/perKV == kv {
			end++
		}
		list = append(list, chunk{kv, flat[first:end], at[first:end]})
		first = end
	}
	return list, nil
}

// visible returns the keys that row x of the chunk sees, and maxVisible the
// most that any of its rows sees.
func (c chunk) visible(x int, p problem.Problem) int {
	_, hi := p.Mask().Keys(c.rows[x] % p.SeqQ)
	return hi
}

func (c chunk) maxVisible(p problem.Problem) int {
	most := 0
	for x := range c.rows {
		most = max(most, c.visible(x, p))
	}
	return most
}

// parallel calls a worker's function once for each i in [0, n), on GOMAXPROCS
// goroutines. Each goroutine makes its own worker, which may keep buffers.
func parallel(n int, newWorker func() func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			work := newWorker()
			for i := range next {
				work(i)
			}
		}()
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// convert returns src as a slice of To: src itself if it has that type, else a
// copy in buf, which must be long enough.
func convert[To, From Float](buf []To, src []From) []To {
	if same, ok := any(src).([]To); ok {
		return same
	}
	buf = buf[:len(src)]
	for i, x := range src {
		buf[i] = To(x)
	}
	return buf
}
