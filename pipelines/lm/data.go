package lm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/flashvk/flashvk/internal/files"
)

// Ignored is the label of a token that the loss does not count.
const Ignored = -100

// DataOptions say what rows of tokens are made of a file.
type DataOptions struct {
	Seqlen   int     // tokens of a row
	Truncate bool    // a longer sample loses its end; else it is an error
	Seed     uint64  // of the order
	HeldOut  float64 // the part of the samples, or of the rows of a stream, that is apart for evaluations; 0: none
}

// Data are rows of tokens to train on, for one goroutine at a time.
type Data struct {
	Seqlen int

	path    string
	seed    uint64
	samples []example
	rows    [][]int                              // the samples of each row; nil: the rows are parts of the stream
	tokens  int64                                // of a stream, a long row of tokens
	read    func(ids []int32, first int64) error // of a stream; nil: there are samples
	file    io.Closer                            // of a stream; nil: none
	first   int                                  // of a stream: the first of its rows
	count   int                                  // rows
	longest int                                  // tokens of a sequence
	most    int                                  // sequences of a row
	epoch   int                                  // of order
	order   []int                                // of the rows in an epoch; nil: none so far
}

// An example is a sample, a text: labels[i] is the token that follows ids[i], or Ignored.
type example struct{ ids, labels []int32 }

// ReadData reads what a model is to be trained on, with the tokenizer and the chat template of a
// checkpoint's folder. The ending of a file's name says what is in it:
//
//	.jsonl  a JSON object in each line, a sample with one of these, and any other fields:
//	        {"text": "..."}                                   all tokens are learned
//	        {"prompt": "...", "completion": "..."}            those of the completion
//	        {"messages": [{"role": "user", "content": "..."},
//	                      {"role": "assistant", ...}, ...]}   those of the assistant's messages
//	.txt    a long text
//	.u16    tokens, each in 2 bytes, little-endian
//	.u32    tokens, each in 4 bytes
//
// Texts and completions end with the first of the configuration's EOS, which is learned, too; an
// assistant's message ends with the mark of the template. Samples are put into rows of Seqlen tokens, each
// into the first row that has room for it, in an order by Seed; they do not see each other. Other
// files are cut into rows, whose first token follows the last of the row before. Token files
// stay on disk, and all their tokens are checked first.
//
// An error names the file and, of a sample, the line: a line that is not as above, an empty text,
// completion or message of the assistant, a character that is no token, more than Seqlen tokens, or
// Seqlen tokens of which none is learned.
//
// Held is nil without HeldOut. Close both.
func ReadData(dir string, c *Config, path string, o DataOptions) (data, held *Data, err error) {
	switch {
	case o.Seqlen < 1 || o.Seqlen > c.Positions:
		return nil, nil, fmt.Errorf("lm: seqlen=%d is not from 1 to max_position_embeddings=%d", o.Seqlen, c.Positions)
	case !(o.HeldOut >= 0 && o.HeldOut < 1):
		return nil, nil, fmt.Errorf("lm: held_out=%v is not from 0 to less than 1", o.HeldOut)
	}
	d := &Data{Seqlen: o.Seqlen, path: path, seed: o.Seed}
	switch ext := filepath.Ext(path); ext {
	case ".jsonl", ".txt":
		err = d.readTexts(dir, c, o, ext == ".txt")
	case ".u16", ".u32":
		err = d.openTokens(c.Vocabulary, map[string]int64{".u16": 2, ".u32": 4}[ext])
	default:
		err = fmt.Errorf("lm: %s: the ending is none of .jsonl, .txt, .u16, .u32", path)
	}
	if err != nil {
		d.Close()
		return nil, nil, err
	}
	if d.read != nil {
		d.count = int((d.tokens - 1) / int64(d.Seqlen))
	}
	if o.HeldOut > 0 {
		held = d.split(o.HeldOut)
	}
	for _, x := range []*Data{d, held} {
		if x == nil {
			continue
		}
		if x.read == nil {
			x.pack()
		}
		if x.count == 0 {
			d.Close()
			return nil, nil, fmt.Errorf("lm: %s: too little for a row of %d tokens, with held_out=%v", path, o.Seqlen, o.HeldOut)
		}
	}
	return d, held, nil
}

