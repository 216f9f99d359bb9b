package attention

import (
	"context"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// Reserve gives every sequence the pages for keys more keys than it has. Steps that append as many
// can then be recorded, and run without the host. The error names the sequence that would be longer than its cache,
// or the number of pages that are lacking; then nothing has changed.
func (k *KVCache) Reserve(ctx context.Context, keys int) error {
	if keys < 0 {
		return fmt.Errorf("attention: cache: keys=%d to reserve is negative", keys)
	}
	lens, err := k.lengths(ctx)
	if err != nil {
		return err
	}
	need := 0
	for b, n := range lens {
		if keys > k.config.SeqKV-n {
			return fmt.Errorf("attention: cache: sequence %d has %d keys, %d more are beyond the capacity seq_kv=%d", b, n, keys, k.config.SeqKV)
		}
		need += max(k.slotsFor(n+keys)-len(k.table[b]), 0)
	}
	if err := k.pool.enough(need); err != nil {
		return err
	}
	for b, n := range lens {
		for len(k.table[b]) < k.slotsFor(n+keys) {
			k.table[b] = append(k.table[b], k.pool.take())
		}
	}
	if k.contiguous() {
		return nil
	}
	return k.uploadTable(ctx)
}

// slotsFor is the number of slots of a sequence of n keys. A sequence of a contiguous cache always
// keeps its row.
func (k *KVCache) slotsFor(n int) int {
	if k.contiguous() {
		return 1
	}
	return (n + k.config.PageSize - 1) / k.config.PageSize
}

func (p *slotPool) enough(need int) error {
	if need > len(p.free) {
		return fmt.Errorf("attention: cache: %d more pages are needed, but %d of %d are free", need, len(p.free), len(p.refs))
	}
	return nil
}

// Truncate shortens a sequence to its first n keys, and frees the pages after them, reserved ones
// too.
func (k *KVCache) Truncate(ctx context.Context, sequence, n int) error {
	if sequence < 0 || sequence >= k.config.Batch {
		return fmt.Errorf("attention: cache: sequence=%d is not from 0 to %d", sequence, k.config.Batch-1)
	}
	lens, err := k.Len(ctx)
	if err != nil {
		return err
	}
	row := k.table[sequence]
	if most := min(lens[sequence], len(row)*k.slotKeys()); n < 0 || n > most {
		return fmt.Errorf("attention: cache: sequence %d has %d keys, of which n=%d cannot be the first", sequence, most, n)
	}
	pool, slots := k.pool.clone(), k.slotsFor(n)
	pool.drop(row[slots:])
	row = slices.Clone(row[:slots])
	var copies []slotCopy
	if tail := n / k.slotKeys(); tail < slots && pool.refs[row[tail]] > 1 { // another sequence has it, too
		if err := pool.enough(1); err != nil {
			return err
		}
		own := pool.take()
		copies = append(copies, slotCopy{own, row[tail], n % k.slotKeys()})
		pool.drop(row[tail:])
		row[tail] = own
	}
	if err := k.copySlots(ctx, copies); err != nil {
		return err
	}
	k.pool, k.table[sequence], lens[sequence] = pool, row, n
	return k.upload(ctx, lens)
}

// Prefill makes the sequences to copies of the sequence from, so that they continue the same
// prompt. Their own keys are lost.
func (k *KVCache) Prefill(ctx context.Context, from int, to ...int) error {
	parents := make([]int, k.config.Batch)
	for b := range parents {
		parents[b] = b
	}
	for _, b := range to {
		if b < 0 || b >= len(parents) {
			return fmt.Errorf("attention: cache: sequence=%d is not from 0 to %d", b, len(parents)-1)
		}
		parents[b] = from
	}
	return k.Reorder(ctx, parents)
}

// Reorder makes each sequence b a copy of the old sequence parents[b], as a beam search demands.
// Copies share full pages. Keys of other pages are copied if a sequence has several heirs. Reserved
// pages stay with sequence number b, so Reserve comes after Reorder.
func (k *KVCache) Reorder(ctx context.Context, parents []int) error {
	batch := k.config.Batch
	if len(parents) != batch {
		return fmt.Errorf("attention: cache: %d parents of %d sequences", len(parents), batch)
	}
	heir := slices.Repeat([]int{-1}, batch) // by old sequence: the new sequence that keeps the pages that are not full
	for b, s := range parents {
		if s < 0 || s >= batch {
			return fmt.Errorf("attention: cache: sequence=%d is not from 0 to %d", s, batch-1)
		}
		if heir[s] < 0 || s == b {
			heir[s] = b
		}
	}
	lens, err := k.lengths(ctx)
	if err != nil {
		return err
	}
	table, pool, copies, err := k.inherit(parents, heir, lens)
	if err != nil {
		return err
	}
	if err := k.copySlots(ctx, copies); err != nil {
		return err
	}
	k.table, k.pool = table, pool
	next := make([]int, batch)
	for b, s := range parents {
		next[b] = lens[s]
	}
	return k.upload(ctx, next)
}

// inherit returns the tables after Reorder, and the copies to make.
func (k *KVCache) inherit(parents, heir, lens []int) (table [][]int32, pool slotPool, copies []slotCopy, err error) {
	keys := k.slotKeys()
	full := func(s int) int { // slots that may be shared: nothing is written to them
		if k.contiguous() {
			return 0
		}
		return lens[s] / keys
	}
	pool, table = k.pool.clone(), make([][]int32, len(parents))
	for b, s := range parents {
		table[b] = slices.Clone(k.table[s][:full(s)])
		pool.share(table[b])
	}
	for s, row := range k.table {
		pool.drop(row[:full(s)])
		if heir[s] < 0 {
			pool.drop(row[full(s):k.slotsFor(lens[s])])
		}
	}
	need := 0
	for b, s := range parents {
		if heir[s] != b {
			need += k.slotsFor(lens[s]) - full(s)
		}
	}
	if err := pool.enough(need); err != nil {
		return nil, pool, nil, err
	}
	for b, s := range parents {
		for _, slot := range k.table[s][full(s):k.slotsFor(lens[s])] { // one at most
			if heir[s] != b {
				own := pool.take()
				copies = append(copies, slotCopy{own, slot, lens[s] - full(s)*keys})
				slot = own
			}
			table[b] = append(table[b], slot)
		}
		spare := k.table[b][k.slotsFor(lens[b]):]
		most := k.config.SeqKV/keys - len(table[b])
		pool.drop(spare[min(most, len(spare)):])
		table[b] = append(table[b], spare[:min(most, len(spare))]...)
	}
	return table, pool, copies, nil
}

// A slotCopy copies the first keys of a slot to another slot.
type slotCopy struct {
	to, from int32
	keys     int
}

// copySlots copies on the device, in all layers.
func (k *KVCache) copySlots(ctx context.Context, copies []slotCopy) error {
	return k.transfer(ctx, func(c *vk.Cmd) {
		for _, x := range copies {
			for _, list := range k.layers() {
				for _, layer := range list {
					copyKeys(c, layer, layer, x)
				}
			}
		}
	})
}

// transfer runs copies after all commands that have been started, and waits for them.
func (k *KVCache) transfer(ctx context.Context, record func(c *vk.Cmd)) error {
	return k.d.Run(ctx, "cache.copy", func(c *vk.Cmd) error {
		record(c)
		return nil
	})
}

// copyKeys copies keys of a slot of a tensor to a slot of a tensor of the same layout.
func copyKeys(c *vk.Cmd, to, from vk.Tensor, x slotCopy) {
	if x.keys == 0 || len(from.Shape) != 4 { // scales of heads are of all slots
		return
	}
	heads, n, size := from.Shape[1], x.keys*from.Shape[3], from.DType.Size()
	if from.Strides[2] != from.Shape[3] { // NHD: heads follow one another
		heads, n = 1, n*heads
	}
	for h := range heads {
		c.Copy(to.Buffer, int64((int(x.to)*to.Strides[0]+h*to.Strides[1])*size),
			from.Buffer, int64((int(x.from)*from.Strides[0]+h*from.Strides[1])*size), int64(n*size))
	}
}

// Grow makes room for seqKV keys per sequence and, in a paged cache, pages pages in all; pages is 0
// for a contiguous cache. The content stays. K, V and BlockTable become new tensors, so commands
// recorded with the old ones must be recorded again.
func (k *KVCache) Grow(ctx context.Context, seqKV, pages int) error {
	old, config := k.config, k.config
	config.SeqKV, config.Pages = seqKV, pages
	if seqKV < old.SeqKV || pages < old.Pages {
		return fmt.Errorf("attention: cache: seq_kv=%d, pages=%d are less than the cache has, seq_kv=%d, pages=%d", seqKV, pages, old.SeqKV, old.Pages)
	}
	if err := config.Validate(); err != nil {
		return err
	}
	lens, err := k.lengths(ctx)
	if err != nil {
		return err
	}
	blocks := k.BlockTable
	if !k.contiguous() && seqKV > old.SeqKV {
		if blocks, err = k.d.NewTensor("cache.block_table", dtype.Int32, config.BlockTableShape()...); err != nil {
			return err
		}
	}
	layers, err := k.newLayers(&config)
	if err == nil {
		err = k.transfer(ctx, func(c *vk.Cmd) { k.copyAll(c, &layers, lens) })
	}
	if err != nil {
		layers.close()
		if blocks.Buffer != k.BlockTable.Buffer {
			blocks.Close()
		}
		return err
	}
	before := k.layers()
	before.close()
	if blocks.Buffer != k.BlockTable.Buffer {
		k.BlockTable.Close()
	}
	k.setLayers(layers)
	k.BlockTable, k.config = blocks, config
	if !k.contiguous() {
		k.pool.refs = append(k.pool.refs, make([]int, pages-old.Pages)...)
		k.pool.add(old.Pages)
	}
	return k.upload(ctx, lens)
}

// copyAll copies the content of all sequences to new layers.
func (k *KVCache) copyAll(c *vk.Cmd, layers *cacheLayers, lens []int) {
	before := k.layers()
	for i, list := range layers {
		for layer, t := range list {
			if from := before[i][layer]; len(t.Shape) == 1 { // scales of heads
				c.Copy(t.Buffer, 0, from.Buffer, 0, int64(t.NumElements()*t.DType.Size()))
			}
		}
	}
	done := map[int32]bool{} // shared pages
	for b, row := range k.table {
		for i, slot := range row[:k.slotsFor(lens[b])] {
			x := slotCopy{slot, slot, min(lens[b]-i*k.slotKeys(), k.slotKeys())}
			if done[slot] {
				continue
			}
			done[slot] = true
			for i, list := range layers {
				for layer, t := range list {
					copyKeys(c, t, before[i][layer], x)
				}
			}
		}
	}
}
