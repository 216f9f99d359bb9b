package lm

import (
	"container/heap"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// A splitter divides texts into the matches of a pattern and what is between them.
type splitter struct {
	*regexp.Regexp
	gap int // the group of white space that leaves its last character to what follows; 0: none
}

// newSplitter compiles a pattern as tokenizers write them. Go has no (?!\S), which leaves one
// character of white space to the word behind it, and its \s is ASCII.
func newSplitter(pattern string) (splitter, error) {
	text := strings.Replace(pattern, `\s+(?!\S)|\s+`, `(?P<gap>\s+)`, 1)
	var b strings.Builder
	class := false
	for i := 0; i < len(text); i++ {
		switch space := strings.HasPrefix(text[i:], `\s`); {
		case space && class:
			b.WriteString(`\s\v\x{85}\p{Z}`)
			i++
		case space:
			b.WriteString(`[\s\v\x{85}\p{Z}]`)
			i++
		case text[i] == '\\' && i+1 < len(text):
			b.WriteString(text[i : i+2])
			i++
		default:
			class = text[i] == '[' || class && text[i] != ']'
			b.WriteByte(text[i])
		}
	}
	re, err := regexp.Compile(b.String())
	if err != nil {
		return splitter{}, fmt.Errorf("pattern %q is not known: %w", pattern, err)
	}
	return splitter{re, max(re.SubexpIndex("gap"), 0)}, nil
}

// pieces calls f with the pieces of a text.
func (s *splitter) pieces(text string, f func(piece string)) {
	for text != "" {
		m := s.FindStringSubmatchIndex(text)
		if m == nil || m[1] == 0 {
			f(text)
			return
		}
		from, to := m[0], m[1]
		if s.gap > 0 && m[2*s.gap] >= 0 && to < len(text) {
			if _, n := utf8.DecodeLastRuneInString(text[from:to]); to-n > from {
				to -= n
			}
		}
		if from > 0 {
			f(text[:from])
		}
		f(text[from:to])
		text = text[to:]
	}
}

// Encode returns the tokens of a text.
func (t *bpe) Encode(text string, whole bool) (ids []int32, err error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("lm: text %.40q is not UTF-8", text)
	}
	if whole {
		ids = append(ids, t.begin...)
	}
	for rest := text; rest != "" && err == nil; {
		at, end := len(rest), len(rest)
		if t.addedRE != nil {
			if m := t.addedRE.FindStringIndex(rest); m != nil {
				at, end = m[0], m[1]
			}
		}
		if at > 0 {
			ids, err = t.section(ids, rest[:at], len(rest) == len(text))
		}
		if end > at {
			ids = append(ids, t.added[rest[at:end]])
		}
		rest = rest[end:]
	}
	if whole {
		ids = append(ids, t.end...)
	}
	return ids, err
}

// section appends the tokens of a text without special tokens, of which first is the first of its text.
func (t *bpe) section(ids []int32, text string, first bool) (_ []int32, err error) {
	for _, f := range t.normalize {
		text = f(text, first)
	}
	pieces := []string{text}
	for _, s := range t.split {
		var next []string
		for _, p := range pieces {
			s.pieces(p, func(piece string) { next = append(next, piece) })
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
	if id, ok := t.ids[piece]; ok && t.whole {
		return append(ids, id), nil
	}
	symbols, err := t.symbols(piece)
	if err != nil {
		return nil, err
	}
	n := len(symbols)
	next, previous := make([]int, n), make([]int, n)
	var queue pairs
	push := func(i int) {
		if i < 0 || next[i] >= n {
			return
		}
		if m, ok := t.merges[[2]int32{symbols[i], symbols[next[i]]}]; ok {
			heap.Push(&queue, pair{m, i, symbols[i], symbols[next[i]]})
		}
	}
	for i := range symbols {
		next[i], previous[i] = i+1, i-1
	}
	for i := range symbols {
		push(i)
	}
	for len(queue) > 0 {
		p := heap.Pop(&queue).(pair)
		j := next[p.at]
		if symbols[p.at] != p.left || j >= n || symbols[j] != p.right {
			continue // one of them was merged by now
		}
		symbols[p.at], symbols[j] = p.token, -1
		if next[p.at] = next[j]; next[j] < n {
			previous[next[j]] = p.at
		}
		push(previous[p.at])
		push(p.at)
	}
	for i := 0; i < n; i = next[i] {
		ids = append(ids, symbols[i])
	}
	return ids, nil
}

// symbols returns the tokens that a piece consists of before merges.
func (t *bpe) symbols(piece string) (list []int32, err error) {
	for i, size := 0, 0; i < len(piece); i += size {
		size = 1
		if !t.bytewise {
			_, size = utf8.DecodeRuneInString(piece[i:])
		}
		symbol := piece[i : i+size]
		id, ok := t.ids[symbol]
		switch {
		case ok:
			list = append(list, id)
			continue
		case t.fallback:
			var bytes []int32
			for _, b := range []byte(symbol) {
				if id, ok := t.ids[fmt.Sprintf("<0x%02X>", b)]; ok {
					bytes = append(bytes, id)
				}
			}
			if len(bytes) == size {
				list = append(list, bytes...)
				continue
			}
		}
		if t.unknown < 0 {
			return nil, fmt.Errorf("lm: %q is no token, and the tokenizer has no unk_token", symbol)
		}
		list = append(list, t.unknown)
	}
	return list, nil
}

// Token returns the bytes of a token.
func (t *bpe) Token(id int32) []byte {
	if id < 0 || int(id) >= len(t.tokens) {
		return nil
	}
	b := t.tokens[id]
	if t.bytewise {
		return b
	}
	var n byte
	if _, err := fmt.Sscanf(string(b), "<0x%02X>", &n); err == nil && len(b) == 6 {
		return []byte{n}
	}
	return []byte(strings.ReplaceAll(string(b), "▁", " "))
}

// Size returns one more than the largest token.
func (t *bpe) Size() int { return len(t.tokens) }

// A pair is two neighbours that a merge makes one token, the left one at a place.
type pair struct {
	merge
	at          int
	left, right int32
}

// pairs is a heap, the pair to merge first at its top.
type pairs []pair

func (p pairs) Len() int { return len(p) }

func (p pairs) Less(i, j int) bool {
	return p[i].rank < p[j].rank || p[i].rank == p[j].rank && p[i].at < p[j].at
}

func (p pairs) Swap(i, j int) { p[i], p[j] = p[j], p[i] }

// Push appends a pair, for package heap.
func (p *pairs) Push(x any) { *p = append(*p, x.(pair)) }

// Pop removes the last pair, for package heap.
func (p *pairs) Pop() any {
	last := len(*p) - 1
	x := (*p)[last]
	*p = (*p)[:last]
	return x
}
