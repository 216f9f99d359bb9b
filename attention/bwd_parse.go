package attention

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseBackwardConfig reads what BackwardConfig.String writes: a path, then each tile behind the
// name of its kernel, then numbers of the whole configuration,
//
//	coopmat2 dkv sg4 rt1 by32 peel dq sg8 rt1 by64 prefetch peel
//	coopmat2 fused sg4 rt1 by32 splits2
//	coopmat2 stored sg4 rt4 by32 dq sg8 rt1 by64 chunk1
//	scalar dkv 32x32 t8x16 depth32 rows8 dq 32x32 t8x16 depth32 rows8
func ParseBackwardConfig(text string) (c BackwardConfig, err error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return c, fmt.Errorf("attention: backward: %q does not begin with a path", text)
	}
	if c.Impl, err = ParseImpl(words[0]); err != nil || c.Impl == Auto {
		return c, fmt.Errorf("attention: backward: %q does not begin with a path", text)
	}
	tiles := map[string]*BackwardTile{"dkv": &c.DKV, "dq": &c.DQ, "fused": &c.Fused, "stored": &c.Stored}
	var tile *BackwardTile
	for _, word := range words[1:] {
		if t := tiles[word]; t != nil {
			tile = t
			continue
		}
		if !c.parseWord(word, tile) {
			return c, fmt.Errorf("attention: backward: %q of %q is no part of a configuration", word, text)
		}
	}
	if same := c.String(); same != strings.Join(words, " ") {
		return c, fmt.Errorf("attention: backward: %q is no configuration: it would be %q", text, same)
	}
	return c, nil
}

// parseWord sets the choice that a word names, in c or in the tile t; t is nil before the first.
func (c *BackwardConfig) parseWord(word string, t *BackwardTile) bool {
	if t == nil {
		return false
	}
	switch word {
	case "prefetch":
		t.Prefetch = true
		return true
	case "peel":
		t.PeelMask = true
		return true
	case "detour":
		t.Detour = true
		return true
	}
	for prefix, target := range map[string]*int{
		"sg": &t.Subgroups, "rt": &t.RowTiles, "by": &t.Stream, "loadahead": &t.LoadAhead,
		"depth": &t.Depth, "rows": &t.Slice, "splits": &c.Splits, "chunk": &c.Chunk,
	} {
		if number, ok := strings.CutPrefix(word, prefix); ok {
			n, err := strconv.Atoi(number)
			*target = n
			return err == nil
		}
	}
	var a, b int
	if n, _ := fmt.Sscanf(word, "t%dx%d", &a, &b); n == 2 {
		t.ThreadsX, t.Threads = b, a*b
		return true
	}
	n, _ := fmt.Sscanf(word, "%dx%d", &t.Own, &t.Stream)
	return n == 2
}
