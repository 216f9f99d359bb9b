package tnp

import (
	"github.com/flashvk/flashvk/internal/pipelines/sumrows"
	"github.com/flashvk/flashvk/vk"
)

// sums is the memory of gradients that are added up over batches. It has three rows of all slots,
//
//	row 0  a sum          0        g0+g1
//	row 1  of a batch     g0       g1       g2
//	row 2  a sum          0+g0              g0+g1+g2
//
// Two neighbours are added up into the third: after the first batch rows 0 and 1 into row 2,
// after the second rows 1 and 2 into row 0, and so on. Row 0 is 0 at first.
type sums struct {
	all  vk.Tensor
	size int // of a row, elements
}

const sumsRows = 3

// row returns row i.
func (s *sums) row(i int) vk.Tensor { return s.rows(i, 1) }

// rows returns n rows as one tensor.
func (s *sums) rows(first, n int) vk.Tensor {
	t := vk.View(s.all.Buffer, s.all.DType, n*s.size)
	t.Offset = first * s.size
	return t.Narrow()
}

// into returns the row of the sum after batch i.
func (s *sums) into(i int) int { return 2 * (1 - i%2) }

// divide places the gradients of a batch and of a step.
func (m *Model) divide(n int) {
	if m.o.Accumulate > 1 {
		m.sums.size = n
		// A view of the whole buffer: AdamW is one launch then.
		at := func(row int) vk.Tensor {
			t := vk.View(m.sums.all.Buffer, m.sums.all.DType, n)
			t.Offset = row * n
			return t
		}
		m.grads, m.total = at(1), at(m.sums.into(m.o.Accumulate-1))
		return
	}
	m.total = m.grads
}

// clear records that the sum is 0.
func (s *sums) clear(c *vk.Cmd) {
	b := s.row(0).Buffer
	c.Fill(b, 0, 4*int64(s.size), 0)
}

// add records the sum of the gradients up to batch i.
func (s *sums) add(c *vk.Cmd, i int) error {
	to := s.into(i)
	parts := s.rows(0, 2)
	if to == 0 {
		parts = s.rows(1, 2)
	}
	parts.Shape, parts.Strides = []int{2, s.size}, []int{s.size, 1}
	return sumrows.Record(c, s.row(to), parts)
}
