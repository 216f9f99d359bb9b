package lm

import (
	"container/heap"
	"fmt"
	"sort"
	"unicode/utf8"
)

// Encode returns the tokens of a text.
func (t *bpe) Encode(text string, whole bool) (ids []int32, err error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("lm: text %.40q is not UTF-8", text)
	}
	if whole {
		ids = append(ids, t.begin...)
	}
	at, n := 0, len(text)
	for _, m := range append(t.addedRE.FindAllStringIndex(text, -1), []int{n, n}) {
		if m[0] > at {
			if ids, err = t.section(ids, text[at:m[0]], at == 0); err != nil {
				return nil, err
			}
		}
		if at = m[1]; at > m[0] {
			ids = append(ids, t.added[text[m[0]:at]])
		}
	}
	if whole {
		ids = append(ids, t.end...)
	}
	return ids, nil
}

// section appends the tokens of a text without special tokens, of which first is the first of its text.
func (t *bpe) section(ids []int32, text string, first bool) (_ []int32, err error) {
	pieces := []string{text}
	for _, f := range t.stages {
		var next []string
		for i, p := range pieces {
			next = f(next, p, first && i == 0)
		}
		pieces = next
	}
	for _, p := range pieces {
		if ids, err = t.piece(ids, p); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// piece appends the tokens of a piece: its symbols, merged in the order of the merges' ranks, the
// leftmost first.
func (t *bpe) piece(ids []int32, piece string) ([]int32, error) {
	if id, ok := t.ids[piece]; ok && t.IgnoreMerges {
		return append(ids, id), nil
	}
	symbols, err := t.symbols(piece)
	if err != nil {
		return nil, err
	}
	n := len(symbols)
	next, previous := make([]int, n), make([]int, n)
	mergeAt := func(i int) (m merge, ok bool) {
		if i >= 0 && next[i] < n {
			m, ok = t.merges[[2]int32{symbols[i], symbols[next[i]]}]
		}
		return m, ok
	}
	var q queue
	push := func(i int) {
		if m, ok := mergeAt(i); ok {
			heap.Push(&q, m.rank<<32|i)
		}
	}
	for i := range symbols {
		next[i], previous[i] = i+1, i-1
	}
	for i := range symbols {
		push(i)
	}
	for len(q.IntSlice) > 0 {
		first := heap.Pop(&q).(int)
		i := first & (1<<32 - 1)
		m, ok := mergeAt(i)
		if !ok || m.rank != first>>32 {
			continue // one of the two was merged by now
		}
		j := next[i]
		symbols[i], symbols[j] = m.token, -1
		if next[i] = next[j]; next[i] < n {
			previous[next[i]] = i
		}
		push(previous[i])
		push(i)
	}
	for i := 0; i < n; i = next[i] {
		ids = append(ids, symbols[i])
	}
	return ids, nil
}

// A queue is a heap of merges to make: rank<<32 + the place of the left symbol.
type queue struct{ sort.IntSlice }

// Push appends a merge, for package heap.
func (q *queue) Push(x any) { q.IntSlice = append(q.IntSlice, x.(int)) }

// Pop removes the last merge, for package heap.
func (q *queue) Pop() any {
	last := q.Len() - 1
	x := q.IntSlice[last]
	q.IntSlice = q.IntSlice[:last]
	return x
}

// symbols returns the tokens that a piece consists of before merges.
func (t *bpe) symbols(piece string) (list []int32, err error) {
	for i, size := 0, 1; i < len(piece); i += size {
		if !t.bytewise {
			_, size = utf8.DecodeRuneInString(piece[i:])
		}
		symbol := piece[i : i+size]
		if id, ok := t.ids[symbol]; ok {
			list = append(list, id)
			continue
		}
		var bytes []int32
		for _, b := range []byte(symbol) {
			if id, ok := t.ids[fmt.Sprintf("<0x%02X>", b)]; ok && t.ByteFallback {
				bytes = append(bytes, id)
			}
		}
		switch {
		case len(bytes) == size:
			list = append(list, bytes...)
		case t.unknown < 0:
			return nil, fmt.Errorf("lm: %q is no token, and the tokenizer has no unk_token", symbol)
		default:
			list = append(list, t.unknown)
		}
	}
	return list, nil
}

// Token returns the bytes of a token.
func (t *bpe) Token(id int32) []byte { return []byte(t.tokens[id]) }

// Size returns one more than the largest token.
func (t *bpe) Size() int { return t.size }
