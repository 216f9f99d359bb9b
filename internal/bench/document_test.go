package bench

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWriteDocument(t *testing.T) {
	type inner struct{ MaxAbs, X float64 }
	x := struct {
		List   []inner
		Empty  []int
		Nested map[string]any
		Text   string `json:"text"`
		Big    uint64
	}{[]inner{{1e-300, 2}, {}}, []int{}, map[string]any{"ByName": nil, "yes": true}, "a<b> \"q\"\n", 1<<64 - 1}
	var b strings.Builder
	require.NoError(t, WriteDocument(&b, "test", time.Date(2026, 11, 23, 7, 0, 0, 0, time.FixedZone("", 3600)), x))
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(b.String()), &got))
	require.Equal(t, map[string]any{
		"schema": 1.0, "kind": "test", "made": "2026-11-23T06:00:00Z", "program": ReadBuildInfo().String(),
		"list": []any{map[string]any{"max_abs": 1e-300, "x": 2.0}, map[string]any{"max_abs": 0.0, "x": 0.0}}, "empty": []any{},
		"nested": map[string]any{"by_name": nil, "yes": true}, "text": "a<b> \"q\"\n", "big": 18446744073709551615.0,
	}, got)
	require.Contains(t, b.String(), "18446744073709551615")
	require.Contains(t, b.String(), `"a<b> `)
	for _, key := range regexp.MustCompile(`"([^"]*)":`).FindAllStringSubmatch(b.String(), -1) {
		require.Regexp(t, `^[a-z0-9_]+$`, key[1])
	}
	require.ErrorContains(t, WriteDocument(&b, "test", time.Time{}, []int{1}), "is an object")
}