// split takes a part out of d, and returns it: random samples, or the last rows of a stream.
func (d *Data) split(part float64) *Data {
	held := &Data{Seqlen: d.Seqlen, path: d.path, seed: d.seed, read: d.read, file: d.file}
	if d.read != nil {
		held.count = int(part*float64(d.count) + 0.5)
		d.count -= held.count
		held.first = d.count
		return held
	}
	order, n := rand.New(rand.NewPCG(d.seed, 1)).Perm(len(d.samples)), int(part*float64(len(d.samples))+0.5)
	pick := func(places []int) (list []example) {
		for _, at := range places {
			list = append(list, d.samples[at])
		}
		return list
	}
	held.samples, d.samples = pick(order[:n]), pick(order[n:])
	return held
}

// readTexts reads a text as a stream, or a sample of each line.
func (d *Data) readTexts(dir string, c *Config, o DataOptions, whole bool) error {
	t, err := ReadTokenizer(dir, c.Vocabulary)
	if err != nil {
		return err
	}
	x := &texts{tokenizer: t, chat: sync.OnceValues(func() (*Chat, error) { return ReadChat(dir) })}
	if len(c.EOS) > 0 && int(c.EOS[0]) < c.Vocabulary {
		x.end = c.EOS[:1]
	}
	text, err := os.ReadFile(d.path)
	if err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	if !whole {
		d.samples, err = x.samples(d.path, text, o)
		return err
	}
	ids, _, err := x.encode([]part{{string(text), true}}, true)
	if err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	d.tokens = int64(len(ids))
	d.read = func(to []int32, first int64) error {
		copy(to, ids[first:])
		return nil
	}
	return nil
}

// openTokens opens a file of tokens, of which memory holds what is read, and checks all of them.
func (d *Data) openTokens(vocabulary int, bytes int64) error {
	f, err := os.Open(d.path)
	if err != nil {
		return fmt.Errorf("lm: %w", err)
	}
	d.file = f
	d.read = func(ids []int32, first int64) error {
		raw := make([]byte, int64(len(ids))*bytes)
		if _, err := f.ReadAt(raw, first*bytes); err != nil {
			return fmt.Errorf("lm: %s: token %d: %w", d.path, first, files.Bare(err))
		}
		for i := range ids {
			if bytes == 2 {
				ids[i] = int32(binary.LittleEndian.Uint16(raw[2*i:]))
			} else {
				ids[i] = int32(binary.LittleEndian.Uint32(raw[4*i:])) // of 2^31 on it is negative
			}
		}
		return nil
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		return fmt.Errorf("lm: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("lm: %s: is %s, not a regular file", d.path, files.Kind(info.Mode()))
	case info.Size()%bytes != 0:
		return fmt.Errorf("lm: %s: %d bytes are not tokens of %d each", d.path, info.Size(), bytes)
	}
	d.tokens = info.Size() / bytes
	buffer := make([]int32, 1<<20)
	for first := int64(0); first < d.tokens; first += int64(len(buffer)) {
		ids := buffer[:min(int64(len(buffer)), d.tokens-first)]
		if err := d.read(ids, first); err != nil {
			return err
		}
		for i, id := range ids {
			if id < 0 || int(id) >= vocabulary {
				return fmt.Errorf("lm: %s: token %d is %d, which is not from 0 to vocab_size-1=%d", d.path, first+int64(i), uint32(id), vocabulary-1)
			}
		}
	}
	return nil
}

// Close closes the file of a stream. It may be called again, and on nil.
func (d *Data) Close() error {
	if d == nil || d.file == nil {
		return nil
	}
	if err := d.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("lm: %w", err)
	}
	return nil
}

// pack puts samples into rows, each into the first row that has room, in an order by the seed.
func (d *Data) pack() {
	leaves := 1
	for leaves < len(d.samples) {
		leaves *= 2
	}
	room := slices.Repeat([]int{d.Seqlen}, 2*leaves) // a tree: the rows are its leaves, a node has the most of its two
	for _, s := range rand.New(rand.NewPCG(d.seed, 0)).Perm(len(d.samples)) {
		n, at := len(d.samples[s].ids), 1
		for at < leaves {
			if at *= 2; room[at] < n {
				at++
			}
		}
		room[at] -= n
		if at-leaves == len(d.rows) {
			d.rows = append(d.rows, nil)
		}
		d.rows[at-leaves] = append(d.rows[at-leaves], s)
		d.longest = max(d.longest, n)
		for at /= 2; at > 0; at /= 2 {
			room[at] = max(room[2*at], room[2*at+1])
		}
	}
	d.count = len(d.rows)
	for i, row := range d.rows {
		d.most = max(d.most, len(row)+(room[leaves+i]+d.longest-1)/d.longest)
	}
}

// Rows returns the number of rows, each of which an epoch has once.
func (d *Data) Rows() int { return d.count }

// Sizes returns those of a batch of `rows` rows, as TrainOptions want them: packed rows are one long row, of which what is
// left is sequences, too.
func (d *Data) Sizes(rows int) Sizes {
	if d.rows == nil {
		return Sizes{Batch: rows, Seq: d.Seqlen}
	}
	return Sizes{Batch: 1, Seq: rows * d.Seqlen, Sequences: d.most * rows, Longest: d.longest}
}

// String says how much there is.
func (d *Data) String() string {
	if d.rows == nil {
		return fmt.Sprintf("%d rows of %d tokens", d.count, d.Seqlen)
	}
	tokens, learned := 0, 0
	for _, s := range d.samples {
		tokens += len(s.ids)
		for _, label := range s.labels {
			if label != Ignored {
				learned++
			}
		}
	}
	return fmt.Sprintf("%d samples of %d tokens, of which %d are learned, in %d rows of %d", len(d.samples), tokens, learned, d.count, d.Seqlen)
}

// Batch returns batch i of a training, from 0 on. Batches follow one another through the epochs, each
// of which has another order of the rows; the last of an epoch may have the first rows of the next.
// Packed rows lie one behind the other in one long row.
func (d *Data) Batch(i, rows int) (Batch, error) {
	return d.batch(rows, func(j int) int {
		at := i*rows + j
		if epoch := at / d.count; d.order == nil || d.epoch != epoch {
			d.epoch, d.order = epoch, rand.New(rand.NewPCG(d.seed, 2+uint64(epoch))).Perm(d.count)
		}
		return d.order[at%d.count]
	})
}

// Evaluation returns batch i of an evaluation, which has all rows in their order, and in the last batch
// perhaps rows of no meaning behind them, whose labels are Ignored.
func (d *Data) Evaluation(i, rows int) (Batch, error) {
	return d.batch(rows, func(j int) int { return i*rows + j })
}

// batch returns the batch of the rows that a function says.
func (d *Data) batch(rows int, row func(j int) int) (Batch, error) {
	n := rows * d.Seqlen
	b := Batch{Shape: [2]int{rows, d.Seqlen}, IDs: make([]int32, n), Labels: slices.Repeat([]int32{Ignored}, n)}
	if d.rows != nil {
		b.Shape, b.CuSeqlens = [2]int{1, n}, []int32{0}
	}
	for j := range rows {
		r, at, end := row(j), j*d.Seqlen, (j+1)*d.Seqlen
		if r < d.count && d.rows == nil {
			window := make([]int32, d.Seqlen+1)
			if err := d.read(window, int64(d.first+r)*int64(d.Seqlen)); err != nil {
				return Batch{}, err
			}
			copy(b.IDs[at:], window[:d.Seqlen])
			copy(b.Labels[at:], window[1:])
		} else if r < d.count {
			for _, s := range d.rows[r] {
				copy(b.IDs[at:], d.samples[s].ids)
				copy(b.Labels[at:], d.samples[s].labels)
				at += len(d.samples[s].ids)
				b.CuSeqlens = append(b.CuSeqlens, int32(at))
			}
		}
		for d.rows != nil && at < end {
			at = min(at+d.longest, end)
			b.CuSeqlens = append(b.CuSeqlens, int32(at))
		}
	}
	return b, nil
}
